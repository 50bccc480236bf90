"""A process's picker service: picks replicas for queries using the tables, the books and the affinity memory.

All methods run in one event loop, so each decision takes all earlier decisions into account. If a pool has no table or
no available replica, the response is empty, and the proxy falls back to `otherwise`.
"""

from __future__ import annotations

import random
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import ceil

from lbctl.pick.affinity import AffinityBatch, AffinityMemory
from lbctl.pick.books import MAX_AGE, Counts
from lbctl.pick.budgets import Budget, Budgets
from lbctl.pick.explain import Explanation, explain_wait
from lbctl.pick.features import Features
from lbctl.pick.lengths import Factors
from lbctl.pick.suspects import Suspects
from lbctl.pick.table import PoolTable
from lbctl.pick.waiting import PASSES, Position
from lbctl.picker.decision import Decider, PickerDecision
from lbctl.picker.messages import Caller, PickerAnswer, PickerQuestion, ResponseStart
from lbctl.picker.open_picks import LostEnds, OpenPick
from lbctl.picker.queue_shares import ANNOUNCED, Demands, QueueShares
from lbctl.picker.queues import Held, Queues, Respond, lane_of, sharer, waiting_request
from lbctl.picker.statistics import DecisionSample, QueueStatistics, Statistics
from lbctl.picker.tickets import Ticket, Tickets
from lbctl.picker.wire import EngineSample, ProxySample
from lbctl.runtime import log

_LOG_INTERVAL = 60.0
"""Minimum time between log lines about failed picks, in seconds."""
_OWN_ID = 16
"""Length of the pick IDs that the picker chooses. IDs chosen by proxies are longer."""
_MAX_ENDED, _LATE = 10_000, 60.0
"""Maximum number, and maximum age in seconds, of remembered ends that arrived before their queries.

This happens if a client disconnects immediately, or if a picker that was hung reads its sockets in a different order.
"""
MAX_ADDRESSES = 4
"""Maximum number of replicas in a response."""


class PickService:
    """One process's picker service. `clock` returns the time in seconds. `affinity` is either empty or restored.

    `is_joining`: whether the service remains unready, and does not pick any replicas, until `joined` is called.
    Otherwise, other pickers would adopt choices that it makes before it knows the sessions.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        generator: random.Random | None = None,
        affinity: AffinityMemory | None = None,
        *,
        is_joining: bool = False,
    ) -> None:
        self.statistics = Statistics()
        self.tables: dict[str, PoolTable] = {}
        self._is_joining = is_joining
        self.unsaved = ""
        """Reason why the affinity memory could not be saved; empty if it was saved or is not saved at all."""
        self._clock = clock
        self._decider = Decider(generator or random.Random(), AffinityMemory() if affinity is None else affinity)
        self.suspects = Suspects(self._decider.stalls.avoided, self._decider.stalls.on_trial)
        """Replicas that are temporarily not picked."""
        self._open: dict[str, OpenPick] = {}
        self._lost_ends = LostEnds()
        self._ended: dict[str, float] = {}
        """Maps the proxy-chosen ID of each pick whose end arrived before its query to the time of the end."""
        self._logged_at = float("-inf")
        self.queues = Queues(self.statistics.queues)
        """Requests waiting for a replica."""
        self._tickets = Tickets()
        self._shares = QueueShares()
        self._budgets = Budgets()
        self._pickers = 1

    @property
    def is_ready(self) -> bool:
        """Return whether replicas can be picked using the other pickers' affinity memory."""
        return bool(self.tables) and not self._is_joining

    def joined(self) -> None:
        """Become ready as soon as the first table arrives."""
        self._is_joining = False

    @property
    def open_picks(self) -> int:
        """Number of picked requests that have not ended yet."""
        return len(self._open)

    @property
    def open_by_pool(self) -> Counter[str]:
        """Maps each pool to the number of picked requests that have not ended yet."""
        return Counter(entry.pool for entry in self._open.values())

    @property
    def stalled(self) -> dict[str, list[str]]:
        """The replicas whose engines have stopped and have made no progress since, by pool; without empty pools."""
        found = {pool: sorted(self.suspects.stalled(table)) for pool, table in self.tables.items()}
        return {pool: names for pool, names in found.items() if names}

    @property
    def lengths(self) -> dict[str, Factors]:
        """Maps each pool whose engines count prompt tokens to its learned correction factors for prompt lengths."""
        return self._decider.lengths.learned()

    def set_table(self, pool: str, table: PoolTable | None) -> None:
        """From now on, use this table for the pool; None means that the pool has left."""
        self._decider.forget_departed(self.tables.get(pool), table)
        if table is None:
            self.tables.pop(pool, None)
            self.statistics.forget(pool)
        else:
            self.tables[pool] = table
        if table is None or table.policy.queue is None:
            self.queues.dismiss(pool)
            self._shares.forget(pool)
            self.statistics.queues.pop(pool, None)
        else:
            self.statistics.queues.setdefault(pool, QueueStatistics())
        self._release(pool)

    def sampled(self, sample: EngineSample) -> None:
        """Correct the books using a report from a replica's engine."""
        table = self.tables.get(sample.pool)
        if table is not None:
            self._decider.sampled(sample, table.stalled_after, self._clock())
            if table.policy.queue is not None:
                self._decider.learn_limit(sample, self._clock())
            if len(self._decider.books) < len(self._open):
                self._end([pick for pick in self._open if pick not in self._decider.books])
            self._release(sample.pool)

    def assigned(self, samples: Sequence[ProxySample]) -> None:
        """End picks in excess of the requests that the proxies report."""
        self._end(self._lost_ends.of(self._open, samples, self._clock()))

    def counts(self) -> Counts:
        """Return this picker's counts to send to other pickers."""
        return self._decider.books.snapshot()

    def demands(self) -> Demands:
        """Return the requests waiting at this picker, to send to other pickers."""
        return {
            pool: self._shares.demand(pool, self.queues.weights(pool, policy))
            for pool in self.queues.pools
            if (policy := self.tables[pool].policy.queue) is not None
        }

    def merge_demands(self, peer: str, demands: Demands, precedes: bool) -> None:
        """Replace the requests waiting at another picker. `merge` must be called next.

        `precedes`: whether the other picker gets a slot to which both are equally entitled.
        """
        self._shares.merge(peer, demands, self._clock(), precedes=precedes)

    def expected_cached(self) -> Mapping[str, Mapping[str, int]]:
        """Map each pool and replica to the prompt tokens that all pickers have so far expected it to have cached."""
        return self._decider.books.expected_cached()

    def merge(self, peer: str, counts: Counts) -> None:
        """Replace another picker's counts for the replicas known to this picker."""
        accepted = {
            pool: {name: count for name, count in replicas.items() if name in table.names}
            for pool, replicas in counts.items()
            if (table := self.tables.get(pool)) is not None
        }
        self._decider.merge(peer, accepted, self._clock())
        requests = {pool: sum(count.requests for count in replicas.values()) for pool, replicas in accepted.items()}
        self._shares.merge_requests(peer, requests)
        self.serve_queues()

    def merge_affinity(self, batch: AffinityBatch, yields: bool) -> None:
        """Accept another picker's affinity entries for the replicas known to this picker.

        `yields`: whether the other picker's choice wins if both choose a replica for a session at the same time.
        """
        known = {
            number: (pool, name)
            for number, (pool, name) in batch.replicas.items()
            if (table := self.tables.get(pool)) is not None and name in table.names
        }
        self._decider.merge_affinity(AffinityBatch(known, batch.entries), self._clock(), yields)

    def pick(self, question: PickerQuestion) -> PickerAnswer:
        """Return the replicas for a request, in the order in which a proxy should try them; return none after an error.

        A response with `must_wait` names no replicas, because all of them are full; the caller may then call `wait`.
        """
        started = time.perf_counter()
        try:
            return self._pick(question, started)
        except Exception:  # noqa: BLE001 -- after any error, the proxy falls back to `otherwise`
            pool = question.caller.pool or ""
            self.statistics.decided(pool if pool in self.tables else "", "error", time.perf_counter() - started)
            self._log_failure()
            return PickerAnswer()

    def wait(self, question: PickerQuestion, respond: Respond) -> str:
        """Queue a request for which `pick` has just returned `must_wait`. Return its ID.

        `respond` is called with the response later, unless `finished` is called first.
        """
        table = self._table(question)
        assert table is not None
        assert table.policy.queue is not None
        request, pick, now = self._decider.read(table, question), self._id(question), self._clock()
        waiting = waiting_request(table.policy.queue, request, question, pick, now)
        self.queues.make_room(table.pool, table.policy.queue, question, now)
        refund = self._charge(table, question, request, now)
        self.queues.add(Held(waiting, request, question.caller, respond, refund))
        return pick

    def issue_ticket(self, question: PickerQuestion) -> str:
        """Queue a request as `wait` does. Return its ID, which the proxy uses to query for the response."""
        ticket = Ticket(self._clock())
        pick = self.wait(question, ticket.respond)
        self._tickets.add(pick, ticket)
        return pick

    def claim_ticket(self, pick: str) -> Ticket:
        """Return a request's ticket, whose response is sent now or later.

        If the ticket is unknown, for example after the picker has restarted, the proxy falls back to `otherwise`.
        """
        return self._tickets.claim(pick) or Ticket(self._clock(), PickerAnswer())

    def drop_ticket(self, pick: str) -> None:
        """Withdraw a request unless its proxy has queried for the response."""
        if self._tickets.claim(pick) is not None:
            self.finished(pick)

    def serve_queues(self) -> None:
        """Reject requests that have waited too long, and assign replicas to as many of the rest as possible."""
        for pick in self._tickets.expired(self._clock()):
            self.finished(pick)
        for pool in self.queues.pools:
            table = self.tables[pool]
            if table.policy.queue is not None:
                self.queues.expire(pool, table.policy.queue, self._clock())
            self._release(pool)

    def dismiss_waiting(self) -> None:
        """Release all waiting requests without a replica, because the picker is shutting down."""
        for pool in self.queues.pools:
            self.queues.dismiss(pool)

    def position(self, question: PickerQuestion) -> Position | None:
        """Return the position that a request would get in the queue; None if it would not have to wait."""
        table = self._table(question)
        if table is None or table.policy.queue is None:
            return None
        now = self._clock()
        request = self._decider.read(table, question)
        if self._may_go(table, question, request, now):
            decision = self._decider.decide(self.suspects.without(table, now), request, now)
            if decision.reason != "full":
                return None
        return self.queues.position(table.pool, table.policy.queue, question, now)

    def explain(self, question: PickerQuestion) -> Explanation | None:
        """Explain the decision that the picker would make now, without recording anything; None without a table."""
        table = self._table(question)
        if table is None:
            return None
        now, policy = self._clock(), table.policy.queue
        explanation = self._decider.explain(self.suspects.without(table, now), question, now)
        position = self.position(question)
        if policy is None or position is None:
            return explanation
        return explain_wait(explanation, position, policy)

    def share_budgets(self, pickers: int) -> None:
        """Use an equal share of each prompt-token budget, because this many pickers charge it."""
        self._pickers = pickers

    def proxy_of(self, pick: str) -> str:
        """Return the proxy that handles an unfinished request; empty if there is none."""
        entry = self._open.get(pick)
        return "" if entry is None else entry.proxy

    def answered(self, pick: str, answer: ResponseStart) -> None:
        """Record that the response to a request has started."""
        entry = self._open.get(pick)
        if entry is None:
            return
        now, first = self._clock(), entry.ordered[0]
        moved = answer.moved or answer.served not in ("", first.address)
        if moved and answer.by_replica and entry.leaves_busy:
            self.suspects.busy(entry.pool, first.name, now)
        elif moved or not answer.by_replica:
            self.suspects.failed(entry.pool, first.name, now)
        else:
            self.suspects.answered(entry.pool, first.name)
        self._decider.first_token(pick)

    def first_byte(self, pick: str) -> None:
        """Record that the body of a successful response has started."""
        self._decider.first_byte(pick, self._clock())
        entry = self._open.get(pick)
        if entry is not None:
            self._release(entry.pool)

    def finished(self, pick: str) -> None:
        """Record that a request has ended."""
        entry = self._open.pop(pick, None)
        if entry is not None:
            self.statistics.finished[entry.pool] += 1
            self._decider.finished(pick)
            self._release(entry.pool)
        elif not self.queues.withdraw(pick) and len(pick) > _OWN_ID:
            while len(self._ended) >= _MAX_ENDED:
                del self._ended[next(iter(self._ended))]
            self._ended[pick] = self._clock()

    def proxy_left(self, proxy: str) -> None:
        """Record that a proxy has ended, together with all its requests."""
        self.queues.dismiss_proxy(proxy)
        for pick in [pick for pick, entry in self._open.items() if entry.proxy == proxy]:
            self.finished(pick)

    def sweep(self) -> None:
        """Remove picks whose end was never reported, and the state of replicas that have left."""
        now = self._clock()
        oldest = now - MAX_AGE
        self._decider.expire(self.tables, now)
        self.suspects.expire(now)
        self._end([pick for pick, entry in self._open.items() if entry.at < oldest])
        self._ended = {pick: at for pick, at in self._ended.items() if now - at < _LATE}

    def _end(self, picks: Sequence[str]) -> None:
        """End picks whose end was never reported."""
        for pick in picks:
            self.statistics.lost[self._open[pick].pool] += 1
            self.finished(pick)

    def _pick(self, question: PickerQuestion, started: float) -> PickerAnswer:
        table = None if self._is_joining else self._table(question)
        if table is None:
            reason = "joining" if self._is_joining else "no table"
            self.statistics.decided("", reason, time.perf_counter() - started)
            return PickerAnswer()
        now = self._clock()
        request = self._decider.read(table, question)
        self._refund(question.left)
        if table.policy.token_limits and (wait := self._budgets.wait(self._budgets_of(table, question), now)):
            self.statistics.decided(table.pool, "token_limit", time.perf_counter() - started)
            return PickerAnswer(refused=ceil(wait))
        if self.queues.has_waiting(table.pool):
            self._release(table.pool)  # a replica may have become available in the meantime
            if not self._may_go(table, question, request, now):
                return self._hold(table, question, now)
        can_wait = question.caller.pool is not None
        decision = self._decider.decide(self.suspects.without(table, now), request, now, can_wait=can_wait)
        pick = self._id(question)
        if table.policy.queue is not None:
            if decision.reason == "full":
                return self._hold(table, question, now)
            if decision.ordered and can_wait and self._shares.is_contested(table.pool, now):
                return self._hold(table, question, now)  # another picker may have taken the place a moment ago
            if decision.ordered and self.queues.waits(table.pool, lane_of(request)):
                waiting = waiting_request(table.policy.queue, request, question, pick, now)
                self.queues.pass_by(table.pool, table.policy.queue, waiting)
        refund = self._charge(table, question, request, now) if decision.ordered else _nothing
        picked = self._picked(table, decision, question.caller, pick, now, refund)
        self._count(table.pool, decision, picked, question.caller, time.perf_counter() - started)
        return picked

    def _may_go(self, table: PoolTable, question: PickerQuestion, request: Features, now: float) -> bool:
        """Return whether a new request need not wait behind others if a replica has a place for it."""
        policy = table.policy.queue
        if policy is None or question.caller.pool is None or not self.queues.waits(table.pool, lane_of(request)):
            return True
        return self.queues.goes_at_once(table.pool, policy, question, now)

    def _charge(self, table: PoolTable, question: PickerQuestion, request: Features, now: float) -> Callable[[], None]:
        """Charge a request's prompt to its budgets. Return a function that refunds the charge."""
        if not table.policy.token_limits:
            return _nothing
        budgets, tokens = self._budgets_of(table, question), request.prompt_tokens
        self._budgets.charge(budgets, tokens, now)
        return lambda: self._budgets.charge(budgets, -tokens, self._clock())

    def _refund(self, pick: str) -> None:
        """Refund the prompt of a request that has left this pick's pool for its fallback."""
        entry = self._open.get(pick)
        if entry is not None:
            self._open[pick] = entry._replace(refund=_nothing)
            entry.refund()

    def _budgets_of(self, table: PoolTable, question: PickerQuestion) -> list[Budget]:
        """Return the budgets that apply to a request."""
        route = question.caller.route
        return [
            Budget((limit, sharer(limit.by, limit.header, question)), limit.tokens / self._pickers, limit.period / 1000)
            for limit in table.policy.token_limits
            if limit.route == route
        ]

    def _hold(self, table: PoolTable, question: PickerQuestion, now: float) -> PickerAnswer:
        """Return the response to a request that has to wait."""
        assert table.policy.queue is not None
        if self._ended.pop(question.id, None) is not None:
            return PickerAnswer(full=True)  # its client has already disconnected
        if not self.queues.may_wait(table.pool, table.policy.queue, question):
            return self.queues.refuse(table.pool, table.policy.queue, now)
        return PickerAnswer(full=True, must_wait=True)

    def _release(self, pool: str) -> None:
        """Assign replicas to as many of a pool's waiting requests as possible.

        After an error, all of them fall back to `otherwise`.
        """
        try:
            while self.queues.has_waiting(pool) and self._release_one(pool):
                pass
        except Exception:  # noqa: BLE001 -- the caller reports the end of another request
            self._log_failure()
            self.queues.dismiss(pool)

    def _release_one(self, pool: str) -> bool:
        """Assign a replica to the next waiting request that can get one. Return whether there was such a request."""
        now, original = self._clock(), self.tables[pool]
        table, policy = self.suspects.without(original, now), original.policy.queue
        assert policy is not None
        weights = self.queues.weights(pool, policy) if self._shares.is_contested(pool, now) else None
        passes = PASSES if weights is None else self._shares.passes(pool, weights, now)

        def decide(held: Held, leaves_reserve: bool) -> tuple[PickerDecision, float] | None:
            started = time.perf_counter()
            decision = self._decider.decide(table, held.features, now, leaves_reserve=leaves_reserve)
            return None if decision.reason == "full" else (decision, time.perf_counter() - started)

        found = self.queues.next(pool, decide, now, passes)
        if found is None:
            self._shares.full(pool)
            return False
        held, (decision, seconds) = found
        if not decision.ordered:
            self.queues.send_on(held)
            self._count(pool, decision, PickerAnswer(), held.caller, seconds)
            return True
        if weights is not None and not self._takes_place(decision, weights, now):
            return False
        self.queues.release(held, policy, now)
        picked = self._picked(original, decision, held.caller, held.request.id, now, held.refund)
        self._count(pool, decision, picked, held.caller, seconds)
        held.respond(picked)
        return True

    def _takes_place(self, decision: PickerDecision, weights: tuple[float, ...], now: float) -> bool:
        """Return whether this picker takes a contested slot. If not, the slot is left to other pickers.

        `weights` is the sum of the weights of this picker's waiting flows, by priority.
        """
        pool, replica = decision.features.pool, decision.ordered[0].name
        if now - self.queues.oldest(pool) < ANNOUNCED:
            return False
        books = self._decider.books
        requests = sum(load.requests for load in books.loads(pool).values())
        return self._shares.takes(pool, weights, requests, replica, books.load(pool, replica).others_sent, now)

    @staticmethod
    def _id(question: PickerQuestion) -> str:
        """Return a request's ID.

        The ID cannot be guessed, so that clients cannot end other clients' requests.
        """
        return question.id or secrets.token_hex(_OWN_ID // 2)

    def _log_failure(self) -> None:
        now = self._clock()
        if now - self._logged_at >= _LOG_INTERVAL:
            self._logged_at = now
            log.failure("a pick failed; the proxy falls back to `otherwise`")

    def _table(self, question: PickerQuestion) -> PoolTable | None:
        """Return the pool's table.

        A gateway that does not specify a pool gets the table that contains the replicas it allows.
        """
        pool = question.caller.pool
        if pool is not None:
            return self.tables.get(pool)
        if len(self.tables) == 1:
            return next(iter(self.tables.values()))
        subset = question.subset or frozenset()
        tables = (table for table in self.tables.values() if any(item.address in subset for item in table.candidates))
        return next(tables, None)

    def _picked(
        self, table: PoolTable, decision: PickerDecision, caller: Caller, pick: str, now: float,
        refund: Callable[[], None],
    ) -> PickerAnswer:  # fmt: skip
        if not decision.ordered:
            return PickerAnswer(full=decision.reason == "full")
        ordered = decision.ordered[:MAX_ADDRESSES]
        self._open[pick] = OpenPick(table.pool, ordered, now, caller.proxy, caller.leaves_busy, refund)
        self._decider.started(pick, decision, now)
        if self._ended.pop(pick, None) is not None:
            self.finished(pick)
        return PickerAnswer(pick, tuple([item.name for item in ordered]), tuple([item.address for item in ordered]))

    def _count(self, pool: str, decision: PickerDecision, picked: PickerAnswer, caller: Caller, seconds: float) -> None:
        self.statistics.decided(pool, decision.reason, seconds)
        at = time.time()
        if self.statistics.wants_sample(at):
            features = decision.features
            replica = picked.names[0] if picked.names else None
            sample = DecisionSample(
                at, pool, replica, decision.reason, round(seconds, 6), features.session is not None,
                len(features.prefix), round(features.prompt_tokens, 1), caller.proxy,
            )  # fmt: skip
            self.statistics.sample(sample)


def _nothing() -> None:
    """Do nothing."""
