"""HTTPRouteFilters: the gateway's own responses, closed routes, and keys for replicas and hosted APIs.

A filter changes all of a rule's requests. A rule that sends a key therefore routes to only one pool and does not mirror
requests. Filters on a single backend are not sufficient, because they cannot change the path, and Envoy applies the
rule's headers after the backend's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lbctl.base.diagnostics import Diagnostic, Path
from lbctl.ir.listeners import Listener
from lbctl.ir.pools import Pool, UpstreamHeader
from lbctl.ir.proxies import KubernetesObjects
from lbctl.ir.routes import PREFLIGHT, Forward, Respond, Route
from lbctl.ir.snapshot import View, pools_of
from lbctl.targets.assess import CLOSED
from lbctl.targets.envoy_gateway.context import API_VERSION, GROUP, Context
from lbctl.targets.envoy_gateway.request_changes import adapted_route, can_set, key_of, only_pool, prepended
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
"""Maximum size of a response body in bytes (Envoy's default)."""
_COMMANDS_IN_BODIES = (1, 8)
"""First version in which a body may contain Envoy's command operators."""
_FORWARDED_HOST = (1, 8)
"""First version in which a new host does not add the client's host to the request."""


# ── Filters of rules ─────────────────────────────────────────────────────────────────────────────────────────────────


def response(view: View, by_parts: Mapping[Parts, str], listener: Listener, way: Way) -> Tree:
    """Return the part of a rule that handles requests without a pool: closed routes, and the gateway's own responses.

    `by_parts` contains the names of the filters.
    """
    if not _fits(view, listener, way.route):
        return {"filters": [_reference(by_parts[_closed(view)])]}
    headers = header_filters.of_response(view, listener, way.route)
    return {"filters": [*headers, _reference(by_parts[_response(view, listener, way.route)])]}


def filters(view: View, by_parts: Mapping[Parts, str], way: Way) -> list[Tree]:
    """Return the filters that change a rule's requests: the new path, and its only pool's key."""
    pool = only_pool(view, way.route)
    wanted = [_rewritten(view, way.route)] if _rewrite(view, way.route) else []
    wanted += [_credential(view, pool)] if pool is not None and key_of(pool) is not None else []
    return [_reference(by_parts[parts]) for parts in wanted]


def add(objects: Objects, context: Context) -> None:
    """Add the filters that the rules use."""
    view = context.view
    by_parts = filter_names(view)
    specs: dict[Parts, tuple[Path, Tree]] = {}
    for rule in context.placed:
        route = rule.way.route
        if rule.way.shares:
            pool = only_pool(view, route)
            if pool is not None and (key := key_of(pool)) is not None:
                specs[_credential(view, pool)] = ("pools", pool.name), _injection(view, pool, key)
            if rewrite := _rewrite(view, route):
                specs[_rewritten(view, route)] = path_of(route), {"urlRewrite": rewrite}
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
    """Yield the Secrets that contain the pools' keys."""
    for pool in _sent(context):
        key = key_of(pool)
        assert key is not None
        words = ("kubectl", "-n", context.objects.namespace, "create", "secret", "generic", _secret(context.view, pool))
        yield Prerequisite((*words, "--from-env-file=FILE"), note=f"FILE has the line credential={key.text}KEY")


def needed(context: Context) -> Iterator[tuple[str, str]]:
    """Yield (kind, name) of the Secrets."""
    return (("Secret", _secret(context.view, pool)) for pool in _sent(context))


def _sent(context: Context) -> list[Pool]:
    """Return the pools whose keys are sent by rule filters."""
    forwarded = (rule.way.route for rule in context.placed if rule.way.shares)
    pools = {pool.name: pool for route in forwarded if (pool := only_pool(context.view, route)) is not None}
    return [pools[name] for name in sorted(pools) if key_of(pools[name]) is not None]


def _reference(name: str) -> Tree:
    return {"type": "ExtensionRef", "extensionRef": {"group": GROUP, "kind": "HTTPRouteFilter", "name": name}}


def filter_names(view: View) -> dict[Parts, str]:
    """Return the names of all filters of a closed view."""
    routes = [
        (listener, view.routes[name])
        for listener in view.listeners
        for name in dict.fromkeys(rule.route for rule in listener.rules)
    ]
    responses = [_response(view, listener, route) for listener, route in routes if _fits(view, listener, route)]
    credentials = [_credential(view, pool) for pool in view.pools.values() if key_of(pool) is not None]
    rewrites = [_rewritten(view, route) for route in view.routes.values() if _rewrite(view, route)]
    return names(_FILTER, [_closed(view), *responses, *credentials, *rewrites])


# The parts of different filters' names are never equal, even if the names without a digest would be.
def _closed(view: View) -> Parts:
    return (f"{view.proxy.name}-closed",)


def _response(view: View, listener: Listener, route: Route) -> Parts:
    """Return the parts of a response filter's name. Model lists differ between listeners."""
    assert isinstance(route.action, Respond)
    if route.name.endswith(PREFLIGHT):
        return f"{view.proxy.name}-{route.name.removesuffix(PREFLIGHT)}", "options"
    place = [listener.name] if route.action.lists_models else []
    return (view.proxy.name, *place, route.name)


def _credential(view: View, pool: Pool) -> Parts:
    return f"{view.proxy.name}-{pool.name}", "credential"


def _rewritten(view: View, route: Route) -> Parts:
    return f"{view.proxy.name}-{route.name}", "rewrite"


def _secret(view: View, pool: Pool) -> str:
    parts = _credential(view, pool)
    return names(_SECRET, [parts])[parts]


def _fits(view: View, listener: Listener, route: Route) -> bool:
    """Return whether a filter can contain a route's response. Other routes return 503."""
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


def _rewrite(view: View, route: Route) -> Tree:
    """Return the request changes that the Gateway API's filters cannot express; empty if there are none."""
    route, pool = view.routes[route.name], only_pool(view, route)
    tree: Tree = {}
    if text := prepended(view, route):
        substitution = {"pattern": "^/", "substitution": f"{text}/"}
        tree["path"] = {"type": "ReplaceRegexMatch", "replaceRegexMatch": substitution}
    if pool is not None and pool.upstream is not None and view.proxy.version >= _FORWARDED_HOST:
        tree["appendXForwardedHost"] = False
    return tree


def _injection(view: View, pool: Pool, key: UpstreamHeader) -> Tree:
    credential = {"valueRef": {"name": _secret(view, pool)}}
    return {"credentialInjection": {"overwrite": True, "header": key.name, "credential": credential}}


# ── Findings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def gaps(view: View, objects: KubernetesObjects) -> Iterator[Gap]:
    """Yield the hosted APIs, and the routes that use them, that filters cannot express."""
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
        if only_pool(view, route) is None:
            reason = f"the filters with the key, the headers and the host of pool {hosted[0]} apply to all requests of "
            reason += "the route, including requests to other pools and mirrored requests"
            hint = f"use a separate route for pool {hosted[0]}; nginx, HAProxy and Envoy change requests per pool"
            yield Gap("pool.upstream", "route", route.name, ("routes", route.name), reason, hint)
        elif (count := _count_removed(view, objects, route)) > header_filters.MAX_HEADERS:
            reason = f"{count} headers must not reach pool {hosted[0]}, but a rule removes at most "
            reason += f"{header_filters.MAX_HEADERS}"
            hint = "use fewer names for headers with keys and tenants"
            if objects.gateway is not None:
                reason += ", and lbctl does not render this Gateway, which could remove the others"
                hint = "set `gateway_class`"
            yield Gap("pool.upstream", "route", route.name, ("routes", route.name), reason, hint)


def _values(view: View) -> Iterator[Diagnostic]:
    """Yield the headers whose value makes Envoy Gateway reject the entire rule."""
    for route in view.routes.values():
        for direction, rules in (("request", route.request_headers), ("response", route.response_headers)):
            for name in (name for name, value in rules.set if not can_set(value)):
                message = f"Envoy Gateway cannot set {name}, because its value contains two consecutive spaces"
                path = (*path_of(route), "headers", direction, "set", name)
                yield warning("route.headers", message, path, "use one space")
    for pool in view.pools.values():
        for header in pool.upstream.headers if pool.upstream is not None else ():
            if not can_set(header.text):
                message = f"Envoy Gateway cannot set {header.name}, because its value contains two consecutive spaces"
                path = ("pools", pool.name, "upstream", "headers", header.name)
                yield warning("pool.upstream", message, path, "use one space")


def _count_removed(view: View, objects: KubernetesObjects, route: Route) -> int:
    """Return the number of headers that a route's rules remove from requests."""
    changed = adapted_route(view, objects, route)
    values = {name for name, _ in changed.request_headers.set}
    return len({*changed.request_headers.remove, *header_filters.reserved(view, changed)} - values)


def diagnostics(context: Context) -> Iterator[Diagnostic]:
    """Yield the headers, responses and keys that filters cannot express."""
    view = context.view
    yield from _values(view)
    for rule in context.placed:
        route = rule.way.route
        action = route.action
        if not isinstance(action, Respond) or action == CLOSED:
            continue
        yield from header_filters.diagnostics(view, rule.listener, route, ())
        if not _fits(view, rule.listener, route):
            message = f"a response body can be at most {_MAX_BODY} bytes long, so the route returns 503"
            yield warning("route.respond", message, (*path_of(route), "respond"), "use a shorter body")
    for pool in view.pools.values():
        if pool.upstream is not None and pool.upstream.server_name != pool.upstream.host:
            message = "the Gateway API cannot set a port in the Host header, so only the host name is set"
            yield warning("pool.upstream", message, ("pools", pool.name, "upstream", "host"), "remove the port")
        routes = [item for item in view.routes.values() if isinstance(item.action, Forward)]
        if pool.credentials is None or key_of(pool) is None:
            continue
        others = [item.name for item in routes if pool.name in pools_of(item) and only_pool(view, item) is None]
        if others:
            message = (
                f"all pools and mirrors of route {others[0]} would get the key of pool {pool.name}, so its requests "
                "are sent without the key"
            )
            hint = f"use a separate route for pool {pool.name}"
            yield warning("pool.credentials", message, ("pools", pool.name, "credentials"), hint)
