"""All files of a release state one version."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lbctl import __version__
from tests.deploy import release
from tests.support.paths import ROOT

CHANGELOG = """\
# Changelog

## [Unreleased]

## [1.2.0] - 2026-12-01

### Added

- A thing.

## [1.1.0] - 2026-11-01

- Another one.
"""


def test_all_files_state_the_version_of_the_package() -> None:
    assert release.differences(__version__) == []


@pytest.mark.parametrize(("version", "text"), [("1.2.0", "### Added\n\n- A thing."), ("1.1.0", "- Another one.")])
def test_notes_are_the_section_of_the_version(version: str, text: str) -> None:
    assert release.notes(CHANGELOG, version) == text


@pytest.mark.parametrize("version", ["Unreleased", "1.2", "2.0.0"])
def test_version_without_a_dated_section_has_no_notes(version: str) -> None:
    assert release.notes(CHANGELOG, version) is None


def test_tag_of_another_version_is_rejected() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "tests.deploy.release", "v99.0.0"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (process.returncode, process.stdout) == (1, "")
    lines = process.stderr.splitlines()
    assert len(lines) == len(release.PLACES) + 1
    assert f"{__version__}, not 99.0.0" in lines[0]
    assert lines[-1] == "CHANGELOG.md: no dated section with the changes of 99.0.0"
