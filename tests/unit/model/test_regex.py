from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbctl.model.regex import check_regex


@pytest.mark.parametrize(
    "text",
    [r"/v1/.*", r"/v[0-9]+/models/[^/]+", r"/(chat|embed)(?:/.*)?", r"/a{2,5}b{3}c{4,}", r"/\d+\.\w*\s?", r"/x*?y+?",
     r"/[a-z\]\-]+", r"/\$\{x\}", r"/a;b#c'd\"e", r"(a{10}){100}", "(" + "a" * 10 + "){1000}"],
)  # fmt: skip
def test_patterns_equal_in_re2_and_pcre_are_accepted(text: str) -> None:
    assert check_regex(text) == ""


@pytest.mark.parametrize(
    "text",
    ["", "a b", "a\nb", "é", "a" * 1025, "(", "a)", "*a", "[a", "a\\", r"(?=a)", r"(?!a)", r"(?<=a)b", r"(?<!a)b",
     r"(?i)a", r"(?P<n>a)", r"(?P=n)", r"(?#c)", r"(?>a)", r"(a)\1", r"\0", r"\012", "a++", "a*+", "a?+",
     "a{2}+", "a{2001}",
     "a{1001,}", r"(a{1000}){1000}", r"((a{20}){20}){20}", "a{,5}", r"\Qa\E", r"\Z", r"\G", r"\K", r"\R", r"\X", r"\C",
     r"\h", r"\v", r"\N", r"\pL", r"\P{Lu}", r"\u0041", r"\U00000041", r"\x41", r"[\b]", "[[:alpha:]]", "[a&&b]",
     "(" * 500 + ")" * 500, r"/v1\b", r"/v1\B.", "(" + "a" * 11 + "){1000}", "([abc]{4}|a?){1000}"],
)  # fmt: skip
def test_patterns_that_differ_in_re2_and_pcre_are_rejected(text: str) -> None:
    assert check_regex(text)


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=40))
def test_no_text_raises_an_exception(text: str) -> None:
    check_regex(text)
