"""The documentation site builds, and an error on a page fails the build."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path, PurePosixPath

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from tests.docs import site
from tests.docs.site import source_page
from tests.support.paths import ROOT


def _build(docs: Path, site: Path) -> None:
    build(load_config(str(ROOT / "mkdocs.yml"), docs_dir=str(docs), site_dir=str(site)))


def test_listing_of_a_directory_links_its_hidden_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (".helmignore", "values.yaml", ".parts/.hidden"):
        file = tmp_path / ".chart" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    monkeypatch.setattr(site, "ROOT", tmp_path)
    listing = source_page(PurePosixPath(".chart"))
    links = ["[.helmignore](helmignore.md)", "[.parts/.hidden](parts/hidden.md)", "[values.yaml](values.yaml.md)"]
    assert [line for line in listing.splitlines() if line.startswith("- ")] == [f"- {link}" for link in links]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_site_builds_with_every_page_and_a_search_index(tmp_path: Path) -> None:
    _build(ROOT / "docs", tmp_path)
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    pages = {page.with_name("index.html") if page.stem == "README" else page for page in pages}
    assert {page for page in pages if not (tmp_path / page).is_file()} == set()
    found = json.loads((tmp_path / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    assert any("LB101" in entry["title"] for entry in found)
    ranks = {"how-to/troubleshoot.html": 2.0, "reference/codes.html": 0.3, "develop/decisions/index.html": 0.1}
    assert {entry["location"]: entry["boost"] for entry in found if entry["location"] in ranks} == ranks
    workflow = tmp_path / "files" / "github" / "workflows" / "release.yml.html"
    assert "files/github/workflows/release.yml.html" in (tmp_path / "develop" / "releasing.html").read_text()
    assert workflow.is_file()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_broken_link_hidden_page_and_orphan_image_fail_the_build(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    docs = tmp_path / "docs"
    shutil.copytree(ROOT / "docs", docs)
    (docs / "how-to" / "hidden.md").write_text("# Hidden\n")
    (docs / "share" / "fish" / "hidden.md").write_text("# Not built\n")
    (docs / "images" / "orphan.svg").write_text("<svg/>\n")
    with (docs / "index.md").open("a", encoding="utf-8") as page:
        page.write("\n[a](nothing.md) [b](#nothing) [c](../examples/nothing.yaml) [d](share/fish/hidden.md)\n")
    with caplog.at_level(logging.WARNING, "mkdocs"), pytest.raises(Abort):
        _build(docs, tmp_path / "site")
    messages = "\n".join(record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
    for fault in (
        "hidden.md",
        "orphan.svg",
        "nothing.md",
        "#nothing",
        "examples/nothing.yaml",
        "share/fish/hidden.md, which",
    ):
        assert fault in messages
