"""Which route a request belongs to: the listener's table as ACLs, in the order of the table, first match wins.

The path is matched decoded and with runs of slashes merged, as the replicas will read it; otherwise `/%61dmin` or
`//admin` would slip past a rule of `/admin` into a wider one. What is forwarded is the client's own path. A path with
dot segments has two readings and is answered 400.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from lbctl.ir.listeners import PathMatch, Rule
from lbctl.targets.haproxy import quote
from lbctl.targets.token import Token

_WORDS = 48
"""Values in one line; HAProxy takes 64 words."""


class Acls:
    """Named ACLs of one frontend; the same criterion gets one name. Values stand in `acl` lines alone, never between
    braces: there a value `}` would end the condition."""

    def __init__(self) -> None:
        self.lines: list[Token] = []
        self._names: dict[tuple[str, str, tuple[str, ...]], str] = {}

    def name(self, criterion: str, method: str, values: Sequence[str]) -> str:
        """The ACL that holds when the sample `criterion` equals (`-m method`) one of `values`."""
        key = (criterion, method, tuple(values))
        if key not in self._names:
            self._names[key] = found = f"m{len(self._names)}"
            self.lines.extend(_acl(found, *key))
        return self._names[key]


def equals(acls: Acls, criterion: str, value: str) -> str:
    """An empty word ends a line in HAProxy, so emptiness is compared by length."""
    return acls.name(criterion, "str", [value]) if value else acls.name(f"{criterion},length", "int", ["0"])


def rules(table: Iterable[Rule], acls: Acls) -> Iterator[Token]:
    """Lines that set txn.route."""
    for rule in table:
        conditions = list(_conditions(rule, acls))
        yield quote.line(
            f"http-request set-var(txn.route) str({quote.name(rule.route).text}) if !routed",
            *conditions,
            source=("routes", rule.route, "match"),
        )


def _acl(acl: str, criterion: str, method: str, values: tuple[str, ...]) -> Iterator[Token]:
    for start in range(0, len(values), _WORDS):
        some = [quote.word(value) for value in values[start : start + _WORDS]]
        yield quote.line("acl", acl, quote.word(criterion), "-m", method, "--", *some)


def _conditions(rule: Rule, acls: Acls) -> Iterator[str]:
    if rule.host:
        yield _host(rule.host.lower(), acls)
    yield from _path(rule.path, acls)
    if rule.methods:
        yield acls.name("method", "str", rule.methods)
    for header, value in rule.headers:
        yield equals(acls, quote.sample("req.fhdr", header), value)
    if rule.models:
        yield _model(rule.models, acls)


def _host(host: str, acls: Acls) -> str:
    if host.startswith("*."):
        return acls.name("var(txn.host)", "end", [host[1:]])
    return acls.name("var(txn.host)", "str", [host])


def _path(path: PathMatch, acls: Acls) -> Iterator[str]:
    if path.kind == "exact":
        yield acls.name("var(txn.path)", "str", [path.value])
    elif path.kind == "regex":
        yield acls.name("var(txn.path)", "reg", [rf"^(?s:{path.value})\z"])
    elif path.value.rstrip("/"):
        yield acls.name("var(txn.segments)", "beg", [path.value.rstrip("/") + "/"])


def _model(models: tuple[str, ...], acls: Acls) -> str:
    """Exact names and prefixes in one regex: the two would need an `or` within the `and` of the conditions."""
    alternatives = [re.escape(item[:-1]) + ".*" if item.endswith("*") else re.escape(item) for item in models]
    return acls.name("var(txn.model)", "reg", [rf"^(?:{'|'.join(alternatives)})\z"])
