"""The entries of the changelog that wait for the next release have a known type and text for users."""

from __future__ import annotations

import re
import tomllib

from tests.support.paths import ROOT

CHANGES = ROOT / "changes"
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["towncrier"]
TYPES = [item["directory"] for item in CONFIG["type"]]


def test_changes_have_a_known_type() -> None:
    name = re.compile(rf"\+[a-z0-9-]+\.({'|'.join(TYPES)})\.md")
    files = [file.name for file in CHANGES.iterdir() if file.name not in CONFIG["ignore"]]
    assert [file for file in files if not name.fullmatch(file)] == []


def test_changes_are_sentences_without_a_list_mark() -> None:
    texts = {file.name: file.read_text(encoding="utf-8") for file in CHANGES.glob("+*")}
    assert [name for name, text in texts.items() if not re.fullmatch(r"[^-*#\s][^\0]*\.\n", text)] == []


def test_readme_lists_every_type() -> None:
    assert re.findall(r"^\| `(\w+)` \|", (CHANGES / "README.md").read_text(encoding="utf-8"), re.MULTILINE) == TYPES


def test_changelog_has_the_place_for_the_next_release() -> None:
    changelog = (ROOT / CONFIG["filename"]).read_text(encoding="utf-8")
    unreleased, released = changelog.split(CONFIG["start_string"])
    assert "\n## [Unreleased]\n" in unreleased
    assert released.startswith("\n## [")
