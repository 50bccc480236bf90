"""The configuration on disk changes atomically, and files of the owner are kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lbctl.apply.nginx.generations import Generations
from lbctl.targets.target import Bundle, File


def bundle_of(text: str, *more: str) -> Bundle:
    return Bundle((File("nginx.conf", text), *(File(name, f"{text} {name}", secret=True) for name in more)))


def store(place: Generations, bundle: Bundle, stamp: str = "s") -> None:
    place.swap(place.stage(bundle), bundle)
    place.keep(bundle, stamp)


def contents(folder: Path) -> dict[str, str]:
    return {item.name: item.read_text() for item in folder.iterdir() if item.is_file()}


def test_files_of_the_owner_are_kept_once_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "edge.conf").write_text("own")
    (tmp_path / "keys.map").write_text("own keys")
    (tmp_path / "mime.types").write_text("types")
    place = Generations(tmp_path / "edge.conf")
    for text in ("one", "two", "three"):
        store(place, bundle_of(text, "keys.map"))
    assert contents(tmp_path) == {
        "edge.conf": "three", "edge.conf.orig": "own", "keys.map": "three keys.map", "keys.map.orig": "own keys",
        "mime.types": "types",
    }  # fmt: skip


def test_link_of_the_owner_is_kept_as_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.conf").write_text("own")
    (tmp_path / "nginx.conf").symlink_to("real.conf")
    store(Generations(tmp_path / "nginx.conf"), bundle_of("one"))
    assert (tmp_path / "nginx.conf.orig").readlink() == Path("real.conf")
    assert (tmp_path / "real.conf").read_text() == "own"


def test_undo_restores_all_files(tmp_path: Path) -> None:
    (tmp_path / "nginx.conf").write_text("own")
    (tmp_path / "nginx.conf").chmod(0o640)
    place, bundle = Generations(tmp_path / "nginx.conf"), bundle_of("one", "keys.map")
    place.undo(place.swap(place.stage(bundle), bundle))
    assert not (tmp_path / "nginx.conf").is_symlink()
    assert contents(tmp_path) == {"nginx.conf": "own", "nginx.conf.orig": "own"}
    assert (tmp_path / "nginx.conf").stat().st_mode & 0o777 == 0o640
    store(place, bundle)
    more = bundle_of("two", "keys.map", "more.map")
    place.undo(place.swap(place.stage(more), more))
    assert place.holds(bundle)
    assert not (tmp_path / "more.map").is_symlink()
    assert not (tmp_path / "nginx.conf.orig.2").exists()


def test_failed_swap_changes_nothing(tmp_path: Path) -> None:
    place, bundle = Generations(tmp_path / "nginx.conf"), bundle_of("one")
    store(place, bundle)
    (tmp_path / "keys.map").mkdir()
    more = bundle_of("two", "a.map", "keys.map")
    with pytest.raises(IsADirectoryError):
        place.swap(place.stage(more), more)
    assert place.holds(bundle)
    assert not os.path.lexists(tmp_path / "a.map")


def test_unused_files_and_old_generations_are_deleted(tmp_path: Path) -> None:
    place = Generations(tmp_path / "nginx.conf")
    for number in range(5):
        store(place, bundle_of(str(number), *(["keys.map"] if number < 3 else [])))
    assert {item.name for item in tmp_path.iterdir()} == {"nginx.conf", "nginx.conf.lbctl"}
    generations = [item.name for item in (tmp_path / "nginx.conf.lbctl").iterdir() if item.name.isdigit()]
    assert sorted(generations) == ["000004", "000005"]


def test_running_generation_is_known_until_a_swap(tmp_path: Path) -> None:
    place = Generations(tmp_path / "nginx.conf")
    assert place.running() is None
    store(place, bundle_of("one"), "first")
    assert Generations(tmp_path / "nginx.conf").running() == "first"
    place.swap(place.stage(bundle_of("two")), bundle_of("two"))
    assert Generations(tmp_path / "nginx.conf").running() is None


def test_manual_change_is_detected(tmp_path: Path) -> None:
    place, bundle = Generations(tmp_path / "nginx.conf"), bundle_of("one")
    store(place, bundle)
    (tmp_path / "nginx.conf").write_text("by hand")
    assert not place.holds(bundle)


def test_two_proxies_of_one_directory_keep_their_files(tmp_path: Path) -> None:
    store(Generations(tmp_path / "a.conf"), bundle_of("a", "keys.map"))
    place, bundle = Generations(tmp_path / "b.conf"), bundle_of("b", "keys.map")
    with pytest.raises(FileExistsError):
        place.swap(place.stage(bundle), bundle)
    assert (tmp_path / "keys.map").read_text() == "a keys.map"
