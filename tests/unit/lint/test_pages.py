"""The pages of codes: every code means one thing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import lbctl
from lbctl.lint.pages import FOLDER, all_pages, markdown, pages, read_page, terminal_text
from lbctl.lint.rules import rules
from lbctl.targets import KINDS
from lbctl.targets.features import FEATURES

_CODE = re.compile(r"\"(LB\d{3})\"")
_NAMED = re.compile(r"\bLB\d{3}\b")


def test_each_code_has_one_page() -> None:
    counts = Counter(page.code for page in all_pages())
    assert [code for code, count in counts.items() if count > 1] == []
    assert pages().keys() == counts.keys()


def test_codes_of_features_have_no_other_use() -> None:
    """A code that is also reported elsewhere would have two meanings on one page."""
    of_features = {feature.code for feature in FEATURES}
    assert len(of_features) == len(FEATURES)
    assert of_features & _reported() == set()


def test_every_reported_code_has_a_page() -> None:
    assert _reported() - pages().keys() == set()


def test_every_page_is_about_a_code_of_lbctl() -> None:
    named = set().union(*(_NAMED.findall(source.read_text()) for source in _sources()))
    assert {file.stem for file in FOLDER.iterdir()} - named == set()


def test_every_page_is_complete() -> None:
    for file in sorted(FOLDER.iterdir()):
        page = read_page(file.stem)
        assert file.name == f"{page.code}.md"
        assert page.severity in {"error", "warning", "note"}, file.name
        assert all((page.title, page.what)), file.name
        if page.code in rules():
            assert all((page.why, page.before, page.after, page.ignore)), file.name
        else:
            assert page.advice, file.name


def test_page_of_kinds_names_every_kind() -> None:
    assert [kind for kind in KINDS if kind not in pages()["LB103"].what] == []


def test_paragraphs_of_a_page_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "---\ncode: LB000\ntitle: a title\nseverity: note\n---\n\nOne\nline.\n\nAnother.\n\n## Why\n\nA reason.\n"
    (tmp_path / "LB000.md").write_text(text)
    monkeypatch.setattr("lbctl.lint.pages.FOLDER", tmp_path)
    page = read_page("LB000")
    assert terminal_text(page) == "LB000 (note): a title\n\nOne line.\n\nAnother.\n\nWhy: A reason.\n"
    assert markdown(page) == "### LB000: a title\n\n*note*\n\nOne line.\n\nAnother.\n\nWhy: A reason.\n"


def _reported() -> set[str]:
    """Return the codes that the sources name."""
    return {code for source in _sources() for code in _CODE.findall(source.read_text())}


def _sources() -> Iterator[Path]:
    return Path(lbctl.__file__).parent.rglob("*.py")
