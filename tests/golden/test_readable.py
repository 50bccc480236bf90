"""A reviewer can read what is rendered: it is short, each section says what it is for, no comment is a user's."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from lbctl.cli import run

HERE = Path(__file__).parent
QUICKSTART = HERE.parents[1] / "examples" / "quickstart.yaml"
TEMPLATES = HERE.parents[1] / "templates"
WHOLE = ("quickstart", "whole-contract", "whole-contract-2", "tls-sni", "fragment")
FILES = {"nginx": ("nginx.conf", "lbctl.conf"), "haproxy": ("haproxy.cfg", "lbctl.cfg")}
OWN_LINES = re.compile(r"(?ms)^# Own lines of .*?^# The end of [^\n]*\n")


def texts(kind: str) -> dict[str, str]:
    """Return the golden configurations of a proxy without the own lines in them."""
    paths = [HERE / name / file for name in WHOLE for file in FILES[kind]]
    return {str(path): OWN_LINES.sub("", path.read_text()) for path in paths if path.exists()}


@pytest.mark.parametrize(("kind", "most"), [("nginx", 120), ("haproxy", 60)])
def test_the_quickstart_is_short(kind: str, most: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["render", "-t", kind, str(QUICKSTART)]) == 0
    assert len(capsys.readouterr().out.splitlines()) <= most


def test_each_section_of_haproxy_says_what_it_is_for() -> None:
    for name, text in texts("haproxy").items():
        rows = text.splitlines()
        sections = [number for number, row in enumerate(rows) if row and not row.startswith((" ", "#"))]
        assert [rows[number] for number in sections if not number or not rows[number - 1].startswith("# ")] == [], name


def test_each_part_of_nginx_says_what_it_is_for() -> None:
    for name, text in texts("nginx").items():
        rows = text[text.find("http {") + 1 :].splitlines()
        parts = [after for before, after in pairwise(rows) if not before and after]
        assert len(parts) >= 6
        assert [part for part in parts if not part.lstrip().startswith("# ")] == [], name


@pytest.mark.parametrize("kind", FILES)
def test_every_comment_is_lbctl_s_own(kind: str) -> None:
    own = {row.strip() for path in (TEMPLATES / kind).glob("*.j2") for row in path.read_text().splitlines()}
    for name, text in texts(kind).items():
        comments = {row.strip() for row in text.splitlines() if row.lstrip().startswith("#")}
        assert comments - own == set(), name
