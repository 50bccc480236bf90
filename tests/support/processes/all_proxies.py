"""An Envoy, a HAProxy and an nginx in front of the same engines, driven by one `lbctl serve`, with the default settings
of a fleet. Measures the responses that clients got and the weights that the proxies received, in any period.

The requests of a period of 20 s always have the same lengths, in another order, so that the load of two periods is
equal.
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import yaml

from lbctl.apply.haproxy.runtime import Runtime
from lbctl.base.percentiles import percentile_of
from tests.support.fleets import Fleet
from tests.support.processes import background, edges
from tests.support.processes.client import Client, Load, Steady
from tests.support.processes.control import ControlPlane, XdsEnvoy, controlling, driven
from tests.support.processes.edges import Edge
from tests.support.processes.engines import Engine
from tests.support.processes.exporters import Exporter
from tests.support.processes.fleet import fleet_of, pool_of
from tests.support.processes.http1 import Request, Response
from tests.support.processes.waiting import eventually

STRETCH = 20.0
"""Length of a period in seconds."""
INTERVAL, STALE_AFTER, STALLED_AFTER, MIN_INTERVAL = 5.0, 15.0, 15.0, 30.0
"""Default settings in seconds."""
_OUTPUT, _PROMPT, _SPREAD = 60, 400, 0.9
"""Medians of the tokens, and standard deviation of their logarithm, similar to conversations with a model."""
_NGINX_SERVER = re.compile(r"server 127\.0\.0\.1:(\d+)([^;]*);")


class Lengths:
    """Requests at `rate` per second, with lognormal numbers of tokens in prompts and responses.

    `scale`: factor on both; `patience`: seconds until the client gives up.
    """

    def __init__(self, rate: float, seed: int, scale: float, patience: float) -> None:
        self._count = round(rate * STRETCH)
        self._seed = seed
        self._patience = patience
        places = [NormalDist(0, _SPREAD).inv_cdf((place + 0.5) / self._count) for place in range(self._count)]
        factors = [2.718281828**place for place in places]
        prompts = random.Random(seed).sample(factors, self._count)
        self._pairs = [
            (max(2, round(_OUTPUT * scale * one)), max(1, round(_PROMPT * scale * other)))
            for one, other in zip(factors, prompts, strict=True)
        ]
        self._order: dict[int, list[tuple[int, int]]] = {}

    def __call__(self, number: int) -> Request:
        stretch, place = divmod(number, self._count)
        if stretch not in self._order:
            self._order[stretch] = random.Random(self._seed * 1000 + stretch).sample(self._pairs, self._count)
        tokens, prompt = self._order[stretch][place]
        return Request("POST", f"/v1/completions?n={tokens}&q={prompt}&stream=1", timeout=self._patience)


@dataclass(frozen=True, slots=True)
class Got:
    """The requests that clients sent in a period."""

    responses: tuple[Response, ...]

    @property
    def counts(self) -> Counter[str]:
        return Counter(item.replica or "" for item in self.responses if item.ok)

    def share(self, name: str) -> float:
        counts = self.counts
        return counts[name] / counts.total()

    def whole(self, percent: float = 99) -> float:
        """Return the percentile of the whole duration, in seconds."""
        return percentile_of([item.seconds for item in self.responses], percent)

    def first(self, percent: float = 99) -> float:
        """Return the percentile of the time to the first byte, in seconds."""
        return percentile_of([(item.headers_at or item.finished) - item.started for item in self.responses], percent)

    def __add__(self, other: Got) -> Got:
        return Got(self.responses + other.responses)


def got(load: Load, since: float, until: float = float("inf")) -> Got:
    """Return the responses to the requests that were sent between the two times (`time.monotonic()`)."""
    return Got(tuple(item for item in load.responses if since <= item.started < until))


class Three:
    """The proxies, and the control plane that drives them. Names: `envoy`, `haproxy`, `nginx`."""

    def __init__(self, control: ControlPlane, envoy: XdsEnvoy, haproxy: Edge, nginx: Edge, fleet: Fleet) -> None:
        self.control = control
        self.envoy = envoy
        self.haproxy = haproxy
        self.nginx = nginx
        self.fleet = fleet

    @property
    def clients(self) -> dict[str, Client]:
        return {"envoy": self.envoy.client(), "haproxy": self.haproxy, "nginx": self.nginx}

    @contextmanager
    def load(self, rate: float, *, scale: float = 1.0, patience: float = 60.0) -> Iterator[dict[str, Steady]]:
        """Send `rate` requests per second, of `Lengths`, to each proxy."""
        with ExitStack() as stack:
            yield {
                name: stack.enter_context(client.steady(rate, Lengths(rate, seed, scale, patience)))
                for seed, (name, client) in enumerate(self.clients.items(), 1)
            }

    # ── Weights and decisions ────────────────────────────────────────────────────────────────────────────────────────

    def decided(self, pool: str = "pool") -> dict[str, float]:
        """Return replica → weight on the scale of capacities."""
        pools = {item["name"]: item for item in self.control.get("pools")["pools"]}
        return {item["name"]: item["weight"] for item in pools[pool]["replicas"]}

    def weights(self, members: Sequence[Engine], pool: str = "pool") -> dict[str, dict[str, int]]:
        """Return proxy → replica → the weight in the proxy's own range.

        For nginx it is read from the file, and is 0 if the replica is marked `down`.
        """
        envoy = self.envoy.weights(pool)
        return {
            "envoy": {item.name: envoy[item.address] for item in members if item.address in envoy},
            "haproxy": haproxy_weights(self.haproxy, pool),
            "nginx": nginx_weights(self.nginx.config.read_text(), members),
        }

    # ── The fleet ────────────────────────────────────────────────────────────────────────────────────────────────────

    def change(self, **pool: Any) -> None:
        """Write another fleet file, in which the pool has other keys."""
        self.fleet["pools"]["pool"].update(pool)
        self.control.write(self.fleet)


def haproxy_weights(haproxy: Edge, pool: str = "pool") -> dict[str, int]:
    """Return replica → weight, from the Runtime API."""
    reply = background.wait(Runtime(str(haproxy.entry["runtime_api"])).query("show servers state"))
    rows = [line.split() for line in reply.texts[0].splitlines() if line and line[0] != "1"]
    place = {name: number for number, name in enumerate(rows[0][1:])}
    return {
        row[place["srv_name"]]: int(row[place["srv_uweight"]])
        for row in rows[1:]
        if row[place["be_name"]].startswith(f"pool_{pool}")
    }


def nginx_weights(text: str, members: Sequence[Engine]) -> dict[str, int]:
    """Return replica → weight in (a part of) a configuration of nginx; 0 if the replica is marked `down`."""
    names = {item.port: item.name for item in members}
    servers = _NGINX_SERVER.findall(text)
    return {names[int(port)]: _nginx_weight(words) for port, words in servers if int(port) in names}


def _nginx_weight(parameters: str) -> int:
    weight = re.search(r"weight=(\d+)", parameters)
    return 0 if " down" in parameters else int(weight[1]) if weight else 1


def pool_by_default(members: Sequence[Engine], exporters: Sequence[Exporter] = (), **keys: Any) -> dict[str, Any]:
    """Return a pool that sets its source and a path to check, and otherwise uses defaults.

    With `exporters`, the source is each replica's page there.
    """
    pool = pool_of(members, health={"active": {"http": {"path": "/health"}}}, **keys)
    if not exporters:
        return {"telemetry": {"sources": [source("{host}:{port}")]}, **pool}
    for entry, exporter in zip(pool["replicas"], exporters, strict=True):
        entry["telemetry"] = {**keys.get("telemetry", {}), "sources": [source(exporter.address)]}
    return pool


def source(address: str) -> dict[str, str]:
    """Return the keys of a source that reads vLLM's page at this address."""
    return {"kind": "vllm", "url": f"http://{address}/metrics"}


@contextmanager
def three(pool: Mapping[str, Any], **sections: Any) -> Iterator[Three]:
    """Run all three proxies in front of `pool` (with additional `sections` of a fleet), and wait until they have the
    initial decisions."""
    with ExitStack() as stack:
        haproxy, nginx = stack.enter_context(edges.haproxy()), stack.enter_context(edges.nginx())
        fleet = fleet_of(pool, **driven("envoy"))
        del fleet["listeners"]["gateway"]
        for edge in (haproxy, nginx):
            edge.entry["reload"].pop("min_interval")
        for more in (haproxy.sections, nginx.sections, sections):
            for section, entries in more.items():
                fleet[section] = {**fleet.get(section, {}), **entries}
        fleet = yaml.safe_load(yaml.safe_dump(fleet))
        for edge in (haproxy, nginx):
            stack.enter_context(edges.started_edge(edge, fleet))
        control = stack.enter_context(controlling(fleet))
        eventually(lambda: all(control.proxies[item.name]["state"] == "SYNCED" for item in (haproxy, nginx)), 20)
        envoy = stack.enter_context(control.envoy("envoy", ["envoy"]))
        yield Three(control, envoy, haproxy, nginx, fleet)


def until(moment: float) -> None:
    """Wait until this time (`time.monotonic()`)."""
    time.sleep(max(0.0, moment - time.monotonic()))
