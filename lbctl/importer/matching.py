"""Intersects matches, and finds requests for which an earlier rule must precede a more specific rule.

HAProxy and Envoy use the first rule that holds, while a fleet uses the most specific route.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import combinations
from typing import Any

Match = dict[str, Any]
"""A route's match, in fleet-file form."""
PATHS = frozenset({"path", "path_prefix", "path_regex"})
"""Conditions on the path, of which a match has at most one."""
_LITERAL = r"(?:[A-Za-z0-9/_~-]|\\[./-])"
_LITERAL_START = re.compile(rf"{_LITERAL}*(?![*?+{{])")
"""Literal text at the start of an expression, excluding a final character that is repeated."""
_LITERAL_END = re.compile(rf"(?<!\\){_LITERAL}*$")
"""Literal text at the end of an expression."""
REFUSES_ALL = "the route refuses all requests that match it, even if the condition is false"
MAX_ADDED = 512
"""Maximum number of matches added for overlaps."""
_MAX_PAIRS = 20_000
"""Maximum number of match pairs to compare for one rule's exclusions."""


def merge(matches: Sequence[Match]) -> Match | None:
    """Return the match that holds if all of these matches hold, or None if it cannot be expressed."""
    merged: Match = {}
    for match in matches:
        for key, value in match.items():
            if key == "headers":
                present = merged.get("headers", {})
                if any(present.get(name, other) != other for name, other in value.items()):
                    return None
                merged["headers"] = {**present, **value}
            elif key in PATHS and (clash := (PATHS & set(merged))):
                other = next(iter(clash))
                narrower = _narrower(other, merged[other], key, value)
                if narrower is None:
                    return None
                del merged[other]
                merged.update(narrower)
            elif key in merged and merged[key] != value:
                common = _common(merged[key], value)
                if not common:
                    return None
                merged[key] = common
            else:
                merged[key] = value
    return merged


def _common(one: Sequence[str], other: Sequence[str]) -> list[str]:
    """Return the common values of two lists: hosts with a leading `*`, models with a trailing `*`, methods.

    The values are in the order of the second list.
    """
    pairs = [(first, second) for second in other for first in one]
    both = [second if _matches(first, second) else first for first, second in pairs
            if _matches(first, second) or _matches(second, first)]  # fmt: skip
    return list(dict.fromkeys(both))


def _matches(pattern: str, value: str) -> bool:
    if pattern.startswith("*"):
        return value.endswith(pattern[1:])
    return value.startswith(pattern[:-1]) if pattern.endswith("*") else value == pattern


def apart(matches: Sequence[Match]) -> bool:
    """Return whether the matches have no requests in common.

    A path that is an expression may overlap with any other.
    """
    return any(_are_apart(one, other) for one, other in combinations(matches, 2))


def _are_apart(one: Match, other: Match) -> bool:
    if "path_regex" not in one and "path_regex" not in other:
        return merge([one, other]) is None
    first, second = ({key: value for key, value in item.items() if key not in PATHS} for item in (one, other))
    return merge([first, second]) is None or not _may_share_a_path(one, other)


def _may_share_a_path(one: Match, other: Match) -> bool:
    """Return whether some path could satisfy both matches, judging by the beginning and end of their paths."""
    (start, end), (other_start, other_end) = _ends(one), _ends(other)
    begins = start.startswith(other_start) or other_start.startswith(start)
    return begins and (end.endswith(other_end) or other_end.endswith(end))


def _ends(match: Match) -> tuple[str, str]:
    """Return the literal beginning and end of every path in a match."""
    if "path" in match:
        return match["path"], match["path"]
    pattern = match.get("path_regex")
    if pattern is None:
        return match.get("path_prefix", ""), ""
    if "|" in pattern or "(?" in pattern:
        return "", ""
    start, end = _LITERAL_START.match(pattern), _LITERAL_END.search(pattern)
    texts = (found[0].replace("\\", "") if found is not None else "" for found in (start, end))
    return next(texts), next(texts)


def _narrower(first: str, one: str, second: str, other: str) -> Match | None:
    """Return the narrower of two conditions on the path, if one contains the other."""
    for (kind, value), (wide, prefix) in (((first, one), (second, other)), ((second, other), (first, one))):
        if wide == "path_prefix" and kind in {"path", "path_prefix"} and value.startswith(prefix):
            return {kind: value}
        if wide == "path_prefix" and kind == "path_regex" and _ends({kind: value})[0].startswith(prefix):
            return {kind: value}
    return {first: one} if (first, one) == (second, other) else None


def covers(wide: Match, narrow: Match) -> bool:
    """Return whether the first match includes every request in the second."""
    joint = merge([wide, narrow])
    return joint is not None and _unordered(joint) == _unordered(narrow)


def _unordered(match: Match) -> Match:
    return {key: sorted(value) if isinstance(value, list) else value for key, value in match.items()}


def hides(later: Match, earlier: Match) -> bool:
    """Whether a fleet may use the later of two rules for requests of the earlier rule that no match can describe."""
    return merge([earlier, later]) is None and not apart([earlier, later]) and rank(earlier) <= rank(later)


def takes(later: Match, earlier: Match) -> bool:
    """Whether a fleet may use the later of two rules for requests of the earlier rule."""
    overlap = merge([earlier, later]) is not None or not apart([earlier, later])
    return overlap and rank(earlier) <= rank(later)


def carve(match: Match, excludes: Sequence[Match], later: Sequence[Match]) -> tuple[list[tuple[Match, int]], bool]:
    """Return a match's excluded requests that later rules handle, each with the index of the rule.

    The second value is whether a sufficiently small number of matches can express them. An index of -1 denotes requests
    that no later rule handles.
    """
    parts, is_clear = list[tuple[Match, int]](), True
    different = {identity(exclude): exclude for exclude in excludes}.values()
    if len(different) * len(later) > _MAX_PAIRS:
        return [], False
    for exclude in different:
        inner = merge([match, exclude])
        if inner is None:
            is_clear = is_clear and apart([match, exclude])
            continue
        joints = [merge([inner, item]) for item in later]
        is_clear = is_clear and all(joint or apart([inner, item]) for joint, item in zip(joints, later, strict=True))
        parts += [(joint, index) for index, joint in enumerate(joints) if joint is not None]
        if not any(covers(item, inner) for item in later):
            parts.append((inner, -1))
    return parts, is_clear


def identity(match: Match) -> str:
    """Return a string that is equal for equal matches."""
    return json.dumps(_unordered(match), sort_keys=True)


def within(wide: Match, matches: Sequence[Match]) -> list[Match]:
    """Return the matches that are more specific than `wide`, which includes all their requests."""
    return [item for item in matches if covers(wide, item) and not covers(item, wide)]


def overlaps(matches: Sequence[Match]) -> list[tuple[Match, int]]:
    """Return matches to add, each with the index of the rule that must handle their requests.

    The added matches contain requests that match several rules but that a fleet would not handle by the first rule. The
    added matches may overlap with others, so they are examined like the rest.
    """
    decided = [(match, index) for index, match in enumerate(matches)]
    known = {_key(match) for match in matches}
    position = 0
    while position < len(decided) < len(matches) + MAX_ADDED:
        for other, _ in decided[:position]:
            joint = merge([other, decided[position][0]])
            if joint is not None and _key(joint) not in known:
                first = next(index for index, match in enumerate(matches) if covers(match, joint))
                if not _wins(joint, first, decided):
                    known.add(_key(joint))
                    decided.append((joint, first))
        position += 1
    return decided[len(matches) :]


def _wins(joint: Match, first: int, decided: Sequence[tuple[Match, int]]) -> bool:
    """Whether a fleet uses the rule `first` for the requests of a match even without a separate route."""
    ranks = [(rank(match), index) for match, index in decided if covers(match, joint)]
    return max(ranks)[1] == first and all(each < max(ranks)[0] for each, index in ranks if index != first)


def _key(match: Match) -> str:
    return repr(sorted(_unordered(match).items()))


def rank(match: Match) -> tuple[int, ...]:
    """Return how specific a match is, in the order in which a fleet compares: host, path, method, model, headers."""
    hosts = match.get("hosts", [])
    host = 0 if not hosts else 1 if any(item.startswith("*") for item in hosts) else 2
    kind = 3 if "path" in match else 2 if "path_regex" in match else 1 if "path_prefix" in match else 0
    length = len(match.get("path_prefix", ""))
    return (host, kind, length, int("methods" in match), int("model" in match), len(match.get("headers", {})))
