"""`python -m tests.benchmarks.azure [--seeds N …] [--scenario WORD]`: replay a real trace through real proxies.

It prints a Markdown table that compares round robin, static weights, and `lbctl serve` with its defaults. Six engines
(`paced`: two GPUs each of speeds 5 : 2 : 1) run behind two Envoys and two HAProxies for each way of balancing. All of
these sets run side by side and get the same requests.

Lengths and gaps of the requests come from a window of the trace that the seed selects. The gaps are compressed so that
the load of the fleet is `LOAD`. The engines are four times as fast as their profile; the control loop runs at its
normal pace. The 99th percentile of the time to the first token covers the requests after `SETTLE` seconds. A replica is
throttled after `FAULT` seconds, which leaves `adaptive` half a minute to react.

The trace must be in the directory that `LBCTL_REAL_DATA` names.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import datetime
import io
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lbctl.demo.load import Arrival, LoadGenerator, Outcomes, lateness
from lbctl.demo.replica import PacedReplica
from lbctl.simulate.engine import CostModel, saturated_rate
from tests.benchmarks.descriptors import many_connections
from tests.support.fleets import Fleet, write_fleet
from tests.support.paths import DATA
from tests.support.processes import background, edges
from tests.support.processes.binaries import Kind, require
from tests.support.processes.control import controlling, driven
from tests.support.processes.fleet import render, started
from tests.support.processes.ports import HOST, free_port
from tests.support.processes.proxies import main_file, proxy_of
from tests.support.processes.waiting import eventually

TRACE = DATA / "traces" / "azure-2023-conversation.csv"
LOAD, FAULT, SETTLE, SECONDS, REST = 0.75, 20.0, 50.0, 150.0, 2.0
CURVE = CostModel(29.8e-3 / 4, 0.202e-3 / 4, 1.78e-7 / 4, 0.0715e-3 / 4)
KINDS: tuple[Kind, ...] = ("envoy", "haproxy")
STRATEGIES = ("round robin", "weighted round robin", "static", "adaptive")
SCENARIOS = ("healthy", "a big one throttled to half", "a big one with twice its weight")
_GPUS = (("H100-SXM", 1.0, 5), ("A100-80GB", 0.4, 2), ("L40S", 0.2, 1))
LATE, ATTEMPTS = 0.03, 3
"""A run is repeated, up to this number of attempts, if the event loop was later than this (seconds, 99th
percentile)."""
_PROXIES = 2
_CONNECTIONS = 40_000
_Site = tuple[Kind, str]


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    gpu: str
    speed: float
    weight: int


MEMBERS = tuple(
    Member(f"{gpu.partition('-')[0].lower()}-{number}", gpu, speed, weight)
    for gpu, speed, weight in _GPUS
    for number in range(2)
)
"""The first replica is the one that is throttled or has a wrong weight."""


# ── The trace ────────────────────────────────────────────────────────────────────────────────────────────────────────


def trace() -> list[Arrival]:
    """Return the whole trace; times are in seconds of the trace."""
    with TRACE.open(newline="") as file:
        rows = [(_moment(row["TIMESTAMP"]), row) for row in csv.DictReader(file)]
    began = rows[0][0]
    return [Arrival(at - began, int(row["ContextTokens"]), int(row["GeneratedTokens"])) for at, row in rows]


def _moment(text: str) -> float:
    """Parse a time with seven digits after the second, which datetime does not support."""
    whole, _, part = text.partition(".")
    moment = datetime.datetime.fromisoformat(whole).replace(tzinfo=datetime.UTC)
    return moment.timestamp() + float(f"0.{part or 0}")


def window(whole: Sequence[Arrival], seed: int) -> list[Arrival]:
    """Return the requests that produce the load `LOAD` for `SECONDS`, from a position that the seed selects."""
    start = random.Random(seed).randrange(len(whole) * 7 // 10)
    rest = whole[start:]
    prompt, answer = (
        statistics.fmean(values) for values in zip(*((d.prompt, d.answer) for d in rest[:4000]), strict=True)
    )
    rate = LOAD * sum(saturated_rate(item.speed, prompt, answer, CURVE) for item in MEMBERS)
    taken = rest[: round(rate * SECONDS)]
    shrink = SECONDS / (taken[-1].at - taken[0].at)
    return [Arrival((item.at - taken[0].at) * shrink, item.prompt, max(2, item.answer)) for item in taken]


# ── One run ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def quiet_run(scenario: str, requests: Sequence[Arrival]) -> dict[_Site, Outcomes]:
    """Return the outcomes of a run without disturbances by the machine, or of the last attempt."""
    for _ in range(ATTEMPTS):
        found, late = run(scenario, requests)
        if late <= LATE:
            break
    return found


def run(scenario: str, requests: Sequence[Arrival]) -> tuple[dict[_Site, Outcomes], float]:
    """Run every strategy on every kind of proxy side by side.

    Return the outcomes, and the delay of the event loop in seconds.
    """
    sites = [(kind, strategy) for kind in KINDS for strategy in STRATEGIES]
    engines = {site: [PacedReplica(item.name, item.speed, CURVE) for item in MEMBERS] for site in sites}
    background.wait(_all(engine.start() for members in engines.values() for engine in members))
    pools = {site: _pool(site, engines[site], scenario) for site in sites}
    with ExitStack() as stack:
        ports = dict(stack.enter_context(_by_files(pools)))
        ports |= stack.enter_context(_by_serve(pools))
        loads = {site: LoadGenerator(ports[site], f"/{_slug(site)}/x") for site in sites}
        throttled = [members[0] for members in engines.values()] if "throttled" in scenario else []
        found, late = background.start(_loaded(loads, requests, throttled)).result(2 * SECONDS)
    background.wait(_all(engine.close() for members in engines.values() for engine in members))
    return found, late


async def _all(work: Any) -> None:
    await asyncio.gather(*work)


async def _loaded(
    loads: Mapping[_Site, LoadGenerator], requests: Sequence[Arrival], throttled: Sequence[PacedReplica]
) -> tuple[dict[_Site, Outcomes], float]:
    spent, began = time.process_time(), time.monotonic() + 0.5
    for engine in throttled:
        asyncio.get_running_loop().call_at(began + FAULT, engine.throttle, 0.5)
    async with asyncio.TaskGroup() as group:
        late = group.create_task(lateness(SECONDS))
        for load in loads.values():
            group.create_task(load.run(requests, began))
    await asyncio.sleep(REST)
    busy = (time.process_time() - spent) / (time.monotonic() - began)
    print(f"    {busy:.0%} of a core here; timers late by {late.result() * 1000:.1f} ms (p99)", file=sys.stderr)
    found = {site: load.outcomes(began + SETTLE, began + SECONDS) for site, load in loads.items()}
    for load in loads.values():
        await load.close()
    return found, late.result()


def _slug(site: _Site) -> str:
    return f"{site[0]}-{site[1].replace(' ', '-')}"


def _pool(site: _Site, engines: Sequence[PacedReplica], scenario: str) -> dict[str, Any]:
    """Return the pool of a strategy.

    Only `adaptive` has telemetry; apart from the algorithm, all settings are the defaults.
    """
    strategy = site[1]
    wrong = 2 if "twice" in scenario else 1
    members = []
    for place, (member, engine) in enumerate(zip(MEMBERS, engines, strict=True)):
        weight = 1 if strategy == "round robin" else member.weight * (wrong if place == 0 else 1)
        address = f"{HOST}:{engine.port}"
        members.append({"name": member.name, "address": address, "gpu": member.gpu, "weight": weight})
    pool = {"replicas": members, "balance": {"algorithm": "round_robin" if "robin" in strategy else "least_request"}}
    if strategy == "adaptive":
        pool["telemetry"] = {"sources": [{"kind": "vllm", "url": "http://{address}/metrics"}]}
    return pool


def _fleet(pools: Mapping[_Site, Mapping[str, Any]]) -> Fleet:
    """Return a fleet without listeners and proxies."""
    routes = {_slug(site): {"match": {"path_prefix": f"/{_slug(site)}/"}, "pool": _slug(site)} for site in pools}
    return {
        "version": 1, "listeners": {}, "proxies": {}, "routes": routes,
        "pools": {_slug(site): dict(pool) for site, pool in pools.items()},
    }  # fmt: skip


@contextmanager
def _by_files(pools: Mapping[_Site, Mapping[str, Any]]) -> Iterator[dict[_Site, list[int]]]:
    """Run proxies with files of `lbctl render`. All pools of a kind share its proxies."""
    ports: dict[_Site, list[int]] = {}
    with ExitStack() as stack:
        for kind in KINDS:
            mine = {site: pool for site, pool in pools.items() if site[0] == kind and site[1] != "adaptive"}
            both = [stack.enter_context(_file_proxy(kind, mine)) for _ in range(_PROXIES)]
            ports |= dict.fromkeys(mine, both)
        yield ports


@contextmanager
def _file_proxy(kind: Kind, pools: Mapping[_Site, Mapping[str, Any]]) -> Iterator[int]:
    port = free_port()
    entry = {"kind": kind, **({"admin": f"{HOST}:{free_port()}"} if kind == "envoy" else {})}
    fleet = {**_fleet(pools), "listeners": {"l": {"bind": f"{HOST}:{port}"}}, "proxies": {"one": entry}}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        rendered = render(kind, write_fleet(directory, fleet), directory)
        if rendered.code:
            raise RuntimeError(rendered.stderr)
        with started(proxy_of(kind, require(kind), directory, directory / main_file(kind), [port])):
            yield port


@contextmanager
def _by_serve(pools: Mapping[_Site, Mapping[str, Any]]) -> Iterator[dict[_Site, list[int]]]:
    """Run two Envoys and two HAProxies that one `lbctl serve` drives."""
    mine = {site: pool for site, pool in pools.items() if site[1] == "adaptive"}
    nodes = [f"envoy-{number}" for number in range(_PROXIES)]
    with ExitStack() as stack:
        sites = [stack.enter_context(edges.haproxy(f"haproxy-{number}")) for number in range(_PROXIES)]
        fleet = _merged(_fleet(mine), driven(*nodes), *(site.sections for site in sites))
        with redirect_stderr(io.StringIO()):  # warnings of the render command
            for site in sites:
                stack.enter_context(edges.started_edge(site, fleet))
        control = stack.enter_context(controlling(fleet))
        envoys = [stack.enter_context(control.envoy(node, [node], by_socket=True)) for node in nodes]
        eventually(lambda: _synced(control.proxies, [*nodes, *(site.name for site in sites)]), 20)
        yield {
            ("envoy", "adaptive"): [envoy.client().port for envoy in envoys],
            ("haproxy", "adaptive"): [site.port for site in sites],
        }


def _merged(fleet: Fleet, *others: Fleet) -> Fleet:
    for other in others:
        for section, entries in other.items():
            fleet[section] = {**fleet[section], **entries}
    return fleet


def _synced(proxies: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> bool:
    return all(proxies.get(name, {}).get("state") == "SYNCED" for name in names)


# ── The table ────────────────────────────────────────────────────────────────────────────────────────────────────────

Found = dict[tuple[str, Kind, str], list[Outcomes]]


def lines(found: Found) -> Iterator[str]:
    """Yield the table: medians over the seeds with minimum and maximum, in seconds to the first token, then ratios per
    seed."""
    yield f"| scenario | proxy | {' | '.join(STRATEGIES)} | adaptive ÷ static | per token |"
    yield "|---" * (len(STRATEGIES) + 4) + "|"
    for scenario in dict.fromkeys(key[0] for key in found):
        for kind in KINDS:
            told = {strategy: found[scenario, kind, strategy] for strategy in STRATEGIES}
            firsts = {strategy: [item.first_token(99) for item in each] for strategy, each in told.items()}
            tokens = {strategy: [item.per_token(99) for item in each] for strategy, each in told.items()}
            ratios = [_spread(_ratios(values["adaptive"], values["static"])) for values in (firsts, tokens)]
            yield f"| {scenario} | {kind} | {' | '.join([*map(_spread, firsts.values()), *ratios])} |"


def _ratios(new: Sequence[float], old: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(new, old, strict=True)]


def _spread(values: Sequence[float]) -> str:
    return f"**{statistics.median(values):.2f}** ({min(values):.2f}–{max(values):.2f})"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.azure")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--scenario", metavar="WORD", default="")
    options = parser.parse_args()
    if not TRACE.is_file():
        print(f"the trace is not there: {TRACE}", file=sys.stderr)
        return 1
    many_connections(_CONNECTIONS)
    whole, found = trace(), Found()
    for seed in options.seeds:
        for scenario in (item for item in SCENARIOS if options.scenario in item):
            print(f"seed {seed}, {scenario}", file=sys.stderr)
            for (kind, strategy), told in quiet_run(scenario, window(whole, seed)).items():
                found.setdefault((scenario, kind, strategy), []).append(told)
                print(f"    {kind} {strategy}: {_words(told)}", file=sys.stderr, flush=True)
    print("\n".join(lines(found)))
    return 0


def _words(told: Outcomes) -> str:
    shares = " ".join(f"{name} {share:.3f}" for name, share in sorted(told.shares().items()))
    first = " / ".join(f"{told.first_token(percentile):.2f}" for percentile in (50, 95, 99))
    token = f"{told.per_token(99) * 1000:.0f} ms"
    return f"{len(told.sent)} sent, {told.failed} failed, first token {first} s, p99 a token {token}; {shares}"


if __name__ == "__main__":
    sys.exit(main())
