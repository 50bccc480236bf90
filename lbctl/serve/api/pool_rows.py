"""API rows about the pools: each replica with its state, its shares, and its traffic as counted by the proxies."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace

from lbctl.api import schema
from lbctl.control import outages
from lbctl.control.analysis.latency import NO_LATENCIES
from lbctl.control.check_thresholds import CheckState
from lbctl.control.compose import Composed, EffectiveReplica
from lbctl.control.health import DeepHealth
from lbctl.control.outages import ReplicaReport
from lbctl.control.replica_state import ANSWER_MAX_AGE, ReplicaCondition, ReplicaFacts, StateWithReason, state_of
from lbctl.control.slow_start import Factors, lowest
from lbctl.ir.pools import Pool, TcpCheck
from lbctl.ir.shares import of_pools, of_replicas
from lbctl.ir.snapshot import pools_of
from lbctl.serve.api.cached_rows import cached_row, cached_total
from lbctl.serve.api.fleet_proxies import FleetProxy
from lbctl.serve.api.load_shedding import shedding
from lbctl.serve.api.queue_rows import queue_row
from lbctl.serve.api.replica_shares import Shares, ShareTable, Unfit
from lbctl.serve.api.replica_times import DrainTimes, StateTimes
from lbctl.serve.api.status_rows import when
from lbctl.serve.picker.cached_tokens import CacheUses
from lbctl.serve.picker.fallbacks import RecentPicks
from lbctl.serve.picker.recent_queues import QueueState
from lbctl.serve.traffic.ledger import NO_COUNTS, Counts, ReplicaKey, TrafficLedger
from lbctl.serve.traffic.service import with_websockets
from lbctl.targets import target, uncounted

_FIRST_CHECK = 60.0
"""Seconds within which every replica has had its first check, even in a large fleet."""
_ENOUGH = 3
"""Minimum number of requests before concluding that a pool or a replica returns only errors."""
_FORGOTTEN = 300.0
"""Seconds without requests after which a replica's earlier requests are ignored, because it may have been repaired."""


@dataclass(frozen=True, slots=True)
class LiveState:
    """The observed state of proxies and replicas, which supplements the composed fleet."""

    proxies: tuple[FleetProxy, ...] = ()
    """Proxies that may send requests to the pools."""
    ledger: TrafficLedger = field(default_factory=TrafficLedger)
    """The ledger of the proxies' reports."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Maps each Envoy's node ID to the reason why its reports are rejected."""
    checks: Mapping[tuple[str, str], CheckState] = field(default_factory=dict)
    """Maps each (pool, replica) pair to the result of lbctl's active checks."""
    observed_checks: Mapping[tuple[str, str], CheckState] = field(default_factory=dict)
    """Results of lbctl's checks for replicas on which no proxy acts."""
    connections: Mapping[tuple[str, str], CheckState] = field(default_factory=dict)
    """Maps each (pool, replica) pair to whether lbctl can connect to it."""
    health: Mapping[tuple[str, str], DeepHealth] = field(default_factory=dict)
    """Maps each (pool, replica) pair with telemetry to its deep health."""
    picks: Mapping[str, RecentPicks] = field(default_factory=dict)
    """Maps each pool to the number of its picks in the last minute."""
    cached: CacheUses = field(default_factory=dict)
    """Recent counts of cached tokens for replicas in pools that use the picker."""
    queues: Mapping[str, QueueState] = field(default_factory=dict)
    """Maps each pool that has a queue to its queue at the picker."""
    picker_ramps: Factors = field(default_factory=dict)
    """The slow-start factors that the picker applies."""
    times: StateTimes = field(default_factory=StateTimes)
    """The time at which each replica entered its state."""
    drains: DrainTimes = field(default_factory=DrainTimes)
    """The times at which each replica's drain was applied and ended."""
    now: float = 0.0
    """The current time on the ledger's clock, in seconds."""
    at: float = 0.0
    """The current time, in seconds since the epoch."""


def pools(composed: Composed, live: LiveState) -> Iterator[schema.Pool]:
    """Yield every pool with its replicas, including replicas that have been removed from the proxies."""
    return (item for item in pools_in_parts(composed, live) if item is not None)


def unavailable(composed: Composed, live: LiveState, names: Collection[str]) -> Mapping[str, str]:
    """For each of these pools, return the reason why it has no available replica; the reason is empty if it has one."""
    rows = _Rows(composed, live)
    chosen = [pool for pool in composed.whole.topology.pools if pool.name in names]
    shown = (item for pool in chosen for item in rows.pool(pool) if item is not None)
    return {
        item.name: outages.unavailable(
            item.name, (ReplicaReport(each.name, each.state, each.state_reason) for each in item.replicas)
        )
        for item in shown
    }


def unchecked(composed: Composed, live: LiveState, names: Collection[str]) -> frozenset[str]:
    """Return the pools in which no replica has passed its checks and some replicas have not been checked yet."""
    return frozenset(
        pool.name
        for pool in composed.whole.topology.pools
        if pool.name in names and _is_unchecked(live, [ReplicaKey(pool.name, item.name) for item in pool.replicas])
    )


def _is_unchecked(live: LiveState, keys: Collection[ReplicaKey]) -> bool:
    if any(live.ledger.answered_at(key) is not None for key in keys):
        return False
    is_pending = False
    for key in keys:
        sources = (live.checks, live.observed_checks, live.connections)
        checks = [state for source in sources if (state := source.get(key)) is not None]
        if any(item.at is None and live.at - item.since < _FIRST_CHECK for item in checks):
            is_pending = True
        elif checks and not any(item.out for item in checks):
            return False
    return is_pending


def pools_in_parts(composed: Composed, live: LiveState) -> Iterator[schema.Pool | None]:
    """Yield every pool as `pools` does, and None after every replica, so that the caller can let other tasks run."""
    rows = _Rows(composed, live)
    topology = composed.whole.topology
    yield None
    live.times.keep(ReplicaKey(pool.name, item.name) for pool in topology.pools for item in pool.replicas)
    live.drains.update((ReplicaKey(*key) for key in composed.drains), live.now)
    for pool in topology.pools:
        yield from rows.pool(pool)


@dataclass(frozen=True, slots=True)
class _PoolLive:
    """Values shared by all of a pool's replicas."""

    pool: Pool
    states: Mapping[str, StateWithReason]
    in_flight: Mapping[str, int | None]
    idle: Mapping[str, bool | None]
    declared: Shares
    decided: Shares
    acknowledged: Shares | None
    requests: Mapping[str, int]
    """Maps each replica to its number of requests in the last minute."""
    total: int
    """The sum of `requests`."""
    failed: Mapping[str, int]
    """Maps each replica to its number of failed requests in the last minute."""
    is_reported: bool
    """Whether any proxy reports requests."""

    def errors(self, replica: str) -> float | None:
        """Return the replica's error rate in the last minute, from 0 to 1; None if it had no requests."""
        return _part(self.failed.get(replica, 0), self.requests.get(replica, 0))

    def observed(self, replica: str) -> float | None:
        """Return the replica's share of the requests in the last minute; None if there were none."""
        return round(self.requests.get(replica, 0) / self.total, 6) if self.total else None


class _Rows:
    """Builds the rows for all pools; values shared by many rows are computed once."""

    def __init__(self, composed: Composed, live: LiveState) -> None:
        self._composed = composed
        self._live = live
        self._shares = ShareTable(composed.whole, live.proxies)
        self._rates = live.ledger.rates(live.now)
        self._reporting = live.ledger.reporting(live.now)
        self._ramps = lowest(item.factors for item in live.proxies)
        self._with_websockets = with_websockets(composed.whole.topology)
        self._held = {(item.pool, item.replica) for item in composed.overrides if item.kind == "weight"}
        self._in_use = frozenset(name for route in composed.whole.topology.routes for name in of_pools(route.action))
        self._is_apart = _is_apart(live)
        self._requests = _by_pool(live.ledger.recent(live.now))
        self._failed = _by_pool(live.ledger.failed(live.now))
        self._refused = live.ledger.refused(live.now)
        self._newest = live.ledger.newest(live.now)
        self._first_bytes = live.ledger.first_bytes(live.now)

    def pool(self, pool: Pool) -> Iterator[schema.Pool | None]:
        proxies = tuple(item for item in self._live.proxies if pool.name in item.pools)
        names = {name for item in proxies for name in _names(item)}
        reporting = tuple(sorted(names & self._reporting))
        effective = self._composed.replicas(pool)
        in_flight = {item.replica.name: self._in_flight(pool, item.replica.name) for item in effective}
        states: dict[str, StateWithReason] = {}
        idle: dict[str, bool | None] = {}
        for item in effective:
            name = item.replica.name
            facts_of_replica = self._facts(pool, proxies, item, in_flight[name])
            states[name], idle[name] = state_of(facts_of_replica), facts_of_replica.is_idle
            yield None
        unfit = self._unfit(pool, states)
        requests, failed = self._requests.get(pool.name, {}), self._failed.get(pool.name, {})
        facts = _PoolLive(
            pool, states, in_flight, idle, of_replicas(pool), self._shares.decided(pool.name, unfit),
            self._shares.acknowledged(pool.name, unfit), requests, sum(requests.values()), failed, bool(reporting),
        )  # fmt: skip
        refused = self._refused[pool.name]
        minute = Counts(facts.total + refused, sum(failed.values()) + refused)
        yield None
        replicas = []
        for item in effective:
            replicas.append(self._replica(facts, item))
            yield None
        yield schema.Pool(
            name=pool.name,
            model=pool.model.name if pool.model else None,
            protocol=pool.protocol,
            algorithm=pool.balance.name,
            drain_deadline_seconds=pool.drain_deadline / 1000,
            requests_per_second=(
                round(sum(item.requests_per_second or 0.0 for item in replicas), 3) if reporting else None
            ),
            errors=_part(minute.errors, minute.requests),
            first_byte_p50=self._first_byte(ReplicaKey(pool.name, ""), 0.5),
            first_byte_p99=self._first_byte(ReplicaKey(pool.name, ""), 0.99),
            picks=_picks(self._live.picks.get(pool.name)),
            in_use=pool.name in self._in_use,
            fail_open=pool.fail_open,
            failing=self._failing(pool.name, minute),
            shedding=shedding(
                pool,
                self._composed.whole.topology.routes,
                sorted({item.proxy.kind for item in proxies}),
                [state.name for state in states.values()],
            ),
            reporting=reporting,
            silent=tuple(sorted(names - self._reporting)),
            unable=self._unable(proxies, names - self._reporting),
            replicas=tuple(replicas),
            cached=None if (uses := self._live.cached.get(pool.name)) is None else cached_total(uses.values()),
            queue=None if (queue := self._live.queues.get(pool.name)) is None else queue_row(queue),
        )

    def _failing(self, pool: str, minute: Counts) -> bool:
        """Return whether a pool returns only errors."""
        newest = self._newest.get(pool, NO_COUNTS)
        counts = newest if newest.requests >= _ENOUGH else minute
        return _ENOUGH <= counts.requests <= counts.errors

    def _first_byte(self, key: ReplicaKey, share: float) -> float | None:
        """Return this quantile of the time to first byte, in seconds."""
        milliseconds = self._first_bytes.get(key, NO_LATENCIES).percentile(share)
        return None if milliseconds is None else round(milliseconds / 1000, 4)

    def _in_flight(self, pool: Pool, replica: str) -> int | None:
        if pool.name in self._with_websockets:
            return None
        return self._live.ledger.in_flight(ReplicaKey(pool.name, replica), self._live.now)

    def _passed_by(self, pool: Pool, replica: str) -> frozenset[str]:
        """Return the proxies that report that the replica has passed an active check.

        If the pool has no active check, `up` has no significance.
        """
        return (
            self._live.ledger.passed_by(ReplicaKey(pool.name, replica), self._live.now) if pool.active else frozenset()
        )

    def _unfit(self, pool: Pool, states: Mapping[str, StateWithReason]) -> Unfit:
        """Return a function that maps a proxy to the starting, down and ejected replicas that fail its checks.

        A proxy whose own check passes continues to send requests to a replica that another proxy reports as down.
        """
        passed_by = {
            name: self._passed_by(pool, name)
            for name, state in states.items()
            if state.name in ("starting", "down", "ejected")
        }

        def unfit(proxy: FleetProxy) -> frozenset[str]:
            return frozenset(name for name, passed in passed_by.items() if passed.isdisjoint(_names(proxy)))

        return unfit

    def _unable(self, proxies: tuple[FleetProxy, ...], silent: Set[str]) -> dict[str, str]:
        """Map each silent proxy that is unable to report to the reason."""
        lacking = {
            item.proxy.name: f"it needs {lacks} in proxies.{item.proxy.name}"
            for item in proxies
            if (lacks := uncounted(item.proxy)) not in ("", "kind")
        }
        return lacking | {name: why for name, why in sorted(self._live.refused.items()) if name in silent}

    def _replica(self, facts: _PoolLive, item: EffectiveReplica) -> schema.Replica:
        replica, live = item.replica, self._live
        key, state = ReplicaKey(facts.pool.name, replica.name), facts.states[replica.name]
        return schema.Replica(
            name=replica.name,
            address=str(replica.address),
            region=replica.region,
            zone=replica.zone,
            gpu=replica.gpu,
            priority=replica.priority,
            capacity=replica.capacity,
            state=state.name,
            state_reason=state.reason,
            state_since=when(live.times.since(key, state.name, live.at)),
            weight=item.weight.rate,
            declared=_share(facts.declared, replica.name),
            share=_share(facts.decided, replica.name),
            acknowledged=None if facts.acknowledged is None else _share(facts.acknowledged, replica.name),
            observed=facts.observed(replica.name),
            requests_per_second=round(self._rates.get(key, 0.0), 3) if facts.is_reported else None,
            errors=facts.errors(replica.name),
            first_byte_p50=self._first_byte(key, 0.5),
            first_byte_p99=self._first_byte(key, 0.99),
            in_flight=facts.in_flight[replica.name],
            idle=facts.idle[replica.name],
            ramp=round(self._ramps.get(key.pool, {}).get(replica.name, 1.0), 6),
            picker_ramp=round(live.picker_ramps.get(key.pool, {}).get(replica.name, 1.0), 6),
            drained=when(item.drained_since),
            out=item.status in ("ejected", "removed"),
            reasons=_reasons(item, state),
            cached=None if (use := live.cached.get(key.pool, {}).get(replica.name)) is None else cached_row(use),
        )

    def _facts(
        self, pool: Pool, proxies: tuple[FleetProxy, ...], item: EffectiveReplica, in_flight: int | None
    ) -> ReplicaFacts:
        live, key = self._live, ReplicaKey(pool.name, item.replica.name)
        not_drained_by, is_old = self._drain(key, proxies) if item.status in ("drained", "removed") else ((), False)
        observed, connection = live.observed_checks.get(key), live.connections.get(key)
        if observed is not None and observed.at is None:
            observed = None
        answered = live.ledger.answered_at(key)
        conditions, passed_by = self._conditions(pool, proxies, key), len(self._passed_by(pool, key.replica))
        agent_reason = ""
        if observed is not None and pool.agent is not None and (conditions or passed_by):
            # The proxies' own results take precedence.
            agent_reason = observed.reason if observed.out else ""
            observed = None
        return ReplicaFacts(
            item,
            is_held=key in self._held,
            is_composite=pool.weighting.strategy == "composite",
            check=live.checks.get(key) or observed,
            agent_reason=agent_reason,
            checked_for=tuple(each.proxy.name for each in proxies if each.checked),
            connection=connection,
            connection_age=0.0 if connection is None else live.at - connection.since,
            is_apart=self._is_apart,
            answered_age=None if answered is None else live.now - answered,
            unanswered_for=self._unanswered_for(pool, proxies, key),
            passed_by=passed_by,
            conditions=conditions,
            carriers=sum(len(each.nodes) or 1 for each in proxies),
            ramps={
                name: factor
                for name, factors in (
                    *((each.proxy.name, each.factors) for each in proxies),
                    ("the picker", live.picker_ramps),
                )
                if (factor := factors.get(key.pool, {}).get(key.replica)) is not None
            },
            health=live.health.get(key),
            in_flight=in_flight,
            in_flight_known_by=live.ledger.in_flight_known_by(key, live.now),
            connected=sum(len(_names(each)) for each in proxies if each.connected),
            in_flight_is_old=is_old,
            not_drained_by=not_drained_by,
        )

    def _unanswered_for(self, pool: Pool, proxies: tuple[FleetProxy, ...], key: ReplicaKey) -> float | None:
        """Return the limit, in seconds, that the replica has exceeded without a response; None if it may still respond.

        Telemetry and active checks (other than plain TCP checks) are better evidence than requests, so the result is
        None if either is configured. While requests are in flight, the time limit is their timeout.
        """
        is_asked = pool.active is not None and not isinstance(pool.active.probe, TcpCheck)
        row = None if is_asked or key in self._live.health else self._live.ledger.unanswered(key, self._live.now)
        if row is None or row.requests < _ENOUGH or self._live.now - row.newest > _FORGOTTEN:
            return None
        is_known = self._live.ledger.in_flight_known_by(key, self._live.now) == sum(len(_names(i)) for i in proxies)
        is_idle = is_known and self._in_flight(pool, key.replica) == 0
        bound = ANSWER_MAX_AGE if is_idle else self._answer_time(pool.name)
        return bound if bound is not None and self._live.now - row.since > bound else None

    def _answer_time(self, pool: str) -> float | None:
        """Return the number of seconds that a request to the pool may wait for a response; None if unlimited."""
        times = [ANSWER_MAX_AGE]
        for route in self._composed.whole.topology.routes:
            if pool in pools_of(route):
                given = (route.attempt_timeout, route.request_timeout, route.idle_timeout)
                limits = [each / 1000 for each in given if each is not None]
                if not limits:
                    return None
                times.append(min(limits))
        return max(times)

    def _conditions(self, pool: Pool, proxies: tuple[FleetProxy, ...], key: ReplicaKey) -> dict[str, ReplicaCondition]:
        """Map each proxy to the replica's condition there; for an ejection, the reason states when it ends."""
        conditions = dict(
            self._live.ledger.conditions(key, self._live.now, drained_until=self._live.drains.ended_at(key))
        )
        kinds = {name: each.proxy.kind for each in proxies for name in _names(each)}
        for name, condition in conditions.items():
            if condition.state == "ejected" and name in kinds:
                reason = "; ".join(filter(None, (condition.reason, target(kinds[name]).readmission(pool))))
                conditions[name] = replace(condition, reason=reason)
        return conditions

    def _drain(self, key: ReplicaKey, proxies: tuple[FleetProxy, ...]) -> tuple[tuple[str, ...], bool]:
        """Return the proxies that have not applied a replica's drain, and whether `in_flight` predates the drain."""
        live = self._live
        missing = tuple(each.proxy.name for each in proxies if each.connected and each.may_send(*key))
        applied_at = live.drains.applied_at(key, not missing, live.now)
        is_newer = live.ledger.is_in_flight_newer(key, applied_at)
        return missing, not is_newer


def _is_apart(live: LiveState) -> bool:
    """Return whether lbctl has never connected to any replica although some replicas have responded to proxies."""
    if any(item.passed for item in live.connections.values()):
        return False
    return any(live.ledger.answered(ReplicaKey(*key)) for key in live.connections)


def _names(proxy: FleetProxy) -> tuple[str, ...]:
    """Return the names that a proxy uses in its reports."""
    return proxy.nodes or (proxy.proxy.name,)


def _by_pool(counts: Mapping[ReplicaKey, int]) -> dict[str, dict[str, int]]:
    pools: dict[str, dict[str, int]] = {}
    for key, count in counts.items():
        pools.setdefault(key.pool, {})[key.replica] = count
    return pools


def _picks(row: RecentPicks | None) -> schema.RecentPicks | None:
    """Return the number of a pool's picks in the last minute. Reports about the same requests may arrive later."""
    if row is None:
        return None
    share = _part(min(row.picked, row.requests), row.requests)
    return schema.RecentPicks(row.requests, row.picked, row.missed, row.in_flight, share)


def _part(some: int, whole: int) -> float | None:
    return round(min(1.0, some / whole), 6) if whole else None


def _share(shares: Shares, name: str) -> float:
    return round(shares.get(name, 0.0), 6)


def _reasons(item: EffectiveReplica, state: StateWithReason) -> tuple[str, ...]:
    """Return the reason why the replica is out, starting, down or drained, taking the proxies' reports into account."""
    if state.name in ("starting", "down", "ejected") and item.status != "ejected":
        return (*item.reasons, state.reason)
    return item.reasons
