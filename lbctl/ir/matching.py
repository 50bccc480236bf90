"""Matches rules against requests and against each other, to determine matches, precedence and coverage.

Requests are actually matched by the proxies. This module predicts their result for a request in the form in which they
read it (`targets.<kind>.reading`). It does not parse URLs, escapes or bodies itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from lbctl.ir.listeners import PathMatch, Rule
from lbctl.ir.secrets import shown_value

_PATH_RANK = {"exact": 0, "regex": 1, "prefix": 2}
_ORDER_CRITERIA = ("host", "host", "path", "path", "method", "model", "model", "headers", "name", "name")
"""The criterion of each element of `order`."""
_META = re.compile(r"[\\.\[\](){}*+?|^$]")


@dataclass(frozen=True, slots=True)
class Request:
    """A request in the form in which a proxy compares it."""

    method: str
    """The method, in upper case."""
    host: str
    """The host, in lower case and without the port."""
    path: str
    """The path, decoded as far as the proxy decodes it, without the query and with one character per byte."""
    headers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Maps the lowercase name of each header to its values, one of which must equal a rule's value."""
    model: str | None = None
    """The model, or None if the request does not name one."""
    unclear: tuple[int, str] | None = None
    """Status and message of the response if the request is rejected by a rule with `clear_model`."""
    unread: tuple[int, str] | None = None
    """Status and message of the response if the request is rejected by a rule with models because the proxy cannot read
    its model."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """One condition of a rule, evaluated for a request."""

    kind: str
    """host, path, method, header or model."""
    wanted: str
    """Value required by the rule."""
    actual: str | None
    """Value in the request, or None if it is missing."""
    holds: bool
    name: str = ""
    """The header's name, for a condition of the kind header."""


def matches(rule: Rule, request: Request) -> bool:
    """Whether the request meets all of the rule's conditions."""
    return all(criterion.holds for criterion in criteria(rule, request))


def refusal(rule: Rule, request: Request) -> tuple[int, str] | None:
    """Return the status and message if the rule rejects the request because of its model, or None otherwise."""
    reason = request.unread if rule.models and request.unread else request.unclear if rule.clear_model else None
    return reason if reason and matches(replace(rule, models=()), request) else None


def criteria(rule: Rule, request: Request) -> Iterator[Criterion]:
    """Evaluate every condition in the rule."""
    if rule.host:
        holds = host_covers(rule.host, request.host) and not request.host.startswith(".")
        yield Criterion("host", rule.host, request.host or None, holds)
    yield Criterion("path", path_text(rule.path), request.path, _path(rule.path, request.path))
    if rule.methods:
        yield Criterion("method", "|".join(rule.methods), request.method, request.method in rule.methods)
    for name, wanted in rule.headers:
        values = request.headers.get(name, ())
        actual = ", ".join(shown_value(name, value) for value in values) if values else None
        yield Criterion("header", shown_value(name, wanted), actual, wanted in values, name)
    if rule.models:
        holds = request.model is not None and any(model_matches(model, request.model) for model in rule.models)
        yield Criterion("model", "|".join(rule.models), request.model, holds)


def path_text(path: PathMatch) -> str:
    """Format a path condition as `/v1`, as `/v1/…` for a prefix, or as `~ /v[0-9]+` for an expression."""
    if path.kind == "prefix":
        return f"{path.value.rstrip('/')}/…"
    return f"~ {path.value}" if path.kind == "regex" else path.value


# ── Precedence ───────────────────────────────────────────────────────────────────────────────────────────────────────


def order(rule: Rule) -> tuple[object, ...]:
    """Return the sort key for a listener's rules, which follows the Gateway API: the most specific rule wins.

    The order is: host (exact, then longest wildcard, then none); path (exact, then regex, then longest prefix); with a
    method; with a model (exact before prefix); more headers; then the route's name.
    https://gateway-api.sigs.k8s.io/reference/spec/#httprouterule
    """
    return (
        *_host_order(rule.host),
        _PATH_RANK[rule.path.kind],
        -len(rule.path.value) if rule.path.kind == "prefix" else 0,
        0 if rule.methods else 1,
        *_model_order(rule.models),
        -len(rule.headers),
        rule.route,
        rule.host,
    )


def deciding_criterion(first: Rule, second: Rule) -> str:
    """Return the criterion that puts `first` ahead of `second`: host, path, method, model, headers or name."""
    pairs = zip(order(first), order(second), _ORDER_CRITERIA, strict=True)
    return next((criterion for left, right, criterion in pairs if left != right), "name")


def _host_order(host: str) -> tuple[int, int]:
    if not host:
        return 2, 0
    return (1, -len(host)) if host.startswith("*.") else (0, 0)


def _model_order(models: tuple[str, ...]) -> tuple[int, int]:
    if not models:
        return 2, 0
    longest = max(len(model) for model in models)
    return (1, -longest) if all(model.endswith("*") for model in models) else (0, 0)


# ── One request ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _path(wanted: PathMatch, path: str) -> bool:
    if wanted.kind == "exact":
        return path == wanted.value
    if wanted.kind == "regex":
        return _compiled(wanted.value).fullmatch(path) is not None
    return _within(wanted.value, path)


def _within(prefix: str, path: str) -> bool:
    bare = prefix.rstrip("/")
    return path == bare or path.startswith(f"{bare}/")


def model_matches(pattern: str, model: str) -> bool:
    """Return whether a model pattern (a name, or a prefix with a trailing `*`) matches the model in a request."""
    return model.startswith(pattern[:-1]) if pattern.endswith("*") else model == pattern


@lru_cache(4096)
def _compiled(regex: str) -> re.Pattern[str]:
    return re.compile(regex, re.ASCII | re.DOTALL)


# ── Two rules ────────────────────────────────────────────────────────────────────────────────────────────────────────


def covers(wide: Rule, narrow: Rule) -> bool:
    """Return whether `wide` is certain to match every request that `narrow` matches.

    A regular expression is known to cover only itself and the exact paths that it matches.
    """
    return (
        host_covers(wide.host, narrow.host)
        and _path_covers(wide.path, narrow.path)
        and (not wide.methods or (bool(narrow.methods) and set(narrow.methods) <= set(wide.methods)))
        and set(wide.headers) <= set(narrow.headers)
        and _models_cover(wide.models, narrow.models)
    )


def overlaps(one: Rule, other: Rule) -> bool:
    """Return whether some request could match both rules."""
    return (
        (host_covers(one.host, other.host) or host_covers(other.host, one.host))
        and _paths_overlap(one.path, other.path)
        and (not one.methods or not other.methods or not set(one.methods).isdisjoint(other.methods))
        and all(dict(other.headers).get(name, value) == value for name, value in one.headers)
        and _models_overlap(one.models, other.models)
    )


def host_covers(pattern: str, host: str) -> bool:
    """Return whether `pattern` matches every host that `host`, which can also be a pattern, matches."""
    return not pattern or pattern == host or (pattern.startswith("*.") and host.endswith(pattern[1:]))


def _path_covers(wide: PathMatch, narrow: PathMatch) -> bool:
    if wide == narrow:
        return True
    if wide.kind == "prefix":
        if narrow.kind == "regex":
            bare = wide.value.rstrip("/")
            return not bare or _literal_head(narrow.value).startswith(f"{bare}/")
        return _within(wide.value, narrow.value)
    return wide.kind == "regex" and narrow.kind == "exact" and _path(wide, narrow.value)


def _paths_overlap(one: PathMatch, other: PathMatch) -> bool:
    if _path_covers(one, other) or _path_covers(other, one):
        return True
    if "regex" not in (one.kind, other.kind) or "exact" in (one.kind, other.kind):
        return False
    first, second = _literal_path(one), _literal_path(other)
    return first.startswith(second) or second.startswith(first)


def _literal_path(path: PathMatch) -> str:
    return _literal_head(path.value) if path.kind == "regex" else path.value.rstrip("/")


def _literal_head(regex: str) -> str:
    """Return the literal prefix common to every match of the expression."""
    match = _META.search(regex)
    if match is None or _has_alternatives(regex):
        return "" if match else regex
    return regex[: match.start() - 1] if match[0] in "*?{" else regex[: match.start()]


def _has_alternatives(regex: str) -> bool:
    """Return whether the whole expression could consist of alternatives: it has a `|` outside groups and classes."""
    depth, in_class, escaped = 0, False, False
    for char in regex:
        if escaped or char == "\\":
            escaped = not escaped
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "|" and depth <= 0:
            return True
    return False


def _models_cover(wide: tuple[str, ...], narrow: tuple[str, ...]) -> bool:
    return not wide or (bool(narrow) and all(any(_model_covers(a, b) for a in wide) for b in narrow))


def _models_overlap(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    if not one or not other:
        return True
    return any(_model_covers(a, b) or _model_covers(b, a) for a in one for b in other)


def _model_covers(wide: str, narrow: str) -> bool:
    if wide.endswith("*"):
        return narrow.removesuffix("*").startswith(wide[:-1])
    return wide == narrow
