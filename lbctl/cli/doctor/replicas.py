"""Checks whether the replicas accept connections from this machine, and shows problems reported by `serve`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping

from lbctl.api.any_version import AnyVersionStatus
from lbctl.cli.doctor.check import DoctorResult, State
from lbctl.cli.doctor.sources import ANSWER_TIMEOUT
from lbctl.ir.address import Address
from lbctl.ir.pools import Pool
from lbctl.ir.shares import of_pools
from lbctl.ir.topology import Topology
from lbctl.runtime.net.http_client import session
from lbctl.serve.health.fetch import connection_probe, fetch

_CONCURRENCY = 256
_SHOWN = 3
"""Maximum number of failures shown."""
_CHECKED_ELSEWHERE = frozenset({"not_ready", "picker"})
"""Kinds of problems for which a separate check exists."""


def replicas(topology: Topology) -> list[DoctorResult]:
    """Connect to each replica in the files.

    In a pool that a route uses, at least one replica must accept connections.
    """
    used = {name for route in topology.routes for name in of_pools(route.action)}
    pools = [pool for pool in topology.pools if pool.replicas]
    problems = asyncio.run(_connect(pools))
    return [_result(pool, problems[pool.name], is_used=pool.name in used) for pool in pools]


async def _connect(pools: Iterable[Pool]) -> Mapping[str, dict[str, str]]:
    """Map each pool and replica to its connection error, which is empty if the connection succeeded.

    Drained replicas are skipped.
    """
    slots = asyncio.Semaphore(_CONCURRENCY)
    found: dict[str, dict[str, str]] = {}
    async with session() as client, asyncio.TaskGroup() as group:

        async def connect(pool: Pool, name: str, place: Address) -> None:
            async with slots:
                result = await fetch(connection_probe(place, round(ANSWER_TIMEOUT * 1000)), client)
            found[pool.name][name] = result.problem if result is not None else ""

        for pool in pools:
            found[pool.name] = {}
            for item in pool.replicas:
                if not item.drain:
                    group.create_task(connect(pool, item.name, item.address))
    return found


def _result(pool: Pool, problems: Mapping[str, str], *, is_used: bool) -> DoctorResult:
    what = f"pools.{pool.name}.replicas"
    failures = {item.name: problems[item.name] for item in pool.replicas if problems.get(item.name)}
    summary = f"{len(problems) - len(failures)} of {len(problems)} accept connections"
    if not failures:
        return DoctorResult(what, "ok", summary)
    shown = [f"{item.name} at {item.address}: {failures[item.name]}" for item in pool.replicas if item.name in failures]
    more = "; …" if len(shown) > _SHOWN else ""
    message = f"{summary}; {'; '.join(shown[:_SHOWN])}{more}"
    todo = "start the server, or correct the address; if the replicas are in another network, run doctor there"
    if is_used and len(failures) == len(problems):
        return DoctorResult(what, "failed", message, todo, absent=True)
    return DoctorResult(what, "warn", message, todo)


def problems(status: AnyVersionStatus | None) -> Iterator[DoctorResult]:
    """Yield a result for each problem that a running `serve` reports. `status` is None if no serve responds."""
    for item in status.problems if status is not None else ():
        if item.kind not in _CHECKED_ELSEWHERE:
            state: State = "failed" if item.severity == "critical" else "warn"
            yield DoctorResult(f"serve {item.subject or item.kind}", state, item.text, item.command)
