"""Checks the headers in a fleet for conflicting meanings.

Some headers control the message itself, others belong to lbctl or to a proxy, and no header can have two meanings.
Names are compared case-insensitively and `_` is treated as `-`, because many servers do not distinguish between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lbctl.base.diagnostics import Path
from lbctl.compile.context import Context
from lbctl.ir.header_text import variables
from lbctl.model import route as model
from lbctl.model.node import descend

_FRAMING = frozenset({"connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"})
_HOPS = frozenset({"host", "expect", "http2-settings", "trailers"})
_WITHOUT_VARIABLES = frozenset({"host", "content-type"})
_OWN = ("proxy-", "x-envoy-", "x-lbctl-")
_MEANINGS = {
    "authorization": "contains the client's credentials",
    "cookie": "contains the client's cookies",
    "content-type": "describes the body",
    "x-model": "names the model",
    "x-request-id": "contains the request ID",
    "x-forwarded-for": "contains the addresses of the client and of proxies",
    "x-forwarded-proto": "contains the client's scheme",
    "x-real-ip": "contains the client's address",
}


@dataclass(frozen=True, slots=True)
class _Use:
    """A header to which the fleet assigns a meaning."""

    path: Path
    name: str
    meaning: str
    usual: str = ""
    """The key in `_MEANINGS` for this meaning."""


def is_reserved(name: str) -> bool:
    """Return whether a header controls the message itself, or belongs to a proxy or to lbctl."""
    normalized = _normalized(name)
    return normalized in _FRAMING | _HOPS or normalized.startswith(_OWN)


def check_headers(ctx: Context) -> None:
    """Report headers with conflicting meanings.

    LB119: the header controls the message or belongs to a proxy. LB120: the header has two meanings. LB111: the header
    is both set and removed. LB141: the header contains a variable that is not available there.
    """
    for name, route in ctx.fleet.routes.items():
        for side, rules in (("request", route.headers.request), ("response", route.headers.response)):
            if not rules.set and not rules.remove:
                continue
            _check_rules(ctx, ("routes", name, "headers", side), rules)
            _check_variables(ctx, ("routes", name, "headers", side), rules, route)
        if route.auth and route.auth.external:
            _check_sent(ctx, ("routes", name, "auth", "external", "send"), route.auth.external.send)
        if route.auth and route.auth.forward_tenant:
            _check_tenant_header(ctx, ("routes", name, "headers", "request"), route)
    _check_uses(ctx, list(_uses(ctx)))


def _check_rules(ctx: Context, here: Path, rules: model.HeaderRules) -> None:
    """Reject rules for headers that control the message.

    Changing such a header breaks the message, and most proxies refuse to start.
    """
    for index, name in enumerate(rules.remove):
        if name in rules.set:
            ctx.error("LB111", f"{name} is both set and removed", (*here, "remove", index), "remove one of the two")
    for name, rule_path in _named(ctx, here, rules):
        if name not in _FRAMING and (name != "host" or rule_path[-2] == "set"):
            continue
        ctx.error(
            "LB119",
            f"{name} is a message-framing header",
            rule_path,
            "leave it to the proxy",
            key=True,
        )


def _check_sent(ctx: Context, here: Path, names: Iterable[str]) -> None:
    for index, name in enumerate(names):
        if name in _FRAMING | _HOPS:
            message = f"{name} is a message-framing header"
            ctx.error("LB119", message, (*here, index), "leave it to the proxy")


def _check_variables(ctx: Context, here: Path, rules: model.HeaderRules, route: model.Route) -> None:
    for name, rule_path in _named(ctx, here, rules):
        used = variables(rules.set.get(name, ""))
        if used and name in _WITHOUT_VARIABLES:
            ctx.error(
                "LB141", f"{name} cannot contain a variable", rule_path, "write the text itself, or use another header"
            )
        elif "pool" in used and route.respond is not None:
            ctx.error("LB141", "the proxy itself responds here, so the route has no pool", rule_path, "remove {pool}")


def _check_tenant_header(ctx: Context, here: Path, route: model.Route) -> None:
    assert route.auth is not None
    tenant_header = _normalized(route.auth.forward_tenant or "")
    for name, rule_path in _named(ctx, here, route.headers.request):
        if _normalized(name) == tenant_header:
            message = f"{name} passes the tenant to the replica (auth.forward_tenant)"
            ctx.error("LB120", message, rule_path, "remove one of the two", key=True)


def _named(ctx: Context, here: Path, rules: model.HeaderRules) -> Iterator[tuple[str, Path]]:
    """Yield every header in the rules with its path and its name as the user wrote it."""
    node = descend(ctx.source.root, (*here, "set"))
    written = {key.lower(): key for key in node.value} if node and isinstance(node.value, dict) else {}
    yield from ((name, (*here, "set", written.get(name, name))) for name in rules.set)
    yield from ((name, (*here, "remove", index)) for index, name in enumerate(rules.remove))


def _uses(ctx: Context) -> Iterator[_Use]:
    """Yield the uses of headers.

    Uses in routes come last, because the later of two conflicting uses is reported.
    """
    for name, listener in ctx.fleet.listeners.items():
        here: Path = ("listeners", name)
        yield _Use((*here, "request_id"), listener.request_id, _MEANINGS["x-request-id"], "x-request-id")
        if listener.client_address:
            use_path, header = (*here, "client_address", "header"), listener.client_address.header
            yield _Use(use_path, header, _MEANINGS["x-real-ip"], "x-forwarded-for")
            for index, forwarded in enumerate(listener.client_address.forward):
                use_path = (*here, "client_address", "forward", index)
                yield _Use(use_path, forwarded, _MEANINGS["x-real-ip"], "x-real-ip")
    yield from _session_headers(ctx)
    auths = [(name, route.auth) for name, route in ctx.fleet.routes.items() if route.auth]
    for name, auth in auths:
        if auth.api_keys:
            yield from _key_headers(("routes", name, "auth", "api_keys"), auth.api_keys)
    for name, auth in auths:
        for index, accepted in enumerate(auth.external.accept if auth.external else ()):
            use_path = ("routes", name, "auth", "external", "accept", index)
            yield _Use(use_path, accepted, "comes from the authorization service")
    for name, auth in auths:
        if auth.forward_tenant:
            yield _Use(("routes", name, "auth", "forward_tenant"), auth.forward_tenant, "passes the tenant to replicas")


def _session_headers(ctx: Context) -> Iterator[_Use]:
    for name, pool in ctx.fleet.pools.items():
        if pool.affinity is not None and pool.affinity.header is not None:
            yield _Use(
                ("pools", name, "affinity", "header"), pool.affinity.header, "contains the session ID of a replica"
            )


def _key_headers(here: Path, keys: model.ApiKeys) -> Iterator[_Use]:
    meaning, usual = _MEANINGS["authorization"], "authorization"
    if "headers" not in keys.model_fields_set:
        yield _Use((*here, "header"), keys.header or usual, meaning, usual)
        return
    for index, name in enumerate(keys.headers):
        yield _Use((*here, "headers", index), name, meaning, usual)


def _check_uses(ctx: Context, uses: Iterable[_Use]) -> None:
    """Check all uses in the fleet together.

    A tenant header is removed from every request, on all of a proxy's listeners.
    """
    meanings: dict[str, str] = {}
    for use in uses:
        name = _normalized(use.name)
        other_meaning = _MEANINGS.get(name) if name != use.usual else None
        other_meaning = other_meaning if other_meaning and other_meaning != use.meaning else meanings.get(name)
        if name in _FRAMING | _HOPS:
            ctx.error(
                "LB119",
                f"{use.name} is a message-framing header",
                use.path,
                "use another header, for example x-tenant",
            )
        elif name.startswith(_OWN):
            ctx.error(
                "LB119",
                f"{use.name} is a header that the proxy itself sets",
                use.path,
                "use another header, for example x-tenant",
            )
        elif other_meaning and other_meaning != use.meaning:
            ctx.error("LB120", f"{use.name} already {other_meaning}", use.path, "use a separate header")
        meanings.setdefault(name, use.meaning)


def _normalized(name: str) -> str:
    return name.lower().replace("_", "-")
