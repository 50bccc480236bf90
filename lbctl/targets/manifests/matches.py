"""The matches of HTTPRoute rules: derived from lbctl's rules, and as trees."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lbctl.ir.listeners import Rule
from lbctl.ir.routes import Pin
from lbctl.targets.manifests.objects import Tree
from lbctl.targets.manifests.precedence import HeaderMatch, Match, conjunction, with_header
from lbctl.targets.reading import MODEL_HEADER

METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"))
"""Methods of the API."""
_PATH_TYPES = {"exact": "Exact", "prefix": "PathPrefix", "regex": "RegularExpression"}
_SPECIAL = re.compile(r"([\\.+*?()|\[\]{}^$])")


def matches_of(rule: Rule) -> tuple[Match, ...]:
    """Return a rule's matches for any host: one for each method and model.

    All matches have the same path and headers.
    """
    headers = tuple((name, HeaderMatch("exact", value)) for name, value in rule.headers)
    matches = [Match(rule.path, method, headers) for method in rule.methods or ("",)]
    if not rule.models:
        return tuple(matches)
    by_model = (with_header(match, MODEL_HEADER, _model(model)) for match in matches for model in rule.models)
    return tuple(match for match in by_model if match is not None)


def _model(pattern: str) -> HeaderMatch:
    return HeaderMatch("prefix", pattern[:-1]) if pattern.endswith("*") else HeaderMatch("exact", pattern)


def with_pin(match: Match, pin: Pin) -> Match | None:
    """Return the match for the requests that a pin selects; None if there are none. Raises InexpressibleError."""
    if pin.kind == "header":
        return with_header(match, pin.name, HeaderMatch("exact", pin.value))
    pair = _escaped(f"{pin.name}={pin.value}")
    return with_header(match, "cookie", HeaderMatch("regex", rf"(.*;\s*)?{pair}(\s*;.*)?"))


def with_method(match: Match, method: str) -> Match | None:
    """Return the match for requests with this method; None if there are none."""
    return conjunction(match, Match(match.path, method))


def tree_of(match: Match) -> Tree:
    """Return a match as part of an HTTPRoute."""
    tree: Tree = {"path": {"type": _PATH_TYPES[match.path.kind], "value": match.path.value}}
    if match.method:
        tree["method"] = match.method
    if match.headers:
        tree["headers"] = list(_header_trees(match))
    return tree


def _header_trees(match: Match) -> Iterator[Tree]:
    for name, condition in match.headers:
        if condition.kind == "exact":
            yield {"name": name, "value": condition.value}
        else:
            value = condition.value if condition.kind == "regex" else f"{_escaped(condition.value)}.*"
            yield {"name": name, "type": "RegularExpression", "value": value}


def _escaped(text: str) -> str:
    """Return a regular expression (RE2) that matches only this text."""
    return _SPECIAL.sub(r"\\\1", text)
