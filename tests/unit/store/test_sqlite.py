"""State that survives the process, with the real disk and real second processes."""

from __future__ import annotations

import asyncio
import os
import shutil
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

from lbctl.model.load import SourceText
from lbctl.store.interface import StoreError
from lbctl.store.records import SavedFleet
from lbctl.store.saved import SavedState
from lbctl.store.sqlite import SqliteStore
from tests.support.state import OpenState, led

FLEET = SavedFleet(
    texts=(
        SourceText("fleet/a.yaml", "version: 1\n# ü\n".encode(), "fleet"),
        SourceText("b.yaml", b"version: 1\n", "."),
    ),
    targets={"fleet/targets.json": b'[{"targets": ["10.0.0.1:80"]}]'},
    discovered={"embedder.test": ("10.0.0.7", "10.0.0.8")},
    version="abc",
)
HOLDER = """
import asyncio, sys, time
from pathlib import Path
from lbctl.store.saved import SavedState
from lbctl.store.sqlite import SqliteStore

async def hold():
    state = SavedState(SqliteStore.open(Path(sys.argv[1])), print)
    await state.lead(lambda words: print(words, flush=True))
    await state.save_drains({("p", "r"): 12.5})
    print("locked", flush=True)
    time.sleep(600)

asyncio.run(hold())
"""


@pytest.fixture
def opened() -> Iterator[Callable[[Path], OpenState]]:
    """Open states and take their leases; close them at the end."""
    states: list[OpenState] = []

    def make(directory: Path) -> OpenState:
        states.append(led(directory))
        return states[-1]

    yield make
    for state in states:
        state.close()


@pytest.fixture
def holder() -> Iterator[Callable[[Path], subprocess.Popen[str]]]:
    """Start other processes that wait for the state; kill them at the end."""
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


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


# ── Records ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_fleet_is_restored_as_it_was_saved(tmp_path: Path, opened: Callable[[Path], OpenState]) -> None:
    store = opened(tmp_path)
    assert store.last_fleet() is None
    store.save_fleet(FLEET)
    store.close()
    assert opened(tmp_path).last_fleet() == FLEET


def test_only_the_last_fleet_is_kept(tmp_path: Path, opened: Callable[[Path], OpenState]) -> None:
    store = opened(tmp_path)
    store.save_fleet(FLEET)
    store.save_fleet(SavedFleet((SourceText("c.yaml", b"version: 1", "."),), version="def"))
    assert store.last_fleet() == SavedFleet((SourceText("c.yaml", b"version: 1", "."),), version="def")


def test_saving_an_unchanged_fleet_writes_little(tmp_path: Path, opened: Callable[[Path], OpenState]) -> None:
    store = opened(tmp_path)
    large = replace(FLEET, texts=(SourceText("a.yaml", b"x" * 1_000_000, "."),))
    store.save_fleet(large)
    store.close()
    store = opened(tmp_path)
    for index in range(5):
        store.save_fleet(replace(large, discovered={"embedder.test": (f"10.0.0.{index}",)}))
    assert (tmp_path / "lbctl.db-wal").stat().st_size < 200_000
    kept = store.last_fleet()
    assert kept is not None
    assert (kept.texts, kept.discovered) == (large.texts, {"embedder.test": ("10.0.0.4",)})


def test_bytes_and_names_outside_utf8_are_restored(tmp_path: Path, opened: Callable[[Path], OpenState]) -> None:
    store = opened(tmp_path)
    odd = SavedFleet((SourceText("a", b"\xff\xfe\0x", "\udcff"),), {"\udcff": b"[\xff]"})
    store.save_fleet(odd)
    assert store.last_fleet() == odd


def test_drains_are_restored_with_their_time(tmp_path: Path, opened: Callable[[Path], OpenState]) -> None:
    store = opened(tmp_path)
    store.save_drains({("llama", "a"): 1.5, ("llama", "b"): 2.0})
    store.save_drains({("llama", "b"): 2.0, ("triton", "a"): 1763683200.123456})
    store.close()
    assert opened(tmp_path).drains() == {("llama", "b"): 2.0, ("triton", "a"): 1763683200.123456}


def test_concurrent_saves_keep_the_last_one(tmp_path: Path, opened: Callable[[Path], OpenState]) -> None:
    store = opened(tmp_path)

    async def work() -> None:
        await asyncio.gather(*(store.state.save_drains({("p", str(i)): 1.0}) for i in range(20)))

    asyncio.run(work())
    assert store.drains() == {("p", "19"): 1.0}


# ── Ownership and locking ────────────────────────────────────────────────────────────────────────────────────────────


def test_directory_and_files_are_private(tmp_path: Path, opened: Callable[[Path], OpenState]) -> None:
    umask = os.umask(0)
    try:
        store = opened(tmp_path / "new" / "state")
        store.save_fleet(FLEET)
    finally:
        os.umask(umask)
    state = tmp_path / "new" / "state"
    assert mode(state) == 0o700
    assert {file.name: mode(file) for file in state.iterdir()} == dict.fromkeys(
        ["lbctl.db", "lbctl.db-shm", "lbctl.db-wal", "lock"], 0o600
    )


def test_permissions_of_an_existing_file_are_restricted(tmp_path: Path, opened: Callable[[Path], OpenState]) -> None:
    opened(tmp_path).close()
    (tmp_path / "lbctl.db").chmod(0o644)
    opened(tmp_path)
    assert mode(tmp_path / "lbctl.db") == 0o600


def test_existing_directory_keeps_its_mode(tmp_path: Path, opened: Callable[[Path], OpenState]) -> None:
    tmp_path.chmod(0o755)
    opened(tmp_path)
    assert mode(tmp_path) == 0o755


def test_directory_writable_by_others_is_reported(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o700)
    tmp_path.chmod(0o777)
    assert SqliteStore.open(tmp_path / "closed").notes() == ()
    (note,) = SqliteStore.open(tmp_path).notes()
    assert "(mode 0777)" in note
    assert f"chmod 700 {tmp_path}" in note


def test_setgid_group_directory_is_not_reported(tmp_path: Path) -> None:
    reported = {}
    for value in (0o2775, 0o2770, 0o775, 0o2777):
        tmp_path.chmod(value)
        reported[value] = bool(SqliteStore.open(tmp_path).notes())
    assert reported == {0o2775: False, 0o2770: False, 0o775: True, 0o2777: True}


def test_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(StoreError, match="cannot be used"):
        led(tmp_path / "state")
    assert not (tmp_path / "victim").exists()


def test_second_process_waits_and_takes_over_after_a_kill(
    tmp_path: Path, holder: Callable[[Path], subprocess.Popen[str]]
) -> None:
    first = holder(tmp_path)
    assert line_of(first) == "locked"
    second = holder(tmp_path)
    assert line_of(second) == f"{tmp_path} is in use by the process {first.pid}: waiting for it to exit"
    first.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    assert line_of(second) == "locked"
    assert time.monotonic() - killed < 60
    assert (tmp_path / "lock").read_text() == f"{second.pid}\n"


def test_replaced_lock_file_does_not_admit_a_second_process(
    tmp_path: Path, holder: Callable[[Path], subprocess.Popen[str]], opened: Callable[[Path], OpenState]
) -> None:
    first = opened(tmp_path)
    for replacement in ("", "7\n"):
        (tmp_path / "lock").unlink()
        if replacement:
            (tmp_path / "lock").write_text(replacement)
        second = holder(tmp_path)
        assert "waiting for it to exit" in line_of(second)
        second.kill()
        first.save_drains({("p", replacement): 1.5})
    first.close()
    assert opened(tmp_path).drains() == {("p", "7\n"): 1.5}


def test_nothing_is_acknowledged_after_the_directory_is_gone(
    tmp_path: Path, opened: Callable[[Path], OpenState]
) -> None:
    state = opened(tmp_path / "state")
    state.save_drains({("p", "r"): 1.5})
    shutil.rmtree(tmp_path / "state")
    for _ in range(2):
        with pytest.raises(StoreError, match="not the directory that this process locked"):
            state.save_drains({("p", "r"): 2.5})
        opened(tmp_path / "state").close()


def test_saved_state_survives_a_kill(
    tmp_path: Path, holder: Callable[[Path], subprocess.Popen[str]], opened: Callable[[Path], OpenState]
) -> None:
    first = holder(tmp_path)
    assert line_of(first) == "locked"
    first.kill()
    first.wait()
    assert opened(tmp_path).drains() == {("p", "r"): 12.5}


def test_lock_is_released_on_close(tmp_path: Path, opened: Callable[[Path], OpenState]) -> None:
    opened(tmp_path).close()
    opened(tmp_path)


@pytest.mark.slow
def test_waiting_for_the_lock_can_be_cancelled(tmp_path: Path, opened: Callable[[Path], OpenState]) -> None:
    opened(tmp_path)
    messages: list[str] = []
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(SavedState(SqliteStore.open(tmp_path), print).lead(messages.append), 0.7))
    assert messages == [f"{tmp_path} is in use by the process {os.getpid()}: waiting for it to exit"]


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("damage", ["garbage", "header", "page", "truncated", "empty"])
def test_broken_database_is_set_aside_with_a_message(
    tmp_path: Path, opened: Callable[[Path], OpenState], damage: str
) -> None:
    store = opened(tmp_path)
    store.save_fleet(FLEET)
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
    store.save_fleet(FLEET)
    assert store.last_fleet() == FLEET
    if damage == "empty":
        assert store.lost == []
        return
    aside = [item for item in tmp_path.iterdir() if ".damaged-" in item.name]
    assert [item.read_bytes() for item in aside] == [broken]
    assert len(store.lost) == 1
    assert aside[0].name in store.lost[0]
    assert "Traceback" not in store.lost[0]


def test_database_of_a_later_version_is_set_aside(tmp_path: Path, opened: Callable[[Path], OpenState]) -> None:
    opened(tmp_path).close()
    database = sqlite3.connect(tmp_path / "lbctl.db")
    database.execute("PRAGMA user_version = 7")
    database.close()
    store = opened(tmp_path)
    assert "it was written by a later version of lbctl (schema 7)" in store.lost[0]


def test_last_three_damaged_databases_are_kept(tmp_path: Path, opened: Callable[[Path], OpenState]) -> None:
    for day in range(1, 6):
        (tmp_path / f"lbctl.db.damaged-2026010{day}T000000Z").write_text("old")
    (tmp_path / "lbctl.db").write_text("x" * 5000)
    opened(tmp_path)
    left = sorted(item.name for item in tmp_path.iterdir() if ".damaged-" in item.name)
    assert len(left) == 3
    assert left[:2] == ["lbctl.db.damaged-20260104T000000Z", "lbctl.db.damaged-20260105T000000Z"]


@pytest.mark.parametrize("place", ["file/state", "file", "nul\0byte"])
def test_unusable_path_is_a_readable_error(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"the state directory .* cannot be used: "):
        SqliteStore.open(tmp_path / place)


def test_read_only_directory_is_a_readable_error() -> None:
    with tempfile.TemporaryDirectory() as name:
        name = Path(name)
        name.chmod(0o755)
        (name / "state").mkdir(mode=0o555)
        error = error_without_permissions(lambda: SqliteStore.open(name / "state"))
        assert error == f"the state directory '{name}/state' cannot be written"
        error = error_without_permissions(lambda: SqliteStore.open(name / "state" / "new"))
        assert error == f"the state directory '{name}/state/new' cannot be used: permission denied"


def test_full_disk_is_an_error_and_keeps_the_saved_state(tmp_path: Path, opened: Callable[[Path], OpenState]) -> None:
    import resource

    store = opened(tmp_path)
    store.save_fleet(FLEET)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(StoreError, match="the state in "):
            store.save_fleet(SavedFleet((SourceText("a", b"x" * 1_000_000, "."),)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert store.last_fleet() == FLEET
    store.save_drains({("p", "r"): 1.0})


def test_reading_before_the_first_leader_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist yet"):
        asyncio.run(SqliteStore.open(tmp_path).read())


def error_without_permissions(action: Callable[[], object]) -> str:
    """Return the StoreError of an unprivileged user, in a child process if this one is root."""
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
    with os.fdopen(reader) as pipe:
        return pipe.read()
