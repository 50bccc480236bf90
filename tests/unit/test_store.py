"""What outlives the process: with the real disk, and with real second processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lbctl.model.load import Text
from lbctl.serve.store import Kept, Store, StoreError

FLEET = Kept(
    texts=(Text("fleet/a.yaml", "version: 1\n# ü\n".encode(), "fleet"), Text("b.yaml", b"version: 1\n", ".")),
    targets={"fleet/targets.json": b'[{"targets": ["10.0.0.1:80"]}]'},
    discovered={"embedder.test": ("10.0.0.7", "10.0.0.8")},
    version="abc",
)
HOLDER = """
import asyncio, sys, time
from pathlib import Path
from lbctl.serve.store import Store
store = Store.open(Path(sys.argv[1]))
asyncio.run(store.lock(lambda words: print(words, flush=True)))
store.keep_drains({("p", "r"): 12.5})
print("locked", flush=True)
time.sleep(600)
"""


@pytest.fixture
def opened() -> Iterator[Callable[[Path], Store]]:
    """Opens and locks a state; all are closed in the end."""
    stores: list[Store] = []

    def make(directory: Path) -> Store:
        store = Store.open(directory)
        stores.append(store)
        asyncio.run(asyncio.wait_for(store.lock(_nobody), 5))
        return store

    yield make
    for store in stores:
        store.close()


@pytest.fixture
def holder() -> Iterator[Callable[[Path], subprocess.Popen[str]]]:
    """Starts another process that wants the state; all are killed in the end."""
    running: list[subprocess.Popen[str]] = []

    def start(directory: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLDER, str(directory)]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _nobody(words: str) -> None:
    raise AssertionError(words)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


# ── What is kept ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_fleet_comes_back_as_it_was_kept(tmp_path: Path, opened: Callable[[Path], Store]) -> None:
    store = opened(tmp_path)
    assert store.last_fleet() is None
    store.keep_fleet(FLEET)
    store.close()
    assert opened(tmp_path).last_fleet() == FLEET


def test_only_the_last_fleet_is_kept(tmp_path: Path, opened: Callable[[Path], Store]) -> None:
    store = opened(tmp_path)
    store.keep_fleet(FLEET)
    store.keep_fleet(Kept((Text("c.yaml", b"version: 1", "."),), version="def"))
    assert store.last_fleet() == Kept((Text("c.yaml", b"version: 1", "."),), version="def")


def test_keeping_the_same_again_writes_next_to_nothing(tmp_path: Path, opened: Callable[[Path], Store]) -> None:
    store = opened(tmp_path)
    large = replace(FLEET, texts=(Text("a.yaml", b"x" * 1_000_000, "."),))
    store.keep_fleet(large)
    store.close()
    store = opened(tmp_path)
    for index in range(5):
        store.keep_fleet(replace(large, discovered={"embedder.test": (f"10.0.0.{index}",)}))
    assert (tmp_path / "lbctl.db-wal").stat().st_size < 200_000
    kept = store.last_fleet()
    assert kept is not None
    assert (kept.texts, kept.discovered) == (large.texts, {"embedder.test": ("10.0.0.4",)})


def test_bytes_that_are_no_text_and_names_that_are_none_come_back(
    tmp_path: Path, opened: Callable[[Path], Store]
) -> None:
    store = opened(tmp_path)
    odd = Kept((Text("a", b"\xff\xfe\0x", "\udcff"),), {"\udcff": b"[\xff]"})
    store.keep_fleet(odd)
    assert store.last_fleet() == odd


def test_drains_come_back_with_their_time(tmp_path: Path, opened: Callable[[Path], Store]) -> None:
    store = opened(tmp_path)
    store.keep_drains({("llama", "a"): 1.5, ("llama", "b"): 2.0})
    store.keep_drains({("llama", "b"): 2.0, ("triton", "a"): 1763683200.123456})
    store.close()
    assert opened(tmp_path).drains() == {("llama", "b"): 2.0, ("triton", "a"): 1763683200.123456}


def test_it_may_be_used_from_any_thread(tmp_path: Path, opened: Callable[[Path], Store]) -> None:
    store = opened(tmp_path)

    async def work() -> None:
        await asyncio.gather(*(asyncio.to_thread(store.keep_drains, {("p", str(i)): 1.0}) for i in range(20)))

    asyncio.run(work())
    assert len(store.drains()) == 1


# ── Whose it is ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_directory_and_files_are_for_their_owner_alone(tmp_path: Path, opened: Callable[[Path], Store]) -> None:
    old = os.umask(0)
    try:
        store = opened(tmp_path / "new" / "state")
        store.keep_fleet(FLEET)
    finally:
        os.umask(old)
    state = tmp_path / "new" / "state"
    assert mode(state) == 0o700
    assert {file.name: mode(file) for file in state.iterdir()} == dict.fromkeys(
        ["lbctl.db", "lbctl.db-shm", "lbctl.db-wal", "lock"], 0o600
    )


def test_files_that_others_could_read_are_closed(tmp_path: Path, opened: Callable[[Path], Store]) -> None:
    opened(tmp_path).close()
    (tmp_path / "lbctl.db").chmod(0o644)
    opened(tmp_path)
    assert mode(tmp_path / "lbctl.db") == 0o600


def test_a_directory_that_was_there_keeps_its_mode(tmp_path: Path, opened: Callable[[Path], Store]) -> None:
    tmp_path.chmod(0o755)
    opened(tmp_path)
    assert mode(tmp_path) == 0o755


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(StoreError, match="cannot be used"):
        asyncio.run(Store.open(tmp_path / "state").lock(_nobody))
    assert not (tmp_path / "victim").exists()


def test_a_second_process_waits_is_told_the_holder_and_takes_over_when_that_is_killed(
    tmp_path: Path, holder: Callable[[Path], subprocess.Popen[str]]
) -> None:
    first = holder(tmp_path)
    assert said(first) == "locked"
    second = holder(tmp_path)
    assert said(second) == f"{tmp_path} is in use by the process {first.pid}: waiting until that one ends"
    first.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    assert said(second) == "locked"
    assert time.monotonic() - killed < 1
    assert (tmp_path / "lock").read_text() == f"{second.pid}\n"


def test_what_was_kept_before_a_kill_is_there(
    tmp_path: Path, holder: Callable[[Path], subprocess.Popen[str]], opened: Callable[[Path], Store]
) -> None:
    first = holder(tmp_path)
    assert said(first) == "locked"
    first.kill()
    first.wait()
    assert opened(tmp_path).drains() == {("p", "r"): 12.5}


def test_the_lock_is_free_once_it_is_closed(tmp_path: Path, opened: Callable[[Path], Store]) -> None:
    opened(tmp_path).close()
    opened(tmp_path)


def test_waiting_can_be_cancelled(tmp_path: Path, opened: Callable[[Path], Store]) -> None:
    opened(tmp_path)
    told: list[str] = []
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(Store.open(tmp_path).lock(told.append), 0.7))
    assert told == [f"{tmp_path} is in use by the process {os.getpid()}: waiting until that one ends"]


# ── What is broken ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("damage", ["garbage", "header", "page", "truncated", "empty"])
def test_a_broken_database_is_set_aside_with_a_message_and_the_start_goes_on(
    tmp_path: Path, opened: Callable[[Path], Store], damage: str
) -> None:
    store = opened(tmp_path)
    store.keep_fleet(FLEET)
    store.close()
    file = tmp_path / "lbctl.db"
    data = file.read_bytes()
    broken = {
        "garbage": b"this is no database\n" * 400,
        "header": b"SQLite format 4" + data[15:],
        "page": data[:4096] + b"\xa5" * (len(data) - 4096),
        "truncated": data[: len(data) // 2],
        "empty": b"",
    }[damage]
    file.write_bytes(broken)
    store = opened(tmp_path)
    assert store.last_fleet() is None
    store.keep_fleet(FLEET)
    assert store.last_fleet() == FLEET
    if damage == "empty":
        assert store.notes == []
        return
    aside = [item for item in tmp_path.iterdir() if ".broken-" in item.name]
    assert [item.read_bytes() for item in aside] == [broken]
    assert len(store.notes) == 1
    assert aside[0].name in store.notes[0]
    assert "Traceback" not in store.notes[0]


def test_a_database_of_a_later_lbctl_is_set_aside(tmp_path: Path, opened: Callable[[Path], Store]) -> None:
    opened(tmp_path).close()
    database = sqlite3.connect(tmp_path / "lbctl.db")
    database.execute("PRAGMA user_version = 7")
    database.close()
    store = opened(tmp_path)
    assert "it was written by a later lbctl (schema 7)" in store.notes[0]


def test_of_databases_that_were_set_aside_the_last_three_stay(tmp_path: Path, opened: Callable[[Path], Store]) -> None:
    for day in range(1, 6):
        (tmp_path / f"lbctl.db.broken-2026010{day}T000000Z").write_text("old")
    (tmp_path / "lbctl.db").write_text("x" * 5000)
    opened(tmp_path)
    left = sorted(item.name for item in tmp_path.iterdir() if ".broken-" in item.name)
    assert len(left) == 3
    assert left[:2] == ["lbctl.db.broken-20260104T000000Z", "lbctl.db.broken-20260105T000000Z"]


def test_a_fleet_that_makes_no_sense_any_more_is_told_in_words(tmp_path: Path, opened: Callable[[Path], Store]) -> None:
    store = opened(tmp_path)
    store.keep_fleet(FLEET)
    with sqlite3.connect(tmp_path / "lbctl.db") as database:
        database.execute("UPDATE fleet SET body = '[]'")
    database.close()
    with pytest.raises(StoreError, match="kept fleet"):
        store.last_fleet()


@pytest.mark.parametrize("place", ["file/state", "file", "nul\0byte"])
def test_a_place_that_cannot_be_a_directory_is_told_in_words(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"the state directory .* cannot be used: "):
        Store.open(tmp_path / place)


def test_a_directory_that_may_not_be_written_is_told_in_words() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        place.chmod(0o755)
        (place / "state").mkdir(mode=0o555)
        told = as_somebody_else(lambda: Store.open(place / "state"))
        assert told == f"the state directory '{place}/state' cannot be written"
        told = as_somebody_else(lambda: Store.open(place / "state" / "new"))
        assert told == f"the state directory '{place}/state/new' cannot be used: permission denied"


def test_a_full_disk_is_told_in_words_and_what_was_kept_stays(tmp_path: Path, opened: Callable[[Path], Store]) -> None:
    import resource

    store = opened(tmp_path)
    store.keep_fleet(FLEET)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(StoreError, match="the state in "):
            store.keep_fleet(Kept((Text("a", b"x" * 1_000_000, "."),)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert store.last_fleet() == FLEET
    store.keep_drains({("p", "r"): 1.0})


def test_before_the_lock_there_is_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not open"):
        Store.open(tmp_path).last_fleet()


def as_somebody_else(action: Callable[[], object]) -> str:
    """What StoreError a user without rights gets, from a child process if this one is root."""
    if os.geteuid() != 0:
        with pytest.raises(StoreError) as error:
            action()
        return str(error.value)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setuid(65534)
            action()
        except StoreError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as told:
        return told.read()
