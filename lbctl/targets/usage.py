"""The features that a fleet uses, and where. The YAML of the fleet is matched against the features' key patterns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from functools import cache, partial

from lbctl.base.diagnostics import Path
from lbctl.model.node import Node
from lbctl.model.section_cache import SECTIONS, Place
from lbctl.targets.features import BY_ID, FEATURES, Feature

Uses = tuple[tuple[Feature, Path], ...]
Derived = Callable[[Hashable, Place, Callable[[], Uses]], Uses]
"""Returns the uses in a pool or route, for a purpose: the known ones, or the result of the function."""


@dataclass(slots=True, eq=False)
class _Pattern:
    """One key in the patterns: the feature that claims it, and the longer patterns below it."""

    feature: Feature | None = None
    below: dict[str, _Pattern] = field(default_factory=dict)
    values: dict[str, Feature] = field(default_factory=dict)


_NO_PATTERN = _Pattern()


def _search(_purpose: Hashable, _place: Place, search: Callable[[], Uses]) -> Uses:
    return search()


def used(
    root: Node, feature_ids: Collection[str] = BY_ID.keys(), derived: Derived = _search
) -> list[tuple[Feature, Path]]:
    """Return each feature in `feature_ids` with every position that uses it, in the order of the file.

    Parts of the file that can contain none of these features are skipped: replicas are many and have few features.
    `derived` knows the uses in pools and routes that have not changed since the last fleet.
    """
    patterns = _patterns(frozenset(feature_ids))
    uses: list[tuple[Feature, Path]] = []
    for section, node in root.value.items() if isinstance(root.value, dict) else ():
        below = patterns.below.get(section, _NO_PATTERN)
        if section in SECTIONS and isinstance(node.value, dict):
            for name, item in node.value.items():
                search = partial(_uses, item, below.below.get("*", _NO_PATTERN), (section, name), feature_ids)
                uses += derived(patterns, (section, name), search)
        else:
            uses += _uses(node, below, (section,), feature_ids)
    return uses


def _uses(node: Node, pattern: _Pattern, path: Path, feature_ids: Collection[str]) -> Uses:
    uses: list[tuple[Feature, Path]] = []
    if pattern is not _NO_PATTERN:
        _walk(node, pattern, path, None, uses)
    return tuple(item for item in uses if item[0].id in feature_ids)


def feature_at(path: Path) -> Feature | None:
    """Return the feature that claims a key, whatever its value."""
    pattern = _patterns(frozenset(BY_ID))
    feature = None
    for step in path:
        pattern = pattern.below.get(str(step)) or pattern.below.get("*") or _NO_PATTERN
        feature = pattern.feature or feature
    return feature


@cache
def _patterns(feature_ids: frozenset[str]) -> _Pattern:
    top = _every_pattern()
    _prune(top, feature_ids)
    return top


def _prune(pattern: _Pattern, feature_ids: frozenset[str]) -> bool:
    """Remove the patterns that do not lead to any of the features. Return whether anything is left.

    Patterns below a wanted feature remain, because a longer pattern claims a key instead of it.
    """
    if pattern.feature and pattern.feature.id in feature_ids:
        return True
    pattern.feature = None
    pattern.below = {key: below for key, below in pattern.below.items() if _prune(below, feature_ids)}
    pattern.values = {value: feature for value, feature in pattern.values.items() if feature.id in feature_ids}
    return bool(pattern.below or pattern.values)


def _every_pattern() -> _Pattern:
    top = _Pattern()
    for feature in FEATURES:
        for key in feature.keys:
            path, _, value = key.partition("=")
            pattern = top
            for step in path.split("."):
                pattern = pattern.below.setdefault(step, _Pattern())
            if value:
                pattern.values[value] = feature
            else:
                pattern.feature = feature
    return top


def _walk(node: Node, pattern: _Pattern, path: Path, feature: Feature | None, uses: list[tuple[Feature, Path]]) -> None:
    feature = pattern.feature or feature
    value = node.value
    if isinstance(value, dict) and value and pattern.below:
        other = pattern.below.get("*") or _NO_PATTERN
        for key, child in value.items():
            child_pattern = pattern.below.get(key, other)
            if feature is not None or child_pattern is not _NO_PATTERN:
                _walk(child, child_pattern, (*path, key), feature, uses)
    elif isinstance(value, list) and value and pattern.below:
        visit_all = feature is not None or "*" in pattern.below
        for index, child in enumerate(value):
            if visit_all or not isinstance(child.value, dict) or not pattern.below.keys().isdisjoint(child.value):
                _walk(child, pattern, (*path, index), feature, uses)
    else:
        requested = _requested(node, pattern, feature)
        if requested is not None:
            uses.append((requested, path))


def _requested(node: Node, pattern: _Pattern, feature: Feature | None) -> Feature | None:
    """Return the feature that this node's value uses, or None."""
    requested = pattern.values.get(str(node.value), feature) if pattern.values else feature
    return None if requested is None or _is_neutral(node.value, requested) else requested


def _is_neutral(value: object, feature: Feature) -> bool:
    return any(value == item and type(value) is type(item) for item in feature.neutral)


def cleartext(feature: Feature, path: Path, root: Node) -> Feature:
    """Return `listener.h2c` instead of `listener.http2` if the listener has no TLS."""
    if feature.id != "listener.http2" or not isinstance(root.value, dict):
        return feature
    listener = root.value["listeners"].value
    assert isinstance(listener, dict)
    keys = listener[str(path[1])].value
    return feature if isinstance(keys, dict) and "tls" in keys else BY_ID["listener.h2c"]
