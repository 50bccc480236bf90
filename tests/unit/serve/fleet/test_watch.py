"""The watch of files: settling of changes, files outside the fleet, and polling without inotify."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import watchfiles

from lbctl.serve.fleet import watch
from lbctl.serve.fleet.fingerprints import Fingerprints
from lbctl.serve.fleet.watch import FleetWatcher
from tests.support.watch import SOON, Events, make_fleet, replace, swap, watching, writer


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    return make_fleet(tmp_path)


# ── Settling ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_touched_file_causes_no_event(fleet: Path) -> None:
    async def test(events: Events) -> None:
        for _ in range(3):
            (fleet / "a.yaml").touch()
            os.utime(fleet / "b.yml", (1, 1))
            (fleet / "b.yml").write_text("version: 1\n")
            replace(fleet / "a.yaml", "version: 1\n")
            await asyncio.sleep(0.05)
        await events.none()

    watching(test, fleet)


def test_simultaneous_changes_are_one_event(fleet: Path) -> None:
    async def test(events: Events) -> None:
        for index in range(200):
            (fleet / f"p{index}.yaml").write_text("version: 1\n")
        for index in range(100):
            (fleet / f"p{index}.yaml").unlink()
        await events.one()

    watching(test, fleet)


@pytest.mark.slow
@pytest.mark.slow
def test_slowly_written_file_is_one_event(fleet: Path) -> None:
    file = fleet / "a.yaml"

    async def test(events: Events) -> None:
        with file.open("wb", buffering=0) as opened:
            for _ in range(20):
                opened.write(b"x")
                await asyncio.sleep(0.02)
            assert events.times == []
        await events.one()
        assert file.read_bytes() == b"x" * 20

    watching(test, fleet, settle=1.8)


def test_change_that_is_undone_at_once_causes_no_event(fleet: Path) -> None:
    async def test(events: Events) -> None:
        (fleet / "a.yaml").write_text("half")
        await asyncio.sleep(0.05)
        (fleet / "a.yaml").write_text("version: 1\n")
        await events.none()

    watching(test, fleet)


@pytest.mark.slow
def test_constant_writes_delay_an_event_only_to_a_maximum(fleet: Path) -> None:
    count = iter(range(1_000_000))

    async def test(events: Events) -> None:
        began = time.monotonic()
        with writer(lambda: replace(fleet / "a.yaml", f"version: {next(count)}\n"), 0.01):
            await asyncio.wait_for(events.came(), SOON)
        assert events.times[0] - began > 1.8

    watching(test, fleet, settle=1.0)


@pytest.mark.slow
def test_change_while_reading_is_the_next_event(fleet: Path) -> None:
    async def run() -> None:
        watcher = FleetWatcher([str(fleet)], poll=60)
        seen: list[str] = []
        async with asyncio.timeout(60):
            changes = watcher.changes()
            (fleet / "a.yaml").write_text("one")
            async for _ in changes:
                seen.append((fleet / "a.yaml").read_text())
                if len(seen) == 3:
                    break
                (fleet / "a.yaml").write_text(f"{seen[-1]} more")
                await asyncio.sleep(0.3)
            await changes.aclose()  # type: ignore[attr-defined]
        assert seen == ["one", "one more", "one more more"]

    asyncio.run(run())


def test_change_before_the_first_subscriber_is_an_event(fleet: Path) -> None:
    async def test(events: Events) -> None:
        (fleet / "a.yaml").write_text("version: 2\n")
        await events.one()

    watching(test, fleet, armed=False)


def test_event_arrives_within_a_quarter_of_a_second(fleet: Path) -> None:
    async def test(events: Events) -> None:
        fastest = 60.0
        for index in range(50):
            began = time.monotonic()
            (fleet / "a.yaml").write_text(f"version: {index}\n")
            await events.one()
            fastest = min(fastest, events.last - began)
            if fastest < 0.25:
                break
        assert fastest < 0.25

    watching(test, fleet, settle=0.1)


# ── Files outside the fleet ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_any_change_of_a_followed_file_is_an_event(fleet: Path, tmp_path: Path) -> None:
    tls = tmp_path / "etc" / "tls"
    tls.mkdir(parents=True)
    (tls / "server.crt").write_text("one")

    async def test(events: Events) -> None:
        replace(tls / "server.crt", "two")
        await events.one()
        (tls / "server.crt").write_text("six")
        await events.one()
        (tls / "server.crt").unlink()
        await events.one()
        (tls / "server.crt").write_text("six")
        await events.one()
        (tls / "other.crt").write_text("six")
        await events.none()

    watching(test, fleet, files=[tls / "server.crt"])


@pytest.mark.slow
def test_swaps_of_a_followed_kubernetes_secret_are_events(fleet: Path, tmp_path: Path) -> None:
    mount = tmp_path / "tls"
    mount.mkdir()
    swap(mount, "..1", {"tls.crt": "one", "tls.key": "one"})
    (fleet / "tls").symlink_to(mount)

    async def test(events: Events) -> None:
        swap(mount, "..2", {"tls.crt": "two", "tls.key": "two"})
        await events.one()
        swap(mount, "..3", {"tls.crt": "two", "tls.key": "two"})
        await events.none()

    watching(test, fleet, files=[fleet / "tls" / "tls.crt", fleet / "tls" / "tls.key"])


def test_creating_a_followed_file_is_an_event(fleet: Path, tmp_path: Path) -> None:
    file = tmp_path / "secrets" / "keys" / "api.yaml"

    async def test(events: Events) -> None:
        await events.none()
        file.parent.mkdir(parents=True)
        file.write_text("key: tenant\n")
        await events.one()

    watching(test, fleet, files=[file])


@pytest.mark.slow
def test_followed_files_can_be_replaced(fleet: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    one.write_text("1")
    two.write_text("1")

    async def test(events: Events) -> None:
        events.watch.watch_files([two])
        await events.none()
        one.write_text("2")
        await events.none()
        two.write_text("2")
        await events.one()
        events.watch.watch_files([])
        await events.none()
        two.write_text("3")
        await events.none()

    watching(test, fleet, files=[one])


@pytest.mark.slow
def test_followed_file_changed_since_it_was_read_is_an_event(fleet: Path, tmp_path: Path) -> None:
    file = tmp_path / "targets.json"
    file.write_text("[1]")
    read = Fingerprints().of([file])

    async def test(events: Events) -> None:
        events.watch.watch_files(read)
        await events.none()
        events.watch.watch_files([])
        file.write_text("[2]")
        await events.none()
        events.watch.watch_files(read)
        await events.one()

    watching(test, fleet)


# ── Polling ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def quick_polls() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(watch, "_FALLBACK_POLL", 0.1)
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("quick_polls")
def test_without_inotify_changes_are_polled(fleet: Path) -> None:
    async def test(events: Events) -> None:
        assert events.watch.polling == "inotify is not used"
        replace(fleet / "a.yaml", "version: 2\n")
        await events.one()
        (fleet / "a.yaml").write_text("version: 3\n")
        await events.one()

    watching(test, fleet, inotify=False)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_polls")
def test_files_are_polled_while_inotify_is_unavailable(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_paths: str, **_options: object) -> object:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(watchfiles, "awatch", refuse)

    async def test(events: Events) -> None:
        assert events.watch.polling == "too many open files"
        (fleet / "a.yaml").write_text("version: 3\n")
        await events.one()
        monkeypatch.undo()
        async with asyncio.timeout(SOON):
            while events.watch.polling:
                await asyncio.sleep(0.05)
        (fleet / "a.yaml").write_text("version: 4\n")
        await events.one()

    watching(test, fleet)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_polls")
def test_name_that_is_not_utf8_does_not_end_the_watch(fleet: Path, caplog: pytest.LogCaptureFixture) -> None:
    odd = Path(os.fsdecode(bytes(fleet) + b"/\xff.yaml"))

    async def test(events: Events) -> None:
        for text in ("version: 1\n", "version: 2\n"):
            odd.write_text(text)
            await events.one()
        odd.with_suffix(".txt").touch()
        await events.none()
        assert not events.watch.polling
        (fleet / "a.yaml").write_text("version: 3\n")
        await events.one()

    watching(test, fleet)
    assert {record.getMessage() for record in caplog.records} == {
        "a file in a watched directory has a name that is not UTF-8"
    }
    assert "traceback" not in caplog.text.lower()


@pytest.mark.slow
@pytest.mark.parametrize(("error", "reason", "logged"), [
    (ValueError("a panic of the library"), "a panic of the library", ["a task failed", "file notifications"]),
    (None, "the file watch ended", ["file notifications"]),
])  # fmt: skip
def test_failed_watch_is_logged_once_and_restarted(
    fleet: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception | None,
    reason: str, logged: list[str],
) -> None:  # fmt: skip
    starts = 0

    async def spoiled(*_paths: str, **_options: object) -> AsyncIterator[None]:
        nonlocal starts
        starts += 1
        if error is not None:
            raise error
        return
        yield

    monkeypatch.setattr(watchfiles, "awatch", spoiled)

    async def test(events: Events) -> None:
        assert events.watch.polling == reason
        (fleet / "a.yaml").write_text("version: 3\n")
        await events.one()
        async with asyncio.timeout(SOON):
            while starts < 3:
                await asyncio.sleep(0.05)
        assert [record.getMessage()[: len(text)] for record, text in zip(caplog.records, logged, strict=True)] == logged
        monkeypatch.undo()
        async with asyncio.timeout(SOON):
            while events.watch.polling:
                await asyncio.sleep(0.05)

    watching(test, fleet)


@pytest.mark.slow
def test_changes_that_inotify_misses_are_polled(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a network file system, inotify misses the writes of other machines."""
    silent = fleet.parent / "silent"
    silent.mkdir()
    real = watchfiles.awatch
    monkeypatch.setattr(watchfiles, "awatch", lambda *_paths, **options: real(silent, **options))

    async def test(events: Events) -> None:
        (fleet / "a.yaml").write_text("version: 3\n")
        await events.one()

    watching(test, fleet, poll=0.5)


@pytest.mark.slow
def test_watch_releases_descriptors_and_threads(fleet: Path) -> None:
    def resources() -> tuple[int, int]:
        return len([*Path("/proc/self/fd").iterdir()]), threading.active_count()

    async def test(_events: Events) -> None:
        before = resources()
        for index in range(5):
            shutil.rmtree(fleet)
            await asyncio.sleep(0.3)
            fleet.mkdir()
            (fleet / "a.yaml").write_text(f"version: {index}\n")
            await asyncio.sleep(0.3)
        async with asyncio.timeout(SOON):
            while resources()[0] > before[0]:
                await asyncio.sleep(0.05)
        handles, threads = resources()
        assert handles <= before[0]
        workers = min(32, (os.cpu_count() or 1) + 4)
        assert threads <= before[1] + workers + 1, "worker threads of the loop are kept for a while"

    before = resources()
    watching(test, fleet)
    for _ in range(300):
        time.sleep(0.1)
        if resources() <= before:
            break
    assert resources() <= before


@pytest.mark.slow
def test_idle_watch_uses_little_processor_time(fleet: Path) -> None:
    async def test(_events: Events) -> None:
        began = time.process_time()
        await asyncio.sleep(2)
        assert time.process_time() - began < 1, "a look every 10 ms, or a loop that never rests, takes more"

    watching(test, fleet)
