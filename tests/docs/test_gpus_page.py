"""docs/reference/gpus.md matches the built-in table."""

from __future__ import annotations

from lbctl.cli.gpus import page
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "reference" / "gpus.md"


def test_gpu_page_equals_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m tests.docs.regenerate`"


def test_gpu_page_has_a_row_for_each_gpu() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + 16
    assert {row.count("|") for row in rows} == {6}
