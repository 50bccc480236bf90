"""The rendered configurations are readable: short, each section with its purpose, no comment with a user's text."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from lbctl.cli import run
from tests.golden.cases import configurations
from tests.support.paths import ROOT

QUICKSTART = ROOT / "examples" / "quickstart.yaml"
TEMPLATES = ROOT / "templates"
OWN_LINES = re.compile(r"(?ms)^# Own lines of .*?^# End of [^\n]*\n")


def texts(kind: str) -> dict[str, str]:
    """Return the golden configurations of a kind by case, without the operator's own lines."""
    return {case: without_own_lines(text) for case, text in configurations(kind).items()}


def without_own_lines(text: str) -> str:
    return OWN_LINES.sub("", text)


@pytest.mark.parametrize(("kind", "max_lines"), [("nginx", 124), ("haproxy", 75)])
def test_quickstart_is_short(kind: str, max_lines: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["render", "-t", kind, str(QUICKSTART)]) == 0
    assert len(capsys.readouterr().out.splitlines()) <= max_lines


def test_each_haproxy_section_has_a_comment() -> None:
    for case, text in texts("haproxy").items():
        rows = text.splitlines()
        sections = [number for number, row in enumerate(rows) if row and not row.startswith((" ", "#"))]
        assert [rows[number] for number in sections if not number or not rows[number - 1].startswith("# ")] == [], case


def test_each_part_of_nginx_has_a_comment() -> None:
    for case, text in texts("nginx").items():
        rows = text[text.find("http {") + 1 :].splitlines()
        parts = [after for before, after in pairwise(rows) if not before and after]
        assert len(parts) >= 6
        assert [part for part in parts if not part.lstrip().startswith("# ")] == [], case


@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
def test_comments_contain_no_text_of_the_user(kind: str) -> None:
    comments = {row.strip() for path in (TEMPLATES / kind).glob("*.j2") for row in path.read_text().splitlines()}
    for case, text in texts(kind).items():
        rendered = {row.strip() for row in text.splitlines() if row.lstrip().startswith("#")}
        assert rendered - comments == set(), case
