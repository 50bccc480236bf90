"""Captures of regular expressions in nginx's configuration: docs/develop/nginx-captures.md lists the avoided
patterns."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.support.paths import ROOT

TEXTS = sorted((ROOT / "tests" / "golden").glob("*/nginx.conf"))
_NUMBERED = re.compile(r"\$\{?[0-9]")
_NAMED = re.compile(r"\(\?<([A-Za-z0-9_]+)>")
_USED = re.compile(r"\$\{?(lbn_[A-Za-z0-9_]+)")
_ENTRY = re.compile(r'("~(?:[^"\\]|\\.)*"|~\S*) +("(?:[^"\\]|\\.)*"|[^\s;]+);')
"""A regular expression of a map, and its value."""


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.parent.name)
def test_captures_have_names_and_are_used_at_once(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not _NUMBERED.search(text), "a number means the groups of the last expression"
    entries = _ENTRY.findall(text)
    defined = Counter(name for key, _ in entries for name in _NAMED.findall(key))
    assert set(defined.values()) <= {1}, "each name belongs to one expression"
    assert sum(defined.values()) == len(_NAMED.findall(text)), "only maps have captures"
    used = sum(len(_USED.findall(text[match.start(2) : match.end(2)])) for match in _ENTRY.finditer(text))
    assert used == len(_USED.findall(text)), "captures are used in the entry of their expression only"
    for key, value in entries:
        assert set(_USED.findall(value)) <= set(_NAMED.findall(key)), key
        others = set(re.findall(r"\$\{?(\w+)", value)) - set(_NAMED.findall(key)) - {"lb_dollar"}
        assert not (_USED.search(value) and others - {"realip_remote_addr", "remote_addr"}), value


def test_the_goldens_have_captures() -> None:
    assert len(TEXTS) > 80
    assert all(_NAMED.search(path.read_text(encoding="utf-8")) for path in TEXTS)
