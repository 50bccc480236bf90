"""Converts ACLs and conditions to route matches.

A condition is a disjunction of conjunctions. Each ACL is converted to alternative matches, one per value. If an ACL
cannot be expressed as a match, the result is None, and the rule that uses it does not become a route.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod

from lbctl.importer.matching import Match, apart, merge
from lbctl.importer.statement import Statement

_HOST_FETCHES = {
    "hdr(host)",
    "req.hdr(host)",
    "hdr_dom(host)",
    "hdr_beg(host)",
    "req.hdr(Host)",
    "hdr(Host)",
    "ssl_fc_sni",
}
_HEADER = re.compile(r"(?:req\.)?f?hdr\(([A-Za-z0-9_-]+)\)")
_MAX_ALTERNATIVES = 64
"""Maximum number of alternatives in an `unless` condition. Longer conditions are treated as impossible to express."""
_MODEL = re.compile(r"req\.body,json_query\(['\"]?\$\.model['\"]?\)")


@dataclass(frozen=True, slots=True)
class Term:
    """One ACL in a condition."""

    tokens: tuple[str, ...]
    """Criterion, flags and values."""
    negated: bool
    """Whether the ACL is negated."""
    statements: tuple[Statement, ...] = ()
    """Lines that define the ACL."""


@dataclass(frozen=True, slots=True)
class Region:
    """The requests that may satisfy a conjunction."""

    includes: list[Match]
    """Every request is in one of these matches."""
    excludes: list[Match]
    """No request is in any of these matches."""
    exact: bool
    """Whether the conjunction holds for all of these requests. If not, it contains terms that cannot be expressed."""


@dataclass(frozen=True, slots=True)
class AclCondition:
    """A rule's condition."""

    terms: tuple[tuple[Term, ...], ...] = field(default=((),))
    """Alternatives of conjunctions. A conjunction without terms always holds."""

    @property
    def statements(self) -> tuple[Statement, ...]:
        """Lines of all its ACLs."""
        return tuple(dict.fromkeys(item for terms in self.terms for term in terms for item in term.statements))

    def matches(self) -> list[Match] | None:
        """Return the matches, one of which must hold, or None if the condition cannot be expressed."""
        merged_matches: list[Match] = []
        for terms in self.terms:
            alternatives = [None if term.negated else alternatives_of(term.tokens) for term in terms]
            if None in alternatives:
                return None
            for combination in product(*[item or [] for item in alternatives]):
                merged = merge(combination)
                if merged is not None:
                    merged_matches.append(merged)
                elif not apart(combination):
                    return None
        return merged_matches

    def regions(self) -> list[Region]:
        """Return the requests that may satisfy the condition, with one region per alternative."""
        return [_region(terms) for terms in self.terms]


def _region(terms: Sequence[Term]) -> Region:
    readable = [(term.negated, matches) for term in terms if (matches := alternatives_of(term.tokens)) is not None]
    joints = [(merge(each), each) for each in product(*[matches for negated, matches in readable if not negated])]
    includes = [match for match, _ in joints if match is not None]
    is_clear = all(match is not None or apart(each) for match, each in joints)
    excludes = [match for negated, matches in readable if negated for match in matches]
    return Region(includes if is_clear else [{}], excludes, is_clear and len(readable) == len(terms))


def condition(
    expression: Sequence[str], acls: Mapping[str, Sequence[Statement]], *, negated: bool = False
) -> AclCondition:
    """Parse the condition after `if`, or after `unless` (`negated`).

    A named ACL can be defined on several lines, one of which must hold.
    """
    read = _condition(expression, acls)
    return AclCondition(_complement(read)) if negated else read


def _complement(condition: AclCondition) -> tuple[tuple[Term, ...], ...]:
    """Return the alternatives for the negation of the condition, by De Morgan's laws."""
    if prod(map(len, condition.terms)) > _MAX_ALTERNATIVES:
        return ((Term(("too many alternatives",), negated=True, statements=condition.statements),),)
    opposites = [[Term(term.tokens, not term.negated, term.statements) for term in terms] for terms in condition.terms]
    return tuple(product(*opposites))


def _condition(expression: Sequence[str], acls: Mapping[str, Sequence[Statement]]) -> AclCondition:
    alternatives: list[list[Term]] = [[]]
    rest = list(expression)
    while rest:
        word = rest.pop(0)
        if word in {"or", "||"}:
            alternatives.append([])
            continue
        negated = word.startswith("!")
        word = word[1:] if negated else word
        if word == "" and rest:
            word = rest.pop(0)
        if word == "{":
            end = rest.index("}") if "}" in rest else len(rest)
            alternatives[-1].append(Term(tuple(rest[:end]), negated))
            del rest[: end + 1]
        else:
            lines = tuple(acls.get(word, ()))
            alternatives[-1].append(Term(_joined(word, lines), negated, lines))
    return AclCondition(tuple(map(tuple, alternatives)))


def _joined(name: str, lines: Sequence[Statement]) -> tuple[str, ...]:
    """Return an ACL's words, with the values of further lines that have the same criterion appended."""
    if not lines:
        return _PREDEFINED.get(name, (name,))
    first = lines[0].tokens[2:]
    same = [item.tokens[2:] for item in lines[1:] if item.tokens[2:3] == first[:1]]
    if len(same) != len(lines) - 1:
        return ("several criteria",)
    return (*first, *(word for item in same for word in item[1:] if not word.startswith("-")))


_PREDEFINED = {
    "TRUE": ("always_true",), "FALSE": ("always_false",), "METH_GET": ("method", "GET", "HEAD"),
    "METH_POST": ("method", "POST"), "METH_OPTIONS": ("method", "OPTIONS"), "LOCALHOST": ("src", "127.0.0.1/8"),
    "METH_PUT": ("method", "PUT"), "METH_DELETE": ("method", "DELETE"), "HTTP": ("always_true",),
}  # fmt: skip


def alternatives_of(test: Sequence[str]) -> list[Match] | None:
    """Return the matches for an ACL, one of which must hold, or None if the ACL cannot be expressed."""
    if not test:
        return None
    fetch, kind, values = split(test)
    if kind == "file":
        return None
    if fetch == "always_true":
        return [{}]
    if fetch in {"path", "path_beg", "path_reg", "path_end", "path_dir", "url_beg", "url", "path_sub"}:
        return _paths(fetch, kind, values)
    if fetch == "method":
        return [{"methods": list(values)}] if values else None
    if fetch.lower() in _HOST_FETCHES or fetch == "hdr_end(host)":
        return _hosts(fetch, kind, values)
    header = _HEADER.fullmatch(fetch)
    if header is not None and kind == "str":
        return [{"headers": {header[1].lower(): value}} for value in values] or None
    if _MODEL.fullmatch(fetch) and kind in {"str", "beg"}:
        return [{"model": [f"{value}*" if kind == "beg" else value for value in values]}]
    return None


def split(test: Sequence[str]) -> tuple[str, str, list[str]]:
    """Return an ACL's fetch, kind of comparison, and values."""
    fetch, kind, values = test[0], "str", list[str]()
    rest = list(test[1:])
    while rest:
        word = rest.pop(0)
        if word == "-m" and rest:
            kind = "file" if kind == "file" else rest[0]
            del rest[0]
        elif word == "-f":
            kind = "file"
        elif word == "--":
            values += rest
            break
        elif not (word.startswith("-") and len(word) == 2 and not values):
            values.append(word)
    return fetch, kind, values


def _paths(fetch: str, kind: str, values: Sequence[str]) -> list[Match] | None:
    kind = {"path_beg": "beg", "url_beg": "beg", "path_reg": "reg", "path_end": "end", "path_dir": "dir"}.get(
        fetch, kind
    )
    if kind == "str":
        return [{"path": value} for value in values]
    if kind == "beg":
        return [{"path_prefix": value} if value != "/" else {} for value in values]
    if kind == "end":
        return [{"path_regex": f".*{re.escape(value)}"} for value in values]
    if kind == "reg":
        return [{"path_regex": _whole(value)} for value in values]
    return None


def _whole(pattern: str) -> str:
    """Return an expression that matches the whole path. HAProxy's expression can match any part of it."""
    start = pattern[1:] if pattern.startswith("^") else f".*{pattern}"
    return start[:-1] if start.endswith("$") and not start.endswith("\\$") else f"{start}.*"


def _hosts(fetch: str, kind: str, values: Sequence[str]) -> list[Match] | None:
    if fetch == "hdr_end(host)" or kind == "end":
        return [{"hosts": [f"*{value}" if value.startswith(".") else f"*.{value}" for value in values]}]
    if kind != "str":
        return None
    return [{"hosts": [value.partition(":")[0].lower() for value in values]}]
