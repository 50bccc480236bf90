from __future__ import annotations

import re

import pytest

from lbctl.targets.manifests.durations import duration


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0s"),
        (120_000, "120s"),
        (1_500, "1500ms"),
        (99_999_000, "99999s"),
        (100_000_000, "27h46m40s"),
        (100_000_001, "27h46m40s1ms"),
        (3_600_000 * 30, "30h"),
        (10**15, "99999h46m40s"),
    ],
)
def test_duration_has_the_grammar_of_the_api(milliseconds: int, text: str) -> None:
    assert duration(milliseconds) == text
    assert re.fullmatch(r"([0-9]{1,5}(h|m|s|ms)){1,4}", text)
