"""Replays a trace against one of a fleet's pools with one policy: requests, engines, proxies and the control loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from random import Random

from lbctl.control.inputs import Observation
from lbctl.ir.pools import relieved
from lbctl.ir.weight import Weight
from lbctl.simulate import balancing, build, state
from lbctl.simulate.action_queue import ActionQueue
from lbctl.simulate.control import EngineReport, SimulatedControlLoop
from lbctl.simulate.failures import Availability, break_off, revive, waiting_for
from lbctl.simulate.kernel import advance, change_speed
from lbctl.simulate.limits import count_in_flight, dispatch, forget, lose, refuse, release
from lbctl.simulate.picking import WAITS, QueueOutcomes, SimulatedPicker
from lbctl.simulate.setup import Setup, merged
from lbctl.simulate.trace import Trace

_CHUNK = 30.0
"""Simulated seconds between progress reports."""
_WARM_UP = 60.0
"""Sampling of an idle fleet resumes this many seconds before the next request."""
_QUEUE_INTERVAL = 0.05
"""Seconds between checks of the picker's queue, as in `lbctl.picker.process`."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The columns at the end of a run."""

    setup: Setup
    """The run's setup."""
    trace: Trace
    requests: state.Requests
    engines: state.EngineColumns
    end: float
    """End of the last response, in seconds."""
    queue: QueueOutcomes | None = None
    """Outcomes of the picker's queue; None without a queue."""


def replay(setup: Setup, trace: Trace, seed: int, progress: Callable[[float], None] | None = None) -> Replay:
    """Run once. The same seed gives the same result.

    `progress` is called with the fraction of the trace that has arrived.
    """
    run = _Run(setup, trace, Random(seed))
    run.go(progress)
    return Replay(setup, trace, run.requests, run.engines, run.now, run.picker.outcomes if run.picker else None)


class _Run:
    """The state of one run."""

    def __init__(self, setup: Setup, trace: Trace, rng: Random) -> None:
        self._setup, self._rng = setup, rng
        pool = setup.pool
        self._last = trace.times[-1]
        self._last_leave = self._last + setup.patience
        self._names = [replica.name for replica in pool.replicas]
        self._loop = SimulatedControlLoop(pool, setup.joins)
        self._convert = setup.policy.convert(pool)
        self.settings = build.settings(setup, trace)
        self.requests = build.requests(trace, setup, self.settings.policy, rng)
        self.engines = build.engines(setup.costs, self.settings)
        self._proxies = build.proxies(setup, rng)
        self._progress = state.RunProgress(*(build.counter() for _ in state.RunProgress._fields))
        self._state = (self.requests, self.engines, self._proxies, self.settings, self._progress)
        is_picked = self.settings.policy == balancing.PICKED
        self.picker = SimulatedPicker(setup, trace, rng) if is_picked else None
        self._is_queue_checked = False
        self._attempts = setup.retry.attempts if "connect_failure" in setup.retry.when else 0
        self._pushed: list[float] = []
        self._ordered: list[Weight | None] = []
        self._pushed_at = -math.inf
        self._actions, self._ends = ActionQueue(), ActionQueue()
        self._availability = Availability(setup, self._actions, rng)
        self._next_sample = self._loop.interval or math.inf
        self.now = 0.0

    def go(self, progress: Callable[[float], None] | None) -> None:
        """Run until every request has been answered or has failed, or its client has disconnected."""
        self._plan()
        self._ends.run(0.0)
        self._push(0.0)
        while not self._is_over():
            arrival = self._next_arrival()
            if self._is_at_rest() and arrival != math.inf:
                self._skip_samples(arrival - _WARM_UP)
            if self.now > self._last_leave:
                self._next_sample = math.inf  # every request has been sent, so weights no longer matter
            event = min(self._actions.next_time(), self._ends.next_time(), self._next_sample)
            time = min(event, max(self.now + _CHUNK, self._horizon()))
            time = self._advance(time)
            self._ends.run(time)
            self._actions.run(time)
            if self._next_sample <= time:
                self._sample(time)
            self._push(time)
            self._release(time)
            if progress is not None:
                progress(min(1.0, time / self._last) if self._last else 1.0)

    def _plan(self) -> None:
        """Schedule the setup's changes. The run continues until all of them have happened."""
        for change in self._setup.changes:
            self._ends.at(change.at, self._changes_speed(self._names.index(change.replica), change.factor))
        for outage in merged(self._setup.outages):
            replica = self._names.index(outage.replica)
            self._ends.at(outage.begin, self._dies(replica))
            self._ends.at(outage.end, self._comes_back(replica))
        for name, at in self._setup.joins.items():
            self._ends.at(at, self._joins(name))

    # ── Time ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _next_arrival(self) -> float:
        """Return the time at which the next request arrives; infinite if none does."""
        arrival = int(self._progress.arrival[0])
        return float(self.requests.arrived[arrival]) if arrival < len(self.requests.arrived) else math.inf

    def _next_end(self) -> float:
        """Return the time at which the next engine ends its iterations; infinite if all engines are idle."""
        return float(self.engines.end[self.engines.heap[0]])

    def _horizon(self) -> float:
        """Return how far the run can proceed without a progress report, if this is more than a chunk away.

        The limit is the next arrival, the end of the current iterations, or the last client that may leave. After that,
        there is no limit.
        """
        for time in (self._next_arrival(), self._next_end()):
            if time != math.inf:
                return time
        return self._last_leave if self.now <= self._last_leave else math.inf

    def _is_at_rest(self) -> bool:
        """Return whether all engines are idle and no client waits."""
        return bool(self._progress.leaving[0] == self._progress.arrival[0]) and self._next_end() == math.inf

    def _is_over(self) -> bool:
        if self._progress.arrival[0] < len(self.requests.arrived):
            return False
        is_awaited = self._progress.leaving[0] < len(self.requests.arrived) and self.now <= self._last_leave
        return self._next_end() == math.inf and not is_awaited and self._ends.is_empty

    def _advance(self, until: float) -> float:
        """Run the requests up to a time, or up to an action caused by one of them. Return that time.

        If the picker chooses or a replica is dead, requests are sent one by one from here.
        """
        while True:
            now = float(advance(*self._state, until))
            if self._progress.queued[0] and self._progress.logged[0]:
                self._release(now)
            elif self._next_arrival() <= now:
                self._arrive(now)
            else:
                break
            until = min(until, max(now, self._actions.next_time()))
        self.now = until
        return until

    # ── Requests ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _arrive(self, now: float) -> None:
        """Send the next request, or let it wait at the picker."""
        request, refused = int(self._progress.arrival[0]), int(self._progress.refused[0])
        self._progress.arrival[0] += 1
        if self.picker is None:
            self._send(request, refused, now)
            return
        self._report_events(self.picker, now)
        self._release(now)
        replica = self.picker.choose(request, now)
        if replica != WAITS:
            self._send_picked(request, replica, now)
            return
        self.requests.replica[request] = state.AT_PICKER
        self._refuse_rejected(self.picker)
        self._check_queue(now)

    def _report_events(self, picker: SimulatedPicker, now: float) -> None:
        """Report first tokens and ends of requests to the picker."""
        for entry in self.requests.log[: self._progress.logged[0]]:
            (picker.finished if entry & 1 else picker.first_token)(int(entry) >> 1, now)
        self._progress.logged[0] = 0
        self._progress.queued[0] = picker.waiting

    def _release(self, now: float) -> None:
        """Send as many of the requests waiting at the picker as possible."""
        while self.picker is not None and self._progress.queued[0]:
            self._report_events(self.picker, now)
            released = self.picker.release(now)
            if released is None:
                return
            request, replica = released
            self.requests.replica[request] = balancing.NONE
            self._progress.queued[0] = self.picker.waiting
            self._send_picked(request, replica, now)

    def _check_queue(self, now: float) -> None:
        """Check the picker's queue at regular intervals until it is empty."""
        if not self._is_queue_checked:
            self._is_queue_checked = True
            self._actions.at(now + _QUEUE_INTERVAL, self._expire_queue)

    def _expire_queue(self, now: float) -> None:
        """Reject requests that have waited too long.

        `go` sends other requests, for example after a suspicion has ended.
        """
        assert self.picker is not None
        self.picker.expire(now)
        self._refuse_rejected(self.picker)
        self._is_queue_checked = False
        if self.picker.waiting:
            self._check_queue(now)

    def _refuse_rejected(self, picker: SimulatedPicker) -> None:
        for request in picker.take_rejected():
            self.requests.replica[request] = balancing.NONE
            refuse(self.requests, self.settings, self._progress, request)
        self._progress.queued[0] = picker.waiting

    def _send_picked(self, request: int, replica: int, now: float) -> None:
        """Send a request to the replica chosen by the picker. If there is none, the request's proxy chooses."""
        chosen = self._otherwise(request, ()) if replica == balancing.NONE else replica
        self._send(request, chosen, now)

    def _otherwise(self, request: int, tried: Collection[int]) -> int:
        """Return the replica that the proxy chooses without the picker: the one with the fewest of its requests."""
        base = int(self.requests.proxy[request]) * self.settings.replicas
        active, weight = self._proxies.active, self._proxies.weight
        able = [item for item in range(self.settings.replicas) if weight[base + item] > 0.0 and item not in tried]
        return min(able, key=lambda item: int(active[base + item]), default=balancing.NONE)

    def _send(self, request: int, replica: int, now: float, tried: Collection[int] = ()) -> None:
        """Send a request to a replica.

        If the replica refuses the connection, retry with others, up to the fleet's limit.

        `tried`: replicas that the request has already been sent to.
        """
        tried = [*tried]
        while replica >= 0 and not self.engines.up[replica]:
            self._availability.refused(int(self.requests.proxy[request]), replica, now)
            if self.picker is not None:
                self.picker.unreached(request, replica)
            tried.append(replica)
            if self._availability.changed:
                self._push(now)
            if len(tried) > self._attempts:
                lose(self.requests, self.settings, self._progress, request)
                return
            replica = self._choose_again(request, tried)
        if tried and replica < 0 and not self._has_others(request, tried):
            lose(self.requests, self.settings, self._progress, request)
        else:
            dispatch(*self._state, request, replica, now)

    def _has_others(self, request: int, tried: Collection[int]) -> bool:
        """Return whether a request's proxy has untried replicas, even full ones."""
        base, given = int(self.requests.proxy[request]) * self.settings.replicas, self._proxies.given
        return any(given[base + replica] > 0.0 for replica in range(self.settings.replicas) if replica not in tried)

    def _choose_again(self, request: int, tried: Sequence[int]) -> int:
        if self.picker is not None:
            replica = self.picker.alternative(request, tried)
            return self._otherwise(request, tried) if replica == balancing.NONE else replica
        if self.settings.policy in balancing.DRAWING:
            self.requests.draw[request] = self._rng.getrandbits(32)
            self.requests.second_draw[request] = self._rng.getrandbits(32)
        base, weight = int(self.requests.proxy[request]) * self.settings.replicas, self._proxies.weight
        before = {base + replica: weight[base + replica] for replica in tried}
        for slot in before:
            weight[slot] = 0.0
        replica = int(balancing.choose(self._proxies, self.requests, self.settings, request))
        for slot, value in before.items():
            weight[slot] = value
        if replica == balancing.NONE and self._setup.policy.repeats and weight[base + tried[-1]] > 0.0:
            return tried[-1]  # if no other replica has capacity, a redispatch goes to the same replica
        return replica

    # ── Events of replicas ───────────────────────────────────────────────────────────────────────────────────────────

    def _changes_speed(self, replica: int, factor: float) -> Callable[[float], None]:
        def act(now: float) -> None:
            change_speed(self.requests, self.engines, self.settings, self._progress, replica, float(factor), float(now))

        return act

    def _dies(self, replica: int) -> Callable[[float], None]:
        def act(now: float) -> None:
            self._availability.died(replica, now)
            broken = break_off(self.requests, self.engines, self.settings, replica, now)
            repeats = self._setup.retry.idempotent and self._attempts > 0
            for request in broken:
                count_in_flight(
                    self._proxies, self.settings, self._progress, int(self.requests.proxy[request]), replica, -1
                )
            for request in broken:
                if repeats and self.requests.first[request] < 0.0:
                    if self.picker is not None:
                        self.picker.unreached(request, replica)
                    self._send(request, self._choose_again(request, [replica]), now, [replica])
                else:
                    lose(self.requests, self.settings, self._progress, request)
            for request in waiting_for(self.requests, self._proxies, self.settings, replica):
                forget(self._proxies, int(self.requests.proxy[request]))
                self._send(request, replica, now)

        return act

    def _comes_back(self, replica: int) -> Callable[[float], None]:
        def act(now: float) -> None:
            revive(self.engines, replica)
            self._availability.came_back(replica, now)

        return act

    def _joins(self, name: str) -> Callable[[float], None]:
        def act(now: float) -> None:
            self._availability.joined(self._names.index(name), now)
            self._loop.join(name, now)

        return act

    # ── The control loop ─────────────────────────────────────────────────────────────────────────────────────────────

    def _skip_samples(self, until: float) -> None:
        """Skip samples before a time."""
        interval = self._loop.interval
        if interval is not None and self._next_sample < until:
            self._next_sample += interval * math.ceil((until - self._next_sample) / interval)

    def _sample(self, now: float) -> None:
        size, active = self.settings.replicas, self._proxies.active
        in_flight = [sum(int(active[at]) for at in range(replica, len(active), size)) for replica in range(size)]
        samples = self._loop.sample(self.engines, in_flight, now)
        reports = self._loop.reports(self.engines, now)
        self._actions.at(self._next_sample + self._setup.delay, self._observes(samples, reports))
        self._next_sample += self._loop.interval or math.inf

    def _observes(self, samples: dict[str, Observation], reports: dict[str, EngineReport]) -> Callable[[float], None]:
        def act(now: float) -> None:
            self._loop.observe(samples, [self._names[replica] for replica in self._availability.checked_out], now)
            if self.picker is not None:
                self.picker.reported(reports, now - self._setup.delay)

        return act

    def _push(self, now: float) -> None:
        """Send changed weights to the proxies when permitted. The set of available replicas is sent immediately."""
        availability, policy = self._availability, self._setup.policy
        if now < self._pushed_at + policy.push_every and not availability.changed:
            return
        published = self._loop.weights()
        whole = [weight if availability.takes(at) else None for at, weight in enumerate(published)]
        factors = [availability.factor(at, now) for at in range(len(whole))]
        if policy.push_every:
            factors = self._relieved(factors, published)
            ramped = [weight and weight.times(factor) for weight, factor in zip(whole, factors, strict=True)]
            converted = _proxy_weights(self._convert, ramped)
        else:  # the proxy has its own slow start, which uses only the given weights
            pairs = zip(_proxy_weights(self._convert, whole), factors, strict=True)
            converted = [weight * factor for weight, factor in pairs]
        if converted == self._pushed and not availability.changed:
            return
        is_new = whole != self._ordered
        availability.changed = False
        self._pushed, self._pushed_at, self._ordered = converted, now, whole
        if self.picker is not None:
            self.picker.use_weights(whole, availability.began)
        shedding = self._setup.pool.load_shedding
        self._proxies.refusing[0] = bool(shedding and availability.healthy_percent() < shedding.min_healthy)
        self._spread(converted, is_new, now)

    def _relieved(self, factors: Sequence[float], weights: Sequence[Weight | None]) -> list[float]:
        """Increase the slow-start factors as `serve` does for nginx."""
        availability = self._availability
        rates = {at: weight.rate for at, weight in enumerate(weights) if weight and availability.is_member(at)}
        down = {at for at in rates if not availability.takes(at)}
        ramped = relieved({at: factor for at, factor in enumerate(factors) if factor < 1.0}, rates, down)
        return [ramped.get(at, 1.0) for at in range(len(factors))]

    def _spread(self, weights: Sequence[float], is_new: bool, now: float) -> None:
        """Write the weights into each proxy's state. Changes other than a ramp start a new order.

        New or restarted replicas get the requests that wait in the proxies.
        """
        proxies, size = self._proxies, self.settings.replicas
        ejected = self._availability.ejected
        for slot in range(len(proxies.due)):
            proxy, replica = divmod(slot, size)
            weight = 0.0 if (proxy, replica) in ejected else weights[replica]
            is_back = proxies.given[slot] <= 0.0 < weight
            proxies.given[slot] = weight
            is_full = self.settings.skips_full and proxies.active[slot] >= self.settings.limit
            proxies.weight[slot] = 0.0 if is_full else weight
            if is_new or is_back:
                proxies.due[slot] = proxies.now[proxy] + self._rng.random() / weight if weight > 0 else math.inf
                proxies.current[slot] = self._rng.random()
        for slot in range(len(proxies.due) if any(proxies.waiting) else 0):
            release(*self._state, *divmod(slot, size), now)


def _proxy_weights(convert: Callable[[Sequence[Weight]], Sequence[float]], weights: list[Weight | None]) -> list[float]:
    converted = iter(convert([weight for weight in weights if weight is not None]))
    return [-1.0 if weight is None else next(converted) for weight in weights]
