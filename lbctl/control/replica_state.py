"""The state of a replica, and the reason for it.

Every view shows this state, and all code that needs an available replica relies on it.

The state is derived from four sources: lbctl's decisions, the proxies' reports on their checks, lbctl's own checks, and
the requests that the replica has answered. The causes are evaluated in the order in which an operator would act on
them: removal of the replica, checks that keep requests away, evidence that it is reachable, and a lowered weight. The
functions are pure. Times are ages in seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from lbctl.control.check_thresholds import CheckState
from lbctl.control.compose import EffectiveReplica
from lbctl.control.fitness import StateName
from lbctl.control.health import DeepHealth

CLEARLY = 0.9
"""Fraction of the capacity below which a weight counts as clearly lowered."""
ANSWER_MAX_AGE = 30.0
"""Seconds for which an answered request is proof that a replica is reachable."""
_REPORT_DELAY = 10.0
"""Seconds after which the proxies are certain to have reported all requests that ended before a given time."""
_PROXIES_NOTICE = 60.0
"""Seconds within which the proxies' checks detect a failure that lbctl detects immediately from a failed connection."""


@dataclass(frozen=True, slots=True)
class ReplicaCondition:
    """A replica's condition according to a proxy."""

    state: Literal["up", "starting", "down", "ejected", "draining"]
    """up: it gets requests. starting: it gets no requests until its first active checks have passed, and none has
    failed so far. down: the proxy's active check is failing. ejected: its passive check has ejected the replica.
    draining: it gets no new requests."""
    reason: str = ""
    """The proxy's own description of the state, such as its last check result, or an empty string if there is none."""


class StateWithReason(NamedTuple):
    """The state of a replica, and the reason."""

    name: StateName
    """The state, as named by the API."""
    reason: str = ""
    """The reason, as a sentence, or an empty string for `in`."""


IN = StateWithReason("in")


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """All facts that determine a replica's state."""

    effective: EffectiveReplica
    """The replica, including all of lbctl's decisions about it."""
    is_held: bool = False
    """Whether an operator has overridden the replica's weight."""
    is_composite: bool = False
    """Whether the replica's weight follows its load."""
    check: CheckState | None = None
    """The result of lbctl's active checks, or None if lbctl does not check the replica."""
    agent_reason: str = ""
    """The reason why lbctl's agent check is failing, if only the proxies' checks are decisive. Empty if it passes."""
    checked_for: tuple[str, ...] = ()
    """The proxies that act on lbctl's active checks."""
    connection: CheckState | None = None
    """Whether lbctl can connect to the replica, or None if lbctl does not try."""
    connection_age: float = 0.0
    """Seconds for which `connection` has been in its current state."""
    is_apart: bool = False
    """Whether lbctl has never been able to connect to any replica in the fleet even though replicas respond, which
    means that lbctl cannot reach them."""
    answered_age: float | None = None
    """Seconds since a proxy last reported that the replica answered a request, or None if no proxy ever has."""
    unanswered_for: float | None = None
    """Seconds for which requests were sent to the replica without a successful response. None if the time is too short
    to be significant, or if a check has a result."""
    passed_by: int = 0
    """Number of proxies whose own active checks the replica passes."""
    conditions: Mapping[str, ReplicaCondition] = field(default_factory=dict)
    """Maps each proxy to the replica's condition there."""
    carriers: int = 0
    """The number of proxies that may send requests to the replica."""
    ramps: Mapping[str, float] = field(default_factory=dict)
    """Maps each proxy to the slow-start factor that lbctl applies for that proxy. The picker's factor is also
    included."""
    health: DeepHealth | None = None
    """The replica's deep health, or None if it has no telemetry."""
    in_flight: int | None = None
    """Number of requests in flight on the replica, or None if unknown."""
    in_flight_known_by: int = 0
    """The number of proxies that report the replica's requests in flight."""
    in_flight_is_old: bool = False
    """Whether `in_flight` may have been measured before the proxies applied the drain."""
    not_drained_by: tuple[str, ...] = ()
    """The proxies that may still send new requests to the replica even though it is drained."""
    connected: int = 0
    """The number of connected proxies that may send requests to the replica."""

    @property
    def is_idle(self) -> bool | None:
        """Whether all connected proxies have drained the replica and it has no requests in flight; None if unknown."""
        if self.effective.status not in ("drained", "removed") or not self.connected:
            return None
        if self.in_flight is None or self.in_flight_known_by < self.connected:
            return None
        return not (self.in_flight or self.in_flight_is_old or self.not_drained_by)


def state_of(facts: ReplicaFacts) -> StateWithReason:
    """Return the state of a replica."""
    unfit = _left(facts) or _out(facts) or _starting(facts) or _unknown(facts)
    return unfit or (IN if facts.is_held else _lowered(facts)) or IN


def _left(facts: ReplicaFacts) -> StateWithReason | None:
    """Return the state of a replica that has been removed by the files or an operator."""
    reasons = facts.effective.reasons
    if facts.effective.status == "removed":
        return StateWithReason("removed", "; ".join(reasons))
    if facts.effective.status != "drained":
        return None
    why = "; ".join(item for item in reasons if "drained" in item) or "drained"
    remaining = "; ".join(_remaining(facts))
    if remaining:
        return StateWithReason("draining", f"{why}; {remaining}")
    is_drained = not facts.carriers or facts.is_idle
    return StateWithReason("drained" if is_drained else "draining", why + _unknown_in_flight(facts))


def _remaining(facts: ReplicaFacts) -> Iterator[str]:
    """Yield the conditions that a drain is still waiting for."""
    if facts.in_flight:
        yield f"{facts.in_flight} request{'' if facts.in_flight == 1 else 's'} in flight"
    if facts.not_drained_by:
        yield f"not applied yet by {', '.join(facts.not_drained_by)}"
    elif facts.in_flight == 0 and facts.in_flight_is_old:
        yield "the proxies have not reported its in-flight requests since then"


def _unknown_in_flight(facts: ReplicaFacts) -> str:
    """Return what is unknown about the requests in flight.

    The result is empty if all proxies report them, or if there are none.
    """
    if not facts.carriers:
        return ""
    if facts.in_flight is None:
        return "; its requests in flight are unknown"
    counted = facts.in_flight_known_by
    return (
        f"; no requests in flight at {counted} of {facts.carriers} proxies, unknown at the others"
        if (counted < facts.carriers)
        else ""
    )


def _out(facts: ReplicaFacts) -> StateWithReason | None:
    """Return the state of a replica that gets no requests because it is asleep or because of a check."""
    if facts.effective.status == "ejected":
        return StateWithReason("ejected", f"ejected by deep health: {'; '.join(facts.effective.reasons)}")
    if facts.effective.status == "asleep":
        return StateWithReason("asleep", f"{'; '.join(facts.effective.reasons)}; it gets requests when it is awake")
    return (
        _down(facts)
        or _by_proxies(facts, "ejected", "ejected by the passive check of {proxies}")
        or _by_proxies(facts, "draining", "{proxies} sends it no new requests")
    )


def _down(facts: ReplicaFacts) -> StateWithReason | None:
    """Return the state of a replica that is failing a check or that cannot be connected to."""
    by_proxies = _by_proxies(facts, "down", "the active check of {proxies} fails")
    reasons = [*_failed_check(facts), *([by_proxies.reason] if by_proxies else [])]
    if by_proxies and facts.agent_reason:
        reasons.append(f"lbctl's check of its agent: {facts.agent_reason}")
    if not reasons and facts.connection is not None and _is_disconnected(facts, facts.connection):
        reasons = [f"lbctl cannot connect: {facts.connection.reason}"]
        if facts.passed_by:
            proxies = "1 proxy still sends" if facts.passed_by == 1 else f"{facts.passed_by} proxies still send"
            reasons.append(f"{proxies} requests to it, because the active check there passes")
    return StateWithReason("down", "; ".join(reasons)) if reasons else None


def _failed_check(facts: ReplicaFacts) -> list[str]:
    """Return the reason why lbctl's active check is ejecting the replica."""
    if facts.check is None or not facts.check.out or facts.check.at is None:
        return []
    return [f"{_check_of_lbctl(facts)} fails: {facts.check.reason}"]


def _check_of_lbctl(facts: ReplicaFacts) -> str:
    proxies = f" for {', '.join(facts.checked_for)}" if facts.checked_for else ""
    return f"lbctl's active check{proxies}"


def _is_disconnected(facts: ReplicaFacts, connection: CheckState) -> bool:
    """Return whether lbctl's failed connection means that the replica is down.

    The proxies may be able to reach replicas that lbctl cannot, from another network or through a path on their own
    machine. Requests answered after the failure therefore contradict it. If lbctl was never connected, passing checks
    in the proxies also contradict it. If lbctl was connected, the proxies' checks contradict the failure only once they
    have had time to notice it. If lbctl cannot reach any replica, a failed connection means nothing.
    """
    if not connection.out or connection.at is None or facts.is_apart:
        return False
    age, answered = facts.connection_age, facts.answered_age
    if answered is not None and age > _REPORT_DELAY and answered < age - _REPORT_DELAY:
        return False
    return not facts.passed_by or (connection.passed and age < _PROXIES_NOTICE)


def _starting(facts: ReplicaFacts) -> StateWithReason | None:
    """Return the state of a replica that gets no requests until its first checks have passed."""
    reasons = []
    if facts.check is not None and facts.check.out and facts.check.at is None:
        reasons.append(f"{_check_of_lbctl(facts)} has no result yet")
    by_proxies = _by_proxies(facts, "starting", "not all of the first active checks by {proxies} have passed yet")
    if by_proxies is not None:
        reasons.append(by_proxies.reason)
    return StateWithReason("starting", "; ".join(reasons)) if reasons else None


def _unknown(facts: ReplicaFacts) -> StateWithReason | None:
    """Return the state of a replica that is not known to be reachable or to respond."""
    if facts.unanswered_for is not None:
        time = f"for more than {facts.unanswered_for:g} s"
        return StateWithReason("unknown", f"requests are being sent to it, but {time} none has succeeded")
    checks = (facts.check, facts.connection)
    if facts.passed_by or any(item is not None and item.at is not None and not item.out for item in checks):
        return None
    if facts.answered_age is not None and facts.answered_age < ANSWER_MAX_AGE:
        return None
    if any(item is not None and item.at is None for item in checks):
        return StateWithReason("unknown", "it has not been checked yet")
    return StateWithReason("unknown", "no check has run, and no proxy has reported a response from it")


def _by_proxies(
    facts: ReplicaFacts, condition: Literal["starting", "down", "ejected", "draining"], sentence: str
) -> StateWithReason | None:
    """Return the state of a replica that is in this condition at a proxy."""
    of_proxy = {name: item.reason for name, item in sorted(facts.conditions.items()) if item.state == condition}
    if not of_proxy:
        return None
    proxies = ", ".join(of_proxy)
    if len(of_proxy) < facts.carriers:
        proxies += f" ({len(of_proxy)} of {facts.carriers} proxies)"
    reasons = "; ".join(dict.fromkeys(filter(None, of_proxy.values())))
    return StateWithReason(condition, sentence.format(proxies=proxies) + (f": {reasons}" if reasons else ""))


def _lowered(facts: ReplicaFacts) -> StateWithReason | None:
    """Return the state of a replica that gets requests, but at a weight clearly below its capacity."""
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
        return StateWithReason("hot", f"it has room for {weight.room / capacity:.0%} of its capacity")
    if weight.rate < CLEARLY * capacity:
        return _held_back(facts, weight.rate / capacity)
    return None


def _held_back(facts: ReplicaFacts, part: float) -> StateWithReason:
    if facts.is_composite:
        return StateWithReason("hot", f"its load is higher than its peers' load: {part:.0%} of its capacity")
    return StateWithReason("ramping", f"its weight changes in limited steps: {part:.0%} of its capacity")


def _ramp(ramps: Mapping[str, float]) -> str:
    parts = ", ".join(f"{name} gives it {factor:.0%} of its weight" for name, factor in sorted(ramps.items()))
    return f"slow start: {parts}"


def slower(speed: float) -> str:
    """Return how much slower than its peers a replica with this relative speed (0…1) is."""
    factor = 1 / speed
    if factor < 1.75:
        return f"{1 - speed:.0%} slower than its peers"
    rounded = f"{factor:.1f}".removesuffix(".0")
    return f"{_NUMBERS.get(rounded, rounded)} times slower than its peers"


_NUMBERS = {"2": "two", "3": "three", "4": "four", "5": "five"}
