"""Determines the features of a fleet that a proxy cannot render, and the routes that it must not serve as a result.

Every feature that the YAML uses is looked up in the target's table of capabilities. An unsupported feature becomes a
warning with the reason, the replacement, and the position in the YAML. If that feature *protects* the routes that it
covers, they are closed: on this proxy they return 503 instead of being served without protection. A proxy that does not
read bodies also closes any route through which a client could reach a protected model unprotected.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from lbctl.base.diagnostics import Diagnostic, Path, Position
from lbctl.compile.sources import SourceMap
from lbctl.ir.listeners import Listener
from lbctl.ir.protected_models import refused_websockets, ways_around
from lbctl.ir.proxies import Proxy
from lbctl.ir.routes import Auth, Forward, Respond, Route
from lbctl.ir.snapshot import View, pools_of
from lbctl.model.node import Node, position_of
from lbctl.targets.features import BY_ID, Feature
from lbctl.targets.response_bodies import error_body
from lbctl.targets.target import Capability, NotYet, Since, Target, Unsupported, Version
from lbctl.targets.usage import cleartext, used

CLOSED = Respond(
    503,
    error_body("this route is closed because the proxy cannot protect it", "closed"),
    "application/json",
)
_MOOT = {
    "pool.balance.hash.bounded_load": ("pool.balance.hash.json_body", "pool.balance.hash.prompt_prefix"),
    **dict.fromkeys(
        ("pool.health.http", "pool.health.http.body", "pool.health.grpc", "pool.health.tcp"), ("pool.health.agent",)
    ),
}
"""Maps a feature to the features without which it has no effect. A load bound on a hash that is not computed needs no
separate warning. With agents, proxies do not check the engines."""
_CLOSED_ROUTE = "CLOSED"
"""Name of the route that returns 503. User-defined names contain no capitals."""
MODEL = "route.match.model"
"""Feature that protection may depend on even if the proxy supports it, when the proxy does not read bodies."""
_TWO_FEATURES = "listener.http2"
"""This feature's key represents two features; `cleartext` selects one of them."""


@dataclass(frozen=True, slots=True)
class Assessment:
    """The features of a fleet that a proxy cannot render, and the routes that it must not serve."""

    diagnostics: tuple[Diagnostic, ...]
    closed: Mapping[str, frozenset[str]]
    """Maps each scope (listener, route, pool) to the names of the objects whose routes must not be served."""
    ways_around: frozenset[tuple[str, str]] = frozenset()
    """(listener, route) pairs that must not be served, because they bypass another route's protection."""


def assess(target: Target, version: Version, view: View, sources: SourceMap) -> Assessment:
    """Return the features that `target` in `version` cannot render for the part of the fleet in `view`."""
    warnings: dict[tuple[str, Path], Diagnostic] = {}
    kind_of_default = _kinds_of_defaults(sources.root)
    closed: dict[str, set[str]] = {"listener": set(), "route": set(), "pool": set()}
    names_in_view: dict[str, frozenset[str]] = {
        "listener": frozenset(item.name for item in view.listeners),
        "route": frozenset(view.routes),
        "pool": frozenset(view.pools),
    }
    losses = {name: _loss(capability, version) for name, capability in target.capabilities.items()}
    assumed: dict[str, None] = {}
    assumable = view.proxy.kubernetes.assume if view.proxy.kubernetes else ()
    lacking = {name for name, loss in losses.items() if loss}
    for used_feature, path in used(sources.root, lacking | {_TWO_FEATURES}, sources.derived):
        feature = cleartext(used_feature, path, sources.root)
        loss = losses[feature.id]
        if loss is None or (feature.scope != "fleet" and path[1] not in names_in_view[feature.scope]):
            continue
        if path[0] == "proxies" and path[1] != view.proxy.name:
            continue
        if feature.id in assumable:
            assumed[feature.id] = None
            continue
        owner = path[: 2 if feature.scope != "fleet" else 1]
        warning = _warning(target, feature, loss, path, sources)
        if warning.position in kind_of_default:
            owner = ("defaults",)
            warning = replace(warning, path=("defaults", kind_of_default[warning.position], *path[2:]))
        warnings.setdefault((feature.id, owner), warning)
        if feature.protects:
            closed[feature.scope].add(str(path[1]))
    bypasses = {} if target.reads_bodies else _ways_around(view)
    if MODEL in assumable and any(rule.models for listener in view.listeners for rule in listener.rules):
        bypasses, assumed[MODEL] = {}, None
    diagnostics = [item for (feature_id, owner), item in warnings.items() if not _moot(feature_id, owner, warnings)]
    diagnostics += [_way_around(target, sources, *way, protected) for way, protected in bypasses.items()]
    diagnostics += [sources.with_position(assumption(target.kind, view.proxy, BY_ID[name])) for name in assumed]
    if target.reads_bodies:
        diagnostics += _refused_websockets(target, sources, view)
    return Assessment(
        tuple(diagnostics), {scope: frozenset(names) for scope, names in closed.items()}, frozenset(bypasses)
    )


def assumption(kind: str, proxy: Proxy, feature: Feature) -> Diagnostic:
    """Return the warning that a proxy's routes stay open because its entry assumes a feature that it lacks."""
    index = proxy.kubernetes.assume.index(feature.id) if proxy.kubernetes else 0
    message = (
        f"{kind} does not support {feature.title}: the affected routes stay open, because the fleet assumes that "
        f"another component provides {feature.id}"
    )
    path = ("proxies", proxy.name, "kubernetes", "assume", index)
    return Diagnostic(feature.code, message, path=path, severity="warning")


def _ways_around(view: View) -> dict[tuple[str, str], str]:
    """Map (listener, route) to the route whose protection it bypasses when only the body names the model."""
    bypasses_by_listener = ((item.name, ways_around(item, view.routes)) for item in view.listeners)
    return {(name, way): protected for name, ways in bypasses_by_listener for way, protected in sorted(ways.items())}


def _way_around(target: Target, sources: SourceMap, listener: str, route: str, protected: str) -> Diagnostic:
    message = (
        f"{target.kind} does not read request bodies: on listener {listener}, route {route} returns 503, because it "
        f"would serve the model of route {protected} without its protection"
    )
    hint = f"protect both routes in the same way, or give {protected} a separate listener, host or path"
    path = ("routes", route)
    return Diagnostic(BY_ID["route.match.model"].code, message, position_of(sources.root, path), path, hint, "warning")


def _refused_websockets(target: Target, sources: SourceMap, view: View) -> Iterator[Diagnostic]:
    """Yield the routes whose WebSockets this proxy always rejects because none names its model unambiguously."""
    for listener in view.listeners:
        for route, other in refused_websockets(listener, view.routes).items():
            message = (
                f"{target.kind} rejects all WebSockets of route {route} on listener {listener.name}: the model "
                f"determines whether a request uses this route or the differently protected route {other}, but a "
                "WebSocket request does not name exactly one model"
            )
            hint = f"protect both routes in the same way, or give {route} a path that {other} does not match"
            path = ("routes", route, "websocket")
            diagnostic = Diagnostic(BY_ID["route.websocket"].code, message, None, path, hint, "warning")
            yield sources.with_position(diagnostic)


def _kinds_of_defaults(root: Node) -> dict[Position | None, str]:
    """Map the position of each value in `defaults` to the kind that it applies to: pool or route."""
    defaults = root.value.get("defaults") if isinstance(root.value, dict) else None
    kinds = defaults.value if defaults is not None and isinstance(defaults.value, dict) else {}
    return {position: kind for kind, node in kinds.items() for position in _positions_below(node)}


def _positions_below(node: Node) -> Iterator[Position]:
    yield node.position
    children = node.value
    for child in children.values() if isinstance(children, dict) else children if isinstance(children, list) else ():
        yield from _positions_below(child)


def _moot(feature: str, owner: Path, warnings: Mapping[tuple[str, Path], Diagnostic]) -> bool:
    return any((other, owner) in warnings for other in _MOOT.get(feature, ()))


def close(view: View, assessed: Assessment) -> View:
    """Return `view`, in which routes that must not be served return 503."""
    closed = _closed_names(view, assessed)
    if not any(closed.values()) and not assessed.ways_around:
        return view
    routes = {name: _closed_route(route, closed) for name, route in view.routes.items()}
    listeners = tuple(_closed_listener(item, closed, assessed.ways_around) for item in view.listeners)
    if any(rule.route == _CLOSED_ROUTE for item in listeners for rule in item.rules):
        routes[_CLOSED_ROUTE] = Route(_CLOSED_ROUTE, CLOSED)
    routes_in_rules = {rule.route for item in listeners for rule in item.rules}
    reachable_routes = {name: item for name, item in routes.items() if name in routes_in_rules}
    reachable_pools = {pool for item in reachable_routes.values() for pool in pools_of(item)}
    pools = {name: item for name, item in view.pools.items() if name in reachable_pools}
    return replace(view, listeners=listeners, routes=reachable_routes, pools=pools)


def without_fallbacks(view: View) -> View:
    """Return the view without fallbacks and without pools that are only used as fallbacks."""
    routes = {
        name: replace(route, action=replace(route.action, fallback=None))
        if isinstance(route.action, Forward)
        else route
        for name, route in view.routes.items()
    }
    reached = {pool for route in routes.values() for pool in pools_of(route)}
    return replace(view, routes=routes, pools={name: pool for name, pool in view.pools.items() if name in reached})


def capability_at(capability: Capability, version: Version) -> Capability:
    """Return the capability that applies to `version`."""
    if isinstance(capability, Since) and version < capability.version:
        return capability.below
    return capability


def _loss(capability: Capability, version: Version) -> NotYet | Unsupported | None:
    effective = capability_at(capability, version)
    return effective if isinstance(effective, NotYet | Unsupported) else None


def _warning(
    target: Target, feature: Feature, loss: NotYet | Unsupported, path: Path, sources: SourceMap
) -> Diagnostic:
    position = position_of(sources.root, path)
    closes = "; the affected routes return 503 on this proxy" if feature.protects else ""
    if isinstance(loss, NotYet):
        note = f": {loss.note}" if loss.note else ""
        message = f"lbctl does not render this for {target.kind} yet: {feature.title}{note}{closes}"
        code = "LB499" if feature.code.startswith("LB4") else feature.code
        return Diagnostic(code, message, position, path, severity="warning")
    message = f"{target.kind} does not support this: {loss.reason}{closes}"
    return Diagnostic(feature.code, message, position, path, f"instead, {loss.instead}", "warning")


def _closed_route(route: Route, closed: Mapping[str, frozenset[str]]) -> Route:
    pools = set(route.action.pools) if isinstance(route.action, Forward) else set()
    if route.name in closed["route"] or pools & closed["pool"]:
        return Route(route.name, CLOSED, route.listeners, auth=_reserved_header(route.auth))
    if isinstance(route.action, Forward) and route.action.mirror and route.action.mirror.pool in closed["pool"]:
        return replace(route, action=replace(route.action, mirror=None))
    return route


def _reserved_header(auth: Auth | None) -> Auth | None:
    """Return settings that prevent clients from sending the tenant header to replicas.

    A closed route needs no authentication, but the header stays reserved for the gateway on the open routes.
    """
    if auth is None or not (auth.forward_tenant or auth.external):
        return None
    return Auth(forward_tenant=auth.forward_tenant, external=auth.external)


def _closed_names(view: View, assessed: Assessment) -> Mapping[str, frozenset[str]]:
    """Return the closed names, including every route that bypasses protection on a listener that uses it.

    Such a route is closed under its own name, so that the access log shows that name.
    """
    open_somewhere = {
        rule.route
        for item in view.listeners
        for rule in item.rules
        if (item.name, rule.route) not in assessed.ways_around
    }
    closed_everywhere = {route for _, route in assessed.ways_around} - open_somewhere
    return {**assessed.closed, "route": assessed.closed["route"] | closed_everywhere}


def _closed_listener(
    listener: Listener, closed: Mapping[str, frozenset[str]], ways_around: Collection[tuple[str, str]]
) -> Listener:
    closed_routes = {
        rule.route
        for rule in listener.rules
        if listener.name in closed["listener"]
        or ((listener.name, rule.route) in ways_around and rule.route not in closed["route"])
    }
    if not closed_routes:
        return listener
    rules = (
        replace(rule, route=_CLOSED_ROUTE, closed_route=rule.route) if rule.route in closed_routes else rule
        for rule in listener.rules
    )
    return replace(listener, rules=tuple(rules))
