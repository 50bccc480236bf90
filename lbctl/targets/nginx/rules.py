"""A listener's table as one map: the first rule that matches says which location handles the request.

The map's source is what the rules look at: a digit for each header, regex and model condition, the method, the host and
the decoded path, with line feeds between. Only the path can hold a line feed itself, and it stands last: no request can
be read as another. nginx tries a map's regular expressions in their order, so the order of the rules holds exactly.

An expression of the fleet can give up on a long path (PCRE's limits). That is neither a match nor none: its digit is 2,
and where all else that its rule asks for holds, the answer is 400 instead of a later, wider rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from lbctl.base.diagnostics import Path
from lbctl.ir.listeners import Listener, Rule
from lbctl.targets.nginx import names, quote
from lbctl.targets.nginx.render_context import RenderContext
from lbctl.targets.token import Token

NOWHERE = "lb_404"
_UNDECIDED = "lb_undecided"
_URI = "$uri"
_ANY = "[^\\n]+"
_ANY_FLAGS = re.compile(r"\.{5,}")
_GROUP = 100
"""Condition variables that are put together in one value: the source of a map is one token, and those are short."""

Condition = tuple[str, tuple[str, ...], Path]
"""(source, regexes of which one must match, path in the YAML)"""


def table(book: RenderContext, listener: Listener, number: int, targets: dict[str, str]) -> str:
    """The variable with the name of the location; `targets` is route → that name, which may hold variables."""
    rules = [(rule, asked) for rule in listener.rules if (asked := _conditions(book, rule)) is not None]
    order: dict[tuple[str, tuple[str, ...]], int] = {}
    for _, asked in rules:
        for source, patterns, _path in asked:
            order.setdefault((source, patterns), len(order))
    flags = [
        book.condition(source, patterns, _path_of(rules, source, patterns), may_give_up=source == _URI)
        for source, patterns in order
    ]
    entries = [entry for rule, asked in rules for entry in _entries(rule, asked, order, targets[rule.route])]
    source = f"{_together(book, flags, number)}\n$request_method\n$host\n$uri"
    return book.map(source, f"$lb_l{number}_target", ((Token("default"), Token(NOWHERE)), *entries))


def _path_of(rules: Sequence[tuple[Rule, list[Condition]]], source: str, patterns: tuple[str, ...]) -> Path:
    return next(path for _, asked in rules for s, p, path in asked if (s, p) == (source, patterns))


def _conditions(book: RenderContext, rule: Rule) -> list[Condition] | None:
    """What a rule asks beyond host, method and path; None if nginx can never see it hold."""
    match = ("routes", rule.route, "match")
    asked: list[Condition] = []
    for name, wanted in rule.headers:
        source = names.header(name)
        if source is None:
            book.warn("route.match", (*match, "headers", name), "nginx drops request headers of that name: no match")
            return None
        asked.append((source, (f"^{quote.literal(wanted)}\\z",), (*match, "headers", name)))
    if rule.models:
        message = "nginx's core reads no JSON: a request's model is taken from the header x-model alone"
        book.warn("route.match.model", (*match, "model"), message)
        asked.append(("$http_x_model", tuple(map(_model, rule.models)), (*match, "model")))
    if rule.path.kind == "regex":
        asked.append((_URI, (quote.whole(rule.path.value),), (*match, "path_regex")))
    return asked


def _model(name: str) -> str:
    return f"^{quote.literal(name[:-1])}" if name.endswith("*") else f"^{quote.literal(name)}\\z"


def _together(book: RenderContext, flags: list[str], number: int) -> str:
    if len(flags) <= _GROUP:
        return "".join(flags)
    groups = [flags[i : i + _GROUP] for i in range(0, len(flags), _GROUP)]
    return "".join(
        book.map("", f"$lb_l{number}_flags{index}", ((Token("default"), quote.script("".join(group))),))
        for index, group in enumerate(groups)
    )


def _entries(
    rule: Rule, asked: list[Condition], order: dict[tuple[str, tuple[str, ...]], int], target: str
) -> Iterator[tuple[Token, Token]]:
    """The rule's entry, and with an expression the one for where that gave up."""
    path = ("routes", rule.route, "match")
    digits = ["."] * len(order)
    for source, patterns, _ in asked:
        digits[order[source, patterns]] = "1"
    yield quote.plain(_regex(rule, digits), path), quote.script(target)
    for source, patterns, _ in asked:
        if source == _URI:
            digits[order[source, patterns]] = "2"
            yield quote.plain(_regex(rule, digits), (*path, "path_regex")), Token(_UNDECIDED)


def _regex(rule: Rule, digits: list[str]) -> str:
    flags = _ANY_FLAGS.sub(lambda run: f".{{{len(run[0])}}}", "".join(digits))
    methods = "|".join(map(quote.literal, rule.methods)) if rule.methods else _ANY
    return f"~^{flags}\\n(?:{methods})\\n{_host(rule.host)}\\n{_path(rule)}"


def _host(host: str) -> str:
    """`$host` is in lower case already."""
    if not host:
        return "[^\\n]*"
    if host.startswith("*."):
        return f"{_ANY}{quote.literal(host[1:].lower())}"
    return quote.literal(host.lower())


def _path(rule: Rule) -> str:
    if rule.path.kind == "regex":
        return ""
    if rule.path.kind == "exact":
        return f"{quote.literal(rule.path.value)}\\z"
    return f"{quote.literal(rule.path.value.rstrip('/'))}(?:/|\\z)"
