"""Includes that were not read, and that may therefore contain rules that protect the enclosing block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lbctl.base.diagnostics import Path
from lbctl.importer.nginx.context import NginxImport
from lbctl.importer.statement import Statement, walk

_HARMLESS = frozenset(
    {
        "mime.types", "fastcgi_params", "fastcgi.conf", "uwsgi_params", "scgi_params", "proxy_params", "koi-utf",
        "koi-win", "win-utf", "options-ssl-nginx.conf", "fastcgi-php.conf", "snakeoil.conf"
    }
)  # fmt: skip
"""Files from nginx packages and certbot that are known by name to contain no access rules."""
_PARTS = frozenset({"if", "limit_except"})
"""Blocks whose content affects requests for the enclosing block."""
_BLOCKS = frozenset({"http", "server", "location"})
"""Blocks whose requests an include may protect."""


def is_harmless(pattern: str) -> bool:
    """Return whether a file's name shows that it contains no access rules."""
    return pattern.rpartition("/")[2] in _HARMLESS


def may_protect(item: Statement) -> bool:
    """Return whether a directive is an unread include that may contain access rules."""
    return bool(item.unread) and not all(map(is_harmless, item.args))


def unread(block: Iterable[Statement]) -> Iterator[Statement]:
    """Yield a block's unread includes, including those in files that it includes."""
    for item in block:
        if item.name == "include":
            if item.unread:
                yield item
            yield from unread(item.block)


def collect(context: NginxImport, http: Statement) -> None:
    """Find the blocks that an unread include may protect. `http` is the outermost block."""
    for item in walk(http.block):
        if not may_protect(item):
            continue
        block = context.draft.ledger.parent(item)
        while block is not None and block.name in _PARTS:
            block = context.draft.ledger.parent(block)
        if block is None or block.name in _BLOCKS:
            context.unread.setdefault(http if block is None else block, []).append(item)


def close(context: NginxImport) -> None:
    """Close the routes that an unread include may protect, except those that already reject all requests."""
    if not context.unread:
        return
    for path, origin in list(context.draft.origins.items()):
        if path[0] != "routes" or path in context.examined:
            continue
        context.examined.add(path)
        if not _refuses(context, path):
            for item in context.unread.get(origin, ()) if origin.name == "location" else ():
                context.draft.advise_prefix(context.draft.get((*path, "match")).get("path_prefix", "/"), item)
            for item in _around(context, origin):
                _close(context, path, item)


def _around(context: NginxImport, origin: Statement) -> Iterator[Statement]:
    """Yield the unread includes in a route's block and in the enclosing blocks."""
    block: Statement | None = origin
    while block is not None:
        yield from context.unread.get(block, ())
        if block is context.http.block:
            return
        block = context.draft.ledger.parent(block)
    yield from context.unread.get(context.http.block, ())


def _close(context: NginxImport, path: Path, item: Statement) -> None:
    why = "an include that was not read may protect this route"
    context.draft.ledger.omit(item, f"{why}: the route refuses all requests", path)
    context.draft.close(path, why, by_hand="auth")


def _refuses(context: NginxImport, path: Path) -> bool:
    """Return whether a route only returns an error or redirects to https, and has no comment with keys to open it."""
    respond = (context.draft.get(path) or {}).get("respond") or {}
    return path not in context.draft.closed and ("redirect" in respond or int(respond.get("status", 0)) >= 400)
