"""Converts a `location`'s access control: keys compared in `if`, address lists, and unsupported checks.

Protection is never lost, because a route whose protection cannot be converted rejects all requests.
"""

from __future__ import annotations

import re

from lbctl.base.diagnostics import Path
from lbctl.importer import credentials
from lbctl.importer.nginx import external, values
from lbctl.importer.nginx.context import NginxImport, Scope, flat
from lbctl.importer.nginx.listeners import CLIENT_FILES
from lbctl.importer.statement import Statement

_CLOSING = {
    "auth_jwt": "`auth_jwt` is not converted: set `auth.jwt` by hand",
    "secure_link": "`secure_link` is not converted",
}
_OF_LOCATIONS = ("allow", "deny", "auth_basic", "auth_request", "limit_except")
"""Directives that protect a location and longer paths with its prefix."""
_REFUSALS = frozenset({"401", "403", "444"})
_CREDENTIAL = re.compile(r"^\$\{?(http_(?:authorization|x_api_key|api_key|x_auth_token|apikey))\}?$")


def protect(context: NginxImport, route: Path, scope: Scope) -> None:
    """Convert a location's protection, or close its route."""
    own = [item for item in flat(scope.block, *_OF_LOCATIONS) if item.args[:1] != ("off",)]
    if own:
        context.draft.advise_prefix((context.draft.get((*route, "match")) or {}).get("path_prefix", "/"), own[0])
    for name, why in _CLOSING.items():
        item = scope.last(name)
        if item is not None and item.args[:1] != ("off",):
            context.draft.ledger.omit(item, f"{why}: the route refuses all requests", route)
            context.draft.close(route, why, by_hand="auth")
    for item in _unknown(scope):
        why = f"{item.name} may refuse requests, but is not converted"
        context.draft.ledger.omit(item, f"{why}: the route refuses all requests", route)
        context.draft.close(route, why, by_hand="auth")
    _certificates(context, route, scope)
    _users(context, route, scope)
    external.protect(context, route, scope)
    _addresses(context, route, scope)


def _unknown(scope: Scope) -> list[Statement]:
    """Return the directives from unknown modules whose names suggest that they authorize or reject requests."""
    return [
        item
        for level in scope.levels
        for item in flat(level)
        if item.name.startswith(("access_by_lua", "rewrite_by_lua", "auth_"))
        and not item.name.startswith(("auth_basic", "auth_request", "auth_delay", "auth_jwt"))
        and item.args[:1] != ("off",)
    ]


def _certificates(context: NginxImport, route: Path, scope: Scope) -> None:
    """Close a route whose server uses different files than its listener to check clients.

    A listener has one set of files for all servers.
    """
    verify = scope.last("ssl_verify_client")
    if verify is None or verify.args[:1] not in {("on",), ("optional",)}:
        return
    listeners = context.draft.get((*route, "listeners")) or context.draft.fleet["listeners"]
    all_tls = [tls for name in listeners if (tls := context.draft.get(("listeners", name, "tls"))) is not None]
    for directive, key in CLIENT_FILES.items():
        item = scope.last(directive)
        if item is not None and any((item.args[0],) != (tls.get(key),) for tls in all_tls if item.args):
            why = "the route's `server` verifies client certificates with a different CA than the listener"
            context.draft.ledger.omit(item, f"{why}: the route refuses all requests", route)
            context.draft.close(route, why)


def _users(context: NginxImport, route: Path, scope: Scope) -> None:
    realm, file = scope.last("auth_basic"), scope.last("auth_basic_user_file")
    if realm is None or realm.args[:1] == ("off",):
        context.draft.ledger.imply("the route turns this protection off", *filter(None, (realm,)))
        return
    credentials.users(context.draft, route, "".join(realm.args[:1]), file or realm, realm)


def _addresses(context: NginxImport, route: Path, scope: Scope) -> None:
    rules = _rules(scope)
    if not rules:
        return
    if context.draft.answers(route) and "status" in context.draft.get((*route, "respond")):
        context.draft.ledger.imply("the route returns the same response to all clients", *rules)
        return
    allowed, denied = list[str](), list[str]()
    for item in rules:
        word = item.args[0] if item.args else ""
        if word != "all":
            (allowed if item.name == "allow" else denied).append(_network(word))
    closing = rules[-1]
    draft = context.draft
    if closing.name == "deny" and closing.args == ("all",):
        draft.put((*route, "allow_from"), allowed or ["255.255.255.255/32"], *rules)
    if denied:
        draft.put((*route, "deny_from"), denied, *rules)
    for item in rules:
        if item.args == ("all",):
            draft.ledger.imply("`allow_from` and `deny_from` have the same effect", item)


def _rules(scope: Scope) -> list[Statement]:
    for level in scope.levels:
        rules = list(flat(level, "allow", "deny"))
        if rules:
            return rules
    return []


def _network(word: str) -> str:
    return word if "/" in word else f"{word}/{128 if ':' in word else 32}"


def keys(context: NginxImport, route: Path, block: Statement) -> bool:
    """Convert an `if` that rejects requests without a key to `auth.api_keys`.

    Returns whether the block is such an `if`.
    """
    refusal = next(flat(block, "return"), None)
    if refusal is None or not refusal.args or refusal.args[0] not in _REFUSALS:
        return False
    comparison = _compared(context, block)
    if comparison is None:
        return False
    header, statements = comparison
    credentials.keys(context.draft, route, header, statements or [block], block, refusal)
    return True


def _compared(context: NginxImport, block: Statement) -> tuple[str, list[Statement]] | None:
    """Return the header that is compared, and the statements of a map that contains the keys."""
    text = " ".join(block.args).strip("() ")
    match = re.match(r"(\$\{?\w+\}?)\s*(!=|=|!~\*?|~)?", text)
    if match is None:
        return None
    direct = _CREDENTIAL.match(match[1])
    if direct is not None and match[2] in {"!=", "!~", "!~*"}:
        return values.header_of(match[1]) or "authorization", []
    table = context.maps.get(match[1])
    if table is None or table.name != "map" or not table.args:
        return None
    source = _CREDENTIAL.match(table.args[0])
    return (values.header_of(table.args[0]) or "authorization", [table, *table.block]) if source else None
