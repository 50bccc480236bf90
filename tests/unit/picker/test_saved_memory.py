"""The affinity memory in files: a picker that starts again finds it, and ignores files that do not fit."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lbctl.pick.affinity import TTL, AffinityChanges, AffinityMemory
from lbctl.pick.features import Features
from lbctl.picker import saved_memory
from lbctl.picker.launch import environment
from lbctl.picker.saved_memory import SavedMemory

WALL = 1_700_000_000.0
SESSIONS = [Features("p", session=f"s{number}", prompt_tokens=100.0) for number in range(50)]
PROMPT = Features("p", prefix=tuple(range(1000, 1020)), prompt_tokens=2000.0)


def _saved(directory: Path, now: float = 5000.0) -> None:
    """Save sessions 0 to 49 at replicas r0 to r4, and a prompt at r1 and then at r2, in several writes."""
    memory, files = AffinityMemory(records_changes=True), SavedMemory(directory, now, WALL)
    for number, features in enumerate(SESSIONS):
        memory.remember(features, f"r{number % 5}", now)
        files.write(memory.take_changes())
    for replica in ("r1", "r2"):
        memory.remember(PROMPT, replica, now)
    files.write(memory.take_changes())


def _restored(directory: Path, now: float = 20.0, later: float = 10.0) -> dict[str, str | None]:
    """Return session → replica of a process that starts `later` with another monotonic clock; `prompt` → replicas."""
    memory = AffinityMemory()
    SavedMemory(directory, now, WALL + later).restore(memory, now)
    homes = {str(item.session): home.replica if (home := memory.home(item, now)) else None for item in SESSIONS}
    return homes | {"prompt": " ".join(item.replica for item in memory.holders(PROMPT, now))}


EXPECTED = {str(item.session): f"r{number % 5}" for number, item in enumerate(SESSIONS)} | {"prompt": "r2 r1"}
NOTHING = {str(item.session): None for item in SESSIONS} | {"prompt": ""}


def test_another_process_restores_sessions_and_prompts(tmp_path: Path) -> None:
    _saved(tmp_path / "memory")
    assert _restored(tmp_path / "memory") == EXPECTED
    assert [item.stat().st_mode & 0o777 for item in (tmp_path / "memory").iterdir()] == [0o600]


def test_restored_memory_is_saved_again(tmp_path: Path) -> None:
    _saved(tmp_path)
    memory, files = AffinityMemory(records_changes=True), SavedMemory(tmp_path, 20.0, WALL)
    files.restore(memory, 20.0)
    memory.remember(SESSIONS[0], "new", 20.0)
    memory.forget("p", "r1")
    files.write(memory.take_changes())
    gone = {name: None for name, replica in EXPECTED.items() if replica == "r1"}
    assert _restored(tmp_path) == {**EXPECTED, **gone, "s0": "new", "prompt": "r2"}


def test_older_generation_is_kept_in_the_other_file(tmp_path: Path) -> None:
    memory, files = AffinityMemory(records_changes=True), SavedMemory(tmp_path, 0.0, WALL)
    for number, features in enumerate(SESSIONS):
        memory.remember(features, "old" if number < 25 else "young", 3000.0 + number * TTL / 75)
        files.write(memory.take_changes())
    homes = _restored(tmp_path, 3000.0 + TTL / 1.5, 3000.0 + TTL / 1.5)
    assert (homes["s24"], homes["s49"]) == ("old", "young")
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("later", [TTL + 1, -1.0])
def test_memory_of_another_time_is_ignored(tmp_path: Path, later: float) -> None:
    _saved(tmp_path)
    assert _restored(tmp_path, later=later) == NOTHING


def test_memory_with_another_seed_of_hashes_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _saved(tmp_path)
    monkeypatch.setattr(saved_memory, "hash_version", lambda: 1)
    assert _restored(tmp_path) == NOTHING


@pytest.mark.parametrize("cut", [1, 10, 100])
def test_line_that_was_cut_by_a_crash_is_ignored(tmp_path: Path, cut: int) -> None:
    _saved(tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-cut])
    assert _restored(tmp_path) == (EXPECTED if cut == 1 else {**EXPECTED, "prompt": ""})


@pytest.mark.parametrize(
    "line",
    [
        "", "{", "[]", "1", '{"replicas":{},"entries":[1,2],"forgotten":[]}', '{"replicas":{"x":1}}',
        '{"replicas":{},"entries":["1",2,3],"forgotten":[]}', '{"replicas":{},"entries":[1,2,3],"forgotten":[true]}',
        '{"replicas":[],"entries":[],"forgotten":[]}', '{"replicas":{"1":["p"]},"entries":[],"forgotten":[]}',
    ],
)  # fmt: skip
def test_line_that_is_not_a_change_is_ignored(tmp_path: Path, line: str) -> None:
    _saved(tmp_path)
    (file,) = tmp_path.iterdir()
    head, rest = file.read_text().split("\n", 1)
    file.write_text(f"{head}\n{line}\n{rest}")
    assert _restored(tmp_path) == EXPECTED
    file.write_text(f"{line}\n{rest}")
    assert _restored(tmp_path) == NOTHING


def test_line_after_an_incomplete_one_is_restored(tmp_path: Path) -> None:
    _saved(tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-10])
    memory, files = AffinityMemory(records_changes=True), SavedMemory(tmp_path, 20.0, WALL)
    files.restore(memory, 20.0)
    memory.remember(SESSIONS[0], "new", 20.0)
    files.write(memory.take_changes())
    assert _restored(tmp_path)["s0"] == "new"


def test_unread_files_are_removed_by_the_first_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(tmp_path / "memory-0.jsonl")
    monkeypatch.setattr(saved_memory, "READ_TIMEOUT", 0.0)
    _saved(tmp_path / "saved")
    (tmp_path / "saved" / "memory-1.jsonl").rename(tmp_path / "memory-1.jsonl")
    memory, files = AffinityMemory(records_changes=True), SavedMemory(tmp_path, 20.0, WALL)
    assert files.restore(memory, 20.0) == 0
    assert [item.message for item in caplog.records] == [
        "the picker is starting without its memory: the disk is not responding"
    ]
    memory.remember(SESSIONS[0], "new", 20.0)
    files.write(memory.take_changes())
    monkeypatch.undo()
    assert _restored(tmp_path) == {**NOTHING, "s0": "new"}


def _part(generation: int, number: int, *, introduces: bool = True) -> AffinityChanges:
    """Return a change: session `number` is at the replica with this number, whose name is `r` and the number."""
    key = hash(("p", "", f"s{number}"))
    replicas = {number: ("p", f"r{number}")} if introduces else {}
    return AffinityChanges(generation, 10.0 + generation, replicas, [key, number, 100])


def _known(directory: Path) -> set[str]:
    """Return the sessions in the files, and check their replicas."""
    homes = {name: home for name, home in _restored(directory).items() if home}
    assert all(home == name.replace("s", "r") for name, home in homes.items())
    return set(homes)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_each_restored_file_may_end_within_a_line(tmp_path: Path, order: tuple[int, int]) -> None:
    SavedMemory(tmp_path, 20.0, WALL).write([_part(0, 1), _part(1, 2)])
    for file in tmp_path.iterdir():
        file.write_bytes(file.read_bytes() + b"{")
    files = SavedMemory(tmp_path, 20.0, WALL)
    files.restore(AffinityMemory(), 20.0)
    for generation in order:
        files.write([_part(generation, 3 + generation)])
    assert _known(tmp_path) == {"s1", "s2", "s3", "s4"}


def test_line_after_a_failed_write_is_restored(tmp_path: Path) -> None:
    files = SavedMemory(tmp_path, 20.0, WALL)
    files.write([_part(0, 1), _part(1, 2)])
    size = (tmp_path / "memory-1.jsonl").stat().st_size
    with _max_file_bytes(size + 20), pytest.raises(OSError, match="large"):
        files.write([_part(1, 3)])
    files.write([_part(0, 4)])
    files.write([_part(1, 5)])
    assert _known(tmp_path) == {"s1", "s2", "s4", "s5"}


def test_file_that_was_not_restored_is_removed(tmp_path: Path) -> None:
    SavedMemory(tmp_path, 20.0, WALL).write([_part(0, 1), _part(1, 2)])
    newer = tmp_path / "memory-1.jsonl"
    newer.write_text(newer.read_text().replace('"began":', '"began":9'))
    files = SavedMemory(tmp_path, 20.0, WALL)
    assert files.restore(AffinityMemory(), 20.0) == 1
    files.write([_part(0, 3)])
    assert [item.name for item in tmp_path.iterdir()] == ["memory-0.jsonl"]
    assert _known(tmp_path) == {"s1", "s3"}


def test_older_changes_do_not_replace_a_newer_generation(tmp_path: Path) -> None:
    files = SavedMemory(tmp_path, 20.0, WALL)
    files.write([_part(3, 1), _part(2, 2), _part(3, 3), _part(1, 4)])
    assert _known(tmp_path) == {"s1", "s2", "s3", "s4"}


@pytest.mark.parametrize("is_restored", [False, True])
def test_deleted_file_is_created_again(tmp_path: Path, is_restored: bool) -> None:
    directory = tmp_path / "memory"
    files = SavedMemory(directory, 20.0, WALL)
    files.write([_part(0, 1), _part(0, 2)])
    if is_restored:
        files = SavedMemory(directory, 20.0, WALL)
        files.restore(AffinityMemory(), 20.0)
    shutil.rmtree(directory)
    files.write([_part(0, 2, introduces=False)])
    files.write([_part(0, 3)])
    assert _known(directory) == {"s2", "s3"}


def test_deleted_file_is_created_after_a_failed_attempt(tmp_path: Path) -> None:
    files = SavedMemory(tmp_path, 20.0, WALL)
    files.write([_part(0, 1)])
    (tmp_path / "memory-0.jsonl").unlink()
    with _max_file_bytes(5), pytest.raises(OSError, match="large"):
        files.write([_part(0, 2)])
    files.write([_part(0, 3)])
    assert _known(tmp_path) == {"s3"}


@contextmanager
def _max_file_bytes(size: int) -> Iterator[None]:
    """Let writes beyond this size fail, like those to a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_seed_of_hashes_depends_only_on_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    first, same, other = (environment(key)["PYTHONHASHSEED"] for key in ("k" * 43, "k" * 43, "l" * 43))
    assert first == same != other
    assert 0 <= int(first) < 2**32
    assert "PYTHONHASHSEED" not in environment()
    assert json.dumps(environment("k" * 43)).count("k" * 43) == 0
