"""The order in which waiting requests get replicas.

A request of a higher priority goes first. After `MAX_PASSED` such requests, a request of a lower priority goes, so that
no priority starves. Within a priority, the flows (for example tenants) share the replicas in proportion to their
weights, by start-time fair queueing: the flow with the least start tag goes first, and its next tag is larger by the
cost of the request divided by the weight. A flow that begins to wait gets the tag of the last request that left the
queue minus `CREDIT`, or the end of the flow's own last request if that is later. A flow that has used less than its
share therefore goes first. Source: P. Goyal, H. M. Vin, H. Cheng, Start-time Fair Queueing (SIGCOMM 1996).

Some places of each replica are a reserve for flows below their share and for higher priorities, so that these seldom
wait for the end of another request. Other requests leave the reserve free only while such requests arrive.

A lane contains the requests that may go to the same replicas. If a lane is full, requests of other lanes can still go.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple, TypeVar

PRIORITIES = ("high", "normal", "low")
"""Priorities, the highest first."""
MAX_PASSED = 9
"""Number of requests of higher priorities that go while a priority waits, before a request of that priority goes."""
PASSES = (float(MAX_PASSED),) * len(PRIORITIES)
"""`MAX_PASSED` for each priority."""

CREDIT = 20_000.0
"""Tokens, divided by the weight, by which a flow that begins to wait may be behind the others. It then goes first."""
RESERVE_SECONDS = 1.0
"""Seconds for which the reserve stays free after the last request for which it is meant."""
_RESERVE_CREDIT = CREDIT / 2
"""Credit above which the reserve is meant for a flow. With less, the shares of busy flows only differ by chance."""

MAX_FINISHES = 4_000
"""Upper bound on the remembered ends of flows, because clients may choose the flow. The earliest ends matter least."""

_MAX_OUTDATED = 100
"""Number of outdated entries in a heap above which they are removed, even if none of them is at the top."""

_Found = TypeVar("_Found")


class WaitingRequest(NamedTuple):
    """A request that waits for a replica."""

    id: str
    flow: str
    """Requests of one flow go in the order of their arrival."""
    priority: int
    """Index in `PRIORITIES`."""
    cost: float
    """Work of the request, in tokens."""
    since: float
    """Time at which the request arrived, in seconds."""
    lane: Hashable = None


class Position(NamedTuple):
    """The place of a request that would begin to wait now."""

    requests: int
    """Requests that would go before it."""
    flows: int
    """Number of flows to which they belong."""
    seconds: float | None
    """Estimated wait; None if no request has left the queue in the last minute."""
    rejected: bool = False
    """Whether the request would be rejected instead, because too many requests wait."""


@dataclass(slots=True)
class _Flow:
    """The waiting requests of one flow, at least one."""

    start: float
    """Start tag of its next request."""
    entry: int
    """Number of the flow's entry in the heap of its priority."""
    lanes: dict[Hashable, dict[str, WaitingRequest]] = field(default_factory=dict)
    """Maps each lane to its requests by ID, the oldest first."""
    length: int = 0
    """Number of the flow's requests."""

    def heads(self) -> list[WaitingRequest]:
        """Return the oldest request of each lane, the oldest first."""
        heads = [next(iter(requests.values())) for requests in self.lanes.values()]
        return heads if len(heads) == 1 else sorted(heads, key=lambda item: item.since)


class _Level:
    """The waiting requests of one priority."""

    def __init__(self) -> None:
        self.flows: dict[str, _Flow] = {}
        self.passed = 0
        """Number of requests of higher priorities that have gone since the last request of this priority."""
        self._order: list[tuple[float, int, str]] = []
        """Heap of (start tag, number, flow). An entry is outdated unless its flow has the same number."""
        self._number = 0
        self._virtual = 0.0
        """Start tag of the last request that went; 0 since the queue was empty."""
        self._finishes: dict[str, float] = {}
        """Maps each flow to the end of its last request; only ends after `_virtual` minus `CREDIT` matter."""
        self._by_length: dict[int, dict[str, None]] = {}
        """Maps each number of waiting requests to the flows with this number."""

    def add(self, request: WaitingRequest) -> None:
        flow = self.flows.get(request.flow)
        if flow is None:
            start = self.start(request.flow)
            flow = self.flows[request.flow] = _Flow(start, 0)
            self._push(request.flow, flow)
        flow.lanes.setdefault(request.lane, {})[request.id] = request
        self._resize(request.flow, flow, 1)

    def start(self, flow: str) -> float:
        """Return the start tag of a flow that begins to wait."""
        return max(0.0, self._virtual - CREDIT, self._finishes.get(flow, 0.0))

    def credit(self, flow: str) -> float:
        """Return how much earlier the next request of a flow starts than the last request that went."""
        waiting = self.flows.get(flow)
        return self._virtual - (self.start(flow) if waiting is None else waiting.start)

    def heads(self) -> Iterator[WaitingRequest]:
        """Yield the oldest request of each flow and lane, in the order of the flows. The queue must not change."""
        while not self._is_current(self._order[0]):
            heapq.heappop(self._order)
        first = self._order[0]
        yield from self.flows[first[2]].heads()
        if len(self.flows) > 1:
            for entry in sorted(self._order):
                if entry is not first and self._is_current(entry):
                    yield from self.flows[entry[2]].heads()

    def take(self, request: WaitingRequest, weight: float) -> None:
        """Remove a request that leaves the queue now."""
        flow = self.flows[request.flow]
        self._virtual = max(self._virtual, flow.start)
        finish = self._finishes[request.flow] = flow.start + request.cost / weight
        if len(self._finishes) > MAX_FINISHES:
            latest = sorted(self._finishes.items(), key=lambda item: item[1])[MAX_FINISHES // 2 :]
            self._finishes = {name: end for name, end in latest if end > self._virtual - CREDIT}
        self.passed = 0
        self.remove(request)
        if request.flow in self.flows:
            flow.start = finish
            self._push(request.flow, flow)

    def remove(self, request: WaitingRequest) -> None:
        flow = self.flows[request.flow]
        lane = flow.lanes[request.lane]
        del lane[request.id]
        self._resize(request.flow, flow, -1)
        if not lane:
            del flow.lanes[request.lane]
        if not flow.lanes:
            del self.flows[request.flow]
        if not self.flows:
            self.passed, self._virtual = 0, 0.0
            self._order.clear()
            self._finishes.clear()

    def largest(self, weights: Mapping[str, float]) -> tuple[float, str]:
        """Return the number of requests of the largest flow, relative to its weight, and the flow."""
        sizes = [(flow.length / weight, name) for name, weight in weights.items() if (flow := self.flows.get(name))]
        for length in sorted(self._by_length, reverse=True):
            unweighted = next((name for name in self._by_length[length] if name not in weights), None)
            if unweighted is not None:
                sizes.append((float(length), unweighted))
                break
        return max(sizes)

    def weight(self, weights: Mapping[str, float]) -> float:
        """Return the sum of the weights of its flows."""
        weighted = [weight for flow, weight in weights.items() if flow in self.flows]
        return len(self.flows) - len(weighted) + sum(weighted)

    def before(self, flow: str, weights: Mapping[str, float]) -> dict[str, int]:
        """Map each flow to the number of its requests that go before a new request of `flow`.

        `weights` maps each flow to its weight.
        """
        waiting = self.flows.get(flow)
        tag = self.start(flow) if waiting is None else waiting.start + _work(waiting) / weights.get(flow, 1.0)
        return {
            name: other.length if name == flow else _started_by(other, tag, weights.get(name, 1.0))
            for name, other in self.flows.items()
        }

    def _resize(self, name: str, flow: _Flow, change: int) -> None:
        if flow.length:
            del self._by_length[flow.length][name]
            if not self._by_length[flow.length]:
                del self._by_length[flow.length]
        flow.length += change
        if flow.length:
            self._by_length.setdefault(flow.length, {})[name] = None

    def _push(self, name: str, flow: _Flow) -> None:
        """Add a flow to the heap with its current start tag."""
        self._number = flow.entry = self._number + 1
        heapq.heappush(self._order, (flow.start, flow.entry, name))
        if len(self._order) > _MAX_OUTDATED + 2 * len(self.flows):
            self._order = [entry for entry in self._order if self._is_current(entry)]
            heapq.heapify(self._order)

    def _is_current(self, entry: tuple[float, int, str]) -> bool:
        _, number, name = entry
        flow = self.flows.get(name)
        return flow is not None and flow.entry == number


class FairQueue:
    """The waiting requests of a pool."""

    def __init__(self) -> None:
        self._levels = tuple(_Level() for _ in PRIORITIES)
        self._requests: dict[str, WaitingRequest] = {}
        self._lanes: Counter[Hashable] = Counter()
        self._flows: Counter[str] = Counter()
        self._priorities: Counter[int] = Counter()
        self._arrived = [-inf] * len(PRIORITIES)
        """Time of the last request of each priority."""
        self._reserved_at = -inf
        """Time of the last request for which the reserve is meant."""

    def __len__(self) -> int:
        """Number of waiting requests."""
        return len(self._requests)

    def __contains__(self, request: str) -> bool:
        """Return whether the request with this ID is waiting."""
        return request in self._requests

    @property
    def flows(self) -> Mapping[str, int]:
        """Maps each flow to the number of its waiting requests."""
        return self._flows

    @property
    def priorities(self) -> Mapping[str, int]:
        """Maps each priority to the number of its waiting requests."""
        return {name: self._priorities[index] for index, name in enumerate(PRIORITIES)}

    def weights(self, weights: Mapping[str, float]) -> tuple[float, ...]:
        """Return the sum of the weights of the flows that wait, for each of `PRIORITIES`."""
        return tuple([level.weight(weights) for level in self._levels])

    def add(self, request: WaitingRequest) -> None:
        """Let a request wait."""
        self._arrived[request.priority] = request.since
        if self._credit(request.flow, request.priority, request.since) > _RESERVE_CREDIT:
            self._reserved_at = request.since
        self._requests[request.id] = request
        self._levels[request.priority].add(request)
        self._count(request, 1)

    def waits(self, lane: Hashable) -> bool:
        """Return whether a request of this lane waits."""
        return lane in self._lanes

    def next(
        self, decide: Callable[[WaitingRequest, bool], _Found | None], now: float, passes: Sequence[float] = PASSES
    ) -> tuple[WaitingRequest, _Found] | None:
        """Return the next request that gets a replica, with the result of `decide`; None if none does. `take` follows.

        `decide` gets a request, and whether it has to leave the reserve of the replicas free. It returns None if the
        request's lane has no replica for it. `passes`: for each priority, the number of requests of higher priorities
        after which one of its requests goes.
        """
        full, closed = set[Hashable](), set[Hashable]()
        is_reserved = now - self._reserved_at < RESERVE_SECONDS
        for request, may_use_reserve in self._heads(full, closed, now, passes):
            leaves_reserve = is_reserved and not may_use_reserve
            found = decide(request, leaves_reserve)
            if found is not None:
                return request, found
            closed.add(request.lane)
            if not leaves_reserve:
                full.add(request.lane)
        return None

    def goes_at_once(self, flow: str, priority: int, now: float) -> bool:
        """Return whether a new request need not wait behind the others if the reserve has a place for it."""
        return flow not in self._levels[priority].flows and self._credit(flow, priority, now) > 0.0

    def pass_by(self, request: WaitingRequest, weight: float = 1.0) -> None:
        """Charge a flow for a request that goes at once."""
        self.add(request)
        self.take(request, weight)

    def take(self, request: WaitingRequest, weight: float = 1.0) -> None:
        """Remove a request that leaves the queue now. `weight`: the share of its flow, relative to the other flows."""
        self._levels[request.priority].take(request, weight)
        for level in self._levels[request.priority + 1 :]:
            if level.flows:
                level.passed += 1
        self._forget(request)

    def remove(self, request: str) -> WaitingRequest | None:
        """Remove a request that no longer waits. Return it; None if it did not wait."""
        removed = self._requests.get(request)
        if removed is not None:
            self._levels[removed.priority].remove(removed)
            self._forget(removed)
        return removed

    def displaced(self, flow: str, priority: int, weights: Mapping[str, float]) -> WaitingRequest | None:
        """Return the request of a full queue that a new one displaces; None if the new one cannot wait.

        The displaced request is the newest request of the largest flow, relative to its weight, of the lowest priority
        that waits. So a flow cannot keep others out of the queue. `weights` maps each flow to its weight, if it is not
        1.
        """
        lowest = max((index for index, level in enumerate(self._levels) if level.flows), default=-1)
        if priority > lowest:
            return None
        level = self._levels[lowest]
        size, largest = level.largest(weights)
        if priority == lowest:
            waiting = level.flows.get(flow)
            own = ((waiting.length if waiting else 0) + 1) / weights.get(flow, 1.0)
            if flow == largest or own >= size:
                return None
        newest = [next(reversed(requests.values())) for requests in level.flows[largest].lanes.values()]
        return max(newest, key=lambda item: item.since)

    def overdue(self, since: float) -> list[WaitingRequest]:
        """Return the requests that have waited since `since` or longer, the oldest first."""
        overdue = []
        for request in self._requests.values():
            if request.since > since:
                break
            overdue.append(request)
        return overdue

    def before(self, flow: str, priority: int, weights: Mapping[str, float]) -> tuple[int, int]:
        """Return the number of requests that go before a new request, unless more arrive, and of their flows."""
        counts = Counter(self._levels[priority].before(flow, weights))
        for level in self._levels[:priority]:
            counts.update({name: item.length for name, item in level.flows.items()})
        return counts.total(), sum(map(bool, counts.values()))

    def _credit(self, flow: str, priority: int, now: float) -> float:
        """Return the credit with which a flow uses the reserve; 0 if it may not, unless the turn of its priority comes.

        It may if only lower priorities wait in addition, or if it is below its share of the highest priority. Requests
        of higher priorities that have just arrived exclude lower ones.
        """
        if any(level.flows for level in self._levels[:priority]):
            return 0.0
        if any(now - at < RESERVE_SECONDS for at in self._arrived[:priority]):
            return 0.0
        if any(level.flows for level in self._levels[priority + 1 :]):
            return inf
        return self._levels[priority].credit(flow)

    def _heads(
        self, full: Collection[Hashable], closed: Collection[Hashable], now: float, passes: Sequence[float]
    ) -> Iterator[tuple[WaitingRequest, bool]]:
        """Yield the requests that may go next, in this order, and whether they may use the reserve.

        They are at most one for each flow and lane. The queue must not change. The caller adds lanes without a free
        replica to both sets, and lanes in which only the reserve is free to `closed`.
        """
        for level, is_due in self._in_order(passes):
            for request in level.heads():
                may_use_reserve = is_due or self._credit(request.flow, request.priority, now) > 0.0
                if request.lane not in (full if may_use_reserve else closed):
                    yield request, may_use_reserve
                if len(full) >= len(self._lanes):
                    return
                if not may_use_reserve and len(closed) >= len(self._lanes):
                    break  # the other flows of this priority have later tags

    def _in_order(self, passes: Sequence[float]) -> list[tuple[_Level, bool]]:
        """Return the priorities that wait, in order, and whether the turn of each has come."""
        levels = [
            (level, level.passed >= most) for level, most in zip(self._levels, passes, strict=True) if level.flows
        ]
        if len(levels) > 1:
            levels.sort(key=lambda item: not item[1])
        return levels

    def _forget(self, request: WaitingRequest) -> None:
        del self._requests[request.id]
        self._count(request, -1)

    def _count(self, request: WaitingRequest, change: int) -> None:
        _add(self._lanes, request.lane, change)
        _add(self._flows, request.flow, change)
        self._priorities[request.priority] += change


def _add(counter: Counter[Any], key: Hashable, change: int) -> None:
    counter[key] += change
    if not counter[key]:
        del counter[key]


def _work(flow: _Flow) -> float:
    return sum(request.cost for lane in flow.lanes.values() for request in lane.values())


def _started_by(flow: _Flow, tag: float, weight: float) -> int:
    """Return the number of requests of a flow whose start tags are at most `tag`."""
    start, count = flow.start, 0
    requests = sorted((item for lane in flow.lanes.values() for item in lane.values()), key=lambda item: item.since)
    for request in requests:
        if start > tag:
            break
        start += request.cost / weight
        count += 1
    return count
