"""The one state of a replica, and why: by whom it is out, or what lowers its weight.

The causes are looked at in the order in which an operator acts on them: what removes the replica, what keeps requests
away from it, what lowers its weight. The functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import NamedTuple

from lbctl.base.records import dataclass
from lbctl.control.compose import EffectiveReplica
from lbctl.control.health import DeepHealth
from lbctl.serve.api.schema import ReplicaState
from lbctl.serve.health.thresholds import CheckState
from lbctl.serve.traffic.ledger import ReplicaCondition, ReplicaKey

CLEARLY = 0.9
"""The part of its capacity below which a replica's weight is clearly lower."""


class StateWithReason(NamedTuple):
    """The state of a replica, and why."""

    name: ReplicaState
    """The state, as the API names it."""
    reason: str = ""
    """Why, as a sentence; empty for `in`."""


IN = StateWithReason("in")


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """Everything that decides the state of one replica."""

    effective: EffectiveReplica
    """The replica with everything that lbctl has decided about it."""
    is_held: bool = False
    """Whether an operator holds its weight."""
    is_composite: bool = False
    """Whether its weight follows its load."""
    check: CheckState | None = None
    """The result of lbctl's active checks; None where lbctl does not check it."""
    checked_for: tuple[str, ...] = ()
    """The proxies for which lbctl does the active checks."""
    conditions: Mapping[str, ReplicaCondition] = field(default_factory=dict)
    """Proxy → what it thinks of the replica."""
    carriers: int = 0
    """The number of proxies that may send requests to it."""
    ramps: Mapping[str, float] = field(default_factory=dict)
    """Proxy → the slow-start factor that lbctl applies for it, and that of the picker."""
    health: DeepHealth | None = None
    """Its deep health; None where it has no telemetry."""
    in_flight: int | None = None
    """Its requests in flight; None where they are unknown."""
    in_flight_known_by: int = 0
    """The number of proxies that report its requests in flight."""


def state_of(facts: ReplicaFacts) -> StateWithReason:
    """Return the state of a replica."""
    return _left(facts) or _out(facts) or (IN if facts.is_held else _lowered(facts)) or IN


def _left(facts: ReplicaFacts) -> StateWithReason | None:
    """Return the state of a replica that the files or an operator take out."""
    reasons = facts.effective.reasons
    if facts.effective.status == "removed":
        return StateWithReason("removed", "; ".join(reasons))
    if facts.effective.status != "drained":
        return None
    why = "; ".join(item for item in reasons if "drained" in item) or "drained"
    if facts.in_flight:
        count = f"{facts.in_flight} request{'' if facts.in_flight == 1 else 's'}"
        return StateWithReason("draining", f"{why}; {count} in flight")
    return StateWithReason("drained", why + _unknown_in_flight(facts))


def _unknown_in_flight(facts: ReplicaFacts) -> str:
    """Return what is not known of the requests in flight; empty where all proxies report them."""
    if facts.in_flight is None:
        return "; its requests in flight are not known"
    counted = facts.in_flight_known_by
    return (
        f"; no requests in flight at {counted} of {facts.carriers} proxies, not known at the others"
        if (counted < facts.carriers)
        else ""
    )


def _out(facts: ReplicaFacts) -> StateWithReason | None:
    """Return the state of a replica that a check keeps requests away from."""
    if facts.effective.status == "ejected":
        return StateWithReason("ejected", f"ejected by deep health: {'; '.join(facts.effective.reasons)}")
    return (
        _down(facts)
        or _by_proxies(facts, "ejected", "ejected by the passive check of {proxies}")
        or _by_proxies(facts, "draining", "{proxies} sends it no new requests")
    )


def _down(facts: ReplicaFacts) -> StateWithReason | None:
    """Return the state of a replica that an active check of lbctl or of a proxy keeps out."""
    by_proxies = _by_proxies(facts, "down", "the active check of {proxies} fails")
    if facts.check is None or not facts.check.out:
        return by_proxies
    proxies = f" for {', '.join(facts.checked_for)}" if facts.checked_for else ""
    result = "has no result yet" if facts.check.at is None else f"fails: {facts.check.reason}"
    reason = f"the active check of lbctl{proxies} {result}"
    return StateWithReason("down", f"{reason}; {by_proxies.reason}" if by_proxies else reason)


def _by_proxies(facts: ReplicaFacts, condition: str, sentence: str) -> StateWithReason | None:
    """Return the state of a replica that is in this condition at a proxy."""
    of_proxy = {name: item.reason for name, item in sorted(facts.conditions.items()) if item.state == condition}
    if not of_proxy:
        return None
    proxies = ", ".join(of_proxy)
    if len(of_proxy) < facts.carriers:
        proxies += f" ({len(of_proxy)} of {facts.carriers} proxies)"
    reasons = "; ".join(dict.fromkeys(filter(None, of_proxy.values())))
    name: ReplicaState = "down" if condition == "down" else "ejected" if condition == "ejected" else "draining"
    return StateWithReason(name, sentence.format(proxies=proxies) + (f": {reasons}" if reasons else ""))


def _lowered(facts: ReplicaFacts) -> StateWithReason | None:
    """Return the state of a replica that gets requests, with a weight that is clearly below its capacity."""
    health, weight, capacity = facts.health, facts.effective.weight, facts.effective.replica.capacity
    if health is not None and health.temperature.exceeded:
        return StateWithReason("hot", "; ".join(health.verdict_reasons))
    if health is not None and health.verdict == "floor":
        return StateWithReason("ramping", f"at the floor weight: {'; '.join(health.verdict_reasons)}")
    if facts.ramps:
        return StateWithReason("ramping", _ramp(facts.ramps))
    if weight.speed < CLEARLY:
        return StateWithReason("slow", slower(weight.speed))
    if weight.room < CLEARLY * capacity:
        return StateWithReason("hot", f"it has room for {weight.room / capacity:.0%} of what its capacity says")
    if weight.rate < CLEARLY * capacity:
        return _held_back(facts, weight.rate / capacity)
    return None


def _held_back(facts: ReplicaFacts, part: float) -> StateWithReason:
    if facts.is_composite:
        return StateWithReason("hot", f"its load is higher than that of its peers: {part:.0%} of its capacity")
    return StateWithReason("ramping", f"its weight moves in bounded steps: {part:.0%} of its capacity")


def _ramp(ramps: Mapping[str, float]) -> str:
    parts = ", ".join(f"{name} gives it {factor:.0%} of its weight" for name, factor in sorted(ramps.items()))
    return f"slow start: {parts}"


def slower(speed: float) -> str:
    """Return how much slower than its peers a replica of this relative speed (0…1) is."""
    factor = 1 / speed
    if factor < 1.75:
        return f"{1 - speed:.0%} slower than its peers"
    rounded = f"{factor:.1f}".removesuffix(".0")
    return f"{_NUMBERS.get(rounded, rounded)} times slower than its peers"


_NUMBERS = {"2": "two", "3": "three", "4": "four", "5": "five"}


class StateTimes:
    """Remembers when each replica came into its state."""

    def __init__(self) -> None:
        self._since: dict[ReplicaKey, tuple[ReplicaState, float | None]] = {}

    def since(self, key: ReplicaKey, state: ReplicaState, now: float) -> float | None:
        """Return when the replica came into this state; None where it has been `in` from the first call on."""
        before = self._since.get(key)
        if before is None or before[0] != state:
            self._since[key] = state, None if before is None and state == "in" else now
        return self._since[key][1]

    def keep(self, replicas: Iterable[ReplicaKey]) -> None:
        """Forget all replicas but these."""
        kept = frozenset(replicas)
        if len(self._since) > len(kept):
            self._since = {key: value for key, value in self._since.items() if key in kept}
