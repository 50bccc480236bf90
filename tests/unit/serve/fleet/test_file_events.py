"""Changes of files that the watch reports, with the real file system and the real inotify.

The watch polls only once a minute, so that a change that inotify did not report is a failure.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lbctl.serve.fleet.file_events import WatchedDirectories, watched_directories
from lbctl.serve.fleet.fingerprints import Fingerprints
from lbctl.serve.fleet.watch import FleetWatcher
from tests.support.watch import Events, make_fleet, replace, swap, watching


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    return make_fleet(tmp_path)


# ── Ways to change a file ────────────────────────────────────────────────────────────────────────────────────────────


def test_unchanged_files_cause_no_event(fleet: Path) -> None:
    async def test(events: Events) -> None:
        await events.none()
        assert events.watch.polling == ""

    watching(test, fleet)


@pytest.mark.parametrize("text", ["version: 2\n", "version: 1\n# longer\n", ""])
@pytest.mark.parametrize("way", [replace, Path.write_text])
def test_replaced_or_edited_file_is_one_event(fleet: Path, way: Callable[[Path, str], object], text: str) -> None:
    async def test(events: Events) -> None:
        way(fleet / "a.yaml", text)
        await events.one()

    watching(test, fleet)


def test_edit_with_same_size_and_time_is_an_event(fleet: Path) -> None:
    file = fleet / "a.yaml"
    before = file.stat()

    async def test(events: Events) -> None:
        file.write_text("version: 7\n")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        await events.one()

    watching(test, fleet)


def test_fingerprint_follows_rapid_edits_of_the_same_size(fleet: Path) -> None:
    file = fleet / "a.yaml"
    prints = Fingerprints()
    file.write_text("version: 2\n")
    first = prints.of([file])
    for _ in range(50):
        file.write_text("version: 3\n")
        assert prints.of([file]) != first
        file.write_text("version: 2\n")
        assert prints.of([file]) == first


@pytest.mark.slow
def test_single_file_is_watched(fleet: Path) -> None:
    async def test(events: Events) -> None:
        (fleet / "b.yml").write_text("another\n")
        await events.none()
        replace(fleet / "a.yaml", "version: 2\n")
        await events.one()
        (fleet / "a.yaml").write_text("version: 3\n")
        await events.one()

    watching(test, fleet / "a.yaml")


@pytest.mark.slow
def test_several_paths_are_watched_without_standard_input(fleet: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "c.yaml").write_text("version: 1\n")

    async def test(events: Events) -> None:
        (other / "c.yaml").write_text("version: 2\n")
        await events.one()
        (fleet / "a.yaml").write_text("version: 2\n")
        await events.one()

    watching(test, fleet, Path("-"), other / "c.yaml")


@pytest.mark.slow
def test_changed_link_is_an_event(fleet: Path, tmp_path: Path) -> None:
    second = tmp_path / "releases" / "2"
    second.mkdir(parents=True)
    (second / "a.yaml").write_text("version: 2\n")
    link = tmp_path / "links" / "current"
    link.parent.mkdir()
    link.symlink_to(fleet)

    async def test(events: Events) -> None:
        (fleet / "a.yaml").write_text("version: 3\n")
        await events.one()
        (tmp_path / "next").symlink_to(second)
        (tmp_path / "next").rename(link)
        await events.one()
        (second / "a.yaml").write_text("version: 4\n")
        await events.one()
        (fleet / "a.yaml").write_text("version: 5\n")
        await events.none()

    watching(test, link)


def test_changed_link_of_a_parent_directory_is_an_event(tmp_path: Path) -> None:
    for release in ("1", "2"):
        (tmp_path / "releases" / release / "conf" / "fleet").mkdir(parents=True)
        (tmp_path / "releases" / release / "conf" / "fleet" / "a.yaml").write_text(f"version: {release}\n")
    (tmp_path / "current").symlink_to("releases/1")

    async def test(events: Events) -> None:
        (tmp_path / "next").symlink_to("releases/2")
        (tmp_path / "next").rename(tmp_path / "current")
        await events.one()

    watching(test, tmp_path / "current" / "conf" / "fleet")


@pytest.mark.slow
def test_target_of_a_linked_file_is_watched(fleet: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "real.yaml").write_text("version: 1\n")
    (fleet / "linked.yaml").symlink_to("../elsewhere/real.yaml")

    async def test(events: Events) -> None:
        (elsewhere / "real.yaml").write_text("version: 2\n")
        await events.one()
        replace(elsewhere / "real.yaml", "version: 3\n")
        await events.one()

    watching(test, fleet)


def test_circular_links_do_not_end_the_watch(fleet: Path) -> None:
    (fleet / "x.yaml").symlink_to("y.yaml")
    (fleet / "y.yaml").symlink_to("x.yaml")

    async def test(events: Events) -> None:
        (fleet / "a.yaml").write_text("version: 2\n")
        await events.one()

    watching(test, fleet)


def test_inaccessible_path_does_not_end_the_watch(tmp_path: Path) -> None:
    """A directory of another user is inaccessible too; a name that is too long fails even for root."""
    watched = watched_directories([tmp_path / ("x" * 300) / "token"])
    assert [path for path, _, _ in watched.directories] == [tmp_path]


def test_unrelated_changes_in_a_parent_directory_are_ignored(fleet: Path) -> None:
    watched = watched_directories([fleet, fleet / "tls" / "server.crt"])
    assert {path for path, _, _ in watched.directories} == {fleet.parent, fleet}
    concerned = {
        name: watched.concerned(str(fleet.parent / name)) for name in ("fleet", "a.yaml", "tls", "x.log", "data")
    }
    assert concerned == {"fleet": True, "a.yaml": True, "tls": True, "x.log": False, "data": False}


# ── Files and directories that come and go ───────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_added_removed_and_renamed_files_are_events(fleet: Path) -> None:
    async def test(events: Events) -> None:
        (fleet / "c.yaml").write_text("version: 1\n")
        await events.one()
        (fleet / "c.yaml").unlink()
        await events.one()
        (fleet / "a.yaml").rename(fleet / "z.yaml")
        await events.one()

    watching(test, fleet)


def test_files_outside_the_fleet_cause_no_event(fleet: Path) -> None:
    async def test(events: Events) -> None:
        (fleet / "notes.txt").write_text("more\n")
        (fleet / ".a.yaml.swp").write_text("editor\n")
        (fleet / ".hidden.yaml").write_text("version: 1\n")
        (fleet / "sub").mkdir()
        (fleet / "sub" / "d.yaml").write_text("version: 1\n")
        await events.none()

    watching(test, fleet)


@pytest.mark.slow
def test_removed_and_restored_directory_is_an_event_each_time(fleet: Path, tmp_path: Path) -> None:
    async def test(events: Events) -> None:
        fleet.rename(tmp_path / "away")
        await events.one()
        (tmp_path / "away").rename(fleet)
        await events.one()
        shutil.rmtree(fleet)
        await events.one()
        fleet.mkdir()
        (fleet / "a.yaml").write_text("version: 2\n")
        await events.one()
        (fleet / "a.yaml").write_text("version: 3\n")
        await events.one()

    watching(test, fleet)


@pytest.mark.slow
def test_directory_is_watched_once_its_parents_exist(tmp_path: Path) -> None:
    folder = tmp_path / "one" / "two" / "fleet"

    async def test(events: Events) -> None:
        await events.none()
        for place in reversed((folder, folder.parent, folder.parent.parent)):
            place.mkdir()
            await asyncio.sleep(0.3)
        events.forget()
        (folder / "a.yaml").write_text("version: 1\n")
        await events.one()

    watching(test, folder)


def test_directory_back_during_registration_is_watched(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directories_of = FleetWatcher._directories
    absent = [False]

    def directories(watch: FleetWatcher) -> WatchedDirectories:
        if not absent[0]:
            return directories_of(watch)
        absent[0] = False
        fleet.rename(fleet.with_name("away"))
        try:
            return directories_of(watch)
        finally:
            fleet.with_name("away").rename(fleet)

    monkeypatch.setattr(FleetWatcher, "_directories", directories)

    async def test(events: Events) -> None:
        absent[0] = True
        events.armed.clear()
        (fleet / "a.yaml").touch()
        await events.armed.wait()
        replace(fleet / "a.yaml", "version: 1\npools: {}\n")
        await events.one()

    watching(test, fleet)


def test_directory_swapped_for_an_equal_one_causes_no_event(fleet: Path, tmp_path: Path) -> None:
    shutil.copytree(fleet, tmp_path / "copy")

    async def test(events: Events) -> None:
        fleet.rename(tmp_path / "away")
        (tmp_path / "copy").rename(fleet)
        await events.none()
        (fleet / "a.yaml").write_text("version: 2\n")
        await events.one()

    watching(test, fleet)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["", "fleet.yaml"])
def test_swaps_of_a_config_map_are_events(tmp_path: Path, path: str) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    swap(mount, "..2026_01", {"fleet.yaml": "version: 1\n", "more.yaml": "version: 1\n"})

    async def test(events: Events) -> None:
        for month, text in (("02", "version: 2\n"), ("03", "version: 3\n"), ("04", "version: 4\n")):
            swap(mount, f"..2026_{month}", {"fleet.yaml": text, "more.yaml": "version: 1\n"})
            await events.one()
        swap(mount, "..2026_05", {"fleet.yaml": "version: 4\n", "more.yaml": "version: 1\n"})
        await events.none()

    watching(test, mount / path)
