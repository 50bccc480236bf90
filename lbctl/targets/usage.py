"""Which features a fleet asks for, and where: its YAML held against the key patterns of the features."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cache

from lbctl.base.diagnostics import Path
from lbctl.model.node import Node
from lbctl.targets.features import BY_ID, FEATURES, Feature


@dataclass(slots=True)
class _Pattern:
    """One key of the patterns: the feature that claims it, and the longer patterns below it."""

    feature: Feature | None = None
    below: dict[str, _Pattern] = field(default_factory=dict)
    values: dict[str, Feature] = field(default_factory=dict)


_NOTHING = _Pattern()


def used(root: Node, sought: Collection[str] = BY_ID.keys()) -> list[tuple[Feature, Path]]:
    """Each of the features `sought` (ids) with every place that asks for it, in the order of the file. What holds none
    of them is passed over: replicas are many, and few of the features are theirs."""
    found: list[tuple[Feature, Path]] = []
    _walk(root, _patterns(frozenset(sought)), (), None, found)
    return [item for item in found if item[0].id in sought]


@cache
def _patterns(sought: frozenset[str]) -> _Pattern:
    top = _every_pattern()
    _prune(top, sought)
    return top


def _prune(pattern: _Pattern, sought: frozenset[str]) -> bool:
    """Takes out what leads to none of them. Whether anything is left. Below one of them all stays: it may be taken."""
    if pattern.feature and pattern.feature.id in sought:
        return True
    pattern.feature = None
    pattern.below = {key: below for key, below in pattern.below.items() if _prune(below, sought)}
    pattern.values = {value: feature for value, feature in pattern.values.items() if feature.id in sought}
    return bool(pattern.below or pattern.values)


def _every_pattern() -> _Pattern:
    top = _Pattern()
    for feature in FEATURES:
        for key in feature.keys:
            path, _, value = key.partition("=")
            here = top
            for step in path.split("."):
                here = here.below.setdefault(step, _Pattern())
            if value:
                here.values[value] = feature
            else:
                here.feature = feature
    return top


def _walk(
    node: Node, pattern: _Pattern, path: Path, feature: Feature | None, found: list[tuple[Feature, Path]]
) -> None:
    feature = pattern.feature or feature
    value = node.value
    if isinstance(value, dict) and value and pattern.below:
        other = pattern.below.get("*") or _NOTHING
        for key, child in value.items():
            below = pattern.below.get(key, other)
            if feature is not None or below is not _NOTHING:
                _walk(child, below, (*path, key), feature, found)
    elif isinstance(value, list) and value and pattern.below:
        every = feature is not None or "*" in pattern.below
        for index, child in enumerate(value):
            if every or not isinstance(child.value, dict) or not pattern.below.keys().isdisjoint(child.value):
                _walk(child, pattern, (*path, index), feature, found)
    else:
        asked = _asked(node, pattern, feature)
        if asked is not None:
            found.append((asked, path))


def _asked(node: Node, pattern: _Pattern, feature: Feature | None) -> Feature | None:
    found = pattern.values.get(str(node.value), feature) if pattern.values else feature
    return None if found is None or _neutral(node.value, found) else found


def _neutral(value: object, feature: Feature) -> bool:
    return any(value == item and type(value) is type(item) for item in feature.neutral)


def cleartext(feature: Feature, path: Path, root: Node) -> Feature:
    """HTTP/2 asked for on a listener without TLS is a feature of its own."""
    if feature.id != "listener.http2" or not isinstance(root.value, dict):
        return feature
    listener = root.value["listeners"].value
    assert isinstance(listener, dict)
    keys = listener[str(path[1])].value
    return feature if isinstance(keys, dict) and "tls" in keys else BY_ID["listener.h2c"]
