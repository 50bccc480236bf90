"""Deep health: what takes a replica out, what does not, and the way back."""

from __future__ import annotations

from typing import Any

import pytest

from lbctl.control.decisions import decisions
from lbctl.control.effects import HealthChanged, ModeChanged
from lbctl.control.events import Readmitted, Ticked
from lbctl.ir.pools import PassiveCheck
from tests.support.control import INTERVAL, NAME, Talk, pool

NAMES = tuple(f"r{place:05}" for place in range(4))
BAD = NAMES[1]
STALLED = "stalled: requests in flight, and its progress counter stands still"


class Story:
    """A pool of four; `bad` is what the second says beside its progress (None: nothing of it), the others are well."""

    def __init__(self, **more: Any) -> None:
        self.talk = Talk(pool(**more))
        self.count = 0.0
        self.stuck = 0.0

    def looks(self, times: int, *, moving: bool = True, seconds: float = INTERVAL, **bad: Any) -> Story:
        for _ in range(times):
            self.count += 10
            if moving:
                self.stuck = self.count
            news: dict[str, Any] = {name: {"progress": self.count, "running": 3.0} for name in NAMES}
            told = {"progress": self.stuck, "running": 3.0} | bad
            news[BAD] = {name: value for name, value in told.items() if value is not None}
            self.talk.look(news, seconds)
        return self

    @property
    def verdict(self) -> str:
        return self.talk.verdicts[BAD]

    @property
    def reasons(self) -> tuple[str, ...]:
        return [item.reasons for item in self.talk.effects if isinstance(item, HealthChanged)][-1]


def test_a_stalled_engine_is_out_within_stalled_after_and_two_intervals() -> None:
    story = Story().looks(3)
    story.looks(2, moving=False)
    assert story.verdict == "in"
    story.looks(1, moving=False)
    assert (story.verdict, story.reasons) == ("out", (STALLED,))


def test_the_proxies_count_shows_a_stall_of_an_engine_that_does_not_tell_its_load() -> None:
    story = Story().looks(3).looks(2, moving=False, running=None, in_flight=5)
    assert story.verdict == "in"
    assert story.looks(1, moving=False, running=None, in_flight=5).verdict == "out"


def test_against_the_engines_own_word_the_proxies_count_takes_four_times_as_long() -> None:
    """Its page may be late, and a client may send its body slowly."""
    story = Story().looks(3).looks(11, moving=False, running=0.0, in_flight=5)
    assert story.verdict == "in"
    assert story.looks(1, moving=False, running=0.0, in_flight=5).verdict == "out"


def test_a_look_that_comes_a_moment_early_does_not_wait_for_the_next() -> None:
    """Looks are not to the microsecond."""
    story = Story().looks(3).looks(2, moving=False)
    assert story.looks(1, moving=False, seconds=INTERVAL - 0.002).verdict == "out"


def test_an_idle_engine_is_not_stalled() -> None:
    assert Story().looks(3).looks(50, moving=False, running=0.0, in_flight=0).verdict == "in"


def test_a_saturated_engine_that_makes_progress_stays_in() -> None:
    assert Story().looks(100, running=256.0, queue=5000.0, kv_cache=1.0, gpu=1.0).verdict == "in"


def test_an_engine_without_a_progress_counter_is_not_judged_by_it() -> None:
    talk = Talk(pool())
    for _ in range(50):
        talk.look({name: {"running": 5.0} for name in NAMES})
    assert talk.effects == []


def test_progress_that_is_counted_in_requests_has_four_times_as_long() -> None:
    story = Story().looks(3).looks(11, moving=False, by_steps=False)
    assert story.verdict == "in"
    assert story.looks(1, moving=False, by_steps=False).verdict == "out"


def test_a_stalled_engine_that_moves_again_is_back_after_two_good_looks_and_rises_from_the_floor() -> None:
    story = Story().looks(3).looks(3, moving=False)
    assert story.talk.weights[BAD] == 0.05
    story.looks(1)
    assert story.verdict == "out"
    story.looks(1)
    assert (story.verdict, story.reasons) == ("in", ())
    story.looks(1)
    assert story.talk.weights[BAD] == pytest.approx(0.15)


def test_one_that_has_nothing_to_progress_with_is_let_in_on_trial_at_the_floor() -> None:
    story = Story().looks(3).looks(3, moving=False)
    story.looks(5, moving=False, running=0.0)
    assert story.verdict == "out"
    story.looks(1, moving=False, running=0.0)
    assert (story.verdict, story.reasons) == ("floor", (f"on trial after: {STALLED}",))
    assert story.talk.weights[BAD] == 0.05
    assert story.looks(2).verdict == "in"


def test_one_that_stalls_on_trial_is_out_again_for_longer() -> None:
    story = Story().looks(3).looks(3, moving=False).looks(6, moving=False, running=0.0)
    assert story.verdict == "floor"
    story.looks(4, moving=False)
    assert story.verdict == "out"
    story.looks(11, moving=False, running=0.0)
    assert story.verdict == "out"
    assert story.looks(1, moving=False, running=0.0).verdict == "floor"


def test_one_that_still_shows_its_stall_is_tried_only_after_ten_times_as_long() -> None:
    story = Story().looks(3).looks(3, moving=False).looks(59, moving=False)
    assert story.verdict == "out"
    assert story.looks(1, moving=False).verdict == "floor"


def test_one_whose_metrics_have_gone_is_not_out_for_ever() -> None:
    story = Story().looks(3).looks(3, moving=False)
    others = {name: {"progress": 1.0} for name in NAMES if name != BAD}
    for place in range(12):
        story.talk.look({name: {"progress": float(place)} for name in others})
    assert story.verdict == "floor"


def test_an_operator_lets_in_what_deep_health_holds_out() -> None:
    story = Story().looks(3).looks(3, moving=False)
    story.talk.say(Readmitted(story.talk.now + 1, NAME, BAD))
    assert (story.verdict, story.reasons) == ("in", ())


# ── XIDs, memory, temperature, throttling ────────────────────────────────────────────────────────────────────────────


XID = {"xid": 79.0, "xids": (("0", 79),)}


def out_for_an_xid() -> Story:
    """The page goes on showing it, and the requests that are already there go on."""
    return Story().looks(2, xid=0.0).looks(1, **XID)


def test_a_fatal_xid_seen_anew_takes_it_out_at_once_for_the_ejection_time_whatever_its_requests_do() -> None:
    story = out_for_an_xid()
    assert (story.verdict, story.reasons) == ("out", ("XID 79",))
    assert story.looks(5, **XID).verdict == "out"
    story.looks(1, **XID)
    assert (story.verdict, story.reasons) == ("floor", ("on trial after: XID 79",))
    assert story.talk.weights[BAD] == 0.05


def test_on_trial_after_an_xid_it_takes_two_good_looks_and_progress_that_moves_there() -> None:
    story = out_for_an_xid().looks(6, **XID)
    story.looks(10, moving=False, running=0.0, **XID)
    assert story.verdict == "floor", "what moved before the trial proves nothing"
    assert story.looks(1, **XID).verdict == "in"
    moved = out_for_an_xid().looks(6, **XID)
    assert moved.looks(1, **XID).verdict == "floor"
    assert moved.looks(1, **XID).verdict == "in"


def test_what_moved_between_the_last_look_and_the_trial_is_no_progress_on_trial() -> None:
    story = out_for_an_xid().looks(5, **XID)
    story.talk.say(Ticked(story.talk.now + INTERVAL))
    assert story.verdict == "floor"
    story.looks(1, seconds=0.1, **XID)
    assert story.looks(10, moving=False, running=0.0, **XID).verdict == "floor"


def test_two_sources_that_report_in_one_interval_are_not_two_good_looks() -> None:
    story = out_for_an_xid().looks(6, **XID)
    assert story.looks(3, seconds=1.0, **XID).verdict == "floor"
    assert story.looks(1, seconds=2.0, **XID).verdict == "floor"
    assert story.looks(1, **XID).verdict == "in"


def test_low_memory_needs_its_three_looks_an_interval_apart() -> None:
    story = Story().looks(6, seconds=INTERVAL / 5, gpu_memory_free=1.0)
    assert story.verdict == "in"
    assert story.looks(2, gpu_memory_free=1.0).verdict == "out"


@pytest.mark.parametrize("told", [{"xid": 74.0, "xids": (("0", 74),)}, XID])
def test_another_xid_on_trial_or_the_same_anew_takes_it_out_for_longer(told: dict[str, Any]) -> None:
    story = out_for_an_xid().looks(6, xid=0.0)
    assert story.verdict == "floor"
    story.looks(1, **told)
    assert (story.verdict, story.reasons) == ("out", (f"XID {told['xid']:.0f}",))
    assert story.looks(11, **told).verdict == "out"
    assert story.looks(1, **told).verdict == "floor"


def test_another_xid_while_it_is_out_begins_its_time_anew() -> None:
    story = out_for_an_xid().looks(4, **XID).looks(1, xid=74.0, xids=(("0", 74),))
    assert (story.verdict, story.reasons) == ("out", ("XID 74",))
    assert story.looks(11, xid=74.0, xids=(("0", 74),)).verdict == "out"
    assert story.looks(1, xid=74.0, xids=(("0", 74),)).verdict == "floor"


def test_an_operator_lets_in_after_an_xid_at_once() -> None:
    story = out_for_an_xid()
    story.talk.say(Readmitted(story.talk.now + 1, NAME, BAD))
    assert (story.verdict, story.reasons) == ("in", ())
    assert story.looks(3, **XID).verdict == "in"


@pytest.mark.parametrize("code", [13, 31, 43])
def test_an_xid_of_an_application_is_not_fatal(code: int) -> None:
    assert Story().looks(2, xid=0.0).looks(3, xid=float(code), xids=(("0", code),)).verdict == "in"


def test_a_sticky_old_xid_is_not_held_against_it() -> None:
    assert Story().looks(30, xid=79.0, xids=(("0", 79),)).verdict == "in"


def test_an_xid_on_another_gpu_of_the_replica_is_new() -> None:
    story = Story().looks(2, xid=79.0, xids=(("0", 79),)).looks(1, xid=79.0, xids=(("0", 79), ("1", 79)))
    assert story.verdict == "out"


def test_too_little_memory_takes_three_looks_and_a_tenth_more_to_be_enough() -> None:
    limit = 2.0 * 2**30
    story = Story().looks(2, gpu_memory_free=limit - 1)
    assert story.verdict == "in"
    story.looks(1, gpu_memory_free=limit - 1)
    assert (story.verdict, story.reasons) == ("out", ("free GPU memory below the limit",))
    assert story.looks(8, gpu_memory_free=limit * 1.05).verdict == "out"
    assert story.looks(2, gpu_memory_free=limit * 1.2).verdict == "floor", "its time is over: on trial"
    assert story.looks(2, gpu_memory_free=limit * 1.2).verdict == "in"


def test_memory_means_nothing_for_an_engine_that_reserves_it() -> None:
    assert Story().looks(20, gpu_memory_free=1.0, reserves=True).verdict == "in"


def test_a_hot_replica_goes_to_the_floor_and_comes_back_when_it_has_cooled() -> None:
    story = Story().looks(3, temperature=91.0)
    assert (story.verdict, story.reasons) == ("floor", ("above the limit of temperature",))
    story.looks(3, temperature=91.0)
    assert story.talk.weights[BAD] == 0.05
    assert story.looks(5, temperature=89.0).verdict == "floor"
    assert story.looks(2, temperature=85.0).verdict == "in"


def test_throttling_is_shown_and_not_judged() -> None:
    story = Story().looks(20, throttle=1.0)
    assert story.verdict == "in"
    assert decisions(story.talk.state, NAME)[1].signals["throttle"].value == 1.0


# ── How many ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def all_stall(talk: Talk, who: tuple[str, ...], times: int) -> None:
    count = talk.now
    for _ in range(times):
        count += 1
        talk.look({name: {"progress": 1.0 if name in who else count, "running": 3.0} for name in NAMES})


def test_no_more_than_max_ejection_go_and_the_rest_stays_at_the_floor() -> None:
    talk = Talk(pool(passive=PassiveCheck(max_ejection=25.0)))
    all_stall(talk, NAMES[:2], 5)
    assert [talk.verdicts[name] for name in NAMES] == ["out", "floor", "in", "in"]
    assert decisions(talk.state, NAME)[1].reasons[:2] == (STALLED, "not taken out: too many would be")


def test_when_more_than_half_are_stalled_at_once_half_go_and_the_rest_is_held_at_the_floor() -> None:
    """A stall is told of each by itself, as when they are found one after the other; max_ejection bounds it."""
    talk = Talk(pool())
    all_stall(talk, NAMES[:3], 8)
    assert not [item for item in talk.effects if isinstance(item, ModeChanged)]
    assert [talk.verdicts[name] for name in NAMES] == ["out", "out", "floor", "in"]
    assert [talk.weights[name] for name in NAMES] == [0.05, 0.05, 0.05, 1.0]


def test_where_weights_are_frozen_a_stalled_replica_is_still_taken_out() -> None:
    talk = Talk(pool())
    for place in range(8):
        hot = {name: {"progress": float(place), "running": 3.0, "temperature": 95.0} for name in NAMES[1:]}
        talk.look(hot | {NAMES[0]: {"progress": 1.0, "running": 3.0}})
    assert talk.mode == "frozen"
    assert [talk.verdicts[name] for name in NAMES] == ["out", "floor", "floor", "floor"]
    assert [talk.weights[name] for name in NAMES[1:]] == [1.0, 1.0, 1.0]


def test_the_only_replica_is_never_taken_out() -> None:
    talk = Talk(pool(1))
    for _ in range(10):
        talk.look({NAMES[0]: {"progress": 1.0, "running": 3.0}})
    assert "out" not in talk.verdicts.values()
