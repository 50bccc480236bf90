"""Which requests two matches have in common, and where the first of two rules must win over the more specific one.

HAProxy and Envoy take the first rule that holds, a fleet the most specific route.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Match = dict[str, Any]
"""The match of a route as a fleet writes it."""
_MOST_OVERLAPS = 64


def merge(matches: Sequence[Match]) -> Match | None:
    """Return the match that holds where all of them do; None if one cannot say that."""
    merged: Match = {}
    paths = {"path", "path_prefix", "path_regex"}
    for match in matches:
        for key, value in match.items():
            if key == "headers":
                present = merged.get("headers", {})
                if any(present.get(name, other) != other for name, other in value.items()):
                    return None
                merged["headers"] = {**present, **value}
            elif key in paths and (clash := (paths & set(merged))):
                other = next(iter(clash))
                narrower = _narrower(other, merged[other], key, value)
                if narrower is None:
                    return None
                del merged[other]
                merged.update(narrower)
            elif key in merged and merged[key] != value:
                common = [item for item in merged[key] if item in value]
                if not common:
                    return None
                merged[key] = common
            else:
                merged[key] = value
    return merged


def _narrower(first: str, one: str, second: str, other: str) -> Match | None:
    """Return the narrower of two conditions on the path, if one lies within the other."""
    for (kind, value), (wide, prefix) in (((first, one), (second, other)), ((second, other), (first, one))):
        if wide == "path_prefix" and kind in {"path", "path_prefix"} and value.startswith(prefix):
            return {kind: value}
        if wide == "path_prefix" and kind == "path_regex" and value.replace("\\", "").startswith(prefix):
            return {kind: value}
    return {first: one} if (first, one) == (second, other) else None


def covers(wide: Match, narrow: Match) -> bool:
    """Whether every request of the second match is one of the first."""
    joint = merge([wide, narrow])
    return joint == narrow


def overlaps(matches: Sequence[Match]) -> list[tuple[Match, int]]:
    """Return matches to add, each with the index of the rule that must take them.

    These are requests that an earlier rule takes and a later, more specific one would take in a fleet.
    """
    added: list[tuple[Match, int]] = []
    for position, later in enumerate(matches):
        for index, earlier in enumerate(matches[:position]):
            joint = merge([earlier, later])
            if joint is None or joint in (earlier, later) or rank(earlier) >= rank(later):
                continue
            all_matches = [*matches, *(match for match, _ in added)]
            if joint not in all_matches and len(added) < _MOST_OVERLAPS:
                added.append((joint, index))
    return added


def rank(match: Match) -> tuple[int, ...]:
    """Return how specific a match is, in the order in which a fleet compares: host, path, method, model, headers."""
    hosts = match.get("hosts", [])
    host = 0 if not hosts else 1 if any(item.startswith("*") for item in hosts) else 2
    kind = 3 if "path" in match else 2 if "path_regex" in match else 1 if "path_prefix" in match else 0
    length = len(match.get("path_prefix", ""))
    return (host, kind, length, int("methods" in match), int("model" in match), len(match.get("headers", {})))
