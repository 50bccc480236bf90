"""Finds the route of a request: the listener's table as ACLs, in the order of the table. The first match wins.

Paths are matched in decoded form, as replicas will read them; otherwise `/a%3Ab` would bypass a rule for `/a:b` and
match a wider one. The client's original path is forwarded; ambiguous paths have already been rejected (`refusals`).

If an expression exceeds PCRE's limits, for example on a long path, HAProxy treats it as a mismatch. The request would
then match a later, wider rule. For this reason, each expression of the fleet becomes two ACLs: one is true only if it
matches, the other only if it does not. If neither is true, the result is unknown and the response is 400.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from lbctl.ir.listeners import Listener, PathMatch, Rule
from lbctl.targets.haproxy import models, quote
from lbctl.targets.token import Token

_UNDECIDED = quote.error("the path is too complex to match", "bad_request")
_HAS_PATH = "{ path -m found }"
"""Condition that is false for `OPTIONS *`, which no expression matches."""
_WORDS = 48
"""Maximum number of values in one line. HAProxy accepts 64 words."""


class Acls:
    """The named ACLs of one frontend. Equal criteria share a name.

    Values occur only in `acl` lines, never between braces, where a value `}` would end the condition.
    """

    def __init__(self) -> None:
        self.lines: list[Token] = []
        self._names: dict[tuple[str, str, tuple[str, ...]], str] = {}

    def name(self, criterion: str, method: str, values: Sequence[str]) -> str:
        """Return the ACL that is true if the sample `criterion` matches one of `values` (with `-m method`)."""
        key = (criterion, method, tuple(values))
        if key not in self._names:
            self._names[key] = acl = f"m{len(self._names)}"
            self.lines.extend(_acl(acl, *key))
        return self._names[key]


def equals(acls: Acls, criterion: str, value: str) -> str:
    """Return the ACL that tests for equality.

    An empty string is tested by length, because an empty word ends the line for HAProxy.
    """
    return acls.name(criterion, "str", [value]) if value else acls.name(f"{criterion},length", "int", ["0"])


def rules(listener: Listener, acls: Acls) -> Iterator[Token]:
    """Yield the lines that set txn.route, and reject requests on which an expression exceeded PCRE's limits.

    A request that may match a rule because of its model is also rejected if the part of the body that is read does not
    contain the model, since its route is then unknown. Requests that cannot match such a rule may have bodies of any
    length.
    """
    unread: set[tuple[str, ...]] = set()
    for rule in listener.rules:
        all_but_model = conditions_but_model(rule, acls) if rule.models else ()
        if rule.models and all_but_model not in unread:
            unread.add(all_but_model)
            yield from models.unread(listener, *all_but_model)
        conditions, source = list(_conditions(rule, acls)), ("routes", rule.route, "match")
        unrouted = "" if listener.rules == (Rule(rule.route),) else " if !routed"
        route = f"http-request set-var(txn.route) str({quote.name(rule.route).text}){unrouted}"
        if rule.clear_model:
            yield from models.refusals(*conditions_but_model(rule, acls))
        if rule.path.kind != "regex":
            yield quote.line(route, *conditions, source=source)
            continue
        matches, differs = _expression(rule.path.value, acls)
        yield quote.line(route, *conditions, matches, source=source)
        refuse = f"http-request return status 400 {_UNDECIDED} if !routed {_HAS_PATH}"
        yield quote.line(refuse, *conditions, f"!{differs}", source=(*source, "path_regex"))


def _acl(acl: str, criterion: str, method: str, values: tuple[str, ...]) -> Iterator[Token]:
    for start in range(0, len(values), _WORDS):
        chunk = [quote.word(value) for value in values[start : start + _WORDS]]
        yield quote.line("acl", acl, quote.word(criterion), "-m", method, "--", *chunk)


def _conditions(rule: Rule, acls: Acls) -> Iterator[str]:
    """Yield all conditions except the path expression, which is the most expensive and therefore comes last."""
    if rule.host:
        yield _host(rule.host.lower(), acls)
    yield from _path(rule.path, acls)
    if rule.methods:
        yield acls.name("method", "str", rule.methods)
    for header, value in rule.headers:
        yield equals(acls, quote.sample("req.fhdr", header), value)
    if rule.models:
        yield _model(rule.models, acls)


def conditions_but_model(rule: Rule, acls: Acls) -> tuple[str, ...]:
    """Return the conditions without the model condition.

    A path on which the expression exceeds PCRE's limits counts as a match.
    """
    conditions = tuple(_conditions(replace(rule, models=()), acls))
    if rule.path.kind == "regex":
        return (*conditions, _HAS_PATH, f"!{_expression(rule.path.value, acls)[1]}")
    return conditions


def _host(host: str, acls: Acls) -> str:
    if host.startswith("*."):
        return acls.name("var(txn.host)", "end", [host[1:]])
    return acls.name("var(txn.host)", "str", [host])


def _path(path: PathMatch, acls: Acls) -> Iterator[str]:
    if path.kind == "exact":
        yield acls.name("var(txn.path)", "str", [path.value])
    elif path.kind == "prefix" and path.value.rstrip("/"):
        yield acls.name("var(txn.segments)", "beg", [path.value.rstrip("/") + "/"])


def _expression(pattern: str, acls: Acls) -> tuple[str, str]:
    """Return two ACLs: one is true if the path certainly matches, the other if it certainly does not."""
    whole = rf"(?s:{pattern})\z"
    matches, differs = (acls.name("var(txn.path)", "reg", [regex]) for regex in (f"^{whole}", f"^(?!{whole})"))
    return matches, differs


def _model(models: tuple[str, ...], acls: Acls) -> str:
    """Return the ACL for exact model names and prefixes.

    Names and prefixes are in one expression, because separate expressions would need an `or` inside the `and` of the
    conditions. The part after a prefix may contain line feeds, because JSON can escape them.
    """
    alternatives = [re.escape(item[:-1]) + ".*" if item.endswith("*") else re.escape(item) for item in models]
    return acls.name("var(txn.model)", "reg", [rf"^(?s:{'|'.join(alternatives)})\z"])
