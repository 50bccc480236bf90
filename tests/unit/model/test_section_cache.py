"""A fleet that is parsed with cached parts of the previous fleet equals a fleet that is parsed from scratch."""

from __future__ import annotations

from itertools import permutations

import pytest

from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.model.fleet import Fleet, parse
from lbctl.model.load import SourceText
from lbctl.model.node import position_of
from lbctl.model.section_cache import SectionCache

_BASE = 'version: 1\nlisteners: {public: {bind: "127.0.0.1:8080"}}\n'
_DEFAULTS = _BASE + "defaults: {pool: {drain_deadline: 30s}}\n"
_OTHER_DEFAULTS = _BASE + "defaults: {pool: {drain_deadline: 40s}, route: {queue_priority: high}}\n"
_POOL = 'version: 1\npools: {one: {replicas: [{address: "127.0.0.1:9001"}]}}\n'
_CHANGED = 'version: 1\n# a comment\npools: {one: {replicas: [{address: "127.0.0.1:9002"}], drain_deadline: 5s}}\n'
_FAULTY = 'version: 1\npools: {one: {replicas: [{address: "nowhere"}]}}\n'
_ROUTE = "version: 1\nroutes: {all: {match: {path_prefix: /}, pool: one}}\n"
_EMPTY = "version: 1\nroutes: {all: {match: {path_prefix: /}, pool: one, auth: }}\n"
_FLEETS = (
    (_DEFAULTS, _POOL, _ROUTE),
    (_DEFAULTS, _CHANGED, _ROUTE),
    (_OTHER_DEFAULTS, _POOL, _ROUTE),
    (_DEFAULTS, _FAULTY, _ROUTE),
    (_DEFAULTS, _POOL, _EMPTY),
    (_BASE, _POOL, _ROUTE),
    (_DEFAULTS, _POOL),
)


def _parsed(fleet: tuple[str, ...], cache: SectionCache | None) -> tuple[Fleet | None, list[Diagnostic], str]:
    diagnostics = Diagnostics()
    texts = [SourceText(f"{number}.yaml", text.encode(), ".") for number, text in enumerate(fleet)]
    source = parse(texts, diagnostics, cache)
    place = str(position_of(source.root, ("pools", "one", "replicas", 0, "address"))) if source else ""
    return (source.fleet if source else None), list(diagnostics), place


@pytest.mark.parametrize("first", range(len(_FLEETS)))
def test_a_cached_parse_equals_a_fresh_one(first: int) -> None:
    """The first fleet is parsed, then two others, then the first one again."""
    fresh = [_parsed(fleet, None) for fleet in _FLEETS]
    for others in permutations({*range(len(_FLEETS))} - {first}, 2):
        cache = SectionCache()
        for number in (first, *others, first):
            assert _parsed(_FLEETS[number], cache) == fresh[number], (first, *others)


def test_an_empty_key_of_an_unchanged_route_is_reported_again() -> None:
    cache = SectionCache()
    for pool in (_POOL, _CHANGED, _FAULTY):
        _, diagnostics, _ = _parsed((_DEFAULTS, pool, _EMPTY), cache)
        assert [item.path for item in diagnostics if item.code == "LB014"] == [("routes", "all", "auth")]


def test_unchanged_parts_are_reused() -> None:
    cache = SectionCache()
    first, *_ = _parsed((_DEFAULTS, _POOL, _ROUTE), cache)
    _parsed((_DEFAULTS, _FAULTY, _ROUTE), cache)
    second, *_ = _parsed((_DEFAULTS, _CHANGED, _ROUTE), cache)
    assert first is not None
    assert second is not None
    assert second.routes["all"] is first.routes["all"]
    assert second.pools["one"] is not first.pools["one"]


def test_a_moved_pool_is_reused_with_its_new_position() -> None:
    cache = SectionCache()
    first, _, place = _parsed((_DEFAULTS, _POOL, _ROUTE), cache)
    second, _, moved = _parsed((_DEFAULTS, _POOL.replace("pools:", "# a comment\npools:"), _ROUTE), cache)
    assert first is not None
    assert second is not None
    assert second.pools["one"] is first.pools["one"]
    assert (place, moved) == ("1.yaml:2:36", "1.yaml:3:36")


@pytest.mark.parametrize("value", ["'1'", "true", "[1]"])
def test_a_value_of_another_type_is_validated_again(value: str) -> None:
    def with_aggression(aggression: str) -> tuple[str, ...]:
        return (_DEFAULTS, _POOL.replace("one: {", f"one: {{slow_start: {{aggression: {aggression}}}, "), _ROUTE)

    cache = SectionCache()
    assert not _parsed(with_aggression("1"), cache)[1]
    assert _parsed(with_aggression(value), cache) == _parsed(with_aggression(value), None)
    assert _parsed(with_aggression(value), None)[1]


def test_an_equal_text_in_another_column_is_read_again() -> None:
    """The indentation of a block of text is relative to the map that contains it."""

    def indented(column: int) -> tuple[str, ...]:
        return (_DEFAULTS, _POOL, f"version: 1\nroutes:\n all:\n{' ' * column}pool: |2-\n      one\n")

    cache = SectionCache()
    assert not _parsed(indented(4), cache)[1]
    assert _parsed(indented(3), cache) == _parsed(indented(3), None)
    assert _parsed(indented(3), None)[1]
