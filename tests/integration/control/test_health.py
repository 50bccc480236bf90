"""Deep health: ejection, trial and recovery of replicas."""

from __future__ import annotations

from typing import Any

import pytest

from lbctl.control.decisions import decisions
from lbctl.control.effects import HealthChanged, ModeChanged
from lbctl.control.events import Froze, Readmitted, Ticked
from lbctl.ir.pools import AgentCheck, PassiveCheck
from tests.support.control import INTERVAL, NAME, Talk, pool

NAMES = tuple(f"r{place:05}" for place in range(4))
BAD = NAMES[1]
STALLED = "stalled: requests are in flight, but its progress counter is not changing"
SUSPECTED = "probably stalled, according to the picker: its engine had requests but made no progress"


class PoolHistory:
    """The history of a pool of four replicas. `bad` are signals of the second one in addition to its progress (None
    removes a signal); the others are healthy."""

    def __init__(self, **more: Any) -> None:
        self.talk = Talk(pool(**more))
        self.count = 0.0
        self.stuck = 0.0

    def looks(
        self, times: int, *, moving: bool = True, seconds: float = INTERVAL, suspected: bool = False, **bad: Any
    ) -> PoolHistory:
        for _ in range(times):
            self.count += 10
            if moving:
                self.stuck = self.count
            samples: dict[str, Any] = {name: {"progress": self.count, "running": 3.0} for name in NAMES}
            sample = {"progress": self.stuck, "running": 3.0} | bad
            samples[BAD] = {name: value for name, value in sample.items() if value is not None}
            self.talk.look(samples, seconds, BAD if suspected else "")
        return self

    @property
    def verdict(self) -> str:
        return self.talk.verdicts[BAD]

    @property
    def reasons(self) -> tuple[str, ...]:
        return [item.reasons for item in self.talk.effects if isinstance(item, HealthChanged)][-1]


def test_a_stalled_engine_is_ejected_in_time() -> None:
    history = PoolHistory().looks(3)
    history.looks(2, moving=False)
    assert history.verdict == "in"
    history.looks(1, moving=False)
    assert (history.verdict, history.reasons) == ("out", (STALLED,))


def test_requests_in_flight_reveal_a_stall_without_engine_load() -> None:
    history = PoolHistory().looks(3).looks(2, moving=False, running=None, in_flight=5)
    assert history.verdict == "in"
    assert history.looks(1, moving=False, running=None, in_flight=5).verdict == "out"


def test_an_engine_that_reports_idle_is_ejected_later() -> None:
    """The metrics may be late, and a client may send its body slowly."""
    history = PoolHistory().looks(3).looks(11, moving=False, running=0.0, in_flight=5)
    assert history.verdict == "in"
    assert history.looks(1, moving=False, running=0.0, in_flight=5).verdict == "out"


@pytest.mark.parametrize(("in_flight", "verdict"), [(0, "in"), (1, "out"), (None, "out")])
def test_a_replica_that_has_answered_everything_is_not_stalled(in_flight: int | None, verdict: str) -> None:
    """Clients that give up on a stalled engine look like answers, but others are waiting then."""
    history = PoolHistory().looks(3)
    for answered in range(1, 20):
        history.looks(1, moving=False, in_flight=in_flight, answered=answered)
    assert history.verdict == verdict


def test_suspected_replica_is_at_the_floor_until_it_is_picked() -> None:
    history = PoolHistory().looks(3).looks(1, moving=False, suspected=True, seconds=1.0)
    assert (history.verdict, history.reasons, history.talk.weights[BAD]) == ("floor", (SUSPECTED,), 0.05)
    decision = decisions(history.talk.state, NAME)[1]
    assert (decision.goal, decision.limited, decision.decided) == (0.05, 0.05, 0.05)
    history.looks(1, seconds=0.5)
    assert (history.verdict, history.reasons, history.talk.weights[BAD]) == ("in", (), 1.0)


def test_suspected_replica_returns_with_its_earlier_weight() -> None:
    history = PoolHistory()
    for _ in range(20):
        history.looks(1, speed=0.5)
    slow = history.talk.weights[BAD]
    assert slow == pytest.approx(0.5, abs=0.05)
    history.looks(2, moving=False, suspected=True, speed=0.5)
    assert history.talk.weights[BAD] == 0.05
    assert history.looks(1, speed=0.5).talk.weights[BAD] == pytest.approx(slow, abs=0.01)


def test_suspected_and_stalled_replica_is_ejected() -> None:
    history = PoolHistory().looks(3).looks(2, moving=False, suspected=True)
    assert history.reasons == (SUSPECTED,)
    history.looks(1, moving=False, suspected=True)
    assert (history.verdict, history.reasons) == ("out", (STALLED,))
    history.looks(1, moving=False)
    assert (history.verdict, history.talk.weights[BAD]) == ("out", 0.05)


@pytest.mark.parametrize(("max_ejection", "verdict"), [(0, "in"), (25, "floor")])
def test_max_ejection_limits_suspected_replicas(max_ejection: int, verdict: str) -> None:
    history = PoolHistory(passive=PassiveCheck(max_ejection=max_ejection)).looks(3).looks(2, suspected=True)
    assert history.verdict == verdict
    assert history.talk.weights[BAD] == (1.0 if verdict == "in" else 0.05)


def test_suspected_replica_of_a_frozen_pool_returns() -> None:
    history = PoolHistory().looks(3)
    history.talk.say(Froze(history.talk.now, NAME, "migration"))
    history.looks(1, moving=False, suspected=True)
    assert (history.verdict, history.talk.weights[BAD]) == ("floor", 0.05)
    history.looks(1)
    assert (history.verdict, history.talk.weights[BAD]) == ("in", 1.0)


def test_ejected_replicas_take_precedence_over_suspected_ones() -> None:
    """The suspected replica gets its weight back when another one uses up `max_ejection`."""
    history = PoolHistory(passive=PassiveCheck(max_ejection=25)).looks(3).looks(1, suspected=True)
    assert history.verdict == "floor"
    other, stuck = NAMES[3], history.count
    for _ in range(3):
        history.count += 10
        samples = {name: {"progress": history.count, "running": 3.0} for name in NAMES}
        samples[other]["progress"] = stuck
        history.talk.look(samples, suspected=BAD)
    assert (history.talk.verdicts[other], history.verdict, history.talk.weights[BAD]) == ("out", "in", 1.0)


def test_suspected_replica_returns_if_its_samples_are_stale() -> None:
    history = PoolHistory().looks(3).looks(1, suspected=True)
    assert history.verdict == "floor"
    history.talk.wait(30.0)
    assert history.verdict == "in"


def test_a_slightly_early_sample_counts() -> None:
    """Samples do not arrive at exact intervals."""
    history = PoolHistory().looks(3).looks(2, moving=False)
    assert history.looks(1, moving=False, seconds=INTERVAL - 0.002).verdict == "out"


def test_an_idle_engine_is_not_stalled() -> None:
    assert PoolHistory().looks(3).looks(50, moving=False, running=0.0, in_flight=0).verdict == "in"


def test_a_saturated_engine_that_makes_progress_stays_in() -> None:
    assert PoolHistory().looks(100, running=256.0, queue=5000.0, kv_cache=1.0, gpu=1.0).verdict == "in"


def test_an_engine_without_progress_counter_is_never_stalled() -> None:
    talk = Talk(pool())
    for _ in range(50):
        talk.look({name: {"running": 5.0} for name in NAMES})
    assert talk.effects == []


def test_progress_in_requests_has_four_times_the_time() -> None:
    history = PoolHistory().looks(3).looks(11, moving=False, by_steps=False)
    assert history.verdict == "in"
    assert history.looks(1, moving=False, by_steps=False).verdict == "out"


def test_a_recovered_engine_returns_from_the_floor() -> None:
    history = PoolHistory().looks(3).looks(3, moving=False)
    assert history.talk.weights[BAD] == 0.05
    history.looks(1)
    assert history.verdict == "out"
    history.looks(1)
    assert (history.verdict, history.reasons) == ("in", ())
    history.looks(1)
    assert history.talk.weights[BAD] == pytest.approx(0.15)


def test_an_idle_stalled_engine_gets_a_trial_at_the_floor() -> None:
    history = PoolHistory().looks(3).looks(3, moving=False)
    history.looks(5, moving=False, running=0.0)
    assert history.verdict == "out"
    history.looks(1, moving=False, running=0.0)
    assert (history.verdict, history.reasons) == ("floor", (f"on trial after: {STALLED}",))
    assert history.talk.weights[BAD] == 0.05
    assert history.looks(2).verdict == "in"


def test_a_stall_on_trial_ejects_for_longer() -> None:
    history = PoolHistory().looks(3).looks(3, moving=False).looks(6, moving=False, running=0.0)
    assert history.verdict == "floor"
    history.looks(4, moving=False)
    assert history.verdict == "out"
    history.looks(11, moving=False, running=0.0)
    assert history.verdict == "out"
    assert history.looks(1, moving=False, running=0.0).verdict == "floor"


def test_a_persistent_stall_delays_the_trial_tenfold() -> None:
    history = PoolHistory().looks(3).looks(3, moving=False).looks(59, moving=False)
    assert history.verdict == "out"
    assert history.looks(1, moving=False).verdict == "floor"


def test_a_stalled_replica_without_metrics_gets_a_trial() -> None:
    history = PoolHistory().looks(3).looks(3, moving=False)
    others = {name: {"progress": 1.0} for name in NAMES if name != BAD}
    for place in range(12):
        history.talk.look({name: {"progress": float(place)} for name in others})
    assert history.verdict == "floor"


def test_an_operator_readmits_a_stalled_replica() -> None:
    history = PoolHistory().looks(3).looks(3, moving=False)
    history.talk.say(Readmitted(history.talk.now + 1, NAME, BAD))
    assert (history.verdict, history.reasons) == ("in", ())


# ── XIDs, memory, temperature, throttling ────────────────────────────────────────────────────────────────────────────


XID = {"xid": 79.0, "xids": (("0", 79),)}


def ejected_by_xid() -> PoolHistory:
    """Return a pool whose second replica was ejected by an XID; its metrics still show the XID."""
    return PoolHistory().looks(2, xid=0.0).looks(1, **XID)


def test_a_new_fatal_xid_ejects_at_once() -> None:
    history = ejected_by_xid()
    assert (history.verdict, history.reasons) == ("out", ("XID 79",))
    assert history.looks(5, **XID).verdict == "out"
    history.looks(1, **XID)
    assert (history.verdict, history.reasons) == ("floor", ("on trial after: XID 79",))
    assert history.talk.weights[BAD] == 0.05


def test_agents_judge_xids_and_row_remaps() -> None:
    history = PoolHistory(agent=AgentCheck(9500)).looks(2, xid=0.0, row_remap_failure=0.0)
    assert history.looks(3, row_remap_failure=1.0, **XID).verdict == "in"
    assert history.looks(6, moving=False, **XID).verdict == "out", "stalls still count"


def test_a_trial_after_an_xid_needs_progress_and_two_samples() -> None:
    history = ejected_by_xid().looks(6, **XID)
    history.looks(10, moving=False, running=0.0, **XID)
    assert history.verdict == "floor", "progress before the trial does not count"
    assert history.looks(1, **XID).verdict == "in"
    moved = ejected_by_xid().looks(6, **XID)
    assert moved.looks(1, **XID).verdict == "floor"
    assert moved.looks(1, **XID).verdict == "in"


def test_progress_before_the_trial_does_not_count() -> None:
    history = ejected_by_xid().looks(5, **XID)
    history.talk.say(Ticked(history.talk.now + INTERVAL))
    assert history.verdict == "floor"
    history.looks(1, seconds=0.1, **XID)
    assert history.looks(10, moving=False, running=0.0, **XID).verdict == "floor"


def test_two_samples_in_one_interval_count_once() -> None:
    history = ejected_by_xid().looks(6, **XID)
    assert history.looks(3, seconds=1.0, **XID).verdict == "floor"
    assert history.looks(1, seconds=2.0, **XID).verdict == "floor"
    assert history.looks(1, **XID).verdict == "in"


def test_low_memory_needs_three_intervals() -> None:
    history = PoolHistory().looks(6, seconds=INTERVAL / 5, gpu_memory_free=1.0)
    assert history.verdict == "in"
    assert history.looks(2, gpu_memory_free=1.0).verdict == "out"


@pytest.mark.parametrize("sample", [{"xid": 74.0, "xids": (("0", 74),)}, XID])
def test_an_xid_on_trial_ejects_for_longer(sample: dict[str, Any]) -> None:
    history = ejected_by_xid().looks(6, xid=0.0)
    assert history.verdict == "floor"
    history.looks(1, **sample)
    assert (history.verdict, history.reasons) == ("out", (f"XID {sample['xid']:.0f}",))
    assert history.looks(11, **sample).verdict == "out"
    assert history.looks(1, **sample).verdict == "floor"


def test_another_xid_restarts_the_ejection_time() -> None:
    history = ejected_by_xid().looks(4, **XID).looks(1, xid=74.0, xids=(("0", 74),))
    assert (history.verdict, history.reasons) == ("out", ("XID 74",))
    assert history.looks(11, xid=74.0, xids=(("0", 74),)).verdict == "out"
    assert history.looks(1, xid=74.0, xids=(("0", 74),)).verdict == "floor"


def test_an_operator_readmits_after_an_xid() -> None:
    history = ejected_by_xid()
    history.talk.say(Readmitted(history.talk.now + 1, NAME, BAD))
    assert (history.verdict, history.reasons) == ("in", ())
    assert history.looks(3, **XID).verdict == "in"


@pytest.mark.parametrize("code", [13, 31, 43])
def test_an_application_xid_is_not_fatal(code: int) -> None:
    assert PoolHistory().looks(2, xid=0.0).looks(3, xid=float(code), xids=(("0", code),)).verdict == "in"


def test_an_old_xid_is_ignored() -> None:
    assert PoolHistory().looks(30, xid=79.0, xids=(("0", 79),)).verdict == "in"


def test_an_xid_on_another_gpu_of_the_replica_is_new() -> None:
    history = PoolHistory().looks(2, xid=79.0, xids=(("0", 79),)).looks(1, xid=79.0, xids=(("0", 79), ("1", 79)))
    assert history.verdict == "out"


def test_a_failed_row_remap_ejects_until_the_gpu_is_replaced() -> None:
    """The driver keeps the failure over a restart, so the first observation counts, too."""
    history = PoolHistory().looks(1, row_remap_failure=1.0)
    assert (history.verdict, history.reasons) == (
        "out",
        ("a GPU could not remap a faulty memory row: replace the GPU",),
    )
    assert history.looks(100, row_remap_failure=1.0).verdict == "out"
    assert history.looks(1, row_remap_failure=0.0).verdict == "floor"
    assert history.looks(3, row_remap_failure=0.0).verdict == "in"


def test_an_operator_may_accept_a_failed_row_remap() -> None:
    history = PoolHistory().looks(2, row_remap_failure=1.0)
    history.talk.say(Readmitted(history.talk.now + 1, NAME, BAD))
    assert history.looks(3, row_remap_failure=1.0).verdict == "in"
    history.looks(3, moving=False, row_remap_failure=1.0)
    assert (history.verdict, history.reasons) == ("out", (STALLED,))
    assert history.looks(3, row_remap_failure=1.0).verdict == "in"
    assert history.looks(1, row_remap_failure=0.0).looks(1, row_remap_failure=1.0).verdict == "out", "another failure"


def test_failed_row_remap_ejects_while_its_value_is_unknown() -> None:
    history = PoolHistory().looks(2, row_remap_failure=1.0)
    assert history.looks(100).verdict == "out", "the DCGM exporter is unreachable"
    history.talk.wait(3600.0)
    assert history.verdict == "out", "all samples are stale"
    assert history.looks(1, row_remap_failure=0.0).looks(3).verdict == "in"


def test_accepted_row_remap_stays_accepted_if_unknown() -> None:
    history = PoolHistory().looks(2, row_remap_failure=1.0)
    history.talk.say(Readmitted(history.talk.now + 1, NAME, BAD))
    history.looks(1, row_remap_failure=None)
    assert history.looks(1, row_remap_failure=1.0).verdict == "in"


def test_low_memory_ejects_until_a_margin_is_free() -> None:
    limit = 2.0 * 2**30
    history = PoolHistory().looks(2, gpu_memory_free=limit - 1)
    assert history.verdict == "in"
    history.looks(1, gpu_memory_free=limit - 1)
    assert (history.verdict, history.reasons) == ("out", ("free GPU memory below the limit",))
    assert history.looks(8, gpu_memory_free=limit * 1.05).verdict == "out"
    assert history.looks(2, gpu_memory_free=limit * 1.2).verdict == "floor", "after the ejection time it is on trial"
    assert history.looks(2, gpu_memory_free=limit * 1.2).verdict == "in"


def test_low_memory_is_ignored_for_engines_that_reserve_memory() -> None:
    assert PoolHistory().looks(20, gpu_memory_free=1.0, reserves=True).verdict == "in"


def test_a_hot_replica_stays_at_the_floor_until_it_cools() -> None:
    history = PoolHistory().looks(3, temperature=91.0)
    assert (history.verdict, history.reasons) == ("floor", ("temperature above the limit",))
    history.looks(3, temperature=91.0)
    assert history.talk.weights[BAD] == 0.05
    assert history.looks(5, temperature=89.0).verdict == "floor"
    assert history.looks(2, temperature=85.0).verdict == "in"


def test_throttling_is_shown_but_not_judged() -> None:
    history = PoolHistory().looks(20, throttle=1.0)
    assert history.verdict == "in"
    assert decisions(history.talk.state, NAME)[1].signals["throttle"].value == 1.0


# ── Limits ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def stall(talk: Talk, who: tuple[str, ...], times: int) -> None:
    count = talk.now
    for _ in range(times):
        count += 1
        talk.look({name: {"progress": 1.0 if name in who else count, "running": 3.0} for name in NAMES})


def test_a_sleeping_engine_gets_no_traffic_and_is_not_judged() -> None:
    """Its requests wait for it, its counter does not move, and nevertheless it is not a fault."""
    history = PoolHistory().looks(3, awake=1.0)
    history.looks(10, moving=False, awake=0.0, in_flight=2)
    assert (history.verdict, history.reasons) == ("asleep", ("its engine is asleep",))
    history.looks(1, moving=False, awake=1.0)
    assert history.verdict == "in"
    assert history.talk.weights[BAD] == 1.0
    assert history.looks(3, moving=False, awake=1.0).verdict == "out", "it is judged again"


def test_all_replicas_may_sleep() -> None:
    talk = Talk(pool())
    for awake, verdict in ((0.0, "asleep"), (1.0, "in")):
        talk.look({name: {"awake": awake} for name in NAMES})
        assert set(talk.verdicts.values()) == {verdict}
    assert talk.mode == "acting"


def test_a_sleeping_engine_counts_as_awake_without_samples() -> None:
    history = PoolHistory().looks(3, awake=1.0).looks(1, awake=0.0)
    assert history.verdict == "asleep"
    history.talk.wait(20.0)
    assert history.verdict == "in"


def test_sleep_neither_ends_nor_hides_an_ejection() -> None:
    history = ejected_by_xid().looks(30, awake=0.0, **XID)
    assert history.verdict == "out", "a trial needs an engine that works"
    assert history.looks(1, awake=1.0, **XID).verdict == "floor"


def test_max_ejection_limits_ejections() -> None:
    talk = Talk(pool(passive=PassiveCheck(max_ejection=25.0)))
    stall(talk, NAMES[:2], 5)
    assert [talk.verdicts[name] for name in NAMES] == ["out", "floor", "in", "in"]
    assert decisions(talk.state, NAME)[1].reasons[:2] == (
        STALLED,
        "not ejected, because too many replicas would be ejected",
    )


def test_at_most_half_of_a_stalled_pool_is_ejected() -> None:
    """Stalls are judged per replica, and max_ejection limits the ejections."""
    talk = Talk(pool())
    stall(talk, NAMES[:3], 8)
    assert not [item for item in talk.effects if isinstance(item, ModeChanged)]
    assert [talk.verdicts[name] for name in NAMES] == ["out", "out", "floor", "in"]
    assert [talk.weights[name] for name in NAMES] == [0.05, 0.05, 0.05, 1.0]


def test_frozen_weights_do_not_prevent_ejection() -> None:
    talk = Talk(pool())
    for place in range(8):
        hot = {name: {"progress": float(place), "running": 3.0, "temperature": 95.0} for name in NAMES[1:]}
        talk.look(hot | {NAMES[0]: {"progress": 1.0, "running": 3.0}})
    assert talk.mode == "frozen"
    assert [talk.verdicts[name] for name in NAMES] == ["out", "floor", "floor", "floor"]
    assert [talk.weights[name] for name in NAMES[1:]] == [1.0, 1.0, 1.0]


def test_the_only_replica_is_never_ejected() -> None:
    talk = Talk(pool(1))
    for _ in range(10):
        talk.look({NAMES[0]: {"progress": 1.0, "running": 3.0}})
    assert "out" not in talk.verdicts.values()
