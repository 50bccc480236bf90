"""Short histories of a replica, and how the agent judges them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lbctl.agent import judge
from lbctl.agent.assessment import Reason
from lbctl.agent.memory import Memory
from lbctl.agent.readings import GpuReadings
from tests.support.agent import BUSY, IDLE, Replica, codes, engine, gpu, lost_gpu

_GIB = 1 << 30
_HOT: dict[str, Any] = {"slowdowns": frozenset({"sw_thermal"})}


def _restart(replica: Replica) -> None:
    replica.see(is_down=True)
    replica.see()


def test_good_replica_is_healthy() -> None:
    replica = Replica()
    for _ in range(3):
        assert replica.see() == judge.Assessment("healthy")


def test_engine_alone_is_judged_without_a_gpu() -> None:
    readings = GpuReadings(1.0, note="no GPU driver is installed")
    _, good = judge.step(Replica().settings, Memory(), readings, engine(1.0), 1.0)
    assert (good.state, good.notes) == ("healthy", ("no GPU driver is installed",))
    _, bad = judge.step(Replica().settings, Memory(), readings, engine(1.0, problem="status 503"), 1.0)
    assert bad.reasons == (Reason("engine", "status 503"),)


# ── Remembered faults ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (gpu(xids=(79,)), Reason("xid", "GPU 0 reported the fatal XID 79", "0")),
        (gpu(ecc_errors=4), Reason("ecc", "GPU 0 had an uncorrectable memory error", "0")),
        (lost_gpu(xids=(79,)), Reason("xid", "GPU 0 reported the fatal XID 79", "0")),
    ],
)
def test_fault_lasts_until_the_engine_restarts(bad: Any, expected: Reason) -> None:
    replica = Replica()
    replica.see()
    assert expected in replica.see(bad).reasons
    assert expected in replica.see().reasons
    assert "engine" in codes(replica.see(is_down=True))
    assert replica.see().state == "healthy"


@pytest.mark.parametrize("sign", [{"restarted": True}, {"started_at": 2000.0}])
def test_other_signs_of_a_restart_end_a_fault(sign: dict[str, Any]) -> None:
    replica = Replica()
    replica.see(gpu(xids=(48,)), started_at=1000.0)
    assert codes(replica.see(started_at=1000.4)) == ["xid"]
    assert replica.see(**sign).state == "healthy"


def test_busy_engine_without_response_has_not_restarted() -> None:
    replica = Replica()
    replica.see(gpu(xids=(79,)))
    replica.see(problem="/health: no response within 3 s", page_problem="no complete response within 3 s", signals={})
    assert codes(replica.see()) == ["xid"]


def test_readmit_ends_a_fault() -> None:
    replica = Replica()
    replica.see()
    replica.see(gpu(xids=(79,), ecc_errors=4))
    replica.readmit()
    assert replica.see(gpu(ecc_errors=4)).state == "healthy"
    assert codes(replica.see(gpu(ecc_errors=5))) == ["ecc"]


def test_harmless_xids_and_earlier_errors_do_not_count() -> None:
    replica = Replica()
    assert replica.see(gpu(xids=(13, 43), ecc_errors=900)).state == "healthy"
    assert replica.see(gpu(ecc_errors=None)).state == "healthy"
    assert replica.see(gpu(ecc_errors=900)).state == "healthy"
    assert replica.see(gpu(ecc_errors=0)).state == "healthy", "the driver was loaded again"


def test_reading_that_is_returned_twice_counts_once() -> None:
    replica = Replica()
    readings = GpuReadings(1.0, (gpu(xids=(79,)),))
    memory, _ = judge.step(replica.settings, Memory(), readings, engine(1.0), 1.0)
    memory, assessment = judge.step(replica.settings, memory, readings, engine(2.0, restarted=True), 2.0)
    assert assessment.state == "healthy"


# ── GPUs that cannot be read ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("see", "code"),
    [
        (lambda replica: replica.see(gpu(), lost_gpu(1)), "gpu_lost"),
        (lambda replica: replica.see(gpu()), "gpu_lost"),
        (lambda replica: replica.see(driver="the GPU driver has not responded for 6 s"), "driver"),
    ],
)
def test_unreadable_gpu_needs_a_restart_of_the_engine(see: Callable[[Replica], Any], code: str) -> None:
    replica = Replica()
    replica.see(gpu(), gpu(1))
    assert codes(see(replica)) == [code]
    found = replica.see(gpu(), gpu(1))
    assert codes(found) == [code]
    assert found.reasons[0].message.endswith("the engine has not restarted or answered a probe since")
    replica.see(gpu(), gpu(1), is_down=True)
    assert replica.see(gpu(), gpu(1)).state == "healthy"


def test_restart_does_not_end_the_loss_of_a_gpu() -> None:
    replica = Replica()
    replica.see(lost_gpu())
    replica.see(lost_gpu(), is_down=True)
    assert codes(replica.see(lost_gpu())) == ["gpu_lost"]
    assert codes(replica.see()) == ["gpu_lost"], "the engine started without this GPU"


@pytest.mark.parametrize("problem", ["the driver is being updated", ""])
def test_answered_probe_shows_that_the_engine_has_its_gpu(problem: str) -> None:
    replica = Replica()
    replica.see(*([] if problem else [lost_gpu()]), driver=problem)
    assert replica.request() == "", "the GPU cannot be read yet"
    replica.see()
    assert replica.answer("status 500") == "probe"
    found = replica.see()
    assert found.state == "unhealthy"
    assert found.reasons[0].message.endswith("has not restarted or answered a probe since: status 500")
    replica.now += judge.PROBE_INTERVAL
    replica.answer()
    assert replica.see().state == "healthy"


def test_driver_that_starts_slowly_is_not_a_lasting_fault() -> None:
    replica = Replica()
    assert codes(replica.see(driver="no answer for 6 s", is_starting=True)) == ["driver"]
    assert not replica.memory.faults
    assert replica.see().state == "healthy"


def test_answered_probe_does_not_end_an_xid() -> None:
    replica = Replica(probe=True)
    replica.see(gpu(xids=(79,)))
    for _ in range(int(judge.PROBE_IDLE)):
        replica.see()
    replica.answer()
    assert codes(replica.see()) == ["xid"]


# ── Values with limits ───────────────────────────────────────────────────────────────────────────────────────────────


def test_failed_row_remap_lasts_until_it_is_gone_or_accepted() -> None:
    replica = Replica()
    assert codes(replica.see(gpu(remap_failed=True))) == ["row_remap"]
    _restart(replica)
    assert replica.see().state == "healthy"
    replica.see(gpu(remap_failed=True))
    assert codes(replica.see(gpu(remap_failed=None))) == ["row_remap"]
    replica.readmit()
    assert replica.see(gpu(remap_failed=True)).state == "healthy"
    replica.see(gpu(remap_failed=False))
    assert codes(replica.see(gpu(remap_failed=True))) == ["row_remap"]


def test_free_memory_below_the_limit() -> None:
    replica = Replica(min_free_memory=2 * _GIB)
    low, between = gpu(memory_free=_GIB), gpu(memory_free=int(2.1 * _GIB))
    states = [replica.see(item).state for item in (low, gpu(), low, low, between, gpu(memory_free=None), gpu())]
    assert states == ["healthy"] * 3 + ["unhealthy"] * 3 + ["healthy"]
    replica.see(low)
    assert replica.see(low).reasons == (Reason("memory", "GPU 0 has less than 2048 MiB of free memory", "0"),)


def test_free_memory_is_not_checked_without_a_limit() -> None:
    replica = Replica()
    assert [replica.see(gpu(memory_free=0)).state for _ in range(3)] == ["healthy"] * 3


@pytest.mark.parametrize(
    ("changes", "weight"),
    [
        ({"clock": 0.62, **_HOT}, 60),
        ({"clock": 0.99, **_HOT}, 100),
        ({"clock": 0.001, "slowdowns": frozenset({"hw_slowdown"})}, 5),
        ({"clock": None, **_HOT}, 100),
        ({"clock": 0.2}, 100),
        ({"clock": 0.6, "slowdowns": frozenset({"power_cap"})}, 100),
    ],
)
def test_hot_gpu_lowers_the_weight(changes: dict[str, Any], weight: int) -> None:
    found = Replica().see(gpu(), gpu(1, **changes))
    assert (found.state, found.weight) == ("healthy", weight)


def test_slow_gpu_is_unhealthy_until_it_is_cool() -> None:
    replica = Replica()
    slow, fast = gpu(clock=0.4, **_HOT), gpu(clock=0.8, **_HOT)
    assert [replica.see(item).state for item in (slow, fast, slow, slow)] == ["healthy"] * 3 + ["unhealthy"]
    assert codes(replica.see(slow)) == ["slowdown"]
    assert [replica.see(fast).state for _ in range(5)] == ["unhealthy"] * 4 + ["healthy"]
    replica = Replica(max_slowdown=0.7)
    assert [replica.see(slow).state for _ in range(3)] == ["healthy"] * 3


# ── The engine ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_failed_health_check_counts_at_once() -> None:
    replica = Replica()
    replica.see()
    assert replica.see(problem="/health: status 503").reasons == (Reason("engine", "/health: status 503"),)
    assert replica.see().state == "healthy"


def _wedge(replica: Replica, **changes: Any) -> int:
    """Return the number of seconds until the replica is unhealthy, with requests and without progress."""
    for second in range(200):
        if replica.see(signals=BUSY, **changes).state == "unhealthy":
            return second
    return -1


def test_engine_without_progress_is_wedged() -> None:
    replica = Replica(stalled_after=15.0)
    for _ in range(60):
        replica.see(signals=IDLE)
    assert _wedge(replica) == 15
    found = replica.see(signals=BUSY)
    assert found.reasons == (
        Reason("wedged", "requests are in flight, but the engine has made no progress for 16 s"),
    )  # fmt: skip
    assert codes(replica.see(signals={}, page_problem="timeout")) == ["wedged"], "nothing is known"


def test_progress_by_requests_takes_four_times_as_long() -> None:
    assert _wedge(Replica(stalled_after=15.0), by_steps=False) == 60


@pytest.mark.parametrize(
    "good", [{"signals": {**BUSY, "progress": 101}}, {"signals": IDLE}, {"signals": BUSY, "restarted": True}]
)
def test_wedge_ends_with_progress_or_without_requests(good: dict[str, Any]) -> None:
    replica = Replica()
    assert _wedge(replica) > 0
    assert replica.see(**good).state == "healthy"


def test_wedge_ends_with_an_answered_probe() -> None:
    """A gauge that counts requests which do not exist must not keep a replica out forever."""
    replica = Replica()
    _wedge(replica)
    replica.answer()
    assert replica.see(signals=BUSY).state == "healthy"


@pytest.mark.parametrize(
    "signals",
    [
        {**BUSY, "progress": None},
        {"progress": 100.0},
        {"running": 3.0},
        {},
    ],
)
def test_engine_with_progress_or_unknown_values_is_not_wedged(signals: dict[str, Any]) -> None:
    replica = Replica()
    for second in range(100):
        known = {name: second if value is None else value for name, value in signals.items()}
        assert replica.see(signals=known).state == "healthy"


def test_asleep_engine_is_not_judged_until_it_is_awake() -> None:
    replica = Replica()
    for _ in range(100):
        assert replica.see(signals={**BUSY, "awake": 0.0}).state == "asleep"
    assert replica.see(signals={}, page_problem="timeout").state == "asleep"
    assert replica.see(signals={**BUSY, "awake": 1.0}).state == "healthy"


# ── Warm-up and probe ────────────────────────────────────────────────────────────────────────────────────────────────


def test_restarted_engine_is_warmed_up() -> None:
    replica = Replica(warmup=2)
    assert replica.see().state == "healthy", "it has answered requests before the agent started"
    _restart(replica)
    found = replica.see()
    assert (found.state, found.reasons[0].message) == ("warming_up", "0 of 2 warm-up requests answered")
    assert replica.answer() == "warmup"
    assert replica.answer("status 503") == "warmup"
    assert replica.request() == "", "it waits before it tries again"
    assert (
        replica.see().reasons[0].message.endswith("1 of 2 warm-up requests answered; the last one failed: status 503")
    )
    replica.answer()
    assert replica.see().state == "healthy"
    assert replica.request() == ""


def test_fresh_engine_at_the_agents_start_is_warmed_up() -> None:
    replica = Replica(warmup=1)
    assert replica.see(counters={"finished": 0.0, "iterations": 3.0}).state == "warming_up"
    assert replica.see(counters={"finished": 5.0}).state == "warming_up"
    replica.answer()
    assert replica.see().state == "healthy"


def test_no_warm_up_while_the_engine_is_loading() -> None:
    replica = Replica(warmup=1)
    replica.see(is_down=True)
    assert replica.request() == ""
    found = replica.see(problem="/health: status 503")
    assert (found.state, codes(found)) == ("unhealthy", ["engine", "warming_up"])
    assert replica.request() == ""
    replica.see()
    assert replica.request() == "warmup"


def test_unknown_engine_at_the_agents_start_is_not_warmed_up() -> None:
    assert Replica(warmup=1, kind="none").see(counters={}, signals={}).state == "healthy"


def test_idle_engine_is_probed() -> None:
    replica = Replica(probe=True)
    replica.see(signals=BUSY)
    for _ in range(int(judge.PROBE_IDLE)):
        replica.see()
        assert replica.request() == ""
    replica.see()
    replica.answer("no response")
    assert replica.see().state == "healthy", "one failure can be an accident"
    assert replica.request() == ""
    replica.now += judge.PROBE_INTERVAL
    replica.answer("no response")
    assert replica.see().reasons == (Reason("probe", "the last 2 probes failed: no response"),)
    replica.now += judge.PROBE_INTERVAL
    replica.answer()
    assert replica.see().state == "healthy"


@pytest.mark.parametrize("changes", [{"signals": BUSY}, {"signals": {}, "page_problem": "timeout"}])
def test_probes_continue_after_failures_without_idle_time(changes: dict[str, Any]) -> None:
    replica = Replica(probe=True)
    for _ in range(int(judge.PROBE_IDLE) + 1):
        replica.see()
    for _ in range(2):
        replica.answer("no response")
        replica.now += judge.PROBE_INTERVAL
        replica.see()
    assert codes(replica.see(**changes)) == ["probe"]
    replica.answer()
    assert replica.see(**changes).state == "healthy"


@pytest.mark.parametrize(
    "changes",
    [
        {"signals": BUSY},
        {"signals": {}, "page_problem": "timeout"},
        {"signals": {**IDLE, "awake": 0.0}},
        {"problem": "/health: status 503"},
    ],
)
def test_no_probe_unless_the_engine_is_good_and_idle(changes: dict[str, Any]) -> None:
    replica = Replica(probe=True, stalled_after=1000.0)
    for _ in range(50):
        replica.see(**changes)
        assert replica.request() == ""


def test_no_probe_unless_it_is_enabled() -> None:
    replica = Replica()
    for _ in range(50):
        replica.see()
        assert replica.request() == ""


# ── States ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_drain_lasts_until_the_engine_restarts_or_readmit() -> None:
    replica = Replica(warmup=1)
    replica.see()
    replica.drain()
    assert codes(replica.see()) == ["draining"]
    assert codes(replica.see(is_down=True)) == ["draining", "engine"]
    assert replica.see().state == "warming_up"
    replica.drain()
    assert (replica.see().state, replica.request()) == ("draining", "")
    replica.readmit()
    assert replica.see().state == "warming_up"


def test_all_reasons_are_reported_and_the_first_sets_the_state() -> None:
    replica = Replica(warmup=1)
    asleep = {"signals": {**IDLE, "awake": 0.0}, "counters": {}}
    assert codes(replica.see(**asleep)) == ["asleep", "warming_up"]
    found = replica.see(gpu(xids=(79, 48)), **asleep)
    assert (found.state, codes(found)) == ("unhealthy", ["xid", "xid", "asleep", "warming_up"])
    replica.drain()
    found = replica.see(**asleep)
    assert (found.state, codes(found)) == ("draining", ["draining", "xid", "xid", "asleep", "warming_up"])


@pytest.mark.parametrize(
    ("kind", "changes", "note"),
    [
        ("none", {}, "no metrics page is read, so a wedged engine is not detected"),
        ("vllm", {"page_problem": "status 404"}, "status 404"),
    ],
)
def test_missing_metrics_page_is_a_note(kind: str, changes: dict[str, Any], note: str) -> None:
    found = Replica(kind=kind).see(signals={}, **changes)
    assert found.state == "healthy"
    assert len(found.notes) == 1
    assert note in found.notes[0]
