"""Rows of the API about the pools: each replica with its state, its shares, and its traffic as the proxies count it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import field

from lbctl.base.records import dataclass
from lbctl.control import outages
from lbctl.control.compose import Composed, EffectiveReplica
from lbctl.control.health import DeepHealth
from lbctl.control.outages import ReplicaReport
from lbctl.control.slow_start import Factors, lowest
from lbctl.ir.pools import Pool
from lbctl.ir.shares import of_replicas
from lbctl.serve.api import schema
from lbctl.serve.api.replica_shares import Carrier, Shares, ShareTable
from lbctl.serve.api.replica_states import ReplicaFacts, StateTimes, StateWithReason, state_of
from lbctl.serve.api.status_rows import when
from lbctl.serve.health.thresholds import CheckState
from lbctl.serve.traffic.ledger import ReplicaKey, TrafficLedger
from lbctl.serve.traffic.service import with_websockets
from lbctl.targets import uncounted


@dataclass(frozen=True, slots=True)
class LiveState:
    """What is known of the running proxies and of the replicas, apart from the composed fleet."""

    carriers: tuple[Carrier, ...] = ()
    """The proxies that may send requests to the pools."""
    ledger: TrafficLedger = field(default_factory=TrafficLedger)
    """What the proxies report."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Node id → why the reports of that Envoy are not taken."""
    checks: Mapping[tuple[str, str], CheckState] = field(default_factory=dict)
    """(pool, replica) → the result of lbctl's active checks."""
    health: Mapping[tuple[str, str], DeepHealth] = field(default_factory=dict)
    """(pool, replica) → its deep health, where it has telemetry."""
    picker_ramps: Factors = field(default_factory=dict)
    """The slow-start factors that the picker counts."""
    times: StateTimes = field(default_factory=StateTimes)
    """When each replica came into its state."""
    now: float = 0.0
    """Seconds on the clock of the ledger."""
    at: float = 0.0
    """Seconds since the epoch."""


def pools(composed: Composed, live: LiveState) -> Iterator[schema.Pool]:
    """Yield every pool with its replicas, also those that are removed from the proxies."""
    return (item for item in pools_in_parts(composed, live) if item is not None)


def unavailable(composed: Composed, live: LiveState, names: Collection[str]) -> Mapping[str, str]:
    """Return why each of these pools has no available replica; the reason is empty where it has one."""
    rows = _Rows(composed, live)
    chosen = [pool for pool in composed.whole.topology.pools if pool.name in names]
    shown = (item for pool in chosen for item in rows.pool(pool) if item is not None)
    return {
        item.name: outages.unavailable(
            item.name, (ReplicaReport(each.name, each.state, each.state_reason) for each in item.replicas)
        )
        for item in shown
    }


def pools_in_parts(composed: Composed, live: LiveState) -> Iterator[schema.Pool | None]:
    """Yield every pool as `pools` does, and None after every replica, so that the caller can let others work."""
    rows = _Rows(composed, live)
    topology = composed.whole.topology
    yield None
    live.times.keep(ReplicaKey(pool.name, item.name) for pool in topology.pools for item in pool.replicas)
    for pool in topology.pools:
        yield from rows.pool(pool)


@dataclass(frozen=True, slots=True)
class _PoolLive:
    """What the replicas of one pool have in common."""

    pool: Pool
    carriers: tuple[Carrier, ...]
    declared: Shares
    decided: Shares
    acknowledged: Shares | None
    requests: Mapping[str, int]
    """Replica → its requests in the last minute."""
    total: int
    """The sum of `requests`."""
    is_reported: bool
    """Whether a proxy reports the requests."""
    has_websockets: bool

    def observed(self, replica: str) -> float | None:
        """Return the replica's part of the requests in the last minute; None without any."""
        return round(self.requests.get(replica, 0) / self.total, 6) if self.total else None


class _Rows:
    """Makes the rows of all pools; what is the same for many of them is computed once."""

    def __init__(self, composed: Composed, live: LiveState) -> None:
        self._composed = composed
        self._live = live
        self._shares = ShareTable(composed.whole, live.carriers)
        self._rates = live.ledger.rates(live.now)
        self._reporting = live.ledger.reporting(live.now)
        self._ramps = lowest(item.factors for item in live.carriers)
        self._with_websockets = with_websockets(composed.whole.topology)
        self._held = {(item.pool, item.replica) for item in composed.overrides if item.kind == "weight"}
        self._requests: dict[str, dict[str, int]] = {}
        for key, count in live.ledger.recent(live.now).items():
            self._requests.setdefault(key.pool, {})[key.replica] = count

    def pool(self, pool: Pool) -> Iterator[schema.Pool | None]:
        carriers = tuple(item for item in self._live.carriers if pool.name in item.pools)
        names = {name for item in carriers for name in item.nodes or (item.proxy.name,)}
        reporting = tuple(sorted(names & self._reporting))
        requests = self._requests.get(pool.name, {})
        facts = _PoolLive(
            pool, carriers, of_replicas(pool), self._shares.decided(pool.name), self._shares.acknowledged(pool.name),
            requests, sum(requests.values()), bool(reporting), pool.name in self._with_websockets,
        )  # fmt: skip
        yield None
        replicas = []
        for item in self._composed.replicas(pool):
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
            reporting=reporting,
            silent=tuple(sorted(names - self._reporting)),
            unable=self._unable(carriers, names - self._reporting),
            replicas=tuple(replicas),
        )

    def _unable(self, carriers: tuple[Carrier, ...], silent: Set[str]) -> dict[str, str]:
        """Return those of the silent proxies that cannot report → why."""
        lacking = {
            item.proxy.name: f"it needs {lacks} in proxies.{item.proxy.name}"
            for item in carriers
            if (lacks := uncounted(item.proxy)) not in ("", "kind")
        }
        return lacking | {name: why for name, why in sorted(self._live.refused.items()) if name in silent}

    def _replica(self, facts: _PoolLive, item: EffectiveReplica) -> schema.Replica:
        replica, live = item.replica, self._live
        key = ReplicaKey(facts.pool.name, replica.name)
        in_flight = None if facts.has_websockets else live.ledger.in_flight(key, live.now)
        state = state_of(self._state_facts(facts, item, key, in_flight))
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
            in_flight=in_flight,
            ramp=round(self._ramps.get(key.pool, {}).get(replica.name, 1.0), 6),
            picker_ramp=round(live.picker_ramps.get(key.pool, {}).get(replica.name, 1.0), 6),
            drained=when(item.drained_since),
            out=item.status in ("ejected", "removed"),
            reasons=_reasons(item, state),
        )

    def _state_facts(
        self, facts: _PoolLive, item: EffectiveReplica, key: ReplicaKey, in_flight: int | None
    ) -> ReplicaFacts:
        live = self._live
        return ReplicaFacts(
            item,
            is_held=key in self._held,
            is_composite=facts.pool.weighting.strategy == "composite",
            check=live.checks.get(key),
            checked_for=tuple(each.proxy.name for each in facts.carriers if each.checked),
            conditions=live.ledger.conditions(key, live.now),
            carriers=sum(len(each.nodes) or 1 for each in facts.carriers),
            ramps={
                name: factor
                for name, factors in (
                    *((each.proxy.name, each.factors) for each in facts.carriers),
                    ("the picker", live.picker_ramps),
                )
                if (factor := factors.get(key.pool, {}).get(key.replica)) is not None
            },
            health=live.health.get(key),
            in_flight=in_flight,
            in_flight_known_by=live.ledger.in_flight_known_by(key, live.now),
        )


def _share(shares: Shares, name: str) -> float:
    return round(shares.get(name, 0.0), 6)


def _reasons(item: EffectiveReplica, state: StateWithReason) -> tuple[str, ...]:
    """Return why the replica is out, down or drained; the composed reasons do not have what proxies report."""
    if state.name in ("down", "ejected") and item.status != "ejected":
        return (*item.reasons, state.reason)
    return item.reasons
