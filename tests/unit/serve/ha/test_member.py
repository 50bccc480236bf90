"""One member with real stores: what it keeps over an outage, and when it takes writes."""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
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
from lbctl.serve.api import schema
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
from lbctl.serve.telemetry import service
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
    name: str, directory: Path, port: int, prefix: str, password: str | None = None, fleet: str = FLEET
) -> AsyncIterator[Running]:
    path = directory / name / "fleet.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(fleet.replace("NAME", "b"))
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


def version(member: Running) -> str:
    published = member.services.publisher.served
    assert published is not None
    return published.cached_snapshot.version


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
            await first.services.views.rollback(schema.RollbackRequest(allow_shrink=True), "operator")
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
            await first.services.views.rollback(schema.RollbackRequest(allow_shrink=True), "operator")
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


def test_a_decision_is_written_before_it_is_published_ten_times_a_second_at_most(
    redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_WRITE", 20.0)  # a busy machine is no store that hangs

    async def work() -> None:
        async with running("cp-1", tmp_path, redis.port, f"test:{secrets.token_hex(4)}") as first:
            await until(lambda: first.member.leads)
            telemetry, publisher = first.services.telemetry, first.services.publisher
            happened: list[tuple[str, LoopOutput, float]] = []
            begun: list[float] = []
            save, publish = first.state.save_loop_output, publisher.set_loop_output

            async def saving(output: LoopOutput, at: float) -> int:
                begun.append(at)
                length = await save(output, at)
                happened.append(("written", output, time.monotonic()))
                return length

            def publishing(output: LoopOutput) -> None:
                happened.append(("published", output, time.monotonic()))
                publish(output)

            first.state.save_loop_output = saving  # type: ignore[method-assign]
            publisher.set_loop_output = publishing  # type: ignore[method-assign]
            for step in range(1, 31):
                telemetry.loop._set_output(LoopOutput({"chat": {"a": Weight(step / 10, 1.0)}}))
                await asyncio.sleep(0.02)
            await until(lambda: happened[-1][1] == telemetry.loop.output and happened[-1][0] == "published")
            written = [(output, at) for what, output, at in happened if what == "written"]
            for what, output, at in happened:
                assert what == "written" or any(known == output and before <= at for known, before in written)
            assert all(after - before >= 0.09 for before, after in pairwise(begun))

    asyncio.run(work())


def test_a_store_that_hangs_holds_a_decision_up_for_a_moment_only(redis: RedisServer, tmp_path: Path) -> None:
    async def work() -> None:
        async with running("cp-1", tmp_path, redis.port, f"test:{secrets.token_hex(4)}") as first:
            await until(lambda: first.member.leads)
            decided = LoopOutput({"chat": {"a": Weight(0.5, 1.0)}})
            redis.signal(signal.SIGSTOP)
            try:
                first.services.telemetry.loop._set_output(decided)
                await until(lambda: first.services.publisher.loop_output == decided)
            finally:
                redis.signal(signal.SIGCONT)
            await until(lambda: first.member.leads and not first.member.election.problem)

    asyncio.run(work())


def test_files_that_differ_are_told_and_the_leaders_are_served_until_they_agree(
    redis: RedisServer, tmp_path: Path
) -> None:
    async def work() -> None:
        prefix = f"test:{secrets.token_hex(4)}"
        async with running("cp-1", tmp_path, redis.port, prefix) as first:
            await until(lambda: first.member.leads)
            async with running("cp-2", tmp_path, redis.port, prefix) as second:

                def differ() -> dict[str, bool]:
                    return {row.name: row.files_differ for row in first.services.views.members().members}

                second.path.write_text(FLEET.replace("NAME", "c"))
                await second.services.reconciler.reload()
                assert served(second) == {"a", "b"}, "the leader's"
                await until(lambda: differ() == {"cp-1": False, "cp-2": True})
                rows = second.services.views.members().members
                assert [row.digest for row in rows if row.name == "cp-2"] != [rows[0].digest]
                first.path.write_text(FLEET.replace("NAME", "d"))
                await first.services.reconciler.reload(allow_shrink=True)
                await until(lambda: served(second) == {"a", "d"})
                assert version(second) == version(first)
                second.path.write_text(FLEET.replace("NAME", "d"))
                await second.services.reconciler.reload()
                await until(lambda: differ() == {"cp-1": False, "cp-2": False})
                assert version(second) == version(first)

    asyncio.run(work())
