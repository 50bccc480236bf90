"""A listener's table as a map: the first matching rule determines which location handles the request.

The map's source contains the values that rules compare, separated by line feeds: a digit for each header, regex and
model condition, the method, the host and the decoded path. Only the path itself can contain a line feed, and it is
last, so that no request can be mistaken for another. nginx tries a map's regular expressions in order, so the order of
the rules is preserved.

An expression of the fleet can exceed PCRE's limits on a long path. Exceeding a limit is neither a match nor a mismatch:
its digit is 2. If all other conditions of its rule are met, the response is 400, so that the request does not match a
later, wider rule.

nginx takes a request's model from the header x-model, or else from the query of a GET. nginx does not read bodies to
find the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from lbctl.base.diagnostics import Path
from lbctl.ir.listeners import Listener, Rule
from lbctl.targets import query_model
from lbctl.targets.nginx import names, quote
from lbctl.targets.nginx.local_replies import ERRORS
from lbctl.targets.nginx.render_context import RenderContext
from lbctl.targets.reading import by_model
from lbctl.targets.token import Token

MODEL_HEADER = "$http_x_model"
_MODEL_QUERY = "$lb_query_model"
NO_ROUTE = "lb_404"
_UNDECIDED = "lb_undecided"
_URI = "$uri"
_ANY = "[^\\n]+"
_ANY_FLAGS = re.compile(r"\.{5,}")
_GROUP = 100
"""Maximum number of condition variables in one value, because the source of a map is a single token and tokens are
short."""

Condition = tuple[str, tuple[str, ...], Path]
"""(source, regular expressions of which at least one must match, path in the YAML)."""


def table(context: RenderContext, listener: Listener, number: int, targets: dict[str, str]) -> str:
    """Add the listener's table. Return the variable that contains the location's name.

    `targets` maps a route to that name, which may contain variables.
    """
    rules = [(rule, conditions) for rule in listener.rules if (conditions := _conditions(context, rule)) is not None]
    order: dict[tuple[str, tuple[str, ...]], int] = {}
    for _, conditions in rules:
        for source, patterns, _path in conditions:
            order.setdefault((source, patterns), len(order))
    flags = [
        context.condition(source, patterns, _path_of(rules, source, patterns), may_give_up=source == _URI)
        for source, patterns in order
    ]
    entries = [entry for rule, conditions in rules for entry in _entries(rule, conditions, order, targets[rule.route])]
    source = f"{_joined_flags(context, flags, number)}\n$request_method\n$host\n$uri"
    _no_route(context, source, number, _but_model(rules, order))
    return context.map(source, f"$lb_l{number}_target", ((Token("default"), Token(NO_ROUTE)), *entries))


def no_route(number: int, listener: Listener) -> Token:
    """Return the body of the response to a request without a route: a variable if a rule has a model condition."""
    return Token(_reason(number)) if by_model(listener) else ERRORS["no_route"]


def model_in_query(context: RenderContext) -> str:
    """Return the variable that contains the model from the query of a GET, as it was sent.

    The variable is empty if the header is present.
    """
    if not context.has_map(_MODEL_QUERY):
        entries = ((Token("default"), Token('""')), (quote.plain("~^GET\\n\\z"), Token("$arg_model")))
        context.map(f"$request_method\n{MODEL_HEADER}", _MODEL_QUERY, entries)
    return _MODEL_QUERY


def _reason(number: int) -> str:
    return f"$lb_l{number}_no_route"


def _but_model(
    rules: Sequence[tuple[Rule, list[Condition]]], order: dict[tuple[str, tuple[str, ...]], int]
) -> Iterator[str]:
    """Yield the expressions of the rules with a model condition, without that condition."""
    for rule, conditions in rules:
        if rule.models:
            digits = ["."] * len(order)
            for source, patterns, _ in conditions:
                if not source.startswith(MODEL_HEADER):
                    digits[order[source, patterns]] = "1"
            yield _regex(rule, digits)


def _no_route(context: RenderContext, source: str, number: int, expressions: Iterable[str]) -> None:
    """Add the map for the response to a request without a route, if a rule has a model condition."""
    distinct = [item.removeprefix("~^") for item in dict.fromkeys(expressions)]
    if distinct:
        entries = [(quote.plain(f"~^\\n{item}"), ERRORS["no_model"]) for item in distinct]
        entries += [(quote.plain(f"~^[^\\n]+\\n{item}"), ERRORS["unknown_model"]) for item in distinct]
        named = f"{MODEL_HEADER}{model_in_query(context)}"
        context.map(f"{named}\n{source}", _reason(number), ((Token("default"), ERRORS["no_route"]), *entries))


def _path_of(rules: Sequence[tuple[Rule, list[Condition]]], source: str, patterns: tuple[str, ...]) -> Path:
    return next(
        path
        for _, conditions in rules
        for other_source, other_patterns, path in conditions
        if (other_source, other_patterns) == (source, patterns)
    )


def _conditions(context: RenderContext, rule: Rule) -> list[Condition] | None:
    """Return a rule's conditions other than host, method and path; None if nginx can never meet them."""
    match = ("routes", rule.route, "match")
    conditions: list[Condition] = []
    for name, value in rule.headers:
        source = names.header(name)
        if source is None:
            context.warn(
                "route.match",
                (*match, "headers", name),
                "nginx drops request headers with this name, so the route never matches",
            )
            return None
        conditions.append((source, (f"^{quote.literal(value)}\\z",), (*match, "headers", name)))
    if rule.models:
        message = (
            "nginx's core cannot read JSON: the model is read from the header x-model, or from the query of a GET "
            "request"
        )
        context.warn("route.match.model", (*match, "model"), message)
        patterns = tuple(pattern for name in rule.models for pattern in _models(name))
        conditions.append((f"{MODEL_HEADER}\n{model_in_query(context)}", patterns, (*match, "model")))
    if rule.path.kind == "regex":
        conditions.append((_URI, (quote.whole(rule.path.value),), (*match, "path_regex")))
    return conditions


def _models(name: str) -> Iterator[str]:
    """Yield the expressions for a model in the header, followed by a line feed, and in the query."""
    if name.endswith("*"):
        yield f"^{quote.literal(name[:-1])}"
        yield f"^\\n{query_model.expression(name[:-1])}"
    else:
        yield f"^{quote.literal(name)}\\n"
        yield f"^\\n{query_model.expression(name)}\\z"


def _joined_flags(context: RenderContext, flags: list[str], number: int) -> str:
    if len(flags) <= _GROUP:
        return "".join(flags)
    groups = [flags[i : i + _GROUP] for i in range(0, len(flags), _GROUP)]
    return "".join(
        context.map("", f"$lb_l{number}_flags{index}", ((Token("default"), quote.script("".join(group))),))
        for index, group in enumerate(groups)
    )


def _entries(
    rule: Rule, conditions: list[Condition], order: dict[tuple[str, tuple[str, ...]], int], target: str
) -> Iterator[tuple[Token, Token]]:
    """Yield the rule's entry and, if the rule has an expression, the entry for when it exceeded PCRE's limits."""
    path = ("routes", rule.route, "match")
    digits = ["."] * len(order)
    for source, patterns, _ in conditions:
        digits[order[source, patterns]] = "1"
    yield quote.plain(_regex(rule, digits), path), quote.script(target)
    for source, patterns, _ in conditions:
        if source == _URI:
            digits[order[source, patterns]] = "2"
            yield quote.plain(_regex(rule, digits), (*path, "path_regex")), Token(_UNDECIDED)


def _regex(rule: Rule, digits: list[str]) -> str:
    flags = _ANY_FLAGS.sub(lambda run: f".{{{len(run[0])}}}", "".join(digits))
    methods = "|".join(map(quote.literal, rule.methods)) if rule.methods else _ANY
    return f"~^{flags}\\n(?:{methods})\\n{_host(rule.host)}\\n{_path(rule)}"


def _host(host: str) -> str:
    """Return an expression for the host; `$host` is already in lower case."""
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
