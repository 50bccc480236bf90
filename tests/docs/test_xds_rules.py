"""docs/develop/xds-rules.md lists exactly the rules whose numbers are in the names of tests."""

from __future__ import annotations

import re
from collections import defaultdict

from tests.support.paths import ROOT

_ROW = re.compile(r"^\| (\d+) \| .+ \| .+ \|$", re.MULTILINE)
_TESTS = re.compile(r"^Tests: `(tests/integration/xds/test_rules_of_\w+\.py)`$", re.MULTILINE)
_TEST = re.compile(r"^def test_rule_(\d+)_", re.MULTILINE)


def documented_rules() -> dict[str, set[int]]:
    """Return the rules that the page lists for each file."""
    rules: dict[str, set[int]] = defaultdict(set)
    _, *groups = re.split(
        r"^## ", (ROOT / "docs" / "develop" / "xds-rules.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    for group in groups:
        (file,) = _TESTS.findall(group)
        numbers = [int(number) for number in _ROW.findall(group)]
        assert not rules[file] & {*numbers}
        assert len(numbers) == len({*numbers})
        rules[file].update(numbers)
    return rules


def rules_of_tests() -> dict[str, set[int]]:
    """Return the rules that the tests of each file are named after."""
    files = (ROOT / "tests" / "integration" / "xds").glob("test_*.py")
    rules = {file: {*map(int, _TEST.findall(file.read_text(encoding="utf-8")))} for file in files}
    return {str(file.relative_to(ROOT)): numbers for file, numbers in rules.items() if numbers}


def test_page_lists_exactly_the_tested_rules() -> None:
    assert documented_rules() == rules_of_tests()
