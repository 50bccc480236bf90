"""A watch on real files, and the ways in which people and programs change files."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lbctl.serve.fleet.watch import FleetWatcher

SOON = 30.0
"""Seconds within which an event must arrive."""
NEVER = 0.25
"""Seconds without an event after which none is expected."""


class Events:
    """The events of a watch."""

    def __init__(self, watch: FleetWatcher) -> None:
        self.watch = watch
        self.times: list[float] = []
        self.last = 0.0
        self._came = asyncio.Event()
        self.armed = asyncio.Event()
        """Set once the watch waits for changes, with no further directory to scan."""
        self._wait = watch._wait
        watch._wait = self._note_wait  # type: ignore[method-assign]

    async def _note_wait(self) -> None:
        if not self.watch._wake.is_set():
            self.armed.set()
        await self._wait()

    async def take(self) -> None:
        async for _ in self.watch.changes():
            self.times.append(time.monotonic())
            self._came.set()

    async def came(self) -> None:
        """Wait until a change arrived."""
        await self._came.wait()

    async def one(self, within: float = SOON) -> None:
        """Expect exactly one change, without a second one after it. `last` is its time."""
        await asyncio.wait_for(self.came(), within)
        await asyncio.sleep(NEVER)
        assert len(self.times) == 1
        self.last = self.times[0]
        self.forget()

    async def none(self) -> None:
        await asyncio.sleep(NEVER)
        assert self.times == []

    def forget(self) -> None:
        self.times.clear()
        self._came.clear()


Test = Callable[[Events], Awaitable[None]]


def watching(
    test: Test,
    *paths: Path,
    files: Iterable[Path] = (),
    settle: float = 0.05,
    poll: float = 60.0,
    inotify: bool = True,
    armed: bool = True,
) -> None:
    """Run `test` while the paths are watched."""

    async def run() -> None:
        watch = FleetWatcher([str(path) for path in paths], settle=settle, poll=poll, inotify=inotify)
        watch.watch_files(files)
        events = Events(watch)
        taking = asyncio.create_task(events.take())
        if armed:
            await asyncio.wait_for(events.armed.wait(), SOON)
        try:
            await test(events)
        finally:
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)

    asyncio.run(run())


def make_fleet(folder: Path) -> Path:
    """Create a directory with two files of a fleet and one other file."""
    fleet = folder / "fleet"
    fleet.mkdir()
    (fleet / "a.yaml").write_text("version: 1\n")
    (fleet / "b.yml").write_text("version: 1\n")
    (fleet / "notes.txt").write_text("mine\n")
    return fleet


def replace(file: Path, text: str) -> None:
    """Replace a file as editors and deployments do: write a new file next to it, then rename it."""
    new = file.with_name(f".{file.name}.new")
    new.write_text(text)
    new.replace(file)


def swap(mount: Path, name: str, files: dict[str, str]) -> None:
    """Swap the content as the kubelet's AtomicWriter does for a ConfigMap: create a new directory, then point `..data`
    to it."""
    before = (mount / "..data").readlink() if (mount / "..data").is_symlink() else None
    (mount / name).mkdir()
    for file, text in files.items():
        (mount / name / file).write_text(text)
    (mount / "..data_tmp").symlink_to(name)
    (mount / "..data_tmp").rename(mount / "..data")
    for file in files:
        if not (mount / file).is_symlink():
            (mount / file).symlink_to(f"..data/{file}")
    if before is not None:
        shutil.rmtree(mount / before)


@contextmanager
def writer(write: Callable[[], object], pause: float) -> Iterator[None]:
    """Call `write` repeatedly from another thread."""
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(pause):
            write()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
