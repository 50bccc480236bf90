"""One member with real stores: what it keeps over an outage, and when it takes writes."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from lbctl.control.loop_output import LoopOutput
from lbctl.ir.proxies import Store
from lbctl.ir.weight import Weight
from lbctl.serve import log, wiring
from lbctl.serve.api.endpoints import Endpoints
from lbctl.serve.guard import end_tasks
from lbctl.serve.ha.member import Member
from lbctl.serve.ha.presence import MemberInfo
from lbctl.serve.metrics.instruments import Metrics
from lbctl.serve.operator.overrides import OverrideService
from lbctl.serve.settings import Options
from lbctl.serve.state.authority import Authority
from lbctl.serve.state.open import open_shared
from lbctl.serve.state.saved import SavedState
from lbctl.serve.wiring import Services, Shared
from lbctl.targets.load import Loaded
from lbctl.xds.protocol.node_status import NodeStatus
from tests.support.stores import RedisServer

FLEET = """version: 1
listeners: {gateway: {bind: "127.0.0.1:8080"}}
routes: {chat: {match: {path_prefix: /}, pool: chat}}
pools: {chat: {replicas: [{name: a, address: "10.9.9.9:8000"}, {name: NAME, address: "10.9.9.8:8000"}]}}
proxies: {edge: {kind: envoy}}
"""


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    server = RedisServer()
    server.start()
    yield server
    server.close()


async def _ignore(_loaded: Loaded, _can_be_served: bool) -> None:
    """Open no endpoints for the first fleet."""


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


class Running:
    """A member without endpoints, its fleet file, and its parts."""

    def __init__(self, name: str, path: Path, services: Services, state: SavedState) -> None:
        assert services.member is not None
        self.name = name
        self.path = path
        self.services = services
        self.state = state
        self.member: Member = services.member


@asynccontextmanager
async def running(
    name: str, directory: Path, port: int, prefix: str, password: str | None = None
) -> AsyncIterator[Running]:
    path = directory / name / "fleet.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(FLEET.replace("NAME", "b"))
    store = open_shared(Store(f"redis://127.0.0.1:{port}", prefix, lease=2_000, password_file=password), name)
    shared = Shared(name, store, 2.0, Authority())
    options, nodes, metrics = Options((str(path),), str(path.parent / "state")), NodeStatus(), Metrics()
    state = SavedState(store, log.warn, shared.authority)
    services, restored = await wiring.build_from(
        options, Endpoints(options, nodes, metrics), metrics, nodes, state, _ignore, shared
    )
    await services.reconciler.start(restored.fleet)
    assert services.member is not None
    tasks = [services.guard.start(task, work) for task, work in services.member.tasks().items()]
    try:
        yield Running(name, path, services, state)
    finally:
        await end_tasks(tasks)
        await services.publisher.discovery.stop()
        with suppress(Exception):
            await state.close()


def served(member: Running) -> set[str]:
    published = member.services.publisher.served
    assert published is not None
    return {item.name for pool in published.composed.whole.topology.pools for item in pool.replicas}


def test_a_rollback_is_in_force_after_an_outage_of_the_store_that_is_longer_than_the_lease(
    redis: RedisServer, tmp_path: Path
) -> None:
    async def work() -> None:
        prefix = f"test:{secrets.token_hex(4)}"
        async with running("cp-1", tmp_path, redis.port, prefix) as first:
            await until(lambda: first.member.leads)
            first.path.write_text(FLEET.replace("NAME", "c"))
            await first.services.reconciler.reload()
            assert served(first) == {"a", "c"}
            await first.services.views.rollback({"allow_shrink": True}, "operator")
            assert served(first) == {"a", "b"}
            kept = len(first.services.views.history().entries)
            await asyncio.to_thread(redis.stop)
            await until(lambda: [item.role for item in first.member.members] == ["isolated"])
            await asyncio.to_thread(redis.start)
            await until(lambda: first.member.takeovers == 2)
            assert served(first) == {"a", "b"}
            assert len(first.services.views.history().entries) == kept
            stored = await first.state.rollback()
            assert stored is not None
            assert stored.actor == "operator"

    asyncio.run(work())


def test_a_rollback_that_ended_in_an_outage_is_not_in_force_for_the_next_leader(
    redis: RedisServer, tmp_path: Path
) -> None:
    async def work() -> None:
        prefix = f"test:{secrets.token_hex(4)}"
        async with running("cp-1", tmp_path, redis.port, prefix) as first:
            await until(lambda: first.member.leads)
            first.path.write_text(FLEET.replace("NAME", "c"))
            await first.services.reconciler.reload()
            await first.services.views.rollback({"allow_shrink": True}, "operator")
            await asyncio.to_thread(redis.stop)
            await until(lambda: first.member.election.role == "isolated")
            first.path.write_text(FLEET.replace("NAME", "d"))
            await first.services.reconciler.reload(allow_shrink=True)
            assert served(first) == {"a", "d"}
            await asyncio.to_thread(redis.start)
            await until(lambda: first.member.takeovers == 2)
            assert served(first) == {"a", "d"}
            assert await first.state.rollback() is None

    asyncio.run(work())


def test_writes_wait_for_the_end_of_a_takeover(
    redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        goes_on = asyncio.Event()
        save = OverrideService.save

        async def slow(self: OverrideService) -> None:
            await goes_on.wait()
            await save(self)

        monkeypatch.setattr(OverrideService, "save", slow)
        async with running("cp-1", tmp_path, redis.port, f"test:{secrets.token_hex(4)}") as first:
            await until(lambda: first.member.election.role == "leader")
            target = first.services.views.forwards_to()
            assert target is not None, "a write before the end of the takeover is not carried out here"
            assert target.url == ""
            goes_on.set()
            await until(lambda: first.services.views.forwards_to() is None)

    asyncio.run(work())


def test_a_member_whose_takeover_fails_unexpectedly_takes_over_again(
    redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        save = OverrideService.save
        failures: list[str] = []

        async def fails_once(self: OverrideService) -> None:
            if not failures:
                failures.append("once")
                raise ValueError
            await save(self)

        monkeypatch.setattr(OverrideService, "save", fails_once)
        async with running("cp-1", tmp_path, redis.port, f"test:{secrets.token_hex(4)}") as first:
            await until(lambda: first.member.leads)
            assert first.member.takeovers == 1
            assert failures

    asyncio.run(work())


def test_a_follower_sends_writes_only_where_the_leader_has_announced_its_api(
    redis: RedisServer, tmp_path: Path
) -> None:
    async def work() -> None:
        prefix = f"test:{secrets.token_hex(4)}"
        async with running("cp-1", tmp_path, redis.port, prefix) as first:
            await until(lambda: first.member.leads)
            async with running("cp-2", tmp_path, redis.port, prefix) as second:
                member = second.member
                await until(lambda: member.records.leader is not None and len(member.members) == 2)
                assert member.records.leader is not None
                member.records.leader = replace(member.records.leader, api="https://elsewhere.example")
                assert member.leader_api == ""
                member.members = (MemberInfo("cp-1", api="https://elsewhere.example"),)
                assert member.leader_api == "https://elsewhere.example"

    asyncio.run(work())


def test_weights_are_saved_once_a_second_and_ejections_at_once(redis: RedisServer, tmp_path: Path) -> None:
    async def work() -> None:
        async with running("cp-1", tmp_path, redis.port, f"test:{secrets.token_hex(4)}") as first:
            await until(lambda: first.member.leads)
            loop = first.services.telemetry.loop
            saved: list[tuple[LoopOutput, float]] = []
            save = first.state.save_loop_output

            async def counted(output: LoopOutput, at: float) -> None:
                saved.append((output, at))
                await save(output, at)

            first.state.save_loop_output = counted  # type: ignore[method-assign]
            for step in range(1, 11):
                loop.adopt(LoopOutput({"chat": {"a": Weight(step / 10, 1.0)}}))
                await asyncio.sleep(0.12)
            await until(lambda: saved[-1][0] == loop.output)
            assert all(after - before >= 1.0 for (_, before), (_, after) in pairwise(saved))
            loop.adopt(LoopOutput({}, {"chat": {"a": ("it is slow",)}}))
            await until(lambda: saved[-1][0] == loop.output)
            assert saved[-1][1] - saved[-2][1] < 1.0

    asyncio.run(work())
