"""Two members in one process that share pools: scraping, decisions, and the loss of a member."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from lbctl.serve.ha.sharing import owner_of
from tests.support.fleets import fleet_text, pool, replica
from tests.support.member import ENVOY, Running, running, until, version
from tests.support.stores import RedisServer
from tests.support.web import serving_get

HASTY = "hasty"
"""A pool whose samples expire too soon for another member to scrape them."""
POOLS = ["pool", *(f"pool-{number}" for number in range(1, 7)), HASTY]
PAGE = 'vllm:num_requests_running{model_name="m"} 3\nvllm:kv_cache_usage_perc{model_name="m"} 0.25\n'


@asynccontextmanager
async def pages() -> AsyncIterator[int]:
    """Serve a metrics page for each pool, and yield the port."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=PAGE)

    async with serving_get("/{pool}", answer) as port:
        yield port


def owners(leader: str) -> dict[str, str]:
    """Return the member that has to scrape each pool."""
    return {name: leader if name == HASTY else owner_of(name, ("cp-1", "cp-2")) for name in POOLS}


def fleet_of_pools(port: int) -> str:
    """Return the YAML of a fleet whose pools are scraped at this port."""

    def telemetry(name: str) -> dict[str, Any]:
        sources = [{"kind": "vllm", "url": f"http://127.0.0.1:{port}/{name}"}]
        return {"interval": "200ms", "stale_after": "2s" if name == HASTY else "15s", "sources": sources}

    member = replica(address=f"127.0.0.1:{port}")
    return fleet_text(pools={name: pool(member, telemetry=telemetry(name)) for name in POOLS}, proxies=ENVOY)


def sampled_by(member: Running) -> dict[str, str]:
    """Return the member that provided the newest sample of each pool."""
    reports = member.services.loop.reports
    return {pool: report.member or member.name for (pool, _), report in reports.items()}


@pytest.mark.slow
def test_pools_are_shared_and_move_with_the_members(
    redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbctl.serve.ha.member.INTERVAL", 0.2)
    shared = owners("cp-1")
    own = {member: sorted(name for name, by in shared.items() if by == member) for member in ("cp-1", "cp-2")}
    assert own["cp-2"]
    prefix = f"test:{secrets.token_hex(4)}"

    async def work() -> None:
        async with (
            pages() as port,
            running("cp-1", tmp_path, redis.port, prefix, fleet=fleet_of_pools(port), lease=8) as first,
        ):
            await until(lambda: sampled_by(first) == dict.fromkeys(POOLS, "cp-1"))
            async with running("cp-2", tmp_path, redis.port, prefix, fleet=fleet_of_pools(port), lease=8) as second:
                await until(lambda: sampled_by(first) == shared)
                for member in (first, second):
                    assert sorted(member.member.sharing.own()) == own[member.name]
                assert not sampled_by(second), "one decides"
                states = first.services.scraping.source_states(own["cp-2"][0], "a")
                assert [state.ok for state in states] == [True]
                rows = {row.pool: row.sampled_by for row in first.services.api.operation("decisions")().decisions}
                assert rows == {name: "cp-2" if by == "cp-2" else None for name, by in shared.items()}
                table = {row.name: sorted(row.pools) for row in second.services.api.operation("members")().members}
                assert table == own
                before = version(first)
                await _without_store(redis, first, second)
                await _other_leader(first, second)
            gone = time.monotonic()
            await until(lambda: sampled_by(first) == dict.fromkeys(POOLS, "cp-1"))
            assert time.monotonic() - gone < 14, "the last samples of the other member are stale after 15 s"
            assert version(first) == before
            modes = {pool.mode for pool in first.services.loop.state.pools.values()}
            assert modes == {"acting"}

    asyncio.run(work())


@pytest.mark.slow
def test_samples_too_large_for_one_announcement_are_split(
    redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbctl.serve.ha.member.INTERVAL", 0.2)
    monkeypatch.setattr("lbctl.serve.ha.sharing._MAX_CHARACTERS", 150)
    prefix = f"test:{secrets.token_hex(4)}"

    async def work() -> None:
        async with (
            pages() as port,
            running("cp-1", tmp_path, redis.port, prefix, fleet=fleet_of_pools(port)) as first,
            running("cp-2", tmp_path, redis.port, prefix, fleet=fleet_of_pools(port)) as second,
        ):
            await until(lambda: sampled_by(first) == owners("cp-1"))
            assert second.member.sharing.parts > 1
            reports = first.services.loop.reports
            own = [(name, "a") for name, by in owners("cp-1").items() if by == "cp-2"]
            before = {key: reports[key].at for key in own}
            await until(lambda: all(reports[key].at > before[key] for key in own))
            monkeypatch.setattr("lbctl.serve.ha.sharing._MAX_CHARACTERS", 900_000)
            await until(lambda: second.member.sharing.parts == 1)

    asyncio.run(work())


async def _without_store(redis: RedisServer, first: Running, second: Running) -> None:
    """Check that without a store only the last leader scrapes."""
    await asyncio.to_thread(redis.stop)
    await until(lambda: not second.member.sharing.own())
    await until(lambda: sampled_by(first) == dict.fromkeys(POOLS, "cp-1"))
    await asyncio.to_thread(redis.start)
    await until(lambda: any(item.member.leads and sampled_by(item) == owners(item.name) for item in (first, second)))


async def _other_leader(first: Running, second: Running) -> None:
    """Check that the next leader decides on the samples of all members."""
    leads, other = (first, second) if first.member.leads else (second, first)
    await leads.member.store.release()
    await until(lambda: other.member.leads and not leads.member.leads)
    await until(lambda: sampled_by(other) == owners(other.name))
