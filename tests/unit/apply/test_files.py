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


def test_the_files_are_there_and_nothing_else(tmp_path: Path) -> None:
    write_bundle(Bundle((File("main.conf", "a\n"), File("keys", "ü\n"))), str(tmp_path / "new" / "deep"))
    assert contents(tmp_path / "new" / "deep") == {"main.conf": "a\n", "keys": "ü\n"}


def test_a_secret_is_for_its_owner_alone_also_where_it_was_not(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("s")
    bundle = Bundle((File("main.conf", "a"), File("keys", "s", secret=True)))
    write_bundle(bundle, str(tmp_path))
    assert (mode(tmp_path / "main.conf"), mode(tmp_path / "keys")) == (0o644, 0o600)


def test_a_file_that_has_not_changed_is_left_alone(tmp_path: Path) -> None:
    write_bundle(Bundle((File("same", "a"), File("other", "a"))), str(tmp_path))
    for name in ("same", "other"):
        os.utime(tmp_path / name, (1, 1))
    write_bundle(Bundle((File("same", "a"), File("other", "b"))), str(tmp_path))
    assert (tmp_path / "same").stat().st_mtime == 1
    assert (tmp_path / "other").stat().st_mtime > 1


def test_files_of_others_stay(tmp_path: Path) -> None:
    (tmp_path / "own.conf").write_text("mine")
    write_bundle(Bundle((File("main.conf", "a"),)), str(tmp_path))
    assert contents(tmp_path) == {"own.conf": "mine", "main.conf": "a"}


def test_nothing_changes_when_a_write_fails_midway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_nothing_changes_where_a_directory_stands_in_the_way(tmp_path: Path) -> None:
    write_bundle(Bundle((File("a", "old"),)), str(tmp_path))
    (tmp_path / "b").mkdir()
    with pytest.raises(IsADirectoryError):
        write_bundle(Bundle((File("a", "new"), File("b", "new"))), str(tmp_path))
    assert contents(tmp_path) == {"a": "old"}


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    write_bundle(Bundle((File("a", "old"),)), str(tmp_path))
    with (tmp_path / "a").open() as reader:
        write_bundle(Bundle((File("a", "new"),)), str(tmp_path))
        assert reader.read() == "old"
    assert contents(tmp_path) == {"a": "new"}


def test_a_link_is_replaced_and_what_it_led_to_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("old")
    (tmp_path / "a").symlink_to(tmp_path / "elsewhere")
    write_bundle(Bundle((File("a", "new"),)), str(tmp_path))
    assert contents(tmp_path) == {"a": "new", "elsewhere": "old"}
