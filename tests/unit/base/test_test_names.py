"""The names of tests are short enough to be read in a report."""

from __future__ import annotations

import re

from tests.support.paths import ROOT

MAX_LENGTH = 60
_TEST = re.compile(r"^\s*(?:async )?def (test_\w+)", re.MULTILINE)


def test_names_of_tests_have_at_most_60_characters() -> None:
    too_long = [
        f"{path.relative_to(ROOT)}: {name} ({len(name)})"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in _TEST.findall(path.read_text(encoding="utf-8"))
        if len(name) > MAX_LENGTH
    ]
    assert too_long == []
