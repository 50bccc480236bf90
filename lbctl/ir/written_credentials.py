"""Finds credentials in the fleet itself, which are header and cookie values that give a client access.

A fleet contains such a value if it matches a header, pins a header or cookie, sets a request header, or has a key in
the query of a health check. All of these are treated alike. Only the owner can read the rendered file, xDS sends the
values only to guarded clients, and messages do not quote them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from lbctl.ir.listeners import Rule
from lbctl.ir.pools import HttpCheck, Pool
from lbctl.ir.routes import Forward, Pin, Route
from lbctl.ir.secrets import cookie_may_hold_credential, is_credential, looks_like_secret, shown_value
from lbctl.ir.snapshot import View
from lbctl.ir.topology import Topology

_PARAMETER = re.compile(r"([?&])([^=&?]+)=([^&]+)")


def of_rule(rule: Rule) -> Iterator[str]:
    """Yield the credentials in a rule's conditions."""
    return (value for name, value in rule.headers if is_credential(name, value))


def of_route(route: Route) -> Iterator[str]:
    """Yield the credentials in a route."""
    yield from (value for name, value in route.request_headers.set if is_credential(name, value))
    if isinstance(route.action, Forward):
        yield from (pin.value for pin in route.action.pins if is_credential_pin(pin))


def is_credential_pin(pin: Pin) -> bool:
    """Return whether a pin's value may be a credential."""
    if pin.kind == "cookie":
        return cookie_may_hold_credential(pin.name) or looks_like_secret(pin.value)
    return is_credential(pin.name, pin.value)


def of_pool(pool: Pool) -> Iterator[str]:
    """Yield the credentials in the query string of the pool's health-check path."""
    if isinstance(pool.engine_probe, HttpCheck):
        yield from (
            value for _, name, value in _PARAMETER.findall(pool.engine_probe.path) if is_credential(name, value)
        )


def shown_path(path: str) -> str:
    """Return a path with its query for display. Values that may be credentials are replaced by their digests."""
    return _PARAMETER.sub(lambda item: f"{item[1]}{item[2]}={shown_value(item[2], item[3])}", path)


def of_topology(topology: Topology) -> frozenset[str]:
    """Return all credentials in a fleet, as written there."""
    rules: Iterable[Rule] = (rule for listener in topology.listeners for rule in listener.rules)
    conditions = (value for rule in rules for value in of_rule(rule))
    routes = (value for route in topology.routes for value in of_route(route))
    pools = (value for pool in topology.pools for value in of_pool(pool))
    return frozenset((*conditions, *routes, *pools))


def in_rules(view: View, rules: Iterable[Rule]) -> bool:
    """Return whether one of these rules, or its route, contains a credential."""
    return any(True for rule in rules for _ in (*of_rule(rule), *of_route(view.routes[rule.route])))


def in_text(view: View) -> bool:
    """Return whether a listener or pool contains a credential, so that only the file's owner may read it."""
    in_pools = any(True for pool in view.pools.values() for _ in of_pool(pool))
    return in_pools or any(in_rules(view, listener.rules) for listener in view.listeners)
