"""What a rule says of a request, and of another rule: whether it matches, which comes first, which takes from which.

The proxies do the matching; this says in advance what they will do with a request that was read as they read it
(`targets.<kind>.reading`). It refuses to read anything itself: no URL, no escape, no body.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from lbctl.ir.listeners import PathMatch, Rule

_PATH_RANK = {"exact": 0, "regex": 1, "prefix": 2}
_PLACES = ("host", "host", "path", "path", "method", "model", "model", "headers", "name", "name")
"""What each place of `order` is about."""
_META = re.compile(r"[\\.\[\](){}*+?|^$]")


@dataclass(frozen=True, slots=True)
class Request:
    """A request as a proxy compares it: `host` in lower case without port, `path` decoded as far as that proxy decodes
    it, without query, one character a byte; `headers` by lower-case name, each with the values of which one must be the
    wanted one; `model`: None where it names none."""

    method: str
    host: str
    path: str
    headers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Criterion:
    """One condition of a rule: `kind` is host, path, method, header or model; `name` is a header's."""

    kind: str
    wanted: str
    found: str | None
    holds: bool
    name: str = ""


def matches(rule: Rule, request: Request) -> bool:
    return all(item.holds for item in criteria(rule, request))


def criteria(rule: Rule, request: Request) -> Iterator[Criterion]:
    """Every condition that the rule has."""
    if rule.host:
        holds = host_covers(rule.host, request.host) and not request.host.startswith(".")
        yield Criterion("host", rule.host, request.host or None, holds)
    yield Criterion("path", shown(rule.path), request.path, _path(rule.path, request.path))
    if rule.methods:
        yield Criterion("method", "|".join(rule.methods), request.method, request.method in rule.methods)
    for name, wanted in rule.headers:
        found = request.headers.get(name, ())
        yield Criterion("header", wanted, ", ".join(found) if found else None, wanted in found, name)
    if rule.models:
        holds = request.model is not None and any(_named(item, request.model) for item in rule.models)
        yield Criterion("model", "|".join(rule.models), request.model, holds)


def shown(path: PathMatch) -> str:
    """`/v1`, `/v1/…` for a prefix, `~ /v[0-9]+` for an expression."""
    if path.kind == "prefix":
        return f"{path.value.rstrip('/')}/…"
    return f"~ {path.value}" if path.kind == "regex" else path.value


# ── Which comes first ────────────────────────────────────────────────────────────────────────────────────────────────


def order(rule: Rule) -> tuple[object, ...]:
    """Sorts the rules of one listener: the Gateway API's order, the most specific wins wherever it stands in the file.

    Host exact, longest wildcard, none; path exact, regex, longest prefix; with a method; with a model, exact before
    prefix; more headers; then the route's name. https://gateway-api.sigs.k8s.io/reference/spec/#httprouterule
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


def decided(first: Rule, second: Rule) -> str:
    """By what `first` comes before `second`: host, path, method, model, headers or name."""
    pairs = zip(order(first), order(second), _PLACES, strict=True)
    return next((place for one, other, place in pairs if one != other), "name")


def _host_order(host: str) -> tuple[int, int]:
    if not host:
        return 2, 0
    return (1, -len(host)) if host.startswith("*.") else (0, 0)


def _model_order(models: tuple[str, ...]) -> tuple[int, int]:
    if not models:
        return 2, 0
    longest = max(len(item) for item in models)
    return (1, -longest) if all(item.endswith("*") for item in models) else (0, 0)


# ── Of one request ───────────────────────────────────────────────────────────────────────────────────────────────────


def _path(wanted: PathMatch, path: str) -> bool:
    if wanted.kind == "exact":
        return path == wanted.value
    if wanted.kind == "regex":
        return _compiled(wanted.value).fullmatch(path) is not None
    return _within(wanted.value, path)


def _within(prefix: str, path: str) -> bool:
    bare = prefix.rstrip("/")
    return path == bare or path.startswith(f"{bare}/")


def _named(pattern: str, model: str) -> bool:
    return model.startswith(pattern[:-1]) if pattern.endswith("*") else model == pattern


@lru_cache(4096)
def _compiled(regex: str) -> re.Pattern[str]:
    return re.compile(regex, re.ASCII | re.DOTALL)


# ── Of two rules ─────────────────────────────────────────────────────────────────────────────────────────────────────


def covers(wide: Rule, narrow: Rule) -> bool:
    """Whether `wide` certainly matches every request that `narrow` matches. An expression covers what it can be seen
    to cover: the same one, and exact paths."""
    return (
        host_covers(wide.host, narrow.host)
        and _path_covers(wide.path, narrow.path)
        and (not wide.methods or (bool(narrow.methods) and set(narrow.methods) <= set(wide.methods)))
        and set(wide.headers) <= set(narrow.headers)
        and _models_cover(wide.models, narrow.models)
    )


def overlaps(one: Rule, other: Rule) -> bool:
    """Whether some request may match both."""
    return (
        (host_covers(one.host, other.host) or host_covers(other.host, one.host))
        and _paths_overlap(one.path, other.path)
        and (not one.methods or not other.methods or not set(one.methods).isdisjoint(other.methods))
        and all(dict(other.headers).get(name, value) == value for name, value in one.headers)
        and _models_overlap(one.models, other.models)
    )


def host_covers(pattern: str, host: str) -> bool:
    """`host` may be a pattern itself."""
    return not pattern or pattern == host or (pattern.startswith("*.") and host.endswith(pattern[1:]))


def _path_covers(wide: PathMatch, narrow: PathMatch) -> bool:
    if wide == narrow:
        return True
    if wide.kind == "prefix":
        if narrow.kind == "regex":
            bare = wide.value.rstrip("/")
            return not bare or _head(narrow.value).startswith(f"{bare}/")
        return _within(wide.value, narrow.value)
    return wide.kind == "regex" and narrow.kind == "exact" and _path(wide, narrow.value)


def _paths_overlap(one: PathMatch, other: PathMatch) -> bool:
    if _path_covers(one, other) or _path_covers(other, one):
        return True
    if "regex" not in (one.kind, other.kind) or "exact" in (one.kind, other.kind):
        return False
    first, second = _start(one), _start(other)
    return first.startswith(second) or second.startswith(first)


def _start(path: PathMatch) -> str:
    return _head(path.value) if path.kind == "regex" else path.value.rstrip("/")


def _head(regex: str) -> str:
    """What every match begins with, as far as it stands there letter by letter."""
    found = _META.search(regex)
    if found is None or "|" in regex:
        return "" if found else regex
    return regex[: found.start() - 1] if found[0] in "*?{" else regex[: found.start()]


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
