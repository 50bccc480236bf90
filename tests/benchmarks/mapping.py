"""`python -m tests.benchmarks.mapping [--seeds N] [-k WORD] [--kinds K …] [--border]`: measure which integer weights
fit capacities and speeds best, with the real proxies.

A cell is a pool of four replicas behind a real proxy, each with the static weight `capacity^p × slow^b`; `slow` is the
fraction of the speed that remains under throttling. Lengths are log-normal and arrivals Poisson; all cells of a group
have the same arrivals. Replicas are limited by memory bandwidth (more sequences hardly prolong a step), by compute
(each sequence adds the same time), or by slots (sixteen run at once, the rest wait).

`fair` is the share of requests that the slow replica should have by its speed. The load is relative to the capacity of
the replicas in the cell; "before" is the same number of requests per second without throttling.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lbctl.demo.load import Arrival, LoadGenerator, Outcomes, poisson
from lbctl.demo.replica import PacedReplica
from lbctl.simulate.engine import CostModel, saturated_rate
from lbctl.simulate.load import lognormal
from lbctl.targets.replica_weights import quantise
from tests.benchmarks.descriptors import many_connections
from tests.support.fleets import write_fleet
from tests.support.processes.binaries import Kind, require
from tests.support.processes.fleet import render, started
from tests.support.processes.ports import HOST, free_port
from tests.support.processes.proxies import main_file, proxy_of

WARM, SECONDS, REST = 20.0, 70.0, 6.0
AT_ONCE = 700.0
"""Requests per second over all cells that run side by side. Above this the event loop would distort the results."""
_FINEST: Mapping[Kind, int] = {"envoy": 65_535, "haproxy": 256, "nginx": 10_000}
_SPREAD = 0.7
_CONNECTIONS = 20_000


@dataclass(frozen=True, slots=True)
class Limit:
    """The cost model of a replica, and the mean length of an answer."""

    curve: CostModel
    answer: float


LIMITS: Mapping[str, Limit] = {
    "bandwidth": Limit(CostModel(0.040, 0.0004, 0.0, 0.0, 96), 80.0),
    "compute": Limit(CostModel(0.020, 0.004, 0.0, 0.0, 2000), 30.0),
    "slots": Limit(CostModel(0.030, 0.0015, 0.0, 0.0, 16), 30.0),
}
GROWTHS, SLOTS = (0.01, 0.05, 0.15), (8, 16, 32, 64, 128, 256)
"""Values around the border between the two exponents of capacity: growth of a step per sequence, and number of
slots."""
BORDER: Mapping[str, Limit] = {
    f"{slots} slots, {growth:.0%} a sequence": Limit(
        CostModel(0.030, 0.030 * growth, 0.0, 0.0, slots), 30.0 if slots <= 32 else 60.0
    )
    for growth in GROWTHS
    for slots in SLOTS
}
_MIX = (2.2, 0.9, 0.45, 0.45)
_EQUAL = (1.0, 1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Cell:
    """`speeds`: as configured. `slow`: the throttled speed of the first replica, relative to its own.

    `load`: relative to the capacity with `slow`.
    """

    kind: Kind
    algorithm: str
    limit: str
    load: float
    speeds: tuple[float, ...]
    slow: float
    p: float
    b: float
    throttled: bool = True

    @property
    def group(self) -> str:
        """Return the key of all cells with the same arrivals."""
        return f"{self.limit} {self.load} {self.speeds} {self.slow}"

    @property
    def name(self) -> str:
        mix = "5:2:1:1" if self.speeds == _MIX else f"one of 4 at {self.slow:g}"
        how = f"p={self.p:g}" if self.speeds == _MIX else f"b={self.b:g}" if self.throttled else "before"
        return f"{self.kind} {self.algorithm} | {self.limit} {self.load:g} | {mix} | {how}"

    @property
    def weights(self) -> list[int]:
        slow = self.slow if self.throttled else 1.0
        meant = [speed**self.p * (slow**self.b if place == 0 else 1.0) for place, speed in enumerate(self.speeds)]
        if len(set(meant)) == 1:
            return [1 for _ in meant]
        return quantise(meant, _FINEST[self.kind])

    @property
    def now(self) -> tuple[float, ...]:
        return (self.speeds[0] * self.slow, *self.speeds[1:])

    @property
    def fair(self) -> float:
        return self.now[0] / sum(self.now)

    @property
    def rate(self) -> float:
        limit = _limit(self.limit)
        if self.limit == "compute":
            return self.load * sum(self.now) / limit.curve.b / limit.answer
        return self.load * sum(saturated_rate(speed, 1.0, limit.answer, limit.curve) for speed in self.now)


def _limit(name: str) -> Limit:
    return LIMITS[name] if name in LIMITS else BORDER[name]


def border(kinds: Sequence[Kind]) -> Iterator[Cell]:
    """Yield cells of healthy replicas with speeds of 5 : 2 : 1 : 1."""
    for kind in kinds:
        for limit in BORDER:
            for load in (0.6, 0.85):
                for p in (1.0, 1.5, 2.0) if kind == "envoy" else (0.0, 0.5, 1.0):
                    yield Cell(kind, "least_request", limit, load, _MIX, 1.0, p, 1.0)


def cells(kinds: Sequence[Kind]) -> Iterator[Cell]:
    for kind in kinds:
        least = "least_request"
        slows = (0.0, 1.0, 1.5, 2.0) if kind == "envoy" else (0.0, 0.5, 1.0)
        for limit in LIMITS:
            for load in (0.6, 0.85):
                for p in (1.0, 1.5, 2.0) if kind == "envoy" else (0.0, 0.5, 1.0):
                    yield Cell(kind, least, limit, load, _MIX, 1.0, p, 1.0)
                for slow in (0.5, 0.25):
                    yield Cell(kind, least, limit, load, _EQUAL, slow, 1.0, 0.0, throttled=False)
                    for b in slows:
                        yield Cell(kind, least, limit, load, _EQUAL, slow, 1.0, b)


# ── A batch of cells ─────────────────────────────────────────────────────────────────────────────────────────────────


async def measured(batch: Sequence[Cell], seed: int) -> dict[Cell, Outcomes]:
    """Return the outcomes of cells that run side by side."""
    replicas = {cell: _engines(cell) for cell in batch}
    for engines in replicas.values():
        for engine in engines:
            await engine.start()
    with ExitStack() as stack:
        kinds = sorted({cell.kind for cell in batch})
        ports = {kind: stack.enter_context(_proxy(kind, batch, replicas)) for kind in kinds}
        loads = {cell: LoadGenerator([ports[cell.kind]], f"/p{place}/x") for place, cell in enumerate(batch)}
        began = time.monotonic() + 0.5
        async with asyncio.TaskGroup() as group:
            for cell, load in loads.items():
                group.create_task(load.run(_arrivals(cell, seed), began))
        await asyncio.sleep(REST)
        found = {cell: load.outcomes(began + WARM, began + WARM + SECONDS) for cell, load in loads.items()}
        for load in loads.values():
            await load.close()
    for engines in replicas.values():
        for engine in engines:
            await engine.stop()
    return found


def _engines(cell: Cell) -> list[PacedReplica]:
    speeds = cell.now if cell.throttled else cell.speeds
    return [PacedReplica(f"r{place}", speed, _limit(cell.limit).curve) for place, speed in enumerate(speeds)]


def _arrivals(cell: Cell, seed: int) -> list[Arrival]:
    lengths = lognormal(1.0, _limit(cell.limit).answer, _SPREAD)
    return poisson(cell.rate, WARM + SECONDS, lengths, f"{cell.group} {seed}")


@contextmanager
def _proxy(kind: Kind, batch: Sequence[Cell], replicas: Mapping[Cell, Sequence[PacedReplica]]) -> Iterator[int]:
    """Run a proxy that lbctl has rendered, with the weights of the cells."""
    port, admin = free_port(), free_port()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)  # nginx serves as another user
        entry = {"kind": kind, **({"admin": f"{HOST}:{admin}"} if kind == "envoy" else {})}
        fleet: dict[str, Any] = {
            "version": 1,
            "listeners": {"l": {"bind": f"{HOST}:{port}"}},
            "proxies": {"one": entry},
            "routes": {},
            "pools": {},
        }
        weights: dict[int, int] = {}
        for place, cell in enumerate(batch):
            if cell.kind != kind:
                continue
            fleet["routes"][f"r{place}"] = {"match": {"path_prefix": f"/p{place}/"}, "pool": f"p{place}"}
            fleet["pools"][f"p{place}"] = _pool(cell, replicas[cell])
            weights |= {engine.port: weight for engine, weight in zip(replicas[cell], cell.weights, strict=True)}
        rendered = render(kind, write_fleet(directory, fleet), directory)
        if rendered.code:
            raise RuntimeError(rendered.stderr)
        config = directory / main_file(kind)
        config.write_text(_weighed(kind, config.read_text(), weights))
        with started(proxy_of(kind, require(kind), directory, config, [port])):
            yield port


def _pool(cell: Cell, engines: Sequence[PacedReplica]) -> dict[str, Any]:
    """Return the pool of a cell.

    Its weights differ so that they appear in the configuration, where they are replaced.
    """
    members = [
        {"name": engine.name, "address": f"{HOST}:{engine.port}", "weight": place + 1}
        for place, engine in enumerate(engines)
    ]
    return {"balance": {"algorithm": cell.algorithm}, "replicas": members}


def _weighed(kind: Kind, text: str, weights: Mapping[int, int]) -> str:
    if kind == "envoy":
        whole = yaml.safe_load(text)
        for cluster in whole["static_resources"]["clusters"]:
            for locality in cluster.get("load_assignment", {}).get("endpoints", []):
                for item in locality["lb_endpoints"]:
                    port = item["endpoint"]["address"]["socket_address"]["port_value"]
                    item["load_balancing_weight"] = weights[port]
        return json.dumps(whole)
    between = r"weight=" if kind == "nginx" else r"weight "
    for port, weight in weights.items():
        text, found = re.subn(rf"(server [^\n]*:{port}'? [^\n]*{between})\d+", rf"\g<1>{weight}", text)
        if found != 1:
            raise RuntimeError(f"port {port} has {found} weights in the configuration")
    return text


# ── The table ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Row:
    cell: Cell
    told: tuple[Outcomes, ...]

    def median(self, what: str, percentile: float) -> float:
        return statistics.median(float(getattr(item, what)(percentile)) for item in self.told)

    @property
    def share(self) -> float:
        return statistics.median(item.shares().get("r0", 0.0) for item in self.told)

    def columns(self, before: Row | None) -> list[str]:
        first = [f"{self.median('first_token', percentile) * 1000:.0f}" for percentile in (50, 95, 99)]
        token = [f"{self.median('per_token', percentile) * 1000:.0f}" for percentile in (50, 95, 99)]
        share = f"{self.share * 100:.1f} ({self.cell.fair * 100:.1f})"
        ratio = [f"{self.median(what, 99) / before.median(what, 99):.2f}" if before else "" for what in _WHAT]
        failed = sum(item.failed for item in self.told)
        return [self.cell.name, " / ".join(first), " / ".join(token), share, *ratio, str(failed or "")]


_WHAT = ("first_token", "per_token", "whole")
_HEAD = (
    "cell", "first token p50 / p95 / p99 ms", "per token p50 / p95 / p99 ms", "share % (fair)", "p99 first ÷ before",
    "token", "whole", "failed",
)  # fmt: skip


def batches(wanted: Sequence[Cell]) -> Iterator[list[Cell]]:
    batch: list[Cell] = []
    for cell in wanted:
        if batch and sum(item.rate for item in batch) + cell.rate > AT_ONCE:
            yield batch
            batch = []
        batch.append(cell)
    if batch:
        yield batch


async def table(wanted: Sequence[Cell], seeds: Sequence[int]) -> list[Row]:
    found: dict[Cell, list[Outcomes]] = {cell: [] for cell in wanted}
    for seed in seeds:
        for batch in batches(wanted):
            spent, began = time.process_time(), time.monotonic()
            for cell, told in (await measured(batch, seed)).items():
                found[cell].append(told)
            busy = (time.process_time() - spent) / (time.monotonic() - began)
            print(f"seed {seed}: {len(batch)} cells, {busy:.0%} of a core here", file=sys.stderr, flush=True)
    return [Row(cell, tuple(told)) for cell, told in found.items()]


def before(row: Row, rows: Sequence[Row]) -> Row | None:
    """Return the row with the same replicas and arrivals, but without throttling."""
    return next((other for other in rows if not other.cell.throttled and _same(other.cell, row.cell)), None)


def _same(one: Cell, other: Cell) -> bool:
    return (one.kind, one.algorithm, one.group) == (other.kind, other.algorithm, other.group)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.mapping")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--kinds", nargs="+", default=["envoy", "haproxy", "nginx"])
    parser.add_argument("--border", action="store_true", help="how the exponent of capacity depends on slots")
    parser.add_argument("-k", metavar="WORD", default="")
    options = parser.parse_args()
    many_connections(_CONNECTIONS)
    every = border if options.border else cells
    wanted = [cell for cell in every(options.kinds) if options.k in cell.name]
    rows = asyncio.run(table(wanted, options.seeds))
    print("| " + " | ".join(_HEAD) + " |")
    print("|---" * len(_HEAD) + "|")
    for row in rows:
        print("| " + " | ".join(row.columns(before(row, rows))) + " |")


if __name__ == "__main__":
    main()
