"""What a proxy cannot say of this fleet, and which routes it must therefore not serve.

Every feature that the YAML asks for is looked up in the target's table. What the proxy cannot do is a warning with the
reason, what it was rendered as, and its place; what *protects* and cannot be said closes the routes that it covers: on
that proxy they answer 503, never open. A proxy that reads no bodies closes, too, what leads around a protected model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from lbctl.base.diagnostics import Diagnostic, Path, Position
from lbctl.compile.sources import SourceMap
from lbctl.ir.guarding import ways_around
from lbctl.ir.listeners import Listener
from lbctl.ir.routes import Auth, Forward, Respond, Route
from lbctl.ir.snapshot import View, pools_of
from lbctl.model.node import Node, position_of
from lbctl.targets.features import BY_ID, Feature
from lbctl.targets.target import Capability, NotYet, Since, Target, Unsupported, Version
from lbctl.targets.usage import cleartext, used

CLOSED = Respond(
    503,
    '{"error":{"message":"this route is closed here: the proxy cannot protect it","type":"closed"}}',
    "application/json",
)
_MOOT = {"pool.balance.hash.bounded_load": ("pool.balance.hash.json_body", "pool.balance.hash.prompt_prefix")}
"""Feature → those without which there is nothing to say of it: a bound on a hash that is not taken."""
_CLOSED_ROUTE = "CLOSED"
"""Not a name that a user can give: names have no capitals."""
_TWO_FEATURES = "listener.http2"
"""Which of them it is, `cleartext` tells."""


@dataclass(frozen=True, slots=True)
class Assessment:
    """`closed`: scope (listener, route, pool) → names whose routes must not be served. `ways_around`: (listener, route)
    that must not be served there."""

    diagnostics: tuple[Diagnostic, ...]
    closed: Mapping[str, frozenset[str]]
    ways_around: frozenset[tuple[str, str]] = frozenset()


def assess(target: Target, version: Version, view: View, sources: SourceMap) -> Assessment:
    """What `target` cannot say of the part of the fleet that `view` holds."""
    found: dict[tuple[str, Path], Diagnostic] = {}
    laid = _laid(sources.root)
    closed: dict[str, set[str]] = {"listener": set(), "route": set(), "pool": set()}
    carried: dict[str, frozenset[str]] = {
        "listener": frozenset(item.name for item in view.listeners),
        "route": frozenset(view.routes),
        "pool": frozenset(view.pools),
    }
    losses = {name: _loss(capability, version) for name, capability in target.capabilities.items()}
    sought = {name for name, loss in losses.items() if loss}
    for written, path in used(sources.root, sought | {_TWO_FEATURES}):
        feature = cleartext(written, path, sources.root)
        loss = losses[feature.id]
        if loss is None or (feature.scope != "fleet" and path[1] not in carried[feature.scope]):
            continue
        if path[0] == "proxies" and path[1] != view.proxy.name:
            continue
        owner = path[: 2 if feature.scope != "fleet" else 1]
        warning = _warning(target, feature, loss, path, sources)
        if warning.position in laid:
            owner, warning = ("defaults",), replace(warning, path=("defaults", laid[warning.position], *path[2:]))
        found.setdefault((feature.id, owner), warning)
        if feature.protects:
            closed[feature.scope].add(str(path[1]))
    around = {} if target.reads_bodies else _ways_around(view)
    told = [item for (feature_id, owner), item in found.items() if not _moot(feature_id, owner, found)]
    told += [_way_around(target, sources, *way, protected) for way, protected in around.items()]
    return Assessment(tuple(told), {scope: frozenset(names) for scope, names in closed.items()}, frozenset(around))


def _ways_around(view: View) -> dict[tuple[str, str], str]:
    """(listener, route) → the route whose protection it leaves out for a request that names its model in its body."""
    found = ((item.name, ways_around(item.rules, view.routes)) for item in view.listeners)
    return {(name, way): protected for name, ways in found for way, protected in sorted(ways.items())}


def _way_around(target: Target, sources: SourceMap, listener: str, route: str, protected: str) -> Diagnostic:
    message = (
        f"{target.kind} reads no body: on listener {listener} route {route} would serve the model of route {protected} "
        "without its protection; it answers 503 there"
    )
    hint = f"protect both alike, or give {protected} a listener, host or path of its own"
    path = ("routes", route)
    return Diagnostic(BY_ID["route.match.model"].code, message, position_of(sources.root, path), path, hint, "warning")


def _laid(root: Node) -> dict[Position | None, str]:
    """Where each value of the defaults stands, and whose default it is: pool or route."""
    defaults = root.value.get("defaults") if isinstance(root.value, dict) else None
    kinds = defaults.value if defaults is not None and isinstance(defaults.value, dict) else {}
    return {position: kind for kind, node in kinds.items() for position in _positions(node)}


def _positions(node: Node) -> Iterator[Position]:
    yield node.position
    below = node.value
    for child in below.values() if isinstance(below, dict) else below if isinstance(below, list) else ():
        yield from _positions(child)


def _moot(feature: str, owner: Path, found: Mapping[tuple[str, Path], Diagnostic]) -> bool:
    return any((other, owner) in found for other in _MOOT.get(feature, ()))


def close(view: View, assessed: Assessment) -> View:
    """The same view, with every route that a closed thing covers answering 503."""
    closed = _with_ways_around(view, assessed)
    if not any(closed.values()) and not assessed.ways_around:
        return view
    routes = {name: _closed_route(route, closed) for name, route in view.routes.items()}
    listeners = tuple(_closed_listener(item, closed, assessed.ways_around) for item in view.listeners)
    if any(rule.route == _CLOSED_ROUTE for item in listeners for rule in item.rules):
        routes[_CLOSED_ROUTE] = Route(_CLOSED_ROUTE, CLOSED)
    ruled = {rule.route for item in listeners for rule in item.rules}
    kept = {name: item for name, item in routes.items() if name in ruled}
    reached = {pool for item in kept.values() for pool in pools_of(item)}
    pools = {name: item for name, item in view.pools.items() if name in reached}
    return replace(view, listeners=listeners, routes=kept, pools=pools)


def capability_at(capability: Capability, version: Version) -> Capability:
    """What holds for `version`."""
    if isinstance(capability, Since) and version < capability.version:
        return capability.below
    return capability


def _loss(capability: Capability, version: Version) -> NotYet | Unsupported | None:
    held = capability_at(capability, version)
    return held if isinstance(held, NotYet | Unsupported) else None


def _warning(
    target: Target, feature: Feature, loss: NotYet | Unsupported, path: Path, sources: SourceMap
) -> Diagnostic:
    position = position_of(sources.root, path)
    closes = "; its routes answer 503 here" if feature.protects else ""
    if isinstance(loss, NotYet):
        note = f": {loss.note}" if loss.note else ""
        message = f"not rendered for {target.kind} yet: {feature.title}{note}{closes}"
        code = "LB499" if feature.code.startswith("LB4") else feature.code
        return Diagnostic(code, message, position, path, severity="warning")
    message = f"{target.kind} cannot say this: {loss.reason}{closes}"
    return Diagnostic(feature.code, message, position, path, f"instead: {loss.instead}", "warning")


def _closed_route(route: Route, closed: Mapping[str, frozenset[str]]) -> Route:
    pools = set(route.action.pools) if isinstance(route.action, Forward) else set()
    if route.name in closed["route"] or pools & closed["pool"]:
        return Route(route.name, CLOSED, route.listeners, auth=_claims(route.auth))
    if isinstance(route.action, Forward) and route.action.mirror and route.action.mirror.pool in closed["pool"]:
        return replace(route, action=replace(route.action, mirror=None))
    return route


def _claims(auth: Auth | None) -> Auth | None:
    """The name under which tenants are told stays the gateway's: no client may send it on the routes that are open."""
    return Auth(forward_tenant=auth.forward_tenant) if auth and auth.forward_tenant else None


def _with_ways_around(view: View, assessed: Assessment) -> Mapping[str, frozenset[str]]:
    """A way around on every listener that has it is closed under its own name, which the access log then tells."""
    open_ = {
        rule.route
        for item in view.listeners
        for rule in item.rules
        if (item.name, rule.route) not in assessed.ways_around
    }
    ways = {route for _, route in assessed.ways_around} - open_
    return {**assessed.closed, "route": assessed.closed["route"] | ways}


def _closed_listener(
    listener: Listener, closed: Mapping[str, frozenset[str]], ways_around: Collection[tuple[str, str]]
) -> Listener:
    shut = {
        rule.route
        for rule in listener.rules
        if listener.name in closed["listener"]
        or ((listener.name, rule.route) in ways_around and rule.route not in closed["route"])
    }
    if not shut:
        return listener
    rules = (replace(rule, route=_CLOSED_ROUTE) if rule.route in shut else rule for rule in listener.rules)
    return replace(listener, rules=tuple(rules))
