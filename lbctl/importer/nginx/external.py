"""Converts `auth_request`, an external service that authorizes each of a location's requests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from lbctl.base.diagnostics import Path
from lbctl.importer import credentials
from lbctl.importer.nginx import values
from lbctl.importer.nginx.context import NginxImport, Scope, flat
from lbctl.importer.nginx.match import path_of
from lbctl.importer.statement import Statement

_GIVEN = re.compile(r"\$\{?upstream_http_(\w+)\}?")
_IMPLIED = {"content-length", "x-original-uri", "x-original-method", "x-forwarded-for", "x-real-ip", "host"}


def protect(context: NginxImport, route: Path, scope: Scope) -> None:
    """Convert a location's `auth_request`. If its service cannot be queried, the route is closed."""
    item = scope.last("auth_request")
    if item is None or not item.args or item.args == ("off",):
        context.draft.ledger.imply("the route turns this protection off", *filter(None, (item,)))
        return
    block = next((each for each in _locations(scope.server.block) if _is_at(each, item.args[0])), None)
    passing = next(flat(block, "proxy_pass"), None) if block is not None else None
    url = _url(context, passing, item.args[0]) if passing is not None else None
    if block is None or passing is None or url is None:
        why = "`auth.external` needs a service with an IP address, but this directive does not specify one"
        context.draft.ledger.omit(item, f"{why}: the route refuses all requests", route)
        context.draft.close(route, why, by_hand="auth")
        return
    external: dict[str, Any] = {"url": url, "send": list(dict.fromkeys([*credentials.SENT, *_sent(context, block)]))}
    timeout = next(flat(block, "proxy_read_timeout"), None)
    if timeout is not None and (limit := values.time("".join(timeout.args[:1]))):
        external["timeout"] = limit
    accepted = list(_accepted(context, route, scope))
    if accepted:
        external["accept"] = list(dict.fromkeys(name for name, _ in accepted))
    statements = [each for _, pair in accepted for each in pair]
    credentials.service(
        context.draft, route, external, item, block, passing, *statements, *([timeout] if timeout else [])
    )
    context.draft.ledger.imply("clients cannot request this location", *flat(block, "internal"))


def _locations(block: Statement) -> Iterator[Statement]:
    for inner in flat(block, "location"):
        yield inner
        yield from _locations(inner)


def _is_at(location: Statement, path: str) -> bool:
    return path_of(location) in ({"path": path}, {"path_prefix": path})


def _url(context: NginxImport, passing: Statement, path: str) -> str | None:
    """Return the service's URL, which is the URL in `proxy_pass` or, for an upstream, its first server."""
    match = re.fullmatch(r"http://([^/$]+)(/[^$]*)?(?:\$.*)?", "".join(passing.args[:1]))
    if match is None:
        return None
    authority = match[1]
    upstream = next((item for item in flat(context.http.block, "upstream") if item.args == (authority,)), None)
    if upstream is not None:
        authority = next((item.args[0] for item in flat(upstream, "server") if item.args), "")
    host, _, port = (values.address(authority) or "").rpartition(":")
    return credentials.url(host, port, path if match[2] is None else match[2])


def _sent(context: NginxImport, block: Statement) -> Iterator[str]:
    """Yield the headers that the service receives in addition to the usual headers."""
    ledger = context.draft.ledger
    for item in flat(block, "proxy_set_header"):
        name = item.args[0].lower() if item.args else ""
        header = values.header_of(item.args[1]) if len(item.args) > 1 else None
        if name in _IMPLIED:
            ledger.imply("lbctl sets this header itself", item)
        elif header == name:
            ledger.imply("the service receives the headers in `auth.external.send`", item)
            yield name
    ledger.imply("lbctl does not send the body to the service", *flat(block, "proxy_pass_request_body"))


def is_given(scope: Scope, variable: str) -> bool:
    """Return whether a variable contains a header from the service's response."""
    return any(item.args[:1] == (variable,) for item in scope.all("auth_request_set"))


def _accepted(context: NginxImport, route: Path, scope: Scope) -> Iterator[tuple[str, tuple[Statement, Statement]]]:
    """Yield the headers in the service's response that the replica receives under the same name."""
    given = {
        item.args[0]: (match[1].replace("_", "-"), item)
        for item in scope.all("auth_request_set")
        if len(item.args) > 1 and (match := _GIVEN.fullmatch(item.args[1])) is not None
    }
    for item in scope.all("proxy_set_header"):
        if len(item.args) < 2 or item.args[1] not in given:
            continue
        header, setting = given[item.args[1]]
        if item.args[0].lower() == header:
            yield header, (setting, item)
        else:
            reason = "lbctl cannot rename the service's response headers: replicas receive the original header names"
            context.draft.ledger.omit(item, reason, route)
