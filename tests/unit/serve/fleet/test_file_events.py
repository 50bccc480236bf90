"""Which changes of files are seen: with the real file system and the real inotify.

The tests let the system tell of changes and look by themselves only once a minute, so that a change that the system did
not tell is a failure.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lbctl.serve.fleet.file_events import watched_directories
from lbctl.serve.fleet.fingerprints import Fingerprints
from tests.support.watch import Events, make_fleet, replace, swap, watching


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    return make_fleet(tmp_path)


# ── Ways to change a file ────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_happens_where_nothing_changes(fleet: Path) -> None:
    async def test(events: Events) -> None:
        await events.none()
        assert events.watch.polling == ""

    watching(test, fleet)


@pytest.mark.parametrize("text", ["version: 2\n", "version: 1\n# longer\n", ""])
@pytest.mark.parametrize("way", [replace, Path.write_text])
def test_a_file_that_is_replaced_or_edited_in_place_is_one_event(
    fleet: Path, way: Callable[[Path, str], object], text: str
) -> None:
    async def test(events: Events) -> None:
        way(fleet / "a.yaml", text)
        await events.one()

    watching(test, fleet)


def test_an_edit_that_keeps_size_and_time_is_an_event(fleet: Path) -> None:
    file = fleet / "a.yaml"
    before = file.stat()

    async def test(events: Events) -> None:
        file.write_text("version: 7\n")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        await events.one()

    watching(test, fleet)


def test_two_edits_of_one_size_right_after_each_other_end_in_the_last_one(fleet: Path) -> None:
    file = fleet / "a.yaml"
    prints = Fingerprints()
    file.write_text("version: 2\n")
    first = prints.of([file])
    for _ in range(50):
        file.write_text("version: 3\n")
        assert prints.of([file]) != first
        file.write_text("version: 2\n")
        assert prints.of([file]) == first


def test_a_file_path_is_watched_like_a_directory(fleet: Path) -> None:
    async def test(events: Events) -> None:
        (fleet / "b.yml").write_text("another\n")
        await events.none()
        replace(fleet / "a.yaml", "version: 2\n")
        await events.one()
        (fleet / "a.yaml").write_text("version: 3\n")
        await events.one()

    watching(test, fleet / "a.yaml")


def test_several_paths_are_watched_and_standard_input_is_not(fleet: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "c.yaml").write_text("version: 1\n")

    async def test(events: Events) -> None:
        (other / "c.yaml").write_text("version: 2\n")
        await events.one()
        (fleet / "a.yaml").write_text("version: 2\n")
        await events.one()

    watching(test, fleet, Path("-"), other / "c.yaml")


def test_a_path_may_be_a_link_that_is_set_anew(fleet: Path, tmp_path: Path) -> None:
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


def test_a_link_further_up_on_the_way_is_seen_too(tmp_path: Path) -> None:
    for release in ("1", "2"):
        (tmp_path / "releases" / release / "conf" / "fleet").mkdir(parents=True)
        (tmp_path / "releases" / release / "conf" / "fleet" / "a.yaml").write_text(f"version: {release}\n")
    (tmp_path / "current").symlink_to("releases/1")

    async def test(events: Events) -> None:
        (tmp_path / "next").symlink_to("releases/2")
        (tmp_path / "next").rename(tmp_path / "current")
        await events.one()

    watching(test, tmp_path / "current" / "conf" / "fleet")


def test_a_file_that_links_elsewhere_is_watched_where_it_is(fleet: Path, tmp_path: Path) -> None:
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


def test_links_in_a_circle_end_nothing(fleet: Path) -> None:
    (fleet / "x.yaml").symlink_to("y.yaml")
    (fleet / "y.yaml").symlink_to("x.yaml")

    async def test(events: Events) -> None:
        (fleet / "a.yaml").write_text("version: 2\n")
        await events.one()

    watching(test, fleet)


def test_a_path_that_the_system_refuses_to_look_at_ends_nothing(tmp_path: Path) -> None:
    """As it does below a directory of another user; a name that is too long is refused to root too."""
    watched = watched_directories([tmp_path / ("x" * 300) / "token"])
    assert [path for path, _, _ in watched.directories] == [tmp_path]


def test_what_others_do_in_a_directory_around_wakes_nobody(fleet: Path) -> None:
    heard = watched_directories([fleet, fleet / "tls" / "server.crt"])
    assert {path for path, _, _ in heard.directories} == {fleet.parent, fleet}
    told = {name: heard.concerned(str(fleet.parent / name)) for name in ("fleet", "a.yaml", "tls", "x.log", "data")}
    assert told == {"fleet": True, "a.yaml": True, "tls": True, "x.log": False, "data": False}


# ── Files and directories that come and go ───────────────────────────────────────────────────────────────────────────


def test_a_file_that_comes_and_one_that_goes_are_events(fleet: Path) -> None:
    async def test(events: Events) -> None:
        (fleet / "c.yaml").write_text("version: 1\n")
        await events.one()
        (fleet / "c.yaml").unlink()
        await events.one()
        (fleet / "a.yaml").rename(fleet / "z.yaml")
        await events.one()

    watching(test, fleet)


def test_files_that_are_not_of_the_fleet_are_no_events(fleet: Path) -> None:
    async def test(events: Events) -> None:
        (fleet / "notes.txt").write_text("more\n")
        (fleet / ".a.yaml.swp").write_text("editor\n")
        (fleet / ".hidden.yaml").write_text("version: 1\n")
        (fleet / "sub").mkdir()
        (fleet / "sub" / "d.yaml").write_text("version: 1\n")
        await events.none()

    watching(test, fleet)


@pytest.mark.slow
def test_a_directory_that_vanishes_and_comes_back_is_an_event_each_time(fleet: Path, tmp_path: Path) -> None:
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


def test_a_directory_is_found_when_its_parents_come_back_one_by_one(tmp_path: Path) -> None:
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


def test_a_directory_that_is_swapped_for_another_with_the_same_content_is_no_event(fleet: Path, tmp_path: Path) -> None:
    shutil.copytree(fleet, tmp_path / "copy")

    async def test(events: Events) -> None:
        fleet.rename(tmp_path / "away")
        (tmp_path / "copy").rename(fleet)
        await events.none()
        (fleet / "a.yaml").write_text("version: 2\n")
        await events.one()

    watching(test, fleet)


@pytest.mark.parametrize("path", ["", "fleet.yaml"])
def test_a_config_map_is_followed_through_its_swaps(tmp_path: Path, path: str) -> None:
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
