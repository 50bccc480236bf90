"""What a rule looks at: the fleet as written and as meant, and a few questions that many rules ask of it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from lbctl.base.diagnostics import Path
from lbctl.ir.address import Address
from lbctl.ir.pools import MetricsSource, Pool, Replica, Telemetry
from lbctl.ir.routes import Forward, Route
from lbctl.ir.topology import Topology
from lbctl.model.node import Node, descend
from lbctl.targets.load import Loaded

GENERATIVE_KINDS = frozenset({"vllm", "sglang", "tgi", "trtllm", "lmdeploy", "nim", "llamacpp"})
"""Engines that make tokens."""
_WHOLE = re.compile(
    r"embed|rerank|classif|score|pooling|moderation|\bbge\b|\bgte\b|\be5\b|clip|whisper|resnet|yolo|bert"
)
"""In a path or a model's name: answers at once, however it is served."""
_STREAMS = re.compile(r"/(chat|completions?|generate|generate_stream|responses|messages)(/|$)")


@dataclass(frozen=True, slots=True)
class Load:
    """What the command line says will come: requests a second, and seconds for which each keeps a replica busy."""

    rate: float
    mean_service: float


@dataclass(frozen=True)
class Subject:
    """A fleet without errors."""

    loaded: Loaded
    load: Load | None = None

    @property
    def topology(self) -> Topology:
        return self.loaded.compiled.topology

    @property
    def pools(self) -> tuple[Pool, ...]:
        return self.topology.pools

    @cached_property
    def forwards(self) -> tuple[tuple[Route, Forward], ...]:
        """Every route that leads to pools."""
        return tuple((item, item.action) for item in self.topology.routes if isinstance(item.action, Forward))

    @cached_property
    def kinds(self) -> frozenset[str]:
        """Of the proxies that the fleet names."""
        return frozenset(item.kind for item in self.topology.proxies)

    def pool(self, name: str) -> Pool:
        return self._by_name[name]

    def written(self, path: Path) -> Node | None:
        """What stands in the YAML at `path`, its own or by `defaults`."""
        sources = self.loaded.compiled.sources
        return descend(sources.root, sources.written(path))

    def routes_to(self, pool: str) -> Iterator[Route]:
        """Those whose requests it serves first; not as a fallback or a mirror."""
        return (
            route
            for route, action in self.forwards
            if pool in {item.pool for item in action.shares} | {item.pool for item in action.pins}
        )

    def streams(self, route: Route) -> bool:
        """Whether its answers are generated token by token, as far as path, model or engine tell."""
        paths = self._paths.get(route.name, [])
        if any(_WHOLE.search(path) for path in paths):
            return False
        if any(_STREAMS.search(path) for path in paths):
            return True
        return isinstance(route.action, Forward) and any(self._generates(item.pool) for item in route.action.shares)

    def generates(self, pool: str) -> bool:
        """Whether a pool serves a model that generates."""
        return self._generates(pool) or any(self.streams(route) for route in self.routes_to(pool))

    def _generates(self, name: str) -> bool:
        pool = self.pool(name)
        if pool.model is not None:
            return not _WHOLE.search(pool.model.name.lower())
        return any(source.kind in GENERATIVE_KINDS for source in sources_of(pool))

    @cached_property
    def _by_name(self) -> dict[str, Pool]:
        return {item.name: item for item in self.pools}

    @cached_property
    def _paths(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for listener in self.topology.listeners:
            for item in listener.rules:
                found.setdefault(item.route, []).append(item.path.value.lower())
        return found


def telemetries(pool: Pool) -> Iterator[tuple[Path, Telemetry]]:
    """The pool's own, and those of replicas that have one."""
    if pool.telemetry is not None:
        yield ("pools", pool.name, "telemetry"), pool.telemetry
    for replica in pool.replicas:
        if replica.telemetry is not None:
            yield ("pools", pool.name, "replicas", replica.name, "telemetry"), replica.telemetry


def sources_of(pool: Pool) -> Iterator[MetricsSource]:
    return (source for _, telemetry in telemetries(pool) for source in telemetry.sources)


def serving(pool: Pool) -> list[Replica]:
    """The replicas that get requests while all are well: not drained, of the first priority."""
    left = [item for item in pool.replicas if not item.drain]
    first = min((item.priority for item in left), default=0)
    return [item for item in left if item.priority == first]


def is_loopback(address: Address) -> bool:
    if address.path or address.host == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        return False
