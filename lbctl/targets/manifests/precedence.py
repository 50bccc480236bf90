"""Matches of HTTPRoute rules that select the same rule as lbctl despite the Gateway API's own precedence.

lbctl compares a listener's rules in order, and the first matching rule wins. In the Gateway API, the most specific
*match* wins: exact before prefix, the longer prefix, a method, the number of headers. The order of the rules only
decides between equally specific matches. Envoy Gateway counts the method as a header, and prefers exact values to
expressions.

If a later rule would win although an earlier rule also matches, the earlier rule gets an additional match that combines
the conditions of both. The additional match is at least as specific as the later rule's match, and matches only
requests that meet both conditions. The procedure is repeated until both orders agree. A match that an earlier rule
covers is never needed and is left out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from lbctl.ir.listeners import PathMatch, Rule
from lbctl.ir.matching import covers, overlaps

MAX_ADDED = 1000
"""Maximum number of additional matches for one host, which limits the time needed to find them."""
_PATH_RANK = {"exact": 0, "regex": 1, "prefix": 2}


@dataclass(frozen=True, slots=True)
class HeaderMatch:
    """A condition on a header's value."""

    kind: Literal["exact", "prefix", "regex"]
    value: str
    """A regex is RE2 and matches the whole value."""


@dataclass(frozen=True, slots=True)
class Match:
    """Conditions that a request must all meet."""

    path: PathMatch
    method: str = ""
    """Empty: any method."""
    headers: tuple[tuple[str, HeaderMatch], ...] = ()
    """(lowercase name, condition) pairs, sorted by name. Each name occurs once."""


class InexpressibleError(Exception):
    """The conditions of these two matches cannot be combined in one match."""

    def __init__(self, first: Match, second: Match) -> None:
        super().__init__(first, second)
        self.first, self.second = first, second


class TooManyMatchesError(Exception):
    """The rules need more than `MAX_ADDED` additional matches."""


class Conflict(Exception):  # noqa: N818 -- it names the two rules
    """Requests that match both rules would go to the later rule, and no match can prevent that."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(first, second)
        self.first, self.second = first, second
        """Indexes of the two rules."""


def closed(rules: Sequence[Sequence[Match]]) -> list[list[Match]]:
    """Return the matches of each rule, chosen so that the first matching rule always wins.

    The order of the rules decides between equally specific matches. Raises Conflict, or TooManyMatchesError if the
    rules overlap in too many ways.
    """
    table = _Table({match.path for matches in rules for match in matches})
    for index, matches in enumerate(rules):
        for match in matches:
            if not any(match_covers(wide.match, match) for wide in table.near(match)):
                table.add(match, index)
    count, added = len(table.entries), list(table.entries)
    while added:
        fresh: dict[tuple[Match, int], None] = {}
        for earlier, later in _conflicts(table, added):
            both = _conjunction(earlier, later)
            if both is not None and not _is_decided(table, both, earlier.rule):
                fresh[both, earlier.rule] = None
        added = [table.add(match, index) for match, index in fresh]
        if len(table.entries) - count > MAX_ADDED:
            raise TooManyMatchesError
    result: list[list[Match]] = [[] for _ in rules]
    for entry in table.entries:
        result[entry.rule].append(entry.match)
    return result


@dataclass(frozen=True, slots=True)
class _Entry:
    """A match of a rule, with its sort keys."""

    match: Match
    rule: int
    api: tuple[int, ...]
    envoy_gateway: tuple[int, ...]

    def wins(self, other: _Entry) -> bool:
        """Return whether it takes precedence over `other` in the Gateway API or in Envoy Gateway."""
        return self.api < other.api or self.envoy_gateway < other.envoy_gateway


class _Table:
    """The matches of all rules. A conjunction has the path of one of its two matches, so all paths are known."""

    def __init__(self, paths: Collection[PathMatch]) -> None:
        self._near = {path: [other for other in paths if _may_meet(path, other)] for path in paths}
        self._by_path: dict[PathMatch, list[_Entry]] = {path: [] for path in paths}
        self.entries: list[_Entry] = []

    def add(self, match: Match, rule: int) -> _Entry:
        """Add a match of a rule."""
        entry = _Entry(match, rule, api_order(match), _envoy_gateway_order(match))
        self.entries.append(entry)
        self._by_path[match.path].append(entry)
        return entry

    def near(self, match: Match) -> Iterator[_Entry]:
        """Yield the entries whose path may match the same requests as the path of `match`."""
        return (entry for path in self._near[match.path] for entry in self._by_path[path])


def _may_meet(one: PathMatch, other: PathMatch) -> bool:
    """Return false only if no request matches both paths."""
    if "regex" in (one.kind, other.kind):
        return True
    first, second = one.value.rstrip("/"), other.value.rstrip("/")
    return first.startswith(second) or second.startswith(first)


def _conflicts(table: _Table, added: Sequence[_Entry]) -> Iterator[tuple[_Entry, _Entry]]:
    """Yield each pair (earlier, later), including an entry in `added`, for which the later rule's match would win."""
    for entry in added:
        for other in table.near(entry.match):
            if entry.rule < other.rule and other.wins(entry):
                yield entry, other
            elif other.rule < entry.rule and entry.wins(other):
                yield other, entry


def _conjunction(earlier: _Entry, later: _Entry) -> Match | None:
    try:
        return conjunction(earlier.match, later.match)
    except InexpressibleError:
        raise Conflict(earlier.rule, later.rule) from None


def _is_decided(table: _Table, match: Match, rule: int) -> bool:
    """Return whether `match` is not needed for a rule.

    This is the case if an earlier rule covers it, or if an equally specific match of the same rule does.
    """
    entry = _Entry(match, rule, api_order(match), _envoy_gateway_order(match))
    return any(
        other.rule <= rule and match_covers(other.match, match) and (other.rule < rule or not entry.wins(other))
        for other in table.near(match)
    )


def api_order(match: Match) -> tuple[int, ...]:
    """Return the sort key of a match; the smallest key takes precedence.

    https://gateway-api.sigs.k8s.io/reference/spec/#httprouterule. The API leaves the rank of a regular expression to
    the implementation; lbctl and Envoy Gateway place it between exact paths and prefixes.
    """
    return (*_path_order(match.path), 0 if match.method else 1, -len(match.headers))


def _envoy_gateway_order(match: Match) -> tuple[int, ...]:
    method = 1 if match.method else 0
    exact = sum(condition.kind == "exact" for _, condition in match.headers)
    return (*_path_order(match.path), -len(match.headers) - method, -exact - method)


def _path_order(path: PathMatch) -> tuple[int, int]:
    return _PATH_RANK[path.kind], -len(path.value) if path.kind == "prefix" else 0


# ── Two matches ──────────────────────────────────────────────────────────────────────────────────────────────────────


def match_covers(wide: Match, narrow: Match) -> bool:
    """Return whether `wide` certainly matches every request that `narrow` matches."""
    headers = dict(narrow.headers)
    return (
        (not wide.method or wide.method == narrow.method)
        and _path_covers(wide.path, narrow.path)
        and all(name in headers and _header_covers(condition, headers[name]) for name, condition in wide.headers)
    )


@lru_cache(4096)
def _path_covers(wide: PathMatch, narrow: PathMatch) -> bool:
    return covers(Rule("", path=wide), Rule("", path=narrow))


def _header_covers(wide: HeaderMatch, narrow: HeaderMatch) -> bool:
    if wide == narrow:
        return True
    if wide.kind == "prefix":
        return narrow.kind != "regex" and narrow.value.startswith(wide.value)
    return wide.kind == "regex" and narrow.kind == "exact" and re.fullmatch(wide.value, narrow.value) is not None


def conjunction(one: Match, other: Match) -> Match | None:
    """Return a match for exactly the requests that both match; None if there are none.

    Raises InexpressibleError.
    """
    if one.method and other.method and one.method != other.method:
        return None
    headers = dict(one.headers)
    for name, condition in other.headers:
        both = _both_headers(headers[name], condition) if name in headers else condition
        if both is None:
            return None
        headers[name] = both
    path = _both_paths(one.path, other.path)
    if path is None:
        return None
    if isinstance(path, str) or any(condition == _UNKNOWN for condition in headers.values()):
        raise InexpressibleError(one, other)
    return Match(path, one.method or other.method, tuple(sorted(headers.items())))


_UNKNOWN = HeaderMatch("regex", "")
"""Placeholder for a condition that no match can express."""


def _both_headers(one: HeaderMatch, other: HeaderMatch) -> HeaderMatch | None:
    if _header_covers(one, other):
        return other
    if _header_covers(other, one):
        return one
    return _UNKNOWN if "regex" in (one.kind, other.kind) and "exact" not in (one.kind, other.kind) else None


def _both_paths(one: PathMatch, other: PathMatch) -> PathMatch | Literal["unknown"] | None:
    if _path_covers(one, other):
        return other
    if _path_covers(other, one):
        return one
    return "unknown" if _paths_overlap(one, other) else None


@lru_cache(4096)
def _paths_overlap(one: PathMatch, other: PathMatch) -> bool:
    return overlaps(Rule("", path=one), Rule("", path=other))


def with_header(match: Match, name: str, condition: HeaderMatch) -> Match | None:
    """Return the match with one more condition; None if no request meets it."""
    return conjunction(match, replace(match, headers=((name, condition),)))
