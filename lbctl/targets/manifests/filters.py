"""Changes to requests and responses: headers, rewrites, mirrors and redirects, as filters of an HTTPRoute rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.header_text import parts
from lbctl.ir.listeners import Listener, Rule
from lbctl.ir.routes import Forward, HeaderRules, Route
from lbctl.ir.snapshot import View
from lbctl.targets.client_identity import given
from lbctl.targets.features import BY_ID
from lbctl.targets.manifests.objects import Tree
from lbctl.targets.manifests.precedence import Match

MAX_HEADERS = 16
"""Maximum number of headers that a filter can set, and maximum number that it can remove."""


def redirect(status: int) -> Tree:
    """Return the redirect to the same host and path with https."""
    return {"type": "RequestRedirect", "requestRedirect": {"scheme": "https", "statusCode": status}}


def of_route(
    view: View, listener: Listener, rule: Rule, route: Route, pools: Sequence[str], match: Match, mirror: Tree | None
) -> list[Tree]:
    """Return the filters for requests of `rule` to `pools`.

    If the path changes, `match` is the only match. `mirror` is the backend for mirrored requests.
    """
    built: list[Tree] = []
    for direction in ("request", "response"):
        change = _headers(view, listener, route, pools, direction)
        if change:
            built.append({"type": f"{direction.title()}HeaderModifier", f"{direction}HeaderModifier": change})
    return [*built, *_mirror(route, mirror), *_rewrite(rule, route, match)]


def of_response(view: View, listener: Listener, route: Route) -> list[Tree]:
    """Return the filter for the headers of the gateway's own response."""
    change = _headers(view, listener, route, (), "response")
    return [{"type": "ResponseHeaderModifier", "responseHeaderModifier": change}] if change else []


def _headers(view: View, listener: Listener, route: Route, pools: Sequence[str], direction: str) -> Tree:
    rules = route.request_headers if direction == "request" else route.response_headers
    values = {name: _constant(value, listener, route, pools) for name, value in rules.set}
    removed = {*rules.remove, *(name for name, value in values.items() if value is None)}
    if direction == "request":
        removed |= {*reserved(view, route)} - values.keys()
    change: Tree = {}
    if known := [{"name": name, "value": value} for name, value in values.items() if value is not None]:
        change["set"] = known
    if removed:
        change["remove"] = sorted(removed)
    return change


def reserved(view: View, route: Route) -> list[str]:
    """Return the headers in which only authentication may name the tenant, so that no client may send them.

    On a route with authentication, policies or another component set these headers before the gateway's rules apply. On
    routes without authentication, nothing sets these headers.
    """
    mine = given([route]) if route.auth is not None else []
    return [name for name in given(view.routes.values()) if name not in mine]


def _constant(value: str, listener: Listener, route: Route, pools: Sequence[str]) -> str | None:
    """Return a value with its variables replaced; None if one of them depends on the request."""
    constants = {"route": route.name, "listener": listener.name, **({"pool": pools[0]} if len(pools) == 1 else {})}
    pieces = [part.text if part.variable is None else constants.get(part.variable) for part in parts(value)]
    return None if None in pieces else "".join(piece for piece in pieces if piece is not None)


def _mirror(route: Route, backend: Tree | None) -> Iterator[Tree]:
    mirror = route.action.mirror if isinstance(route.action, Forward) else None
    if mirror is None or not mirror.percent or backend is None:
        return
    change: Tree = {"backendRef": backend}
    if mirror.percent < 100:
        share = Fraction(str(mirror.percent)) / 100
        percent = share * 100
        change |= (
            {"percent": int(percent)}
            if percent.denominator == 1
            else {"fraction": {"numerator": share.numerator, "denominator": share.denominator}}
        )
    yield {"type": "RequestMirror", "requestMirror": change}


def _rewrite(rule: Rule, route: Route, match: Match) -> Iterator[Tree]:
    rewrite = route.rewrite
    if rewrite is None or (rewrite.host is None and rewrite.path_prefix is None):
        return
    change: Tree = {"hostname": rewrite.host.partition(":")[0]} if rewrite.host is not None else {}
    if rewrite.path_prefix is not None:
        change["path"] = _path(rule.path.value, rewrite.path_prefix, match)
    yield {"type": "URLRewrite", "urlRewrite": change}


def _path(prefix: str, replacement: str, match: Match) -> Tree:
    """Return the new path. The match may be narrower than the rule's prefix, because it is a conjunction."""
    rest = match.path.value.removeprefix(prefix.rstrip("/"))
    path = (replacement.rstrip("/") + rest) or "/" if match.path.value != prefix else replacement
    if match.path.kind == "exact":
        return {"type": "ReplaceFullPath", "replaceFullPath": path}
    return {"type": "ReplacePrefixMatch", "replacePrefixMatch": path}


def diagnostics(view: View, listener: Listener, route: Route, pools: Sequence[str]) -> Iterator[Diagnostic]:
    """Yield the headers that the API cannot set, and the filters that exceed its limits."""
    feature = BY_ID["route.headers"]
    directions: tuple[tuple[str, HeaderRules], ...] = (
        ("request", route.request_headers),
        ("response", route.response_headers),
    )
    for direction, rules in directions:
        path = ("routes", route.name, "headers", direction)
        for name, value in rules.set:
            if _constant(value, listener, route, pools) is None:
                message = f"the Gateway API cannot set {name}, because its value depends on the request"
                hint = "use only {route} and {listener}, and {pool} in routes to a single pool"
                yield Diagnostic(feature.code, message, path=(*path, "set", name), hint=hint, severity="warning")
        change = _headers(view, listener, route, pools, direction)
        for key, listed in change.items():
            if isinstance(listed, list) and len(listed) > MAX_HEADERS:
                message = (
                    f"the Gateway API can {key} at most {MAX_HEADERS} headers in a rule, but this needs {len(listed)}"
                )
                yield Diagnostic("LB172", message, path=path, hint="change fewer headers")
