"""The headers that a route sets, with their variables as HAProxy's expressions."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from lbctl.base.diagnostics import Path
from lbctl.ir.header_text import HeaderPart, Variable, may_be_empty, parts
from lbctl.ir.listeners import Listener
from lbctl.ir.routes import HeaderRules, Route
from lbctl.targets.haproxy import quote
from lbctl.targets.haproxy.quote import line
from lbctl.targets.token import Token

_EXPRESSIONS: Mapping[Variable, str] = {
    "client_ip": "%[src]",
    "request_id": "%[var(txn.request_id)]",
    "tenant": "%[var(txn.tenant)]",
    "host": "%[var(txn.authority)]",
    "pool": "%[var(txn.pool)]",
}
"""The variables whose value depends on the request."""


def lines(
    action: str,
    route: Route,
    listener: Listener,
    rules: HeaderRules,
    condition: str,
    source: Path,
    added: Container[str] = (),
) -> Iterator[Token]:
    """Yield the lines by which `action` (http-request, http-after-response) sets the headers of these rules.

    A header of `added` replaces none of the same name.
    """
    for name, text in rules.set:
        value = quote.word("".join(_written(part, route, listener) for part in parts(text)))
        has_tenant = ""
        if may_be_empty(text):
            if name not in added:
                yield line(f"{action} del-header", quote.word(name), condition, source=source)
            has_tenant = "{ var(txn.tenant) -m len gt 0 }"
        verb = "add-header" if name in added else "set-header"
        yield line(f"{action} {verb}", quote.word(name), value, condition, has_tenant, source=source)


def _written(part: HeaderPart, route: Route, listener: Listener) -> str:
    constants = {"listener": listener.name, "route": route.name}
    if part.variable is None:
        return part.text.replace("%", "%%")
    return _EXPRESSIONS.get(part.variable) or quote.name(constants[part.variable]).text
