"""Overlap of two path conditions, as far as the literal head of an expression decides it."""

from __future__ import annotations

import pytest

from lbctl.ir.listeners import PathMatch, Rule
from lbctl.ir.matching import overlaps


@pytest.mark.parametrize(
    ("regex", "prefix", "overlap"),
    [
        ("/v1/(chat|completions)", "/v2", False),
        ("/v1/(chat|completions)", "/v1", True),
        (r"/v1/[|(]x|/v2", "/v2", True),
        (r"/v1/\(|/v2", "/v2", True),
        (r"/v1/\|x", "/v2", False),
        ("/a(b|c)d|/v2/.*", "/v2", True),
        ("(/v1|/v2)/x", "/v2", True),
    ],
)
def test_head_of_an_expression_excludes_other_prefixes(regex: str, prefix: str, overlap: bool) -> None:
    assert overlaps(Rule("a", path=PathMatch("regex", regex)), Rule("b", path=PathMatch("prefix", prefix))) is overlap
