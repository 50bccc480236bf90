"""Headers that the fleet names, held against what they mean already: some carry the message itself, some are lbctl's or
the proxy's own, and no header can say two things. Names are compared without case, and `_` as `-`: many a replica takes
one for the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lbctl.base.diagnostics import Path
from lbctl.compile.context import Context
from lbctl.model import route as model
from lbctl.model.node import descend

_FRAMING = frozenset({"connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"})
_HOPS = frozenset({"host", "expect", "http2-settings", "trailers"})
_OWN = ("proxy-", "x-envoy-", "x-lbctl-")
_MEANINGS = {
    "authorization": "holds the client's credentials",
    "cookie": "holds the client's cookies",
    "content-type": "says what the body is",
    "x-model": "names the model",
    "x-request-id": "holds the request's id",
    "x-forwarded-for": "holds the client's address",
    "x-forwarded-proto": "says how the client came",
}


@dataclass(frozen=True, slots=True)
class _Use:
    """A header that the fleet gives a meaning: where it stands, what it means, and which of `_MEANINGS` may be that."""

    path: Path
    name: str
    meaning: str
    usual: str = ""


def check_headers(ctx: Context) -> None:
    """LB119 for a header that carries the message or is a proxy's own, LB120 for one that would mean two things, LB111
    for one that is both set and removed."""
    for name, route in ctx.fleet.routes.items():
        for side, rules in (("request", route.headers.request), ("response", route.headers.response)):
            _check_rules(ctx, ("routes", name, "headers", side), rules)
        if route.auth and route.auth.forward_tenant:
            _check_told(ctx, ("routes", name, "headers", "request"), route)
    _check_uses(ctx, list(_uses(ctx)))


def _check_rules(ctx: Context, here: Path, rules: model.HeaderRules) -> None:
    """A proxy that lets the message's own headers be changed breaks it, and most refuse to start."""
    for index, name in enumerate(rules.remove):
        if name in rules.set:
            ctx.error("LB111", f"{name} is set and removed", (*here, "remove", index), "one of the two")
    for name, where in _named(ctx, here, rules):
        if name not in _FRAMING and (name != "host" or where[-2] == "set"):
            continue
        ctx.error("LB119", f"{name} carries the message itself", where, "leave it to the proxy", key=True)


def _check_told(ctx: Context, here: Path, route: model.Route) -> None:
    assert route.auth is not None
    told = _plain(route.auth.forward_tenant or "")
    for name, where in _named(ctx, here, route.headers.request):
        if _plain(name) == told:
            message = f"{name} tells the replica the tenant (auth.forward_tenant)"
            ctx.error("LB120", message, where, "one of the two", key=True)


def _named(ctx: Context, here: Path, rules: model.HeaderRules) -> Iterator[tuple[str, Path]]:
    """Every header of the rules and where it stands, in the letters in which it was written."""
    node = descend(ctx.source.root, (*here, "set"))
    written = {key.lower(): key for key in node.value} if node and isinstance(node.value, dict) else {}
    yield from ((name, (*here, "set", written.get(name, name))) for name in rules.set)
    yield from ((name, (*here, "remove", index)) for index, name in enumerate(rules.remove))


def _uses(ctx: Context) -> Iterator[_Use]:
    """Those of routes last: of two that collide the later one is reported."""
    for name, listener in ctx.fleet.listeners.items():
        here: Path = ("listeners", name)
        yield _Use((*here, "request_id"), listener.request_id, _MEANINGS["x-request-id"], "x-request-id")
        if listener.client_address:
            where, header = (*here, "client_address", "header"), listener.client_address.header
            yield _Use(where, header, _MEANINGS["x-forwarded-for"], "x-forwarded-for")
    auths = [(name, route.auth) for name, route in ctx.fleet.routes.items() if route.auth]
    for name, auth in auths:
        if auth.api_keys:
            where = ("routes", name, "auth", "api_keys", "header")
            yield _Use(where, auth.api_keys.header, _MEANINGS["authorization"], "authorization")
    for name, auth in auths:
        if auth.forward_tenant:
            yield _Use(("routes", name, "auth", "forward_tenant"), auth.forward_tenant, "tells replicas the tenant")


def _check_uses(ctx: Context, uses: Iterable[_Use]) -> None:
    """Of the whole fleet: what tells a tenant is taken off every request, on all listeners of a proxy."""
    meanings: dict[str, str] = {}
    for use in uses:
        name = _plain(use.name)
        known = _MEANINGS.get(name) if name != use.usual else None
        known = known if known and known != use.meaning else meanings.get(name)
        if name in _FRAMING | _HOPS:
            ctx.error("LB119", f"{use.name} carries the message itself", use.path, "a header of your own, as x-tenant")
        elif name.startswith(_OWN):
            ctx.error("LB119", f"{use.name} is a proxy's own header", use.path, "a header of your own, as x-tenant")
        elif known and known != use.meaning:
            ctx.error("LB120", f"{use.name} {known} already", use.path, "a header of its own")
        meanings.setdefault(name, use.meaning)


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")
