"""One member with real stores: state across an outage, and writes during a takeover."""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from lbctl.api import schema
from lbctl.control.loop_output import LoopOutput
from lbctl.ir.weight import Weight
from lbctl.runtime import guard
from lbctl.serve.fleet.inputs import FleetInputs
from lbctl.serve.ha.presence import MemberInfo
from lbctl.serve.operator.overrides import OverrideService
from lbctl.serve.settings import Options, settings
from lbctl.serve.telemetry import saving
from tests.support.member import Running, fleet_with, leading, running, served, until, version
from tests.support.stores import RedisServer


@pytest.mark.slow
def test_rollback_survives_a_store_outage_beyond_the_lease(redis: RedisServer, tmp_path: Path) -> None:
    async def work() -> None:
        prefix = f"test:{secrets.token_hex(4)}"
        async with leading(tmp_path, redis.port, prefix, lease=8) as first:
            first.path.write_text(fleet_with("c"))
            await first.services.reconciler.reload()
            assert served(first) == {"a", "c"}
            await first.services.api.operation("rollback")(schema.RollbackRequest(allow_shrink=True), "operator")
            assert served(first) == {"a", "b"}
            kept = len(first.services.api.operation("history")().entries)
            await asyncio.to_thread(redis.stop)
            await until(lambda: [item.role for item in first.member.members] == ["isolated"])
            await asyncio.to_thread(redis.start)
            await until(lambda: first.member.takeovers == 2)
            assert served(first) == {"a", "b"}
            assert len(first.services.api.operation("history")().entries) == kept
            stored = await first.state.rollback()
            assert stored is not None
            assert stored.actor == "operator"

    asyncio.run(work())


@pytest.mark.slow
def test_rollback_ended_during_an_outage_stays_ended(redis: RedisServer, tmp_path: Path) -> None:
    async def work() -> None:
        prefix = f"test:{secrets.token_hex(4)}"
        async with leading(tmp_path, redis.port, prefix, lease=8) as first:
            first.path.write_text(fleet_with("c"))
            await first.services.reconciler.reload()
            await first.services.api.operation("rollback")(schema.RollbackRequest(allow_shrink=True), "operator")
            await asyncio.to_thread(redis.stop)
            await until(lambda: first.member.election.role == "isolated")
            first.path.write_text(fleet_with("d"))
            await first.services.reconciler.reload(allow_shrink=True)
            assert served(first) == {"a", "d"}
            await asyncio.to_thread(redis.start)
            await until(lambda: first.member.takeovers == 2)
            assert served(first) == {"a", "d"}
            assert await first.state.rollback() is None

    asyncio.run(work())


@pytest.mark.slow
def test_writes_wait_for_the_end_of_a_takeover(
    redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        unblocked = asyncio.Event()
        save = OverrideService.save

        async def slow(self: OverrideService) -> None:
            await unblocked.wait()
            await save(self)

        monkeypatch.setattr(OverrideService, "save", slow)
        async with running("cp-1", tmp_path, redis.port, f"test:{secrets.token_hex(4)}") as first:
            await until(lambda: first.member.election.role == "leader")
            target = first.services.api.forwards_to()
            assert target is not None, "a write before the end of the takeover is not carried out here"
            assert target.url == ""
            unblocked.set()
            await until(lambda: first.services.api.forwards_to() is None)

    asyncio.run(work())


def test_takeover_does_not_wait_for_an_uncancellable_reader(
    redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swallowed: list[str] = []
    again = guard._AGAIN

    async def reads(*_: object) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        swallowed.append("as redis-py does while it connects")
        await asyncio.Event().wait()

    async def work() -> None:
        async with leading(tmp_path, redis.port):
            # the client of Redis may really swallow one as the member ends
            monkeypatch.setattr("lbctl.runtime.guard._AGAIN", again)

    monkeypatch.setattr("lbctl.serve.ha.following._read", reads)
    monkeypatch.setattr("lbctl.runtime.guard._AGAIN", 3600.0)
    asyncio.run(work())
    assert swallowed


@pytest.mark.slow
def test_failed_takeover_is_retried(redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        save = OverrideService.save
        failures: list[str] = []

        async def fails_once(self: OverrideService) -> None:
            if not failures:
                failures.append("once")
                raise ValueError
            await save(self)

        monkeypatch.setattr(OverrideService, "save", fails_once)
        async with leading(tmp_path, redis.port) as first:
            assert first.member.takeovers == 1
            assert failures

    asyncio.run(work())


def test_follower_forwards_only_to_an_announced_leader_api(redis: RedisServer, tmp_path: Path) -> None:
    async def work() -> None:
        prefix = f"test:{secrets.token_hex(4)}"
        async with (
            leading(tmp_path, redis.port, prefix),
            running("cp-2", tmp_path, redis.port, prefix) as second,
        ):
            member = second.member
            await until(lambda: member.records.leader is not None and len(member.members) == 2)
            assert member.records.leader is not None
            member.records.leader = replace(member.records.leader, api="https://elsewhere.example")
            assert member.leader_api == ""
            member._known.replace((MemberInfo("cp-1", api="https://elsewhere.example"),))
            assert member.leader_api == "https://elsewhere.example"

    asyncio.run(work())


@pytest.mark.slow
def test_decision_is_saved_before_publication_at_most_10_per_s(
    redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "_WRITE_TIMEOUT", 20.0)  # a busy machine must not look like a hanging store
    monkeypatch.setattr(saving, "_SAVE_CHANGED", 3600.0)  # no periodic save in addition to those before publications

    async def work() -> None:
        async with leading(tmp_path, redis.port) as first:
            loop, live = first.services.loop, first.services.live
            events: list[tuple[str, LoopOutput, float]] = []
            save_times: list[float] = []
            save, apply = first.state.save_loop_output, live.apply

            async def written_first(output: LoopOutput, at: float) -> int:
                save_times.append(at)
                length = await save(output, at)
                events.append(("written", output, time.monotonic()))
                return length

            async def publishing(inputs: FleetInputs, cause: str, *, save: bool = True) -> None:
                if cause == "signals":
                    events.append(("published", inputs.decisions, time.monotonic()))
                await apply(inputs, cause, save=save)

            first.state.save_loop_output = written_first  # type: ignore[method-assign]
            live.apply = publishing  # type: ignore[method-assign]
            for step in range(1, 31):
                loop._set_output(LoopOutput({"pool": {"a": Weight(step / 10, 1.0)}}))
                await asyncio.sleep(0.02)
            await until(lambda: events[-1][1] == loop.output and events[-1][0] == "published")
            written = [(output, at) for kind, output, at in events if kind == "written"]
            for kind, output, at in events:
                assert kind == "written" or any(known == output and before <= at for known, before in written)
            assert all(after - before >= 0.09 for before, after in pairwise(save_times))

    asyncio.run(work())


def test_hanging_store_delays_a_decision_only_briefly(redis: RedisServer, tmp_path: Path) -> None:
    async def work() -> None:
        async with leading(tmp_path, redis.port) as first:
            decided = LoopOutput({"pool": {"a": Weight(0.5, 1.0)}})
            redis.signal(signal.SIGSTOP)
            try:
                first.services.loop._set_output(decided)
                await until(lambda: first.services.live.inputs.decisions == decided)
            finally:
                redis.signal(signal.SIGCONT)
            await until(lambda: first.member.leads and not first.member.election.problem)

    asyncio.run(work())


def test_different_files_are_reported_and_the_leader_s_published(
    redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbctl.serve.ha.member.INTERVAL", 0.2)

    async def work() -> None:
        prefix = f"test:{secrets.token_hex(4)}"
        async with (
            leading(tmp_path, redis.port, prefix) as first,
            running("cp-2", tmp_path, redis.port, prefix) as second,
        ):

            def differ() -> dict[str, bool]:
                return {row.name: row.files_differ for row in first.services.api.operation("members")().members}

            def digests() -> dict[str, str]:
                return {row.name: row.digest for row in second.services.api.operation("members")().members}

            second.path.write_text(fleet_with("c"))
            await second.services.reconciler.reload()
            assert served(second) == {"a", "b"}, "the leader's"
            await until(lambda: differ() == {"cp-1": False, "cp-2": True})
            await until(lambda: set(digests()) == {"cp-1", "cp-2"})
            assert digests()["cp-1"] != digests()["cp-2"]
            first.path.write_text(fleet_with("d"))
            await first.services.reconciler.reload(allow_shrink=True)
            await until(lambda: served(second) == {"a", "d"})
            assert version(second) == version(first)
            second.path.write_text(fleet_with("d"))
            await second.services.reconciler.reload()
            await until(lambda: differ() == {"cp-1": False, "cp-2": False})
            assert version(second) == version(first)

    asyncio.run(work())


def _with_control(text: str, port: int) -> str:
    picked = text.replace("version: 1\n", "", 1)
    return (
        f"version: 1\ncontrol:\n  api: {{bind: 127.0.0.1:{port}}}\n  picker: {{bind: 127.0.0.1:{port + 10}}}\n{picked}"
    )


def test_member_uses_the_control_section_of_local_files(
    redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbctl.serve.ha.member.INTERVAL", 0.2)

    def ports(member: Running) -> tuple[int, int]:
        published = member.services.live.served
        assert published is not None
        control = published.composed.whole.topology.control
        chosen = settings(Options((str(member.path),)), published.loaded.source)
        return chosen.control.api_bind.port, control.picker_bind.port

    async def work() -> None:
        prefix = f"test:{secrets.token_hex(4)}"
        one, other = (_with_control(fleet_with("b"), port) for port in (19101, 19201))
        async with (
            leading(tmp_path, redis.port, prefix, one) as first,
            running("cp-2", tmp_path, redis.port, prefix, fleet=other) as second,
        ):
            assert (ports(first), ports(second)) == ((19101, 19111), (19201, 19211))
            await until(
                lambda: (
                    [row.files_differ for row in first.services.api.operation("members")().members] == [False, False]
                )
            )
            first.path.write_text(_with_control(fleet_with("c"), 19101))
            await first.services.reconciler.reload()
            await until(lambda: served(second) == {"a", "c"})
            assert ports(second) == (19201, 19211)
            await until(lambda: first.member.differing == ("cp-2",))

    asyncio.run(work())
