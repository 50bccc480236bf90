"""Conjunctions of matches: the conditions of two rules in one match."""

from __future__ import annotations

import pytest

from lbctl.ir.listeners import PathMatch
from lbctl.targets.manifests.precedence import Conflict, HeaderMatch, InexpressibleError, Match, closed, conjunction

ROOT, V1, CHAT = (PathMatch("prefix", path) for path in ("/", "/v1", "/v1/chat"))
REGEX, OTHER_REGEX = PathMatch("regex", "/v1/[a-z]+"), PathMatch("regex", "/v1/[a-m]+")


def exact(value: str) -> HeaderMatch:
    return HeaderMatch("exact", value)


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (Match(ROOT, "GET"), Match(V1), Match(V1, "GET")),
        (Match(V1), Match(PathMatch("exact", "/v1/chat")), Match(PathMatch("exact", "/v1/chat"))),
        (Match(V1), Match(PathMatch("prefix", "/v1x")), None),
        (Match(V1), Match(REGEX), Match(REGEX)),
        (Match(REGEX), Match(PathMatch("exact", "/v1/1")), None),
        (Match(ROOT, "GET"), Match(ROOT, "POST"), None),
        (Match(ROOT, headers=(("a", exact("1")),)), Match(ROOT, headers=(("a", exact("2")),)), None),
        (
            Match(ROOT, headers=(("b", exact("1")),)),
            Match(V1, headers=(("a", exact("2")),)),
            Match(V1, headers=(("a", exact("2")), ("b", exact("1")))),
        ),
        (
            Match(ROOT, headers=(("x-model", HeaderMatch("prefix", "llama-")),)),
            Match(ROOT, headers=(("x-model", HeaderMatch("prefix", "llama-3")),)),
            Match(ROOT, headers=(("x-model", HeaderMatch("prefix", "llama-3")),)),
        ),
        (
            Match(ROOT, headers=(("cookie", HeaderMatch("regex", "(.*;)?a=1(;.*)?")),)),
            Match(ROOT, headers=(("cookie", exact("b=2;a=1")),)),
            Match(ROOT, headers=(("cookie", exact("b=2;a=1")),)),
        ),
    ],
)
def test_conjunction_has_the_conditions_of_both(one: Match, other: Match, both: Match | None) -> None:
    assert conjunction(one, other) == both
    assert conjunction(other, one) == both


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Match(REGEX), Match(OTHER_REGEX)),
        (Match(REGEX), Match(CHAT)),
        (
            Match(ROOT, headers=(("cookie", HeaderMatch("regex", "a=1")),)),
            Match(ROOT, headers=(("cookie", HeaderMatch("regex", "b=1")),)),
        ),
    ],
)
def test_some_conjunctions_cannot_be_expressed(one: Match, other: Match) -> None:
    with pytest.raises(InexpressibleError):
        conjunction(one, other)


def test_order_of_equally_specific_rules_needs_nothing() -> None:
    rules = [[Match(V1, headers=(("a", exact("1")),))], [Match(V1, headers=(("b", exact("1")),))], [Match(V1)]]
    assert closed(rules) == rules


def test_earlier_rule_gets_the_conditions_of_the_later_one() -> None:
    first = Match(V1, headers=(("x-model", exact("m")),))
    second = Match(V1, headers=(("a", exact("1")), ("b", exact("1"))))
    both = Match(V1, headers=(("a", exact("1")), ("b", exact("1")), ("x-model", exact("m"))))
    assert closed([[first], [second]]) == [[first, both], [second]]


def test_exact_value_does_not_win_over_an_earlier_expression() -> None:
    first = Match(V1, headers=(("x-model", HeaderMatch("prefix", "llama-")),))
    second = Match(V1, headers=(("a", exact("1")),))
    both = Match(V1, headers=(("a", exact("1")), ("x-model", HeaderMatch("prefix", "llama-"))))
    assert closed([[first], [second]]) == [[first, both], [second]]


def test_rule_that_an_earlier_rule_covers_is_left_out() -> None:
    assert closed([[Match(ROOT)], [Match(CHAT, "GET")]]) == [[Match(ROOT)], []]


def test_rules_that_cannot_be_combined_are_a_conflict() -> None:
    rules = [[Match(REGEX)], [Match(OTHER_REGEX, "GET")]]
    with pytest.raises(Conflict) as raised:
        closed(rules)
    assert (raised.value.first, raised.value.second) == (0, 1)
