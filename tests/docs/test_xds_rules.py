"""docs/xds-rules.md lists the rules by the numbers that the tests carry in their names, and no other."""

from __future__ import annotations

import re
from collections import defaultdict

from tests.support.paths import ROOT

_ROW = re.compile(r"^\| (\d+) \| .+ \| .+ \|$", re.MULTILINE)
_TESTS = re.compile(r"^Tests: `(tests/integration/xds/test_rules_of_\w+\.py)`$", re.MULTILINE)
_TEST = re.compile(r"^def test_rule_(\d+)_", re.MULTILINE)


def listed() -> dict[str, set[int]]:
    """File → the rules that the page says it holds."""
    found: dict[str, set[int]] = defaultdict(set)
    _, *groups = re.split(r"^## ", (ROOT / "docs" / "xds-rules.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    for group in groups:
        (file,) = _TESTS.findall(group)
        numbers = [int(number) for number in _ROW.findall(group)]
        assert not found[file] & {*numbers}
        assert len(numbers) == len({*numbers})
        found[file].update(numbers)
    return found


def held() -> dict[str, set[int]]:
    """File → the rules that its tests are named after."""
    files = (ROOT / "tests" / "integration" / "xds").glob("test_*.py")
    found = {file: {*map(int, _TEST.findall(file.read_text(encoding="utf-8")))} for file in files}
    return {str(file.relative_to(ROOT)): numbers for file, numbers in found.items() if numbers}


def test_each_rule_of_the_page_has_a_test_in_the_file_it_names_and_each_tested_rule_is_in_the_page() -> None:
    assert listed() == held()
