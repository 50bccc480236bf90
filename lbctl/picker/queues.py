"""The requests waiting at this picker, by pool, and the responses that they will get.

`lbctl.pick.waiting` decides which request goes next, and `PickService` whether a replica has room for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple, TypeVar

from lbctl.ir.pools import QueuePolicy
from lbctl.pick.books import REQUEST_TOKENS
from lbctl.pick.features import Features
from lbctl.pick.waiting import PRIORITIES, FairQueue, Position, WaitingRequest
from lbctl.picker.messages import Caller, PickerAnswer, PickerQuestion
from lbctl.picker.statistics import MAX_TENANTS, OTHER, QueueStatistics

Respond = Callable[[PickerAnswer], None]
"""Sends the response to a request that has been waiting."""
_MAX_FLOW = 128
"""Maximum length of a flow's name, because a client chooses the value of a header."""
_RELEASES = 64
"""Number of released requests from which the rate is computed."""
_MAX_RETRY_AFTER = 60
_Found = TypeVar("_Found")


class Held(NamedTuple):
    """A waiting request, with the data that its pick needs."""

    request: WaitingRequest
    features: Features
    caller: Caller
    respond: Respond
    refund: Callable[[], None] = lambda: None
    """Called if the request gets no replica."""


@dataclass(slots=True)
class _PoolQueue:
    held: dict[str, Held] = field(default_factory=dict)
    order: FairQueue = field(default_factory=FairQueue)
    _released: float = 0.0
    _busy: float = 0.0
    """Seconds during which requests waited, up to `_since`; like `_released`, it is halved from time to time."""
    _since: float = 0.0

    def hold(self, held: Held) -> None:
        """Add a request."""
        if not self.held:
            self._since = held.request.since
        self.held[held.request.id] = held
        self.order.add(held.request)

    def note_release(self, now: float) -> None:
        """Count a request that is about to be sent to a replica."""
        self._busy += now - self._since
        self._since = now
        self._released += 1
        if self._released > _RELEASES:
            self._released, self._busy = self._released / 2, self._busy / 2

    def rate(self, now: float) -> float:
        """Return the rate at which requests are sent to replicas while others wait, per second; 0 if unknown."""
        busy = self._busy + (now - self._since if self.held else 0.0)
        return self._released / max(busy, 0.001)


class Queues:
    """The queues of all pools. `statistics` maps each pool to its counts, which this class updates.

    Times are in seconds.
    """

    def __init__(self, statistics: dict[str, QueueStatistics]) -> None:
        self._statistics = statistics
        self._queues: dict[str, _PoolQueue] = {}
        """Maps each pool to its queue, if it is not empty or was not empty before."""
        self._pools: dict[str, str] = {}
        """Maps the ID of each waiting request to its pool."""

    def __len__(self) -> int:
        """Number of waiting requests."""
        return len(self._pools)

    @property
    def pools(self) -> list[str]:
        """The pools with waiting requests."""
        return [pool for pool, queue in self._queues.items() if queue.held]

    def has_waiting(self, pool: str) -> bool:
        """Return whether requests are waiting for a pool."""
        queue = self._queues.get(pool)
        return queue is not None and bool(queue.held)

    def oldest(self, pool: str) -> float:
        """Return the time since which the oldest waiting request of a pool has waited."""
        return next(iter(self._queues[pool].held.values())).request.since

    def weights(self, pool: str, policy: QueuePolicy) -> tuple[float, ...]:
        """Return the sum of the weights of a pool's flows that wait, for each of `PRIORITIES`."""
        return self._queues[pool].order.weights(dict(policy.weights))

    def tenants(self, pool: str) -> dict[str, int]:
        """Map each of the `MAX_TENANTS` largest tenants to its waiting requests; other tenants count as `OTHER`."""
        held = self._queues.get(pool, _PoolQueue()).held.values()
        waiting = Counter(tenant for item in held if (tenant := item.caller.tenant))
        counts = dict(waiting.most_common(MAX_TENANTS))
        others = waiting.total() - sum(counts.values())
        return {**counts, OTHER: counts.get(OTHER, 0) + others} if others else counts

    def waits(self, pool: str, lane: object) -> bool:
        """Return whether a pool's requests are waiting for the replicas of this lane."""
        queue = self._queues.get(pool)
        return queue is not None and queue.order.waits(lane)

    def may_wait(self, pool: str, policy: QueuePolicy, question: PickerQuestion) -> bool:
        """Return whether a new request for a pool can wait, possibly by displacing another one."""
        queue = self._queues.get(pool)
        if queue is None or len(queue.held) < policy.max_requests:
            return True
        return self._displaced(queue, policy, question) is not None

    def make_room(self, pool: str, policy: QueuePolicy, question: PickerQuestion, now: float) -> None:
        """If the queue is full, reject the request that a new one displaces. `may_wait` has returned True."""
        queue = self._queues.get(pool)
        if queue is None or len(queue.held) < policy.max_requests:
            return
        displaced = self._displaced(queue, policy, question)
        if displaced is not None:
            held = self._remove(pool, displaced.id)
            held.refund()
            held.respond(self.refuse(pool, policy, now))

    def add(self, held: Held) -> None:
        """Let a request wait. An earlier request with the same ID falls back to `otherwise`."""
        pool, request = held.features.pool, held.request
        if (earlier := self._pools.get(request.id)) is not None:
            self.send_on(self._queues[earlier].held[request.id])
        queue = self._queues.setdefault(pool, _PoolQueue())
        queue.hold(held)
        self._pools[request.id] = pool
        self._note(pool, queue)

    def next(
        self, pool: str, decide: Callable[[Held, bool], _Found | None], now: float, passes: Sequence[float]
    ) -> tuple[Held, _Found] | None:
        """Return the request of a pool that goes next, and the result of `decide`; see `FairQueue.next`."""
        queue = self._queues[pool]
        found = queue.order.next(lambda request, leaves: decide(queue.held[request.id], leaves), now, passes)
        return None if found is None else (queue.held[found[0].id], found[1])

    def goes_at_once(self, pool: str, policy: QueuePolicy, question: PickerQuestion, now: float) -> bool:
        """Return whether a new request need not wait behind the others if the reserve has a place for it."""
        return self._queues[pool].order.goes_at_once(flow_of(policy, question), priority_of(policy, question), now)

    def pass_by(self, pool: str, policy: QueuePolicy, request: WaitingRequest) -> None:
        """Charge a flow for a request that goes to a replica while others wait."""
        self._queues[pool].order.pass_by(request, dict(policy.weights).get(request.flow, 1.0))

    def release(self, held: Held, policy: QueuePolicy, now: float) -> None:
        """Remove a request that has been given a replica."""
        pool, request = held.features.pool, held.request
        queue = self._queues[pool]
        queue.order.take(request, dict(policy.weights).get(request.flow, 1.0))
        queue.note_release(now)
        self._forget(pool, request.id)
        self._statistics[pool].released(now - request.since, held.caller.tenant)

    def send_on(self, held: Held) -> None:
        """Release a request without a replica, so that its proxy falls back to `otherwise`."""
        self._remove(held.features.pool, held.request.id)
        held.refund()
        held.respond(PickerAnswer())

    def dismiss_proxy(self, proxy: str) -> None:
        """Release the waiting requests of a proxy that has probably ended, without a replica."""
        for queue in list(self._queues.values()):
            for held in [held for held in queue.held.values() if held.caller.proxy == proxy]:
                self.send_on(held)

    def withdraw(self, request: str) -> bool:
        """Remove a request whose client has left. Return whether it was waiting."""
        pool = self._pools.get(request)
        if pool is None:
            return False
        self._remove(pool, request).refund()
        self._statistics[pool].left += 1
        return True

    def expire(self, pool: str, policy: QueuePolicy, now: float) -> None:
        """Reject a pool's requests that have waited too long."""
        queue = self._queues[pool]
        for request in queue.order.overdue(now - policy.max_wait / 1000):
            held = self._remove(pool, request.id)
            held.refund()
            self._statistics[pool].refused_late += 1
            held.respond(PickerAnswer(full=True, refused=self.retry_after(pool, policy, now)))

    def refuse(self, pool: str, policy: QueuePolicy, now: float) -> PickerAnswer:
        """Return the response to a request that cannot wait because too many others do."""
        self._of(pool).refused_full += 1
        return PickerAnswer(full=True, refused=self.retry_after(pool, policy, now))

    def dismiss(self, pool: str) -> None:
        """Release all waiting requests of a pool without a replica, so that the proxies fall back to `otherwise`."""
        queue = self._queues.pop(pool, None)
        if queue is None:
            return
        for request, held in list(queue.held.items()):
            self._pools.pop(request, None)
            held.refund()
            held.respond(PickerAnswer())
        self._note(pool, _PoolQueue())

    def retry_after(self, pool: str, policy: QueuePolicy, now: float) -> int:
        """Return an estimate of the seconds until the current waiting requests have left the queue, from 1 to 60."""
        queue = self._queues.get(pool, _PoolQueue())
        rate = queue.rate(now)
        seconds = len(queue.held) / rate if rate else policy.max_wait / 1000
        return min(max(1, ceil(seconds)), _MAX_RETRY_AFTER)

    def position(self, pool: str, policy: QueuePolicy, question: PickerQuestion, now: float) -> Position:
        """Return the place that a request would get if it started to wait now."""
        queue = self._queues.get(pool, _PoolQueue())
        flow, priority = flow_of(policy, question), priority_of(policy, question)
        count, flows = queue.order.before(flow, priority, dict(policy.weights))
        rate = queue.rate(now)
        rejected = len(queue.held) >= policy.max_requests and self._displaced(queue, policy, question) is None
        return Position(count, flows, (count + 1) / rate if rate else None, rejected)

    @staticmethod
    def _displaced(queue: _PoolQueue, policy: QueuePolicy, question: PickerQuestion) -> WaitingRequest | None:
        flow, priority = flow_of(policy, question), priority_of(policy, question)
        return queue.order.displaced(flow, priority, dict(policy.weights))

    def _remove(self, pool: str, request: str) -> Held:
        self._queues[pool].order.remove(request)
        return self._forget(pool, request)

    def _forget(self, pool: str, request: str) -> Held:
        queue = self._queues[pool]
        del self._pools[request]
        held = queue.held.pop(request)
        self._note(pool, queue)
        return held

    def _of(self, pool: str) -> QueueStatistics:
        return self._statistics.setdefault(pool, QueueStatistics())

    def _note(self, pool: str, queue: _PoolQueue) -> None:
        self._of(pool).waiting = queue.order.priorities


def waiting_request(
    policy: QueuePolicy, features: Features, question: PickerQuestion, pick: str, now: float
) -> WaitingRequest:
    """Return a request that starts to wait under the ID `pick`."""
    cost, lane = features.prompt_tokens + REQUEST_TOKENS, lane_of(features)
    return WaitingRequest(pick, flow_of(policy, question), priority_of(policy, question), cost, now, lane)


def lane_of(features: Features) -> tuple[object, ...]:
    """Return the values that determine which of a pool's replicas a request may go to."""
    return features.place, features.regions, features.subset


def flow_of(policy: QueuePolicy, question: PickerQuestion) -> str:
    """Return the flow of a request. With the order `fifo`, all requests form one flow."""
    return "" if policy.order == "fifo" else sharer(policy.by, policy.header, question)


def sharer(by: str, header: str, question: PickerQuestion) -> str:
    """Return the value shared by requests that share a turn in the queue or a budget."""
    match by:
        case "tenant":
            return question.caller.tenant
        case "client_ip":
            return question.client
        case "header":
            return _header(question.headers, header)[:_MAX_FLOW]
        case _:
            return ""


def priority_of(policy: QueuePolicy, question: PickerQuestion) -> int:
    """Return the index of a request's priority: its route's, or a priority that its tenant may choose."""
    caller = question.caller
    priority = PRIORITIES.index(caller.priority)
    highest = dict(policy.priority_tenants).get(caller.tenant) if caller.tenant else None
    chosen = _header(question.headers, policy.priority_header).lower() if highest else ""
    if highest is None or chosen not in PRIORITIES:
        return priority
    return max(PRIORITIES.index(chosen), PRIORITIES.index(highest))


def _header(headers: Mapping[str, list[str]], name: str) -> str:
    return next(iter(headers.get(name, ())), "").strip()
