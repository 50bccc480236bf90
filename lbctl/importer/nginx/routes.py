"""Converts `server` and `location` blocks to routes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from lbctl.base.diagnostics import Path
from lbctl.importer.draft import REDIRECTS, Draft
from lbctl.importer.matching import rank, takes
from lbctl.importer.nginx import access, forward, includes, metrics, policy
from lbctl.importer.nginx.context import NginxImport, Scope, flat
from lbctl.importer.nginx.match import label, path_of
from lbctl.importer.statement import Statement
from lbctl.importer.values import is_whole

_HTTPS = re.compile(r"https://(?:\$host|\$http_host|\$server_name|\$\{host\})(?::443)?(?:\$request_uri|\$uri.*)?/?")
_PASSES = {"proxy_pass": "proxy", "grpc_pass": "grpc"}
_ADDED = frozenset({"200", "201", "204", "206", "301", "302", "303", "304", "307", "308"})
"""Status codes of the responses to which `add_header` without `always` applies."""
_FILES = ("root", "alias", "try_files", "index", "autoindex")
_PROTECTING = ("auth", "allow_from", "deny_from")
_OTHER_PASSES = ("fastcgi_pass", "uwsgi_pass", "scgi_pass", "memcached_pass")


@dataclass(frozen=True, slots=True)
class RoutedServer:
    """An nginx server with the common properties of its routes."""

    scope: Scope
    """The block and its enclosing blocks."""
    listeners: tuple[str, ...]
    """Names of the server's listeners. If empty, all of the fleet's listeners are used."""
    hosts: tuple[str, ...]
    """Hosts of the server's routes. If empty, all hosts match."""


def routes(context: NginxImport, server: RoutedServer) -> None:
    """Add a server's routes."""
    block = server.scope.block
    action = next(flat(block, "return"), None)
    if action is not None:
        path = _add(context, server, block, {})
        _respond(context, path, server.scope, action)
        _headers_of_answer(context, path, server.scope)
        includes.close(context)
        for inner in flat(block, "location"):
            context.draft.ledger.omit(inner, "nginx responds before it selects a location")
        return
    guards = list(flat(block, "if"))
    locations = list(_locations(server.scope))
    for scope in locations:
        _location(context, server, scope, guards)
    includes.close(context)
    _close_overlaps(context, [scope.block for scope in locations])
    _server_conditions(context, server, guards)
    _headers_of_others(context, server)
    if server.hosts and not any(path_of(scope.block) == {} for scope in locations):
        path = _add(context, server, block, {}, suffix="others")
        context.draft.put((*path, "respond"), {"status": 404, "body": "not found"})
    includes.close(context)


def _locations(scope: Scope) -> Iterator[Scope]:
    """Yield a block's locations, including nested ones."""
    for block in flat(scope.block, "location"):
        inner = scope.inside(block)
        yield inner
        yield from _locations(inner)


def _close_overlaps(context: NginxImport, blocks: Sequence[Statement]) -> None:
    """Close routes whose requests nginx rejects because of an earlier expression or a prefix with `^~`.

    A fleet prefers regular expressions to prefixes, and does not necessarily use the first of several expressions.
    """
    draft = context.draft
    routes = {block: [path for path, origin in draft.origins.items() if origin is block] for block in blocks}
    for first, second in product(blocks, blocks):
        is_first = _modifier(first) == "^~" or (_modifier(first) == "~" and blocks.index(first) < blocks.index(second))
        if first is second or not is_first or _modifier(second) != "~":
            continue
        for one, other in product(routes[first], routes[second]):
            before, after = draft.get(one) or {}, _opened(context, other)
            if before and "respond" not in after and after and _refuses_more(before, after):
                why = "an earlier location protects some of the same requests, and `match` cannot express which ones"
                draft.ledger.omit(first, f"{why}: the route refuses all requests", other)
                draft.close(other, why)
            elif _takes_elsewhere(draft, one, other):
                message = (
                    f"requests that match both this location and an earlier one use route {other[1]}, not {one[1]}"
                )
                draft.ledger.misroute(second, message)


def _takes_elsewhere(draft: Draft, first: Path, second: Path) -> bool:
    """Return whether a fleet sends requests to a different route's pool than nginx does."""
    before, after = draft.get(first) or {}, draft.get(second) or {}
    if "respond" in before or "respond" in after or not before or not after:
        return False
    is_first_by_name = rank(before["match"]) == rank(after["match"]) and str(first[1]) < str(second[1])
    differ = any(before.get(key) != after.get(key) for key in ("pool", "split"))
    return differ and not is_first_by_name and takes(after["match"], before["match"])


def _opened(context: NginxImport, path: Path) -> dict[str, Any]:
    """Return a route. If it is closed, return it as it will be once the operator has followed its comment."""
    route, closed = context.draft.get(path) or {}, context.draft.closed.get(path)
    if closed is None:
        return route
    return {key: value for key, value in route.items() if key != "respond"} | closed.removed


def _modifier(location: Statement) -> str:
    """Return `~` for an expression, `^~` for a prefix that precedes expressions, or an empty string otherwise."""
    text = location.args[0] if location.args else ""
    return "~" if text.startswith("~") else "^~" if text == "^~" else ""


def _refuses_more(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Return whether the second route handles requests that the first route protects differently."""
    if not takes(second["match"], first["match"]):
        return False
    status = int((first.get("respond") or {}).get("status", 0))
    return status >= 400 or any(first.get(key, second.get(key)) != second.get(key) for key in _PROTECTING)


def _add(
    context: NginxImport,
    server: RoutedServer,
    origin: Statement,
    match: dict[str, Any],
    *,
    suffix: str = "",
    otherwise: str = "",
) -> Path:
    hosts = match.pop("hosts", None) or list(server.hosts)
    route: dict[str, Any] = {"match": ({"hosts": hosts} if hosts else {}) | match}
    if server.listeners:
        route = {"listeners": list(server.listeners)} | route
    name = label(origin if origin.name == "location" else Statement(origin.position, ()), server.hosts)
    path = context.draft.add("routes", "-".join(filter(None, (name, suffix))), origin, route, otherwise)
    context.draft.ledger.home(origin, path)
    return path


def _location(context: NginxImport, server: RoutedServer, scope: Scope, guards: Sequence[Statement]) -> None:
    match = path_of(scope.block)
    ledger = context.draft.ledger
    if match is None or next(flat(scope.block, "internal"), None) is not None:
        return
    if not any(flat(scope.block)) or (not _has_action(scope.block) and next(flat(scope.block, "location"), None)):
        ledger.imply("the location does not have an action", scope.block)
        return
    answer = next(flat(scope.block, "return"), None)
    passing = next((item for item in flat(scope.block, *_PASSES)), None)
    if answer is not None:
        path = _add(context, server, scope.block, match)
        _respond(context, path, scope, answer)
        _headers_of_answer(context, path, scope)
        access.protect(context, path, scope)
    elif passing is not None:
        _forward(context, server, scope, passing, match, guards)
    else:
        path = _add(context, server, scope.block, match)
        if next(flat(scope.block, "stub_status"), None) is not None:
            metrics.location(context, path, scope.block)
        else:
            _refuse(context, path, scope)
            access.protect(context, path, scope)


def _has_action(block: Statement) -> bool:
    return any(flat(block, "return", *_PASSES, *_FILES, *_OTHER_PASSES, "if", "deny", "auth_request", "stub_status"))


def _refuse(context: NginxImport, path: Path, scope: Scope) -> None:
    """Close a route whose location does something unsupported, such as serving files."""
    ledger = context.draft.ledger
    item = next(flat(scope.block, *_FILES, *_OTHER_PASSES), None)
    if item is not None and item.name in _FILES:
        why = "this location serves files, which lbctl does not support"
        ledger.omit(item, f"{why}: the route refuses all requests", path)
    else:
        why = "lbctl does not support this location's action"
    context.draft.close(path, why)


# ── Forwarding ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _forward(
    context: NginxImport,
    server: RoutedServer,
    scope: Scope,
    passing: Statement,
    match: dict[str, Any],
    guards: Sequence[Statement],
) -> None:
    prefix = _PASSES[passing.name]
    targets = [*forward.targets(context, scope, passing), *_passing_conditions(context, scope)]
    if not targets:
        path = _add(context, server, scope.block, match)
        why = "the destination depends on variables that lbctl cannot resolve"
        context.draft.ledger.omit(passing, f"{why}: the route refuses all requests", path)
        context.draft.close(path, why)
        _conditions(context, server, path, scope, [*guards, *flat(scope.block, "if")])
        access.protect(context, path, scope)
        _methods(context, server, path, scope)
        return
    for target in targets:
        wanted, pool = dict(match) | target.match, str(next(iter(target.pools))[1])
        path = _add(context, server, scope.block, wanted, suffix=_suffix(target.label), otherwise=pool)
        _pools(context, path, target)
        if target.path and "path_prefix" not in match and "path" not in match and "path_regex" not in match:
            context.draft.put((*path, "match", "path_prefix"), "/")
        forward.rewrite(context, path, scope, target, prefix, scope.block.args[-1])
        policy.carry(context, path, target.pools, scope, prefix)
        _mirror(context, path, scope)
        _fallback(context, path, scope)
        _conditions(context, server, path, scope, [*guards, *flat(scope.block, "if")])
        access.protect(context, path, scope)
        _methods(context, server, path, scope)
    policy.advise_defaults(context, scope, passing, prefix)
    if not any(target.label == "" for target in targets):
        path = _add(context, server, scope.block, match)
        context.draft.close(path, "the default destination could not be converted")
        _conditions(context, server, path, scope, [*guards, *flat(scope.block, "if")])
        access.protect(context, path, scope)
        _methods(context, server, path, scope)


def _suffix(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")


def _pools(context: NginxImport, path: Path, target: forward.PassTarget) -> None:
    names = {str(pool[1]): share for pool, share in target.pools.items()}
    if len(names) == 1:
        context.draft.put((*path, "pool"), next(iter(names)), *target.statements)
    else:
        shares = names if any(share % 100 for share in names.values()) else {k: v // 100 for k, v in names.items()}
        context.draft.put((*path, "split"), shares, *target.statements)


def _passing_conditions(context: NginxImport, scope: Scope) -> Iterator[forward.PassTarget]:
    """Yield the targets of `if (…) { proxy_pass …; }`."""
    for block in flat(scope.block, "if"):
        passing, extra = next(flat(block, *_PASSES), None), forward.condition(block)
        if passing is None:
            continue
        targets = forward.targets(context, scope, passing) if extra is not None else []
        if not targets or extra is None:
            forward.misroute(context, block, " ".join(passing.args))
            continue
        for target in targets:
            statements = (block, *target.statements)
            yield forward.PassTarget(target.pools, extra, target.path, target.host, statements, passing.args[0])


def _mirror(context: NginxImport, path: Path, scope: Scope) -> None:
    item = scope.last("mirror")
    if item is None or item.args in {(), ("off",)}:
        return
    for inner in _locations(scope.server):
        if path_of(inner.block) in ({"path": item.args[0]}, {"path_prefix": item.args[0]}):
            passing = next(flat(inner.block, "proxy_pass"), None)
            targets = forward.targets(context, inner, passing) if passing is not None else []
            if targets and passing is not None:
                pool = next(iter(targets[0].pools))
                statements = [item, inner.block, passing, *flat(inner.block, "internal")]
                context.draft.put((*path, "mirror"), {"pool": pool[1]}, *statements)


def _fallback(context: NginxImport, path: Path, scope: Scope) -> None:
    """Convert `error_page 502 503 504 = @name` to a fallback pool."""
    for item in scope.all("error_page"):
        name = item.args[-1] if item.args else ""
        block = next((each for each in flat(scope.server.block, "location") if each.args == (name,)), None)
        passing = next(flat(block, "proxy_pass"), None) if block is not None else None
        if block is None or passing is None:
            context.draft.ledger.omit(item, "lbctl returns its own JSON bodies", path)
            continue
        if block in context.unread:
            context.draft.ledger.omit(item, "an include that was not read may protect the fallback", path)
            continue
        targets = forward.targets(context, scope.inside(block), passing)
        if targets:
            pool = next(iter(targets[0].pools))
            context.draft.put((*path, "fallback"), pool[1], item, block, passing)
            _fallback_path(context, path, pool, block)
            reason = (
                "lbctl uses the fallback only while no replica is available; it does not retry failed requests there"
            )
            context.draft.ledger.omit(item, reason, path)


def _fallback_path(context: NginxImport, route: Path, pool: Path, block: Statement) -> None:
    """Convert a `rewrite` that adds a path prefix to a setting of a hosted API."""
    for item in flat(block, "rewrite"):
        match = re.fullmatch(r"\^?(/.*?)\(\.\*\)\$?", item.args[0]) if item.args else None
        new = item.args[1].removesuffix("$1") if match is not None and len(item.args) > 1 else ""
        if match is not None and new.endswith(match[1]) and context.draft.get((*pool, "upstream")):
            context.draft.put((*pool, "upstream", "path_prefix"), new.removesuffix(match[1]), item)
        else:
            context.draft.ledger.omit(
                item, "lbctl can only add a path prefix for a hosted API (`upstream.path_prefix`)", route
            )


# ── Answers and conditions ───────────────────────────────────────────────────────────────────────────────────────────


def _respond(context: NginxImport, path: Path, scope: Scope, item: Statement) -> None:
    """Set the route's own response."""
    draft, args = context.draft, item.args
    status, text = (args[0], args[1] if len(args) > 1 else "") if args and is_whole(args[0]) else ("302", args[0])
    if _HTTPS.fullmatch(text) and status in {"301", "302", "307", "308"}:
        draft.put((*path, "respond"), {"redirect": "https"}, item)
        return
    if int(status) in REDIRECTS:
        location = policy.text_of(context, path, scope, text)
        if location is None:
            draft.ledger.omit(item, "lbctl does not support the variables in this address", path)
            draft.close(path, "the redirect could not be converted")
        else:
            draft.redirect(path, int(status), location, item)
        return
    text = text.replace("\\n", "\n").replace("\\t", "\t")
    if "$" in text:
        draft.ledger.omit(item, "lbctl does not support variables in a response body", path)
        draft.close(path, "the response could not be converted")
        return
    if status == "444":
        draft.ledger.omit(item, "lbctl returns 403 instead of closing the connection", path)
    respond: dict[str, Any] = {"status": 403 if status == "444" else int(status)}
    draft.put((*path, "respond"), respond | ({"body": text} if text else {}), item)
    for kind in flat(context.draft.origins[path], "default_type", "add_header"):
        if kind.args[0].lower() in {"content-type", "text/plain", "application/json", "text/html"}:
            draft.ledger.imply("the content type is derived from the body", kind)
    for log in flat(context.draft.origins[path], "access_log"):
        if log.args == ("off",):
            draft.put((*path, "access_log"), "off", log)


def _headers_of_answer(context: NginxImport, path: Path, scope: Scope) -> None:
    """Set a location's response headers."""
    status = str((context.draft.get((*path, "respond")) or {}).get("status", ""))
    for item in scope.all("add_header"):
        if item.args[:1] and item.args[0].lower() != "content-type" and (item.args[-1] == "always" or status in _ADDED):
            policy.response_header(context, path, scope, item)


def _headers_of_others(context: NginxImport, server: RoutedServer) -> None:
    """Keep the headers that a server also adds to its 404 responses as comments on its listeners."""
    for item in server.scope.all("add_header"):
        for name in server.listeners or context.draft.fleet["listeners"]:
            if item.args[-1:] == ("always",):
                reason = (
                    "only routes set this header: the proxy's own responses, such as 404 for a path without a route, "
                    "do not include it"
                )
                context.draft.ledger.omit(item, reason, ("listeners", name))


def _conditions(
    context: NginxImport, server: RoutedServer, path: Path, scope: Scope, blocks: Sequence[Statement]
) -> None:
    """Convert the `if` blocks that apply to a location."""
    for block in blocks:
        if access.keys(context, path, block) or _method(context, path, block):
            continue
        if next(flat(block, *_PASSES, "set"), None) is not None:
            continue
        answer, extra = next(flat(block, "return"), None), forward.condition(block)
        if answer is None:
            continue
        if extra is not None and (block in tuple(flat(scope.block, "if")) or _refuses(answer)):
            match = {key: value for key, value in context.draft.get((*path, "match")).items() if key != "hosts"}
            inner = _add(context, server, block, match | extra, suffix=f"{path[1]}-{answer.args[0]}")
            _respond(context, inner, scope, answer)
        elif extra is None:
            why = "a condition that protects the route could not be converted"
            context.draft.ledger.omit(block, f"{why}: the route refuses all requests", path)
            context.draft.close(path, why, by_hand="auth")


def _refuses(answer: Statement) -> bool:
    """Return whether a `return` rejects requests. In a server, it applies to all of its locations."""
    return bool(answer.args) and is_whole(answer.args[0]) and int(answer.args[0]) >= 400


def _methods(context: NginxImport, server: RoutedServer, path: Path, scope: Scope) -> None:
    """Convert `limit_except GET POST { deny all; }` to two routes: for these methods, and for all others."""
    block = next(flat(scope.block, "limit_except"), None)
    match = context.draft.get((*path, "match"))
    if block is None or context.draft.answers(path):
        return
    rules = list(flat(block))
    if not rules or any(item.tokens != ("deny", "all") for item in rules):
        why = "the location's other methods have different protection"
        context.draft.ledger.omit(block, f"{why}: the route refuses all requests", path)
        context.draft.close(path, why)
        return
    others = _add(context, server, block, dict(match), suffix=f"{path[1]}-others")
    context.draft.put((*others, "respond"), {"status": 403}, *rules)
    methods = [*block.args, *(["HEAD"] if "GET" in block.args else [])]
    context.draft.put((*path, "match", "methods"), list(dict.fromkeys(methods)), block)


def _method(context: NginxImport, path: Path, block: Statement) -> bool:
    """Convert `if ($request_method !~ ^(GET|POST)$) { return 405; }` to the methods of the match."""
    text = " ".join(block.args)
    match = re.search(r"\$request_method\s+!~\*?\s+\"?\^?\(?([A-Z|]+)\)?\$?", text)
    if match is None or context.draft.answers(path):
        return False
    methods = match[1].split("|")
    context.draft.put((*path, "match", "methods"), methods, block, *flat(block, "return"))
    return True


def _server_conditions(context: NginxImport, server: RoutedServer, blocks: Sequence[Statement]) -> None:
    """Add the routes for a server's `if` blocks that have their own response, such as those written by certbot."""
    for block in blocks:
        answer, extra = next(flat(block, "return"), None), forward.condition(block)
        if answer is not None and extra is not None:
            path = _add(context, server, block, dict(extra), suffix="if")
            _respond(context, path, server.scope, answer)
