"""Saving a picker's memory on a disk that hangs or fails. A FIFO without a reader blocks like a disk that hangs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path

import pytest

from lbctl.pick.affinity import AffinityChanges, AffinityMemory
from lbctl.pick.features import Features
from lbctl.picker import memory_saver
from lbctl.picker.memory_saver import MemorySaver
from lbctl.picker.saved_memory import SavedMemory

WALL, NOW = 1_700_000_000.0, 5000.0
HANGS = "the disk is not responding"


class Picker:
    """A memory and its saver, with files in a directory."""

    def __init__(self, directory: Path) -> None:
        self.memory = AffinityMemory(records_changes=True)
        self.saver = MemorySaver(SavedMemory(directory, NOW, WALL))
        self.directory = directory

    def remember(self, session: str, replica: str = "r") -> None:
        self.memory.remember(Features("p", session=session, prompt_tokens=100.0), replica, NOW)
        self.saver.add(self.memory.take_changes())

    async def saved(self) -> None:
        """Write until nothing is left to write."""
        await self.saver.finish(60)
        assert self.saver.failure == ""

    def hang(self) -> int:
        """Let the next write hang. Return a descriptor of the original file."""
        (file,) = self.directory.iterdir()
        descriptor = os.open(file, os.O_RDONLY)
        file.unlink()
        os.mkfifo(file)
        return descriptor

    def respond(self, original: int) -> None:
        """End the hanging write, and put its lines into the original file."""
        (fifo,) = self.directory.iterdir()
        before = os.pread(original, 1 << 20, 0)
        os.close(original)
        lines = fifo.read_bytes()
        fifo.unlink()
        fifo.write_bytes(before + lines)

    def restored(self) -> dict[str, str]:
        """Return session → replica in the files."""
        memory = AffinityMemory()
        SavedMemory(self.directory, NOW, WALL).restore(memory, NOW)
        homes = {name: memory.home(Features("p", session=name), NOW) for name in ("a", "b", "c", "d")}
        return {name: home.replica for name, home in homes.items() if home is not None}


@pytest.fixture
def picker(tmp_path: Path) -> Picker:
    return Picker(tmp_path / "memory")


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(work)


def test_hanging_write_is_reported_until_it_ends(
    picker: Picker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def work() -> None:
        picker.remember("a")
        await picker.saved()
        original = picker.hang()
        monkeypatch.setattr(memory_saver, "RESPONSE_TIMEOUT", 0.0)
        for name in ("b", "c"):
            picker.remember(name)
            await picker.saver.write()
            assert picker.saver.failure == HANGS
        monkeypatch.undo()
        await asyncio.to_thread(picker.respond, original)
        await picker.saved()

    run(work())
    assert picker.restored() == {"a": "r", "b": "r", "c": "r"}
    messages = [item.message for item in caplog.records]
    failure = f"the picker cannot save its memory in {picker.directory}: {HANGS}"
    assert messages == [failure, "the picker can save its memory again"]


def test_entries_that_wait_are_bounded(picker: Picker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        picker.remember("a")
        await picker.saved()
        original = picker.hang()
        monkeypatch.setattr(memory_saver, "RESPONSE_TIMEOUT", 0.0)
        picker.remember("b")
        await picker.saver.write()
        monkeypatch.setattr(memory_saver, "MAX_WAITING_NUMBERS", 3)
        picker.remember("c", "other")
        picker.remember("c2", "other")
        picker.remember("d", "other")
        monkeypatch.undo()
        await asyncio.to_thread(picker.respond, original)
        await picker.saved()

    run(work())
    assert picker.restored() == {"a": "r", "b": "r", "d": "other"}, "numbers of replicas are not dropped"


def test_failed_write_loses_only_its_entries(picker: Picker) -> None:
    async def work() -> None:
        picker.directory.write_text("a file")
        picker.remember("a")
        await picker.saver.write()
        assert "exists" in picker.saver.failure
        picker.directory.unlink()
        picker.remember("b")
        await picker.saved()

    run(work())
    assert picker.restored() == {"b": "r"}


def test_failure_lasts_while_writes_are_slow(
    picker: Picker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def slow_write(session: str, waiting: str) -> None:
        original = picker.hang()
        picker.remember(session)
        with monkeypatch.context() as patch:
            patch.setattr(memory_saver, "RESPONSE_TIMEOUT", 0.0)
            await picker.saver.write()
        if waiting:
            picker.remember(waiting)
        await asyncio.to_thread(picker.respond, original)
        await picker.saver.write()

    async def work() -> None:
        picker.remember("a")
        await picker.saved()
        await slow_write("b", "c")
        assert picker.saver.failure == HANGS
        await slow_write("d", "")
        assert picker.saver.failure == "", "nothing waits"

    run(work())
    assert picker.restored() == {"a": "r", "b": "r", "c": "r", "d": "r"}
    assert [item.levelname for item in caplog.records] == ["ERROR"]


def test_many_changes_that_wait_are_joined(picker: Picker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_saver, "_MAX_PARTS", 2)
    for name in ("a", "b", "c", "d"):
        picker.remember(name)
    run(picker.saved())
    assert picker.restored() == {"d": "r"}, "the first three were too many"


def test_changes_of_two_generations_wait(picker: Picker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_saver, "MAX_WAITING_NUMBERS", 0)
    written: list[int] = []
    monkeypatch.setattr(SavedMemory, "write", lambda _, changes: written.extend(part.generation for part in changes))
    for generation in (0, 1, 2, 3, 3):
        picker.saver.add([AffinityChanges(generation, NOW, {}, [1, 1, 1])])
    run(picker.saved())
    assert written == [2, 3]


def test_lost_caches_are_saved_after_a_failed_write(picker: Picker) -> None:
    async def work() -> None:
        picker.remember("a", "lost")
        picker.remember("b")
        await picker.saved()
        (file,) = picker.directory.iterdir()
        file.rename(picker.directory.parent / "file")
        file.mkdir()
        picker.memory.forget("p", "lost")
        picker.remember("c")
        await picker.saver.write()
        assert "directory" in picker.saver.failure
        file.rmdir()
        (picker.directory.parent / "file").rename(file)
        picker.remember("d")
        await picker.saved()

    run(work())
    assert picker.restored() == {"b": "r", "d": "r"}


def test_entries_wait_if_no_thread_can_be_started(picker: Picker, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def work() -> None:
        picker.remember("a")
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail)
            await picker.saver.write()
            assert picker.saver.failure == "can't start new thread"
        await picker.saved()

    run(work())
    assert picker.restored() == {"a": "r"}


def test_unexpected_error_loses_only_entries(picker: Picker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        picker.remember("a")
        with monkeypatch.context() as patch:
            patch.setattr(SavedMemory, "write", lambda *_: 1 / 0)
            await picker.saver.write()
        assert picker.saver.failure == "division by zero"
        picker.remember("b")
        await picker.saved()

    run(work())
    assert picker.restored() == {"b": "r"}


def test_lost_entries_are_logged_at_the_end(picker: Picker, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        picker.remember("a")
        await picker.saved()
        assert caplog.records == []
        original = picker.hang()
        picker.remember("b")
        picker.remember("c")
        await picker.saver.finish(0.0)
        picker.remember("d")
        await picker.saver.finish(0.0)
        await asyncio.to_thread(picker.respond, original)

    run(work())
    assert [vars(item)["fields"] for item in caplog.records] == [{"entries": 2}, {"entries": 3}]


def test_process_ends_during_a_write_that_hangs(tmp_path: Path) -> None:
    """The FIFO never has a reader, so the write does not end before the process."""
    program = """
import asyncio, os, pathlib, sys
from lbctl.pick.affinity import AffinityChanges
from lbctl.picker.memory_saver import MemorySaver
from lbctl.picker.saved_memory import SavedMemory

async def work(directory):
    saver = MemorySaver(SavedMemory(directory, 0.0, 0.0))
    saver.add([AffinityChanges(0, 0.0, {1: ("p", "r")}, [1, 1, 1])])
    await saver.finish(60)
    (file,) = directory.iterdir()
    file.unlink()
    os.mkfifo(file)
    saver.add([AffinityChanges(0, 0.0, {}, [2, 1, 1])])
    await saver.finish(0.0)

asyncio.run(work(pathlib.Path(sys.argv[1])))
"""
    command = [sys.executable, "-c", program, str(tmp_path / "memory")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    lost = "the picker stops without saving all of its memory\n"
    assert (result.returncode, result.stdout, result.stderr) == (0, "", lost)
