from __future__ import annotations

import os
from pathlib import Path

import pytest

from lbctl.apply import files
from lbctl.apply.files import write_bundle
from lbctl.targets.target import Bundle, File


def contents(directory: Path) -> dict[str, str]:
    return {item.name: item.read_text() for item in directory.iterdir() if item.is_file()}


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_write_bundle_writes_only_its_files(tmp_path: Path) -> None:
    write_bundle(Bundle((File("main.conf", "a\n"), File("keys", "ü\n"))), str(tmp_path / "new" / "deep"))
    assert contents(tmp_path / "new" / "deep") == {"main.conf": "a\n", "keys": "ü\n"}


def test_secret_file_becomes_private(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("s")
    bundle = Bundle((File("main.conf", "a"), File("keys", "s", secret=True)))
    write_bundle(bundle, str(tmp_path))
    assert (mode(tmp_path / "main.conf"), mode(tmp_path / "keys")) == (0o644, 0o600)


def test_unchanged_file_is_not_written(tmp_path: Path) -> None:
    write_bundle(Bundle((File("same", "a"), File("other", "a"))), str(tmp_path))
    for name in ("same", "other"):
        os.utime(tmp_path / name, (1, 1))
    write_bundle(Bundle((File("same", "a"), File("other", "b"))), str(tmp_path))
    assert (tmp_path / "same").stat().st_mtime == 1
    assert (tmp_path / "other").stat().st_mtime > 1


def test_other_files_are_kept(tmp_path: Path) -> None:
    (tmp_path / "own.conf").write_text("mine")
    write_bundle(Bundle((File("main.conf", "a"),)), str(tmp_path))
    assert contents(tmp_path) == {"own.conf": "mine", "main.conf": "a"}


def test_failed_write_changes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bundle(Bundle((File("a", "old"), File("b", "old"), File("c", "old"))), str(tmp_path))
    synced = iter([None, OSError(28, "No space left on device")])

    def full(_handle: int) -> None:
        error = next(synced)
        if error is not None:
            raise error

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_bundle(Bundle((File("a", "new"), File("b", "new"), File("c", "new"))), str(tmp_path))
    assert contents(tmp_path) == {"a": "old", "b": "old", "c": "old"}


def test_directory_in_the_way_changes_no_file(tmp_path: Path) -> None:
    write_bundle(Bundle((File("a", "old"),)), str(tmp_path))
    (tmp_path / "b").mkdir()
    with pytest.raises(IsADirectoryError):
        write_bundle(Bundle((File("a", "new"), File("b", "new"))), str(tmp_path))
    assert contents(tmp_path) == {"a": "old"}


def test_reader_sees_the_old_or_the_new_file(tmp_path: Path) -> None:
    write_bundle(Bundle((File("a", "old"),)), str(tmp_path))
    with (tmp_path / "a").open() as reader:
        write_bundle(Bundle((File("a", "new"),)), str(tmp_path))
        assert reader.read() == "old"
    assert contents(tmp_path) == {"a": "new"}


def test_link_is_replaced_and_its_target_is_kept(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("old")
    (tmp_path / "a").symlink_to(tmp_path / "elsewhere")
    write_bundle(Bundle((File("a", "new"),)), str(tmp_path))
    assert contents(tmp_path) == {"a": "new", "elsewhere": "old"}
