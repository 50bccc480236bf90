"""The analysis of rollouts in `serve`: windows of the ledger, PromQL, restarts, and audit records."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from lbctl.api import schema
from lbctl.control.analysis.evidence import Evaluation, RequestCounts
from lbctl.control.analysis.statistics import cluster_size
from lbctl.control.replica_state import ReplicaCondition
from lbctl.control.rollouts import RolloutState, step_id
from lbctl.runtime import log
from lbctl.runtime.clock import SteadyClock
from lbctl.runtime.errors import BadRequestError
from lbctl.serve import wiring
from lbctl.serve.api.endpoints import Endpoints
from lbctl.serve.metrics.instruments import Metrics
from lbctl.serve.operator import evidence
from lbctl.serve.operator.steps_in_force import StepsInForce
from lbctl.serve.settings import Options
from lbctl.serve.traffic.ledger import Counts, ReplicaKey
from lbctl.serve.traffic.service import Traffic
from lbctl.serve.wiring import Services
from lbctl.serve.wiring.inputs import Inputs
from lbctl.store.interface import StoreError
from lbctl.store.records import read_rollouts, write_rollouts
from lbctl.store.saved import SavedState
from lbctl.store.sqlite import SqliteStore
from lbctl.xds.protocol.node_status import NodeStatus
from tests.support.fleets import Fleet, fleet_of, load_fleet, pool, replica
from tests.support.processes.ports import free_port
from tests.support.publishing import publish_files


class VirtualClock:
    """The clocks of the control plane. Time passes only in `advance`.

    `wall` is the clock of the machine, which can be set.
    """

    def __init__(self) -> None:
        self.elapsed = 0.0
        self.wall = time.time()

    def advance(self, seconds: float) -> None:
        self.elapsed += seconds
        self.wall += seconds


def _traffic(clock: VirtualClock, **arguments: Any) -> Traffic:
    """Return traffic with this clock. Its proxies count as connected, because each publication drops all others."""
    return Traffic(**{**arguments, "clock": lambda: clock.elapsed, "nodes": lambda: ("edge", "other")})


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    virtual = VirtualClock()
    steady = SteadyClock(lambda: virtual.wall, lambda: virtual.elapsed)
    monkeypatch.setattr("lbctl.serve.wiring.Inputs", partial(Inputs, clock=steady))
    monkeypatch.setattr("lbctl.serve.wiring.builders.Traffic", partial(_traffic, virtual))
    monkeypatch.setattr(Run, "clock", virtual, raising=False)
    monkeypatch.setattr("lbctl.serve.operator.rollouts._INTERVAL", 0.005)
    monkeypatch.setattr(StepsInForce, "own", lambda _, states, __: tuple(map(step_id, states)))  # there is no proxy
    monkeypatch.setattr("lbctl.serve.api.pool_rows.unchecked", lambda *_: frozenset())  # nothing connects to a replica
    return virtual


Errors = Mapping[str, float]
"""Share of failed requests by pool."""
_REQUESTS = {"new": 100, "old": 300}
"""Requests of each pool per report."""


def rollout_fleet(hold: str = "1s", **analysis: Any) -> Fleet:
    """Return a fleet whose route `chat` moves from the pool old to the pool new by analysis."""
    criteria = {"interval": "300ms", "min_requests": 200, "max_error_rate": "2%", "failures": 2, **analysis}
    rollout = {
        "to": "new",
        "mode": "analysis",
        "steps": [{"percent": "25%", "hold": hold}, {"percent": "50%", "hold": hold}, {"percent": "100%"}],
        "analysis": criteria,
    }
    route = {"match": {"path_prefix": "/chat"}, "split": {"old": 1, "new": 0}, "rollout": rollout}
    return fleet_of(routes={"chat": route}, pools={name: pool(replica("r")) for name in ("old", "new")})


class Run:
    """A running `serve` without endpoints, and proxies that report to its ledger."""

    clock: VirtualClock

    def __init__(self, services: Services, metrics: Metrics, state: SavedState) -> None:
        self.services = services
        self.metrics = metrics
        self.saved = state
        self.reported = 0
        """Requests of the pool `new` that have been reported to this process."""

    @property
    def state(self) -> RolloutState:
        (state,) = self.services.live.inputs.rollouts
        return state

    @property
    def row(self) -> schema.Rollout:
        (row,) = self.services.api.operation("rollouts")().rollouts
        return row

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        return self.state.analysis.evaluations

    @property
    def verdicts(self) -> Mapping[str, int]:
        assert self.row.analysis
        return self.row.analysis.verdicts

    def report(self, errors: Errors, proxy: str = "edge") -> None:
        traffic = self.services.traffic
        counts = {
            ReplicaKey(pool, "r"): Counts(requests, round(requests * errors[pool]))
            for pool, requests in _REQUESTS.items()
        }
        traffic.ledger.add(proxy, counts, traffic.clock())
        self.reported += _REQUESTS["new"]

    async def until(self, condition: Callable[[Run], bool], errors: Errors | None = None) -> None:
        """Report traffic with these errors until the condition holds."""
        deadline = time.monotonic() + 60
        while not condition(self):
            assert time.monotonic() < deadline, self.row
            if errors is not None:
                self.report(errors)
            await self.wait(0.1)

    async def wait(self, seconds: float) -> None:
        """Let time pass in steps of 0.1 s, and let the tasks run after each step."""
        for _ in range(round(seconds / 0.1)):
            self.clock.advance(0.1)
            await asyncio.sleep(0.01)

    async def actions(self) -> list[tuple[str, str]]:
        return [(item.action, item.reason) for item in await self.saved.audit() if item.action.startswith("rollout")]


@asynccontextmanager
async def serving(directory: Path, fleet: Fleet) -> AsyncIterator[Run]:
    """Run the parts of `serve` with the tasks of rollouts. Leaving the block is as sudden as SIGKILL."""
    loaded = load_fleet(directory, fleet)
    options, nodes, metrics = Options((str(directory / "fleet.yaml"),)), NodeStatus(), Metrics()
    state = SavedState(SqliteStore.open(directory / "state"), log.warn)
    await state.lead(log.warn)
    services, _ = await wiring.build_from(options, Endpoints(options, nodes, metrics), metrics, nodes, state)
    await publish_files(services.live, loaded)
    tasks = [asyncio.create_task(work()) for work in (services.rollouts.run, services.rollouts.run_analysis)]
    try:
        while not services.live.inputs.rollouts:
            await asyncio.sleep(0.01)
        yield Run(services, metrics, state)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await services.discovery.stop()
        await state.close()


def run_test(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 120))


GOOD = {"new": 0.01, "old": 0.01}
BAD = {"new": 0.2, "old": 0.01}


def test_good_pool_is_promoted_step_by_step(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, rollout_fleet()) as run:
            await run.until(lambda run: run.state.phase == "promoted", GOOD)
            await run.until(lambda run: dict(run.row.split) == {"new": 1, "old": 0})
            actions = await run.actions()
            assert [action for action, _ in actions] == [
                "rollout progressing (step 1, 25 %)", "rollout progressing (step 2, 50 %)",
                "rollout promoted (step 3, 100 %)",
            ]  # fmt: skip
            assert all(reason.startswith("good: new ") for _, reason in actions[1:])
            page = run.metrics.page().decode()
            assert f'lbctl_rollout_verdict_total{{route="chat",verdict="good"}} {run.verdicts["good"]}.0' in page

    run_test(test())


def test_observed_share_is_counted_by_the_proxies(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, rollout_fleet()) as run:
            assert run.row.observed is None
            run.report(GOOD)
            run.report(GOOD, proxy="other")
            assert run.row.observed == pytest.approx(_REQUESTS["new"] / sum(_REQUESTS.values()), abs=1e-4)

    run_test(test())


def test_errors_of_the_proxies_themselves_are_bad(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, rollout_fleet()) as run:
            traffic = run.services.traffic

            def no_replica(run: Run) -> bool:
                counts = {ReplicaKey("old", "r"): Counts(300)}
                traffic.ledger.add("edge", counts, traffic.clock())
                traffic.ledger.add_own_errors("edge", {"new": 100}, traffic.clock())
                return run.state.phase == "rolled_back"

            await run.until(no_replica)
            bad = [item for item in run.evaluations if item.verdict == "bad"]
            assert len(bad) == 2
            assert all(item.new.errors == item.new.requests >= 200 for item in bad)

    run_test(test())


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["manual", "timed", "analysis"])
def test_dead_target_ends_a_rollout_and_needs_an_override(mode: str, tmp_path: Path) -> None:
    async def test() -> None:
        fleet = rollout_fleet(hold="1h")
        fleet["routes"]["chat"]["rollout"]["mode"] = mode
        if mode != "analysis":
            del fleet["routes"]["chat"]["rollout"]["analysis"]
        async with serving(tmp_path, fleet) as run:
            rollouts, traffic = run.services.rollouts, run.services.traffic
            if mode == "manual":
                await rollouts.act("chat", "start", "anna")
            await run.until(lambda run: run.state.phase == "progressing")
            await run.wait(10)  # a target that is found dead at the beginning is awaited

            def is_dead(*_: object) -> bool:
                """Report the dead replica again, before the report is too old."""
                dead = {ReplicaKey("new", "r"): ReplicaCondition("down", "refused")}
                traffic.ledger.set_conditions("edge", dead, traffic.clock())
                return True

            await run.until(lambda run: is_dead() and run.state.phase == "rolled_back")
            assert "pool new has no available replica: r is down" in run.state.reason
            assert (await run.actions())[-1][1] == run.state.reason
            is_dead()
            with pytest.raises(BadRequestError, match="--allow-unavailable"):
                await rollouts.act("chat", "start", "anna")
            await rollouts.act("chat", "start", "anna", allow_unavailable=True)
            for _ in range(10):
                is_dead()
                await run.wait(1)
            assert (run.state.phase, run.row.unavailable) == ("progressing", None)
            action, _ = (await run.actions())[-1]
            assert action == "rollout start, progressing (step 1, 25 %), unavailable target allowed"
        async with serving(tmp_path, fleet) as run:
            assert run.state.allows_unavailable, "it survives a restart"

    run_test(test())


def test_bad_pool_is_rolled_back_across_a_restart(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, rollout_fleet()) as run:
            await run.until(lambda run: run.state.phase == "rolled_back", BAD)
            await run.until(lambda run: dict(run.row.split) == {"new": 0, "old": 1})
            assert run.row.percent is None
            assert (run.row.reason or "").startswith("2 bad evaluations in a row")
            action, reason = (await run.actions())[-1]
            assert (action, reason) == ("rollout rolled_back (the split in the files)", run.row.reason)
        async with serving(tmp_path, rollout_fleet()) as run:
            await run.until(lambda run: run.state.phase == "rolled_back", GOOD)
            await run.wait(1.5)
            assert run.state.phase == "rolled_back"
            assert len(await run.actions()) == 2, "nothing is done twice"

    run_test(test())


@pytest.mark.parametrize("refused", ["append_audit", "save_rollouts"])
def test_unsaved_rollback_is_recorded_once_later(refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> None:
        raise StoreError("no room")

    async def test() -> None:
        async with serving(tmp_path, rollout_fleet("60s")) as run:
            with monkeypatch.context() as full:
                full.setattr(run.saved, refused, refuse)
                await run.until(lambda run: run.state.phase == "rolled_back", {"new": 0.2, "old": 0.0})
                await run.until(lambda run: dict(run.row.split) == {"new": 0, "old": 1})
            while (await run.saved.rollouts())[0].phase != "rolled_back":
                await asyncio.sleep(0.01)
            actions = [action for action, _ in await run.actions()]
            assert actions.count("rollout rolled_back (the split in the files)") == 1

    run_test(test())


def test_restart_keeps_the_evidence_and_counts_it_once(tmp_path: Path) -> None:
    async def test() -> None:
        slow = rollout_fleet(failures=1000)
        async with serving(tmp_path, slow) as run:
            await run.until(lambda run: run.verdicts["bad"] >= 2, BAD)
            while (await run.saved.rollouts())[0].analysis != (before := run.state.analysis):
                await asyncio.sleep(0.01)
        async with serving(tmp_path, slow) as run:
            assert run.state.analysis == before
            await run.until(lambda run: run.evaluations[-1].reason == "no proxy reports its requests")
            assert run.state.analysis.step_new == before.step_new
            await run.until(lambda run: run.verdicts["bad"] > before.bad, BAD)
            assert run.state.analysis.failures > before.failures
            newest = run.evaluations[-1].new
            assert 0 < newest.requests <= run.reported

    run_test(test())


def test_reason_to_wait_survives_a_change_of_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: VirtualClock
) -> None:
    async def test() -> None:
        async with serving(tmp_path, rollout_fleet(hold="60s", interval="2s")) as run:
            await run.until(lambda run: run.verdicts["inconclusive"] >= 1)
            machine = time.time
            monkeypatch.setattr(time, "time", lambda: machine() + 3600)
            clock.wall += 3600
            assert run.row.analysis
            assert run.row.analysis.waits_for == "no proxy reports its requests"

    run_test(test())


def test_missing_reports_block_the_rollout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbctl.serve.traffic.ledger.STALE_AFTER", 0.5)

    async def test() -> None:
        async with serving(tmp_path, rollout_fleet(hold="1ms")) as run:
            await run.until(lambda run: run.verdicts["inconclusive"] >= 2)
            assert run.row.analysis
            assert run.row.analysis.waits_for == "no proxy reports its requests"
            assert run.state.step == 0
        async with serving(tmp_path, rollout_fleet(hold="60s", failures=3)) as run:
            await run.until(lambda run: run.verdicts["good"] >= 1, GOOD)
            run.report(GOOD, "gone")
            await run.until(lambda run: "no report from gone" in {item.reason for item in run.evaluations}, GOOD)
            await run.until(lambda run: run.evaluations[-1].verdict == "good", GOOD)

    run_test(test())


def test_abort_does_not_wait_for_prometheus(tmp_path: Path) -> None:
    async def test() -> None:
        port, queried = free_port(), asyncio.Event()

        async def never(_: web.Request) -> web.Response:
            queried.set()
            await asyncio.sleep(60)
            return web.Response()

        async with answering(port, never), serving(tmp_path, rollout_fleet(metrics=[metric(port)])) as run:
            await run.until(lambda _: queried.is_set(), GOOD)
            began = time.monotonic()
            await run.services.rollouts.act("chat", "abort", "anna")
            assert time.monotonic() - began < 30, "it waits a minute for the response"
            await run.wait(0.5)
            assert run.state.phase == "aborted"
            assert run.evaluations == ()

    run_test(test())


def test_percent_applies_only_to_set(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, rollout_fleet()) as run:
            await run.services.rollouts.act("chat", "pause", "anna", percent=10**400)
            assert run.state.phase == "paused"
            for percent in (None, -1, 100.5, 10**400):
                with pytest.raises(BadRequestError, match="percent must be a number from 0 to 100"):
                    await run.services.rollouts.act("chat", "set", "anna", percent=percent)

    run_test(test())


def metric(port: int, **more: Any) -> dict[str, Any]:
    query = 'sum(rate(flagged_total{pool="{pool}"}[1m]))'
    return {"name": "flagged", "source": f"http://127.0.0.1:{port}", "query": query, "max_ratio": 1.5, **more}


@asynccontextmanager
async def answering(port: int, handler: Any) -> AsyncIterator[None]:
    app = web.Application()
    app.router.add_get("/api/v1/query", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield
    finally:
        await runner.cleanup()


@pytest.mark.slow
def test_promql_compares_both_pools_at_one_instant(tmp_path: Path) -> None:
    async def test() -> None:
        port, queries = free_port(), list[tuple[str, str]]()
        results: dict[str, list[Any]] = {}

        async def answer(request: web.Request) -> web.Response:
            query, at = request.query["query"], request.query["time"]
            queries.append((query, at))
            series = results["new" if 'pool="new"' in query else "old"]
            result = [{"metric": {"n": str(n)}, "value": [1, value]} for n, value in enumerate(series)]
            return web.json_response({"status": "success", "data": {"resultType": "vector", "result": result}})

        async def verdict(run: Run, new: list[str], old: list[str]) -> tuple[str, str]:
            results.update(new=new, old=old)
            seen = run.state.analysis
            count = seen.good + seen.bad + seen.inconclusive
            await run.until(lambda run: sum(run.verdicts.values()) >= count + 2, GOOD)
            last = run.evaluations[-1]
            return last.verdict, last.reason

        results.update(new=[], old=[])
        fleet = rollout_fleet(metrics=[metric(port)], failures=100)
        async with answering(port, answer), serving(tmp_path, fleet) as run:
            assert await verdict(run, ["1"], []) == ("inconclusive", "flagged: old: the query returned no result")
            assert await verdict(run, ["NaN"], ["1"]) == (
                "inconclusive", "flagged: new: the value is not a finite, non-negative number",
            )  # fmt: skip
            assert await verdict(run, ["1", "2"], ["1"]) == (
                "inconclusive", "flagged: new: the query returned 2 series instead of one",
            )  # fmt: skip
            assert await verdict(run, ["1"], ["0"]) == ("inconclusive", "flagged: a ratio to 0 is undefined")
            assert run.state.step == 0
            assert await verdict(run, ["3"], ["1"]) == ("bad", "flagged is 3 times the old value")
            assert run.row.analysis
            assert run.row.analysis.evaluations[-1].metrics == (
                schema.RolloutMetric("flagged", 3.0, 1.0, 3.0, 1.5, "bad", None),
            )
            assert await verdict(run, ["1.4"], ["1"]) == ("good", "")
        pairs = [{query for query, at in queries if at == each} for each in {at for _, at in queries}]
        assert {frozenset(pair) for pair in pairs if len(pair) == 2} == {
            frozenset(f'sum(rate(flagged_total{{pool="{pool}"}}[1m]))' for pool in ("new", "old"))
        }

    run_test(test())


def test_state_of_earlier_version_and_evidence_are_restored(tmp_path: Path) -> None:
    old = (
        '[{"route": "chat", "key": "k", "base": [["new", 0], ["old", 1]], "phase": "progressing", "step": 1, '
        '"percent": 50.0, "since": 5.0, "elapsed": 0.0, "reason": ""}]'
    )
    (state,) = read_rollouts(old)
    assert (state.step, state.held_since, state.analysis.evaluations) == (1, 5.0, ()), "its hold began with the step"

    async def test() -> None:
        async with serving(tmp_path, rollout_fleet(failures=100)) as run:
            await run.until(lambda run: run.verdicts["bad"] >= 2, BAD)
            assert read_rollouts(write_rollouts((run.state,))) == (run.state,)

    run_test(test())
    for damage in ({"tests": -1}, {"evaluations": [{}]}, {"step_new": {"requests": 1, "errors": 2}}):
        (row,) = json.loads(write_rollouts((state,)))
        row["analysis"] |= damage
        with pytest.raises((ValueError, KeyError)):
            read_rollouts(json.dumps([row]))


def test_errors_never_exceed_requests() -> None:
    key = "edge", ReplicaKey("new", "r")
    gained = evidence._by_pool({key: Counts(100, 0)}, {key: Counts(150, 140)})
    assert gained == {"new": RequestCounts(140, 140)}
    window = gained["new"], RequestCounts(100, 0)
    assert cluster_size([window, window]) >= 1


def test_state_with_too_many_steps_is_limited_to_the_files(tmp_path: Path) -> None:
    async def script() -> None:
        async with serving(tmp_path, rollout_fleet(hold="60s")) as run:
            live = run.services.live
            live.stage(replace(live.inputs, rollouts=(replace(run.state, key="before", step=7),)))
            assert (run.row.phase, run.row.step) == ("progressing", 1)

    run_test(script())
