"""A damaged database or a full disk does not prevent a start: the rest is used, and the loss is reported."""

from __future__ import annotations

import asyncio
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lbctl.cli.doctor.places import state as doctor_state
from lbctl.serve.api.problems import Observed, problems
from lbctl.store.interface import StoreEntry, StoreError
from lbctl.store.sqlite import DATABASE, SqliteStore
from tests.support import api
from tests.support.state import led

KEYS = {"overrides": "[]", "drains": "[]", **{f"history/files/{number}": "y" * 3000 for number in range(8)}}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a database with several pages."""
    directory = tmp_path_factory.mktemp("good")
    opened = led(directory)
    for key, value in KEYS.items():
        asyncio.run(opened.state.save_raw(key, value))
    opened.close()
    return (directory / DATABASE).read_bytes()


@pytest.fixture
def damaged(good: bytes, tmp_path: Path) -> Path:
    """A state directory with a database in which the bytes of one entry were changed."""
    (tmp_path / DATABASE).write_bytes(good.replace(b"y" * 3000, b"y" * 2999 + b"z", 1))
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.mark.parametrize("seed", range(60))
def test_flipped_bytes_never_end_a_start(good: bytes, tmp_path: Path, seed: int) -> None:
    chance, data = random.Random(seed), bytearray(good)
    first = len(data) if seed % 3 else 4096  # SQLite's messages repeat bytes of the first page, which may not be UTF-8
    for _ in range((1, 5, 20, 200)[seed % 4]):
        data[chance.randrange(first)] ^= chance.choice((0xFF, 0x80, 1 << chance.randrange(8)))
    (tmp_path / DATABASE).write_bytes(data)
    opened = led(tmp_path)
    found = asyncio.run(opened.state.entries([""]))
    assert all(KEYS[item.key] == item.value for item in found)
    if any(".damaged-" in item.name for item in tmp_path.iterdir()):
        assert any(".damaged-" in note for note in opened.state.notes)
    else:
        assert len(found) == len(KEYS)
    asyncio.run(opened.state.save_raw("overrides", "[1]"))
    opened.close()


def test_damage_is_reported_by_status_and_doctor(damaged: Path) -> None:
    opened = led(damaged)
    (note,) = opened.state.notes
    (aside,) = [item.name for item in damaged.iterdir() if ".damaged-" in item.name]
    assert opened.lost == [note]
    assert note.endswith("lost: history/files/0")
    (row,) = problems(Observed("", api.FILES, state_notes=opened.state.notes))
    assert (row.severity, row.kind, row.text) == ("warning", "state", note)
    check = doctor_state(damaged, needed=True)
    assert (check.state, check.message) == ("warn", f"the database was damaged; serve kept the damaged data in {aside}")
    opened.close()


@contextmanager
def _no_file_grows() -> Iterator[None]:
    """Simulate a full disk for SQLite: no file can grow."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_full_disk_starts_with_what_was_saved(good: bytes, tmp_path: Path) -> None:
    (tmp_path / DATABASE).write_bytes(good)
    store = SqliteStore.open(tmp_path)
    with _no_file_grows():
        lease = asyncio.run(store.acquire())
        assert asyncio.run(store.renew()) == lease
        kept = asyncio.run(store.read())
        assert {item.key: item.value for item in kept} == KEYS
        with pytest.raises(StoreError, match="the state in "):
            asyncio.run(store.put("drains", "[1]", kept[0].version, lease.epoch))
    assert asyncio.run(store.read("drains")) == (kept[0],)
    written = asyncio.run(store.put("drains", "[1]", kept[0].version, lease.epoch))
    assert asyncio.run(store.read("drains")) == (written,)
    asyncio.run(store.close())
    again = led(tmp_path)
    assert again.state.lease is not None
    assert again.state.lease.epoch == lease.epoch + 1
    again.close()


def test_full_disk_reads_the_log_of_a_killed_process(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    opened = led(first)
    asyncio.run(opened.state.save_raw("drains", "[1]"))
    second.mkdir()
    for name in (DATABASE, f"{DATABASE}-wal"):
        (second / name).write_bytes((first / name).read_bytes())
    opened.close()
    (second / "lock").touch(0o600)
    store = SqliteStore.open(second)
    with _no_file_grows():
        asyncio.run(store.acquire())
        found: tuple[StoreEntry, ...] = asyncio.run(store.read())
    assert [(item.key, item.value) for item in found] == [("drains", "[1]")]
    asyncio.run(store.close())
