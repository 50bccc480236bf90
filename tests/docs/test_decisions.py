"""The index of decisions lists each page once, with its title and status."""

from __future__ import annotations

import re

from tests.support.paths import ROOT

FOLDER = ROOT / "docs" / "develop" / "decisions"
_ROW = re.compile(r"^\| \[(\d{4})\]\((\S+\.md)\) \| (.+) \| (.+) \|$", re.MULTILINE)


def test_index_lists_every_decision_with_title_and_status() -> None:
    rows = _ROW.findall((FOLDER / "README.md").read_text(encoding="utf-8"))
    pages = sorted(path.name for path in FOLDER.glob("[0-9]*.md"))
    titles = [(FOLDER / name).read_text(encoding="utf-8").splitlines()[0].removeprefix("# ") for name in pages]
    assert [(name[:4], name, title) for name, title in zip(pages, titles, strict=True)] == [row[:3] for row in rows]
    for *_, status in rows:
        assert status == "holds" or re.fullmatch(r"replaced by \[\d{4}\]\(\S+\.md\)", status)


def test_table_has_the_limits_of_envoys_bounded_load() -> None:
    assert "**Envoy's `bounded_load`**" in (FOLDER / "0038-documented-proxy-limitations.md").read_text()
    assert (
        "- **bounded load**: The bound considers only the requests of a single worker thread"
        in (ROOT / "docs/reference/capabilities.md").read_text()
    )
