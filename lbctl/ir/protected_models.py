"""Rules whose model determines protection: of two routes for the same requests, one is less protected.

A request for such routes must name one model that the proxy and every replica read in the same way. Otherwise, a client
could use the open route while the replica serves the protected route's model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from lbctl.ir.listeners import Listener, Rule
from lbctl.ir.matching import covers, overlaps
from lbctl.ir.pools import TokenLimit
from lbctl.ir.routes import EVERYBODY, Access, ApiKeys, External, Forward, Jwt, RateLimit, Respond, Route, access


@dataclass(frozen=True, slots=True)
class _Protection:
    """Requirements that a route imposes before a request reaches its replicas."""

    credentials: tuple[ApiKeys | None, Jwt | None, External | None] = (None, None, None)
    limits: frozenset[RateLimit | TokenLimit] = frozenset()
    regions: frozenset[str] = frozenset()
    addresses: Access = EVERYBODY
    """Client networks that the route accepts."""
    denied: bool = False
    """Whether the route rejects the models that it names."""
    leads: bool = True
    """Whether the route forwards to replicas."""


def guarded(listener: Listener, routes: Mapping[str, Route]) -> tuple[Rule, ...]:
    """Return a listener's rules in their order.

    `clear_model` is set on rules whose model determines protection.
    """
    deciding = {first for first, _, _ in _pairs(listener, routes)}
    return tuple(replace(rule, clear_model=True) if rule in deciding else rule for rule in listener.rules)


def ways_around(listener: Listener, routes: Mapping[str, Route]) -> dict[str, str]:
    """Map each route to a protected route that it bypasses, for a proxy that does not read the model from the body."""
    bypassed: dict[str, str] = {}
    for first, second, protections in _pairs(listener, routes):
        first_protection, second_protection = protections
        if _avoids(first_protection, second_protection):
            bypassed.setdefault(first.route, second.route)
        if _avoids(second_protection, first_protection):
            bypassed.setdefault(second.route, first.route)
    return bypassed


def refused_websockets(listener: Listener, routes: Mapping[str, Route]) -> dict[str, str]:
    """Map each route whose WebSockets never open to the other route that is the cause, for proxies that read bodies.

    A rule whose model determines protection rejects every WebSocket that meets its other conditions, because no proxy
    reads the messages sent over it.
    """
    if not any(routes[rule.route].websocket for rule in listener.rules):
        return {}
    deciding: dict[Rule, str] = {}
    for first, second, _ in _pairs(listener, routes):
        deciding.setdefault(first, second.route)
    refused: dict[str, str] = {}
    for index, rule in enumerate(listener.rules):
        if not routes[rule.route].websocket:
            continue
        handshake = replace(rule, models=(), methods=("GET",))
        for earlier in listener.rules[: index + 1]:
            if earlier in deciding and covers(replace(earlier, models=()), handshake):
                refused.setdefault(rule.route, deciding[earlier] if earlier.route == rule.route else earlier.route)
    return refused


def _pairs(
    listener: Listener, routes: Mapping[str, Route]
) -> Iterator[tuple[Rule, Rule, tuple[_Protection, _Protection]]]:
    """Yield pairs of rules for the same requests in which one bypasses the other's protection.

    The first rule's models are not compared.
    """
    rules: Sequence[Rule] = listener.rules
    if not any(rule.models for rule in rules):
        return
    interned: dict[_Protection, _Protection] = {}
    protections = [_protection(rule, routes[rule.route], access(listener)) for rule in rules]
    candidates = [
        (rule, replace(rule, models=()), interned.setdefault(protection, protection))
        for rule, protection in zip(rules, protections, strict=True)
    ]
    for index, (first, bare, one) in enumerate(candidates):
        if not first.models:
            continue
        for second, other_bare, other in candidates[index + 1 :]:
            if one is not other and (_avoids(one, other) or _avoids(other, one)) and overlaps(bare, other_bare):
                yield first, second, (one, other)


def _protection(rule: Rule, route: Route, addresses: Access) -> _Protection:
    if not isinstance(route.action, Forward):
        refuses = isinstance(route.action, Respond) and route.action.status >= 400
        return _Protection(denied=refuses and bool(rule.models), leads=False)
    credentials = (route.auth.api_keys, route.auth.jwt, route.auth.external) if route.auth else (None, None, None)
    prompt_limits = (replace(limit, route="") for limit in route.prompt_limits)  # two routes can have equal limits
    limits = frozenset[RateLimit | TokenLimit]((*route.rate_limits, *prompt_limits))
    return _Protection(credentials, limits, frozenset(route.regions), addresses.of(route))


def _avoids(way: _Protection, protected: _Protection) -> bool:
    """Return whether `way` reaches replicas without meeting all of the requirements in `protected`."""
    if not way.leads:
        return False
    return (
        protected.denied
        or (protected.addresses.is_limited and way.addresses != protected.addresses)
        or (any(protected.credentials) and way.credentials != protected.credentials)
        or not protected.limits <= way.limits
        or (bool(protected.regions) and not (way.regions and way.regions <= protected.regions))
    )
