"""A picker detects stopped engines within three seconds, and never an engine that is only slow, silent or paused."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from random import Random

import pytest

from lbctl.pick.affinity import AffinityMemory
from lbctl.picker.decision import Decider
from lbctl.picker.wire import EngineSample

POOL = "chat"
STALLED_AFTER = 15.0
"""The default."""
_STEP = 0.05
"""Seconds of a step without prompts."""
_DAY = 86_400.0


class _Engine:
    """An engine with `speed` prompt tokens per second, which computes up to `chunk` of them in a step (0: all).

    Its page is as of the last step. `shows_chunks`: whether its progress changes in steps without a new token.
    """

    def __init__(self, speed: float = 10_000.0, chunk: int = 2048, *, shows_chunks: bool = True) -> None:
        self._speed, self._chunk, self._shows_chunks = speed, chunk, shows_chunks
        self._waiting: deque[list[int]] = deque()
        self._arrived: dict[int, float] = {}
        self._running: dict[int, int] = {}
        self._step: tuple[float, list[int], int] | None = None
        self.stopped = False
        self.progress = self.firsts = 0
        self.waited = 0.0
        self.requests = 0
        self.ended: list[int] = []

    def add(self, number: int, tokens: int, answer: int, now: float) -> None:
        self._waiting.append([number, tokens, answer])
        self._arrived[number] = now
        if self._step is None and not self.stopped:
            self._begin(now)

    def advance(self, now: float) -> None:
        while not self.stopped and self._step is not None and self._step[0] <= now:
            end, read, tokens = self._step
            self._end(end, read, tokens)
            self._begin(end)

    def stop(self) -> None:
        self.stopped = True

    def resume(self, now: float) -> None:
        self.stopped = False
        self._begin(now)

    def _begin(self, now: float) -> None:
        left = self._chunk or sum(item[1] for item in self._waiting)
        tokens, read = 0, []
        for item in self._waiting:
            part = min(item[1], left)
            item[1] -= part
            tokens, left = tokens + part, left - part
            if item[1]:
                break
            read.append(item[0])
        busy = tokens or read or self._running
        self._step = (now + _STEP + tokens / self._speed, read, tokens) if busy else None

    def _end(self, now: float, read: list[int], tokens: int) -> None:
        self.progress += bool(read or self._running or (tokens and self._shows_chunks))
        for number in list(self._running):
            self._running[number] -= 1
            if not self._running[number]:
                del self._running[number]
                self.ended.append(number)
        for _ in read:
            number, _, answer = self._waiting.popleft()
            self._running[number] = answer
            self.firsts += 1
            self.waited += now - self._arrived.pop(number)
        self.requests = len(self._running) + len(self._waiting)


class _Pool:
    """Engines, the picker's accounts of them, and their samples once a second, and twice without progress."""

    def __init__(self, *engines: _Engine) -> None:
        self.engines = engines
        self.decider = Decider(Random(1), AffinityMemory())
        self.now, self.sent = 0.0, 0
        self.hidden = False
        """Whether the pages cannot be read."""
        self._progress: dict[int, int] = {}
        self._before: dict[int, tuple[int, float]] = {}
        self.alarms: list[tuple[float, frozenset[str]]] = []

    @property
    def stalled(self) -> frozenset[str]:
        return self.decider.stalls.avoided.get(POOL, frozenset())

    @property
    def on_trial(self) -> frozenset[str]:
        return self.decider.stalls.on_trial.get(POOL, frozenset())

    @property
    def states(self) -> tuple[str, str]:
        """The stopped engines, and the engines on trial."""
        return "".join(sorted(self.stalled)), "".join(sorted(self.on_trial))

    def send(self, place: int, tokens: int, answer: int = 50) -> None:
        self.sent += 1
        self.decider.books.started(str(self.sent), POOL, str(place), tokens, self.now)
        self.engines[place].add(self.sent, tokens, answer, self.now)

    def run(self, seconds: float, arrivals: Iterable[tuple[float, int, int]] = ()) -> None:
        """Run for some seconds. `arrivals`: (seconds from now, engine, prompt tokens), sorted by time."""
        begin, end = self.now, self.now + seconds
        coming = deque(arrivals)
        looks = deque([(int(begin) + 1.0, False)])
        while True:
            arrival = begin + coming[0][0] if coming else end
            look, is_extra = looks[0]
            at = min(arrival, look, end)
            for engine in self.engines:
                engine.advance(at)
            self.now = at
            if at == end:
                return
            if at == look:
                looks.popleft()
                is_still = self._look()
                if is_still and not is_extra:
                    looks.append((look + 0.5, True))
                if not is_extra:
                    looks.append((look + 1.0, False))
            else:
                _, place, tokens = coming.popleft()
                self.send(place, tokens)

    def _look(self) -> bool:
        """Read all pages, and return whether an engine with requests has made no progress."""
        is_still = False
        for place, engine in enumerate(self.engines):
            for number in engine.ended:
                self.decider.books.finished(str(number))
            engine.ended.clear()
            if not self.hidden:
                is_still = is_still or (self._progress.get(place) == engine.progress and engine.requests > 0)
                self._progress[place] = engine.progress
                self.decider.sampled(self.sample(place), STALLED_AFTER, self.now)
        if (self.alarms[-1][1] if self.alarms else frozenset()) != self.stalled:
            self.alarms.append((self.now, self.stalled))
        return is_still

    def sample(self, place: int) -> EngineSample:
        engine = self.engines[place]
        firsts, waited = self._before.get(place, (0, 0.0))
        self._before[place] = engine.firsts, engine.waited
        ttft = (engine.waited - waited) / (engine.firsts - firsts) if engine.firsts > firsts else None
        return EngineSample(
            POOL, str(place), engine.requests, 0, engine.firsts, restarted=False, progress=engine.progress, ttft=ttft
        )


def _traffic(
    rng: Random, seconds: float, rate: float, engines: int, long_every: float = 0.0
) -> list[tuple[float, int, int]]:
    """Return requests at this rate for each engine, and a prompt of 100,000 tokens every `long_every` seconds."""
    times = [
        (rng.uniform(0, seconds), place, round(rng.lognormvariate(6.5, 0.8)))
        for place in range(engines)
        for _ in range(round(seconds * rate))
    ]
    if long_every:
        times += [
            (rng.uniform(0, seconds), place, 100_000)
            for place in range(engines)
            for _ in range(round(seconds / long_every))
        ]
    return sorted(times)


def _busy(seconds: float = 20.0, engines: int = 3) -> _Pool:
    """Return a pool after some seconds of traffic."""
    pool = _Pool(*(_Engine() for _ in range(engines)))
    pool.run(2.0)
    pool.run(seconds, _traffic(Random(3), seconds, 2.0, engines))
    return pool


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chunk", "shows_chunks"), [(2048, True), (8192, True), (2048, False), (0, True)],
    ids=["chunks", "large-chunks", "hidden-chunks", "whole-prompts"],
)  # fmt: skip
def test_long_prompts_cause_no_alarm_for_a_day(chunk: int, *, shows_chunks: bool) -> None:
    pool = _Pool(*(_Engine(chunk=chunk, shows_chunks=shows_chunks) for _ in range(2)))
    pool.run(_DAY, _traffic(Random(chunk), _DAY, 0.05, 2, long_every=600.0))
    assert not pool.alarms
    assert pool.engines[0].firsts > 4000


@pytest.mark.parametrize("after", [number / 10 for number in range(10)])
def test_stopped_engine_is_detected_within_three_seconds(after: float) -> None:
    pool = _busy()
    pool.run(after, _traffic(Random(1), after, 2.0, 3))
    pool.engines[1].stop()
    stopped = pool.now
    pool.run(6.0, _traffic(Random(2), 6.0, 2.0, 3))
    assert pool.stalled == {"1"}
    assert pool.alarms[0][0] - stopped <= 2.6


class _Feed:
    """A picker that gets the samples of four engines, each with one request."""

    def __init__(self, stalled_after: float | None = STALLED_AFTER) -> None:
        self.stalled_after = stalled_after
        self.decider = Decider(Random(1), AffinityMemory())
        for place in range(4):
            self.decider.books.started(str(place), POOL, str(place), 0, 0.0)

    def look(
        self, now: float, progress: Mapping[int, float], duration: float = 0.0, *, requests: int = 1, queue: int = 0,
        deferred: int = 0,
    ) -> None:  # fmt: skip
        """Pass on samples of pages whose requests took `duration` seconds and have just ended."""
        for place, count in progress.items():
            sample = EngineSample(
                POOL, str(place), requests, queue, 1, restarted=False, age=duration, progress=count, duration=duration,
                deferred=deferred,
            )  # fmt: skip
            self.decider.sampled(sample, self.stalled_after, now)

    def work(self, seconds: int) -> None:
        for second in range(seconds):
            self.look(float(second), dict.fromkeys(range(4), second))

    @property
    def stalled(self) -> frozenset[str]:
        return self.decider.stalls.avoided.get(POOL, frozenset())


def test_late_page_does_not_count_as_silence() -> None:
    """The page of a request that began at 20 s was written at 21.9 s, and the next one at 22 s."""
    feed = _Feed()
    feed.work(20)
    for end, began in ((21.9, 20.0), (22.1, 22.0), (22.6, 22.5), (23.1, 23.0)):
        feed.look(end, {0: 99, 1: 99}, end - began)
        feed.look(end, {2: end, 3: end})
        assert not feed.stalled
    feed.look(23.6, {0: 99, 1: 99})
    assert feed.stalled == {"0", "1"}


def test_unknown_cached_tokens_do_not_shorten_a_long_step() -> None:
    """All prompts seem to have 50,000 tokens, of which the engines compute 300. Then one computes 100,000 tokens."""
    pool = _Pool(*(_Engine(chunk=0) for _ in range(3)))
    for _ in range(60):
        for place, engine in enumerate(pool.engines):
            pool.sent += 1
            pool.decider.books.started(str(pool.sent), POOL, str(place), 50_000, pool.now)
            engine.add(pool.sent, 300, 50, pool.now)
        pool.run(1.1)
    assert pool.decider.books.load(POOL, "0").speed > 50_000
    pool.send(0, 100_000)
    pool.run(14.0, _traffic(Random(2), 14.0, 2.0, 3))
    assert not pool.alarms


def test_cancelled_prompt_explains_a_silence() -> None:
    """The engine computes a prompt of 100,000 tokens in one step, although its client gives up after three seconds."""
    pool = _Pool(*(_Engine(chunk=0) for _ in range(3)))
    pool.run(2.0)
    pool.run(20.0, _traffic(Random(3), 20.0, 2.0, 3))
    pool.send(0, 100_000)
    number = str(pool.sent)
    pool.run(3.0, _traffic(Random(2), 3.0, 2.0, 3))
    pool.decider.books.finished(number)
    pool.run(12.0, _traffic(Random(2), 12.0, 2.0, 3))
    assert not pool.alarms


@pytest.mark.parametrize("before", [0, 1], ids=["other-clients-only", "both"])
def test_requests_of_unknown_clients_explain_a_silence(before: int) -> None:
    """They may have long prompts. If an engine has no others, their silence continues when the picker sends one."""
    feed = _Feed()
    feed.work(20)
    if not before:
        feed.decider.books.finished("0")
    for tick in range(20):
        now = 20 + tick / 2
        feed.look(now, {1: now, 2: now, 3: now})
        feed.look(now, {0: 99}, requests=before + 1)
        if not before and tick == 4:
            feed.decider.books.started("new", POOL, "0", 0, now)
        assert not feed.stalled


def test_unknown_request_after_the_last_progress_counts() -> None:
    feed = _Feed()
    feed.work(20)
    for tick in range(20):
        now = 20 + tick / 2
        feed.look(now, {1: now, 2: now, 3: now})
        feed.look(now, {0: 19}, requests=2)
        assert not feed.stalled


@pytest.mark.parametrize(("deferred", "stalled"), [(0, {"0"}), (1, set())])
def test_deferred_requests_do_not_show_a_stop(deferred: int, stalled: set[str]) -> None:
    """A deferred request waits for something else; the engine makes no progress although it works."""
    feed = _Feed()
    feed.work(20)
    for tick in range(8):
        now = 20 + tick / 2
        feed.look(now, {1: now, 2: now, 3: now})
        feed.look(now, {0: 99}, requests=0, queue=1, deferred=deferred)
    assert feed.stalled == stalled


def test_two_samples_do_not_show_a_stop() -> None:
    feed = _Feed()
    feed.work(20)
    for now in (22.0, 25.0, 25.5):
        assert not feed.stalled
        feed.look(now, {1: now, 2: now, 3: now, 0: 99})
    assert feed.stalled == {"0"}


def test_engine_that_stops_while_idle_is_detected() -> None:
    pool = _busy()
    pool.run(20.0)
    pool.engines[1].requests = 0
    pool.engines[1].stop()
    pool.send(1, 500)
    pool.engines[1].requests = 1
    pool.run(4.0, [(number / 5, place, 200) for number in range(20) for place in (0, 2)])
    assert pool.stalled == {"1"}


def test_first_progress_ends_a_stall() -> None:
    pool = _busy()
    pool.engines[1].stop()
    pool.run(8.0, _traffic(Random(2), 8.0, 1.0, 3))
    assert pool.stalled == {"1"}
    pool.engines[1].resume(pool.now)
    pool.run(1.1)
    assert not pool.stalled


def test_engine_that_stops_again_is_detected_again() -> None:
    pool = _busy()
    for patience in (3.0, 6.0, 13.0):
        pool.engines[1].stop()
        pool.run(patience, _traffic(Random(2), patience, 2.0, 3))
        assert pool.stalled == {"1"}
        pool.engines[1].resume(pool.now)
        pool.run(20.0, _traffic(Random(4), 20.0, 2.0, 3))
        assert not pool.stalled


@pytest.mark.parametrize("after", [number / 10 for number in range(10)])
def test_second_stop_is_detected_as_quickly(after: float) -> None:
    """An engine stops for 12 seconds again and again, 32 seconds apart."""
    pool = _busy()
    requests = [(number / 9, number % 3, 300) for number in range(9 * 32)]
    pool.run(after, requests[: int(9 * after)])
    for _ in range(5):
        pool.engines[1].stop()
        stopped, known = pool.now, len(pool.alarms)
        pool.run(12.0, requests[: 9 * 12])
        assert pool.stalled == {"1"}
        assert pool.alarms[known][0] - stopped <= 3.0
        pool.engines[1].resume(pool.now)
        pool.run(20.0, requests[: 9 * 20])
        assert not pool.stalled


def test_stop_that_was_not_suspected_does_not_delay_the_next() -> None:
    """During the first stop, the engine also has a request that no picker has sent."""
    feed = _Feed()
    feed.work(20)
    for tick in range(24, 0, -1):
        now = 32 - tick / 2
        feed.look(now, {1: now, 2: now, 3: now})
        feed.look(now, {0: 19}, requests=2)
    for second in range(32, 40):
        feed.look(float(second), dict.fromkeys(range(4), second))
    for now in (40.0, 40.5, 41.0):
        assert not feed.stalled
        feed.look(now, {0: 39, 1: now, 2: now, 3: now})
    assert feed.stalled == {"0"}


def test_idle_engines_have_not_stopped() -> None:
    pool = _busy()
    pool.run(600.0)
    assert not pool.alarms


def test_pause_of_a_second_causes_no_alarm() -> None:
    pool = _busy()
    rng = Random(5)
    for place in range(3):
        for _ in range(20):
            pool.run(rng.uniform(2.0, 4.0), _traffic(rng, 2.0, 2.0, 3))
            pool.engines[place].stop()
            pool.run(1.0, _traffic(rng, 1.0, 2.0, 3))
            pool.engines[place].resume(pool.now)
    assert not pool.alarms


def test_engine_without_progress_counter_never_stops() -> None:
    pool = _busy()
    pool.engines[1].stop()
    for _ in range(60):
        pool.now += 1.0
        for place in range(3):
            pool.decider.sampled(pool.sample(place)._replace(progress=None), STALLED_AFTER, pool.now)
    assert not pool.stalled


def test_unreadable_page_causes_no_alarm() -> None:
    pool = _busy()
    pool.hidden = True
    pool.run(60.0, _traffic(Random(2), 60.0, 1.0, 3))
    assert not pool.alarms


def test_stall_ends_if_the_page_becomes_unreadable() -> None:
    pool = _busy()
    pool.engines[1].stop()
    pool.run(6.0, _traffic(Random(2), 6.0, 2.0, 3))
    assert pool.stalled == {"1"}
    names = {POOL: frozenset("012")}
    pool.decider.stalls.expire(names, pool.now + 5.0)
    assert pool.stalled == {"1"}
    pool.decider.stalls.expire(names, pool.now + 30.0)
    assert not pool.stalled


def test_restart_ends_a_stall() -> None:
    pool = _busy()
    pool.engines[1].stop()
    pool.run(6.0, _traffic(Random(2), 6.0, 2.0, 3))
    assert pool.stalled == {"1"}
    pool.decider.sampled(EngineSample(POOL, "1", None, None, None, restarted=True), STALLED_AFTER, pool.now)
    assert not pool.stalled
    pool.run(10.0)
    assert not pool.stalled, "a restarted engine has not made progress yet"


@pytest.mark.parametrize(("step", "expected"), [(1.5, 1), (5.0, 5)])
def test_alarms_of_repeated_long_steps(step: float, expected: int) -> None:
    """An engine has a long step every 30 seconds, for example to load an adapter.

    A short one is expected after the first one. A longer one may be a stop, and its alarm ends with the step.
    """
    feed, alarms, was_stalled, progress = _Feed(), 0, False, 0
    for tick in range(12 * 30):
        now = tick / 2
        progress += now % 30 >= step or now < 30
        feed.look(now, {1: tick, 2: tick, 3: tick, 0: progress})
        assert not feed.stalled or now % 30 < step
        alarms += bool(feed.stalled) and not was_stalled
        was_stalled = bool(feed.stalled)
    assert alarms == expected


def test_rarely_updated_page_causes_no_alarm() -> None:
    """Some exporters update their page every few seconds: here, the page of the first engine."""
    feed = _Feed()
    for second in range(600):
        feed.look(float(second), {1: second, 2: second, 3: second, 0: second // 5})
        assert not feed.stalled


@pytest.mark.parametrize(("stalled_after", "first"), [(15.0, 1.5), (100.0, 9.0), (None, None)])
def test_time_until_a_detour_depends_on_stalled_after(stalled_after: float | None, first: float | None) -> None:
    feed = _Feed(stalled_after)
    feed.work(20)
    found = None
    for tick in range(400):
        now = 20 + tick / 2
        feed.look(now, {1: tick + 99, 2: tick + 99, 3: tick + 99, 0: 99})
        if feed.stalled and found is None:
            found = tick / 2
    assert found == first


def test_engine_with_a_leaked_gauge_has_not_stopped() -> None:
    """An engine may report a request that does not exist. The picker has sent none."""
    pool = _busy()
    pool.run(60.0)
    for _ in range(120):
        pool.now += 1.0
        pool.decider.sampled(pool.sample(1)._replace(running=1.0), STALLED_AFTER, pool.now)
    assert not pool.stalled


def test_most_engines_do_not_stop_together() -> None:
    """If two of three engines make no progress, the cause is elsewhere, for example in the network of the pages."""
    pool = _busy()
    pool.engines[0].stop()
    pool.engines[1].stop()
    pool.run(10.0, _traffic(Random(2), 10.0, 2.0, 3))
    assert not pool.stalled


def test_idle_engines_do_not_show_that_others_stopped() -> None:
    """The pages of both busy engines do not change; the other two engines have no requests, as after a drain."""
    pool = _busy(engines=4)
    pool.run(30.0)
    pool.engines[0].stop()
    pool.engines[1].stop()
    for place in (0, 1):
        pool.send(place, 500)
        pool.engines[place].requests = 1
    pool.run(10.0)
    assert not pool.alarms


def _stopped_without_requests() -> _Pool:
    """Return a pool whose second engine has stopped, after all requests have ended."""
    pool = _busy()
    pool.engines[1].stop()
    pool.run(6.0, _traffic(Random(2), 6.0, 2.0, 3))
    for number in range(pool.sent + 1):
        pool.decider.books.finished(str(number))
    return pool


def test_stopped_engine_without_requests_gets_a_trial() -> None:
    pool = _stopped_without_requests()
    pool.run(10.0)
    assert pool.states == ("1", "")
    pool.run(6.0)
    assert pool.states == ("", "1")
    pool.engines[1].requests = 0
    pool.run(100.0)
    assert pool.on_trial == {"1"}, "without requests, the engine cannot show that it works"
    pool.send(1, 200)
    pool.engines[1].requests = 1
    pool.run(4.0, [(number / 5, place, 200) for number in range(20) for place in (0, 2)])
    assert pool.states == ("1", ""), "it has a request and makes no progress"


def test_trial_without_requests_ends_after_two_minutes() -> None:
    """A standby may get no requests, and an engine may still report requests of clients that have gone."""
    pool = _stopped_without_requests()
    pool.run(16.0)
    assert pool.states == ("", "1")
    pool.run(125.0)
    assert pool.states == ("", "")


def test_progress_ends_a_trial() -> None:
    pool = _stopped_without_requests()
    pool.run(16.0)
    assert pool.on_trial == {"1"}
    pool.engines[1].resume(pool.now)
    pool.run(2.0)
    assert pool.states == ("", "")


def test_trial_ends_if_the_page_becomes_unreadable() -> None:
    pool = _stopped_without_requests()
    pool.run(16.0)
    pool.decider.stalls.expire({POOL: frozenset("012")}, pool.now + 30.0)
    assert pool.on_trial == set()
