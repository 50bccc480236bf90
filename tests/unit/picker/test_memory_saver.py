"""Saving a picker's memory on a disk that hangs or fails. A FIFO without a reader blocks like a disk that hangs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path

import pytest

from lbctl.pick.affinity import AffinityMemory
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


def test_process_ends_during_a_write_that_hangs(picker: Picker) -> None:
    async def work() -> None:
        picker.remember("a")
        await picker.saved()
        os.close(picker.hang())
        picker.remember("b")
        await picker.saver.finish(0.0)

    run(work())
    with os.fdopen(os.open(next(picker.directory.iterdir()), os.O_RDONLY), "rb") as fifo:
        assert b"entries" in fifo.read()
