"""Changes to requests for a pool: headers, host and path.

A listener's policy removes headers before routing, and a rule removes further headers. A rule can remove only a few
headers, so the policy removes all headers that none of the routes needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from lbctl.ir.listeners import Listener, Rule
from lbctl.ir.pools import Pool, UpstreamHeader
from lbctl.ir.proxies import KubernetesObjects
from lbctl.ir.routes import Forward, HeaderRules, Rewrite, Route
from lbctl.ir.snapshot import View
from lbctl.targets.client_identity import CLAIMS, credential_headers
from lbctl.targets.envoy_gateway.security_policy import FORWARDED_FOR
from lbctl.targets.hosted import hosted_pool

_FORWARDED_PROTO = "x-forwarded-proto"
_SET_BY_ENVOY = frozenset((FORWARDED_FOR, _FORWARDED_PROTO, "x-envoy-external-address"))
"""Headers that Envoy sets after the policy has removed them, so that only a rule can withhold them from a pool."""


def adapted(view: View, objects: KubernetesObjects) -> View:
    """Return the view with the request changes required by Envoy Gateway's policies and by pools.

    Replicas do not receive clients' credentials. A hosted API gets its host, path and headers. `%` begins Envoy's
    command operators, so it is doubled.
    """
    return replace(view, routes={name: adapted_route(view, objects, route) for name, route in view.routes.items()})


def adapted_route(view: View, objects: KubernetesObjects, route: Route) -> Route:
    """Return one of the view's routes with these changes."""
    response = _headers(route.response_headers.set, route.response_headers.remove)
    if not isinstance(route.action, Forward):
        return replace(route, response_headers=response)
    pool = only_pool(view, route)
    hosted = hosted_pool(view, pool.name) if pool is not None else None
    withheld = set(hosted.removed) if hosted is not None else set[str]()
    values = {name: value for name, value in route.request_headers.set if name not in withheld}
    key = key_of(pool) if pool is not None else None
    if pool is not None and pool.sent is not None and (key is not None or pool.upstream is not None):
        values |= {header.name: header.text for header in pool.sent.headers if header.file is None}
    # The filter that sends a key comes before the removal of headers and replaces the client's header.
    kept = {*values, *([key.name] if key is not None else [])}
    withheld -= _removed_before_routing(view, objects, route)
    removed = {*route.request_headers.remove, *credential_headers(route.auth), *withheld} - kept
    headers = _headers(sorted(values.items()), removed)
    return replace(route, request_headers=headers, response_headers=response, rewrite=_rewrite(view, route))


def only_pool(view: View, route: Route) -> Pool | None:
    """Return the pool that gets all of a route's requests and mirrored copies; None if there are several."""
    action = route.action
    if not isinstance(action, Forward) or action.mirror is not None or len(action.pools) != 1:
        return None
    return view.pools[action.pools[0]]


def key_of(pool: Pool) -> UpstreamHeader | None:
    """Return a pool's secret header; None unless there is exactly one."""
    secrets = [header for header in pool.sent.headers if header.file is not None] if pool.sent is not None else []
    return secrets[0] if len(secrets) == 1 else None


def can_set(value: str) -> bool:
    """Return whether Envoy Gateway can set a header to this value."""
    return "  " not in value


def _headers(values: Iterable[tuple[str, str]], removed: Iterable[str]) -> HeaderRules:
    """Return the rules for headers. A header that cannot be set is removed, so that clients cannot set it."""
    listed = list(values)
    kept = tuple((name, value.replace("%", "%%")) for name, value in listed if can_set(value))
    return HeaderRules(kept, tuple(sorted({*removed, *(name for name, value in listed if not can_set(value))})))


# ── Headers about the client ─────────────────────────────────────────────────────────────────────────────────────────


def trusts_load_balancers(listener: Listener) -> bool:
    """Return whether load balancers in front of the listener may report the client's address."""
    return listener.client_address is not None and listener.client_address.header == FORWARDED_FOR


def claimed(listener: Listener) -> frozenset[str]:
    """Return the client-related headers that a listener's policy removes from requests.

    Envoy Gateway cannot distinguish peers. Load balancers may therefore send only the header that contains the client's
    address.
    """
    names = {*CLAIMS, FORWARDED_FOR, _FORWARDED_PROTO, *listener.address_headers}
    return frozenset(names - {FORWARDED_FOR} if trusts_load_balancers(listener) else names)


def withheld_from_apis(view: View, objects: KubernetesObjects, listener: Listener) -> set[str]:
    """Return the client headers that only a listener's rules remove, because other routes need them."""
    routes = (view.routes[name] for name in dict.fromkeys(rule.route for rule in listener.rules))
    hosted = (route for route in routes if (pool := only_pool(view, route)) is not None and pool.upstream is not None)
    removed = {name for route in hosted for name in adapted_route(view, objects, route).request_headers.remove}
    return removed - _SET_BY_ENVOY


def _removed_before_routing(view: View, objects: KubernetesObjects, route: Route) -> set[str]:
    """Return the headers that no request on a route has, on any listener. lbctl configures only its own Gateway."""
    if objects.gateway is not None:
        return set()
    listeners = [item for item in view.listeners if any(rule.route == route.name for rule in item.rules)]
    removed = (claimed(listener) - _SET_BY_ENVOY for listener in listeners)
    return set(frozenset.intersection(*removed)) if listeners else set()


# ── Host and path ────────────────────────────────────────────────────────────────────────────────────────────────────


def prepended(view: View, route: Route) -> str:
    """Return the text to prepend to every path on a route in the view; empty if it only replaces a prefix, or nothing.

    Envoy Gateway cannot replace the prefix `/` of a path: it would also replace the slash. Instead, the new prefix is
    prepended.
    """
    own = route.rewrite.path_prefix if route.rewrite is not None else None
    if own is not None and not _has_root(view, route):
        return ""
    return _api_prefix(view, route) + (own or "").rstrip("/")


def _rewrite(view: View, route: Route) -> Rewrite | None:
    """Return the new host, and the prefix that replaces the matched prefix unless it is prepended."""
    pool = only_pool(view, route)
    own = route.rewrite or Rewrite()
    host = pool.upstream.host if pool is not None and pool.upstream is not None else own.host
    path = own.path_prefix
    if path is not None:
        path = None if _has_root(view, route) else (_api_prefix(view, route) + path).rstrip("/") or "/"
    return Rewrite(path, host) if path is not None or host else None


def _api_prefix(view: View, route: Route) -> str:
    """Return the path prefix of the hosted API used by a route; empty for other pools."""
    pool = only_pool(view, route)
    return pool.upstream.path_prefix if pool is not None and pool.upstream is not None else ""


def _has_root(view: View, route: Route) -> bool:
    """Return whether a route matches the prefix `/`."""
    return any(rule.path.kind == "prefix" and rule.path.value == "/" for rule in _rules(view, route.name))


def _rules(view: View, route: str) -> Iterator[Rule]:
    """Yield the rules of a route. All of a route's rules match the same path."""
    return (rule for listener in view.listeners for rule in listener.rules if rule.route == route)
