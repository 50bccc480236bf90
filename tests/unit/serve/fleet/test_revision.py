"""The git commit of the fleet files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lbctl.base.diagnostics import Diagnostics
from lbctl.model.load import texts
from lbctl.serve.fleet.revision import revision_of
from lbctl.store.history import Revision


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=anna", "-c", "user.email=anna@example.com", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository whose directory `fleet` has two files."""
    folder = tmp_path / "repository" / "fleet"
    folder.mkdir(parents=True)
    git(folder.parent, "init", "--quiet")
    (folder / "pools.yaml").write_text("version: 1\n")
    (folder / "routes.yaml").write_text("routes: {}\n")
    git(folder.parent, "add", ".")
    git(folder.parent, "commit", "--quiet", "-m", "first")
    return folder


def revision(path: Path) -> Revision:
    return revision_of((str(path),), texts([str(path)], Diagnostics()))


def test_unchanged_files_are_clean(checkout: Path) -> None:
    head = git(checkout, "rev-parse", "HEAD")
    assert revision(checkout) == revision(checkout / "pools.yaml") == Revision(head, dirty=False)
    (checkout.parent / "notes.txt").write_text("not part of the fleet")
    assert revision(checkout) == Revision(head, dirty=False)


@pytest.mark.parametrize("change", ["edit", "add", "delete"])
def test_changed_file_makes_the_revision_dirty(checkout: Path, change: str) -> None:
    head = git(checkout, "rev-parse", "HEAD")
    if change == "edit":
        (checkout / "pools.yaml").write_text("version: 1 # edited\n")
    elif change == "add":
        (checkout / "more.yaml").write_text("pools: {}\n")
    else:
        (checkout / "routes.yaml").unlink()
    assert revision(checkout) == Revision(head, dirty=True)
    git(checkout, "add", "--all", ".")
    git(checkout, "commit", "--quiet", "-m", "second")
    assert revision(checkout) == Revision(git(checkout, "rev-parse", "HEAD"), dirty=False)


def test_link_to_a_checkout_is_followed(checkout: Path, tmp_path: Path) -> None:
    link = tmp_path / "current"
    link.symlink_to(checkout)
    assert revision(link) == revision(checkout)


def test_files_outside_a_checkout_have_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fleet.yaml").write_text("version: 1\n")
    assert revision(tmp_path) == Revision()
    monkeypatch.setenv("PATH", "")
    assert revision(tmp_path) == Revision()
