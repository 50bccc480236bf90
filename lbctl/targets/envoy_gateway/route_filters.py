"""HTTPRouteFilters: responses by the gateway, closed routes, and keys for replicas and hosted APIs.

A filter changes all requests of a rule. So a rule that sends a key leads to one pool, and has no mirror.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from lbctl.base.diagnostics import Diagnostic, Path
from lbctl.ir.listeners import Listener, Rule
from lbctl.ir.pools import Pool, UpstreamHeader
from lbctl.ir.routes import PREFLIGHT, Forward, HeaderRules, Respond, Rewrite, Route
from lbctl.ir.snapshot import View, pools_of
from lbctl.targets.assess import CLOSED
from lbctl.targets.client_identity import credential_headers
from lbctl.targets.envoy_gateway.context import API_VERSION, GROUP, Context
from lbctl.targets.hosted import hosted_pool
from lbctl.targets.manifests import filters as header_filters
from lbctl.targets.manifests.closing import Gap
from lbctl.targets.manifests.findings import warning
from lbctl.targets.manifests.http_route import Way, path_of
from lbctl.targets.manifests.names import Parts, names, object_name
from lbctl.targets.manifests.objects import Objects, Tree
from lbctl.targets.response_bodies import body_of
from lbctl.targets.target import Prerequisite

_FILTER, _SECRET = object_name("HTTPRouteFilter"), object_name("Secret")
_MAX_BODY = 4096
"""Maximum size of a response's body in bytes, by Envoy's default."""
_COMMANDS_IN_BODIES = (1, 8)
"""First version in which a body contains Envoy's command operators."""


def adapted(view: View) -> View:
    """Return the view with the changes of requests that Envoy Gateway's policies and pools need.

    Replicas do not get the credentials of clients. A hosted API gets its host, path and headers. `%` begins one of
    Envoy's command operators, so it is doubled.
    """
    return replace(view, routes={name: _adapted(view, route) for name, route in view.routes.items()})


def _adapted(view: View, route: Route) -> Route:
    response = replace(route.response_headers, set=_escaped(route.response_headers.set))
    if not isinstance(route.action, Forward):
        return replace(route, response_headers=response)
    pool = _only_pool(view, route)
    hosted = hosted_pool(view, pool.name) if pool is not None else None
    withheld = set(hosted.removed) if hosted is not None else set[str]()
    values = {name: value for name, value in route.request_headers.set if name not in withheld}
    key = _key(pool) if pool is not None else None
    if pool is not None and pool.sent is not None and (key is not None or pool.upstream is not None):
        values |= {header.name: header.text for header in pool.sent.headers if header.file is None}
    # The filter that sends a key precedes the removal of headers, and replaces the client's header.
    kept = {*values, *([key.name] if key is not None else [])}
    removed = {*route.request_headers.remove, *credential_headers(route.auth), *withheld} - kept
    headers = HeaderRules(_escaped(sorted(values.items())), tuple(sorted(removed)))
    rewrite = _rewrite(view, route, pool) if pool is not None and pool.upstream is not None else route.rewrite
    return replace(route, request_headers=headers, response_headers=response, rewrite=rewrite)


def _rewrite(view: View, route: Route, pool: Pool) -> Rewrite:
    """Return the host of a hosted API, and its prefix in front of the path."""
    assert pool.upstream is not None
    own = route.rewrite or Rewrite()
    prefix = pool.upstream.path_prefix
    if not prefix:
        return replace(own, host=pool.upstream.host)
    path = own.path_prefix if own.path_prefix is not None else next(_rules(view, route.name)).path.value
    return Rewrite((prefix + path).rstrip("/") or "/", pool.upstream.host)


def _rules(view: View, route: str) -> Iterator[Rule]:
    """Yield the rules of a route. All of them have the same path."""
    return (rule for listener in view.listeners for rule in listener.rules if rule.route == route)


def _escaped(values: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value.replace("%", "%%")) for name, value in values)


# ── Filters of rules ─────────────────────────────────────────────────────────────────────────────────────────────────


def response(view: View, listener: Listener, way: Way) -> Tree:
    """Return the part of a rule whose requests go to no pool: closed routes, and responses by the gateway."""
    by_parts = _names(view)
    if not _fits(view, listener, way.route):
        return {"filters": [_reference(by_parts[_closed(view)])]}
    headers = header_filters.of_response(view, listener, way.route)
    return {"filters": [*headers, _reference(by_parts[_response(view, listener, way.route)])]}


def filters(view: View, way: Way) -> list[Tree]:
    """Return the filter that sends the key of the only pool of a rule."""
    pool = _only_pool(view, way.route)
    return [_reference(_names(view)[_credential(view, pool)])] if pool is not None and _key(pool) is not None else []


def add(objects: Objects, context: Context) -> None:
    """Add the filters that rules use."""
    view = context.view
    by_parts = _names(view)
    specs: dict[Parts, tuple[Path, Tree]] = {}
    for rule in context.placed:
        route = rule.way.route
        if rule.way.shares:
            pool = _only_pool(view, route)
            if pool is not None and (key := _key(pool)) is not None:
                specs[_credential(view, pool)] = ("pools", pool.name), _injection(view, pool, key)
        elif rule.way.redirect:
            continue
        elif _fits(view, rule.listener, route):
            specs[_response(view, rule.listener, route)] = path_of(route), _direct_response(view, rule.listener, route)
        else:
            closed: Tree = {"directResponse": _body(CLOSED, CLOSED.body)}
            specs[_closed(view)] = ("proxies", view.proxy.name), closed
    for parts, (source, spec) in specs.items():
        component = "pool" if source[0] == "pools" else "route"
        objects.add(API_VERSION, "HTTPRouteFilter", by_parts[parts], component, source, spec=spec)


def prerequisites(context: Context) -> Iterator[Prerequisite]:
    """Yield the Secrets with the keys of pools. KEY stands for the key."""
    for pool in _sent(context):
        key = _key(pool)
        assert key is not None
        words = ("kubectl", "-n", context.objects.namespace, "create", "secret", "generic", _secret(context.view, pool))
        yield Prerequisite((*words, f"--from-literal=credential={key.text}KEY"))


def needed(context: Context) -> Iterator[tuple[str, str]]:
    """Yield (kind, name) of the Secrets."""
    return (("Secret", _secret(context.view, pool)) for pool in _sent(context))


def _sent(context: Context) -> list[Pool]:
    """Return the pools whose keys the filters of rules send."""
    forwarded = (rule.way.route for rule in context.placed if rule.way.shares)
    pools = {pool.name: pool for route in forwarded if (pool := _only_pool(context.view, route)) is not None}
    return [pools[name] for name in sorted(pools) if _key(pools[name]) is not None]


def _reference(name: str) -> Tree:
    return {"type": "ExtensionRef", "extensionRef": {"group": GROUP, "kind": "HTTPRouteFilter", "name": name}}


def _names(view: View) -> dict[Parts, str]:
    routes = [
        (listener, view.routes[name])
        for listener in view.listeners
        for name in dict.fromkeys(rule.route for rule in listener.rules)
    ]
    responses = [_response(view, listener, route) for listener, route in routes if _fits(view, listener, route)]
    credentials = [_credential(view, pool) for pool in view.pools.values() if _key(pool) is not None]
    return names(_FILTER, [_closed(view), *responses, *credentials])


# The parts of different filters are never equal, even if their names without a digest would be.
def _closed(view: View) -> Parts:
    return (f"{view.proxy.name}-closed",)


def _response(view: View, listener: Listener, route: Route) -> Parts:
    """Return the parts of the name of a response. Lists of models differ between listeners."""
    assert isinstance(route.action, Respond)
    if route.name.endswith(PREFLIGHT):
        return f"{view.proxy.name}-{route.name.removesuffix(PREFLIGHT)}", "options"
    place = [listener.name] if route.action.lists_models else []
    return (view.proxy.name, *place, route.name)


def _credential(view: View, pool: Pool) -> Parts:
    return f"{view.proxy.name}-{pool.name}", "credential"


def _secret(view: View, pool: Pool) -> str:
    parts = _credential(view, pool)
    return names(_SECRET, [parts])[parts]


def _fits(view: View, listener: Listener, route: Route) -> bool:
    """Return whether a filter can contain the response of a route. Other routes return 503."""
    action = route.action
    if not isinstance(action, Respond) or action == CLOSED:
        return False
    return len(body_of(action, listener, view).encode()) <= _MAX_BODY


def _direct_response(view: View, listener: Listener, route: Route) -> Tree:
    assert isinstance(route.action, Respond)
    text = body_of(route.action, listener, view)
    if view.proxy.version >= _COMMANDS_IN_BODIES:
        text = text.replace("%", "%%")
    return {"directResponse": _body(route.action, text)}


def _body(action: Respond, text: str) -> Tree:
    if not text:
        return {"statusCode": action.status}
    content_type = action.content_type.replace("%", "%%")
    return {"statusCode": action.status, "contentType": content_type, "body": {"type": "Inline", "inline": text}}


def _injection(view: View, pool: Pool, key: UpstreamHeader) -> Tree:
    credential = {"valueRef": {"name": _secret(view, pool)}}
    return {"credentialInjection": {"overwrite": True, "header": key.name, "credential": credential}}


def _only_pool(view: View, route: Route) -> Pool | None:
    """Return the pool that gets all requests of a route, and their copies; None if there are several."""
    action = route.action
    if not isinstance(action, Forward) or action.mirror is not None or len(action.pools) != 1:
        return None
    return view.pools[action.pools[0]]


def _key(pool: Pool) -> UpstreamHeader | None:
    """Return the secret header of a pool; None unless it is the only one."""
    secrets = [header for header in pool.sent.headers if header.file is not None] if pool.sent is not None else []
    return secrets[0] if len(secrets) == 1 else None


# ── Findings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def gaps(view: View) -> Iterator[Gap]:
    """Yield the hosted APIs, and the routes to them, that filters cannot express."""
    for pool in view.pools.values():
        if pool.upstream is not None and sum(header.file is not None for header in pool.upstream.headers) > 1:
            reason, path = "a rule can send only one secret header", ("pools", pool.name, "upstream", "headers")
            yield Gap("pool.upstream", "pool", pool.name, path, reason, "use a proxy that supports hosted APIs")
    for route in view.routes.values():
        if not isinstance(route.action, Forward):
            continue
        names_of_pools = [share.pool for share in route.action.shares] + [pin.pool for pin in route.action.pins]
        names_of_pools += [route.action.mirror.pool] if route.action.mirror is not None else []
        hosted = [name for name in names_of_pools if view.pools[name].upstream is not None]
        if not hosted:
            continue
        upstream = view.pools[hosted[0]].upstream
        if _only_pool(view, route) is None:
            reason = f"all pools and copies of a rule would get the key and the headers of pool {hosted[0]}"
            hint = f"use a separate route for pool {hosted[0]}"
            yield Gap("pool.upstream", "route", route.name, ("routes", route.name), reason, hint)
        elif upstream is not None and upstream.path_prefix and _has_regex(view, route):
            reason = "a rule cannot add a prefix to a path that it matches by a regular expression"
            path = ("routes", route.name, "match", "path_regex")
            yield Gap("pool.upstream", "route", route.name, path, reason, "use an exact path or a prefix")


def _has_regex(view: View, route: Route) -> bool:
    return any(rule.path.kind == "regex" for rule in _rules(view, route.name))


def diagnostics(context: Context) -> Iterator[Diagnostic]:
    """Yield the responses and keys that filters cannot express."""
    view = context.view
    for rule in context.placed:
        route = rule.way.route
        action = route.action
        if not isinstance(action, Respond) or action == CLOSED:
            continue
        yield from header_filters.diagnostics(view, rule.listener, route, ())
        if not _fits(view, rule.listener, route):
            message = f"the body of a response has at most {_MAX_BODY} bytes, so the route returns 503"
            yield warning("route.respond", message, (*path_of(route), "respond"), "use a shorter body")
    for pool in view.pools.values():
        routes = [item for item in view.routes.values() if isinstance(item.action, Forward)]
        if pool.credentials is None or _key(pool) is None:
            continue
        others = [item.name for item in routes if pool.name in pools_of(item) and _only_pool(view, item) is None]
        if others:
            message = (
                f"all pools and copies of route {others[0]} would get the key of pool {pool.name}, so its requests "
                "are sent without the key"
            )
            hint = f"use a separate route for pool {pool.name}"
            yield warning("pool.credentials", message, ("pools", pool.name, "credentials"), hint)
