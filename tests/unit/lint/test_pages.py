"""The pages of codes: every code means one thing."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import lbctl
from lbctl.lint.pages import all_pages, pages
from lbctl.targets.features import FEATURES

_CODE = re.compile(r"\"(LB\d{3})\"")


def test_each_code_has_one_page() -> None:
    counts = Counter(page.code for page in all_pages())
    assert [code for code, count in counts.items() if count > 1] == []
    assert pages().keys() == counts.keys()


def test_codes_of_features_are_only_those_of_features() -> None:
    """A code that is also reported elsewhere would have two meanings on one page."""
    of_features = {feature.code for feature in FEATURES}
    assert len(of_features) == len(FEATURES)
    assert of_features & _reported() == set()


def test_every_reported_code_has_a_page() -> None:
    assert _reported() - pages().keys() == set()


def _reported() -> set[str]:
    """Return the codes that the sources name."""
    sources = Path(lbctl.__file__).parent.rglob("*.py")
    return {code for source in sources for code in _CODE.findall(source.read_text())}
