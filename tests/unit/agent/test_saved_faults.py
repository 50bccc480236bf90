"""Faults survive a restart of the agent, not of the machine or the engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lbctl.agent import judge, saved_faults
from lbctl.agent.assessment import Reason
from lbctl.agent.memory import Memory
from tests.support.agent import Replica, codes, gpu

_ENGINE = "http://127.0.0.1:8000"
_XID = Reason("xid", "GPU 0 reported the fatal XID 79", "0")


@pytest.fixture(autouse=True)
def boot_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "boot_id"
    file.write_text("first\n")
    monkeypatch.setattr(saved_faults, "_BOOT_ID", file)
    return file


def _restarted_agent(directory: Path, memory: Memory) -> Memory:
    assert saved_faults.save(str(directory), _ENGINE, memory) is memory
    return saved_faults.load(str(directory), _ENGINE, None)


def test_faults_survive_a_restart_of_the_agent(tmp_path: Path) -> None:
    replica = Replica()
    replica.see(gpu(xids=(79,), remap_failed=True), started_at=500.0)
    replica.readmit()
    replica.see(gpu(xids=(48,), remap_failed=True), started_at=500.0)
    replica = Replica(_restarted_agent(tmp_path, replica.memory))
    assert codes(replica.see(gpu(remap_failed=True), started_at=500.0)) == ["xid"], "the row remap was accepted"
    replica = Replica(_restarted_agent(tmp_path, replica.memory))
    assert replica.see(gpu(remap_failed=True), started_at=900.0).state == "healthy", "another engine"


def test_drain_survives_a_restart_of_the_agent(tmp_path: Path) -> None:
    replica = Replica()
    replica.see(started_at=500.0)
    replica.drain()
    replica = Replica(_restarted_agent(tmp_path, replica.memory))
    assert replica.see(started_at=500.0).state == "draining"
    replica = Replica(_restarted_agent(tmp_path, replica.memory))
    assert replica.see(started_at=900.0).state == "healthy", "another process of the engine"
    assert _restarted_agent(tmp_path, replica.memory) == Memory()


@pytest.mark.parametrize(("is_saved", "started_at"), [(False, 500.0), (True, None)])
def test_other_drains_end_with_the_agent(tmp_path: Path, is_saved: bool, started_at: float | None) -> None:
    memory = judge.drain(Memory(started_at=started_at), 1.0, is_saved)
    assert _restarted_agent(tmp_path, memory) == Memory()


def test_faults_end_with_a_restart_of_the_machine(tmp_path: Path, boot_id: Path) -> None:
    saved_faults.save(str(tmp_path), _ENGINE, Memory(faults=(_XID,)))
    boot_id.write_text("second\n")
    assert saved_faults.load(str(tmp_path), _ENGINE, None) == Memory()


def test_another_engine_has_none_of_the_faults(tmp_path: Path) -> None:
    accepted = frozenset({"0"})
    saved_faults.save(str(tmp_path), _ENGINE, Memory(faults=(_XID,), accepted_remaps=accepted, started_at=500.0))
    assert saved_faults.load(str(tmp_path), "http://127.0.0.1:8001", None) == Memory(accepted_remaps=accepted)


def test_unknown_boot_does_not_end_faults(tmp_path: Path, boot_id: Path) -> None:
    boot_id.unlink()
    assert _restarted_agent(tmp_path, Memory(faults=(_XID,))).faults == (_XID,)


def test_file_is_written_only_if_it_changes(tmp_path: Path) -> None:
    file = tmp_path / saved_faults.FILE
    saved_faults.save(str(tmp_path), _ENGINE, Memory())
    assert not file.exists()
    saved_faults.save(str(tmp_path), _ENGINE, Memory(faults=(_XID,)))
    first = file.stat().st_ino
    saved_faults.save(str(tmp_path), _ENGINE, Memory(faults=(_XID,), probed_at=7.0))
    assert file.stat().st_ino == first
    saved_faults.save(str(tmp_path), _ENGINE, Memory())
    assert list(tmp_path.iterdir()) == [tmp_path / "boot_id"]


_SAVED: dict[str, Any] = {"boot": "first", "engine": _ENGINE, "faults": [], "accepted_remaps": []}
_UNREADABLE = {
    "empty": b"",
    "binary": b"\xff",
    "a list": b"[]",
    "incomplete": b"{}",
    "deep": b"[" * 100_000,
    "large": b" " * (saved_faults.MAX_BYTES + 1),
    "unknown code": json.dumps({**_SAVED, "faults": [{"code": "x"}]}).encode(),
    "no message": json.dumps({**_SAVED, "faults": [{"code": "xid"}]}).encode(),
    "wrong type": json.dumps({**_SAVED, "faults": [], "accepted_remaps": [1]}).encode(),
}


@pytest.mark.parametrize("text", _UNREADABLE.values(), ids=_UNREADABLE)
def test_unreadable_file_is_a_note(tmp_path: Path, text: bytes) -> None:
    (tmp_path / saved_faults.FILE).write_bytes(text)
    replica = Replica(saved_faults.load(str(tmp_path), _ENGINE, None))
    note = "earlier faults are unknown, because faults.json cannot be read"
    assert replica.see().notes[0].startswith(note)
    replica = Replica(_restarted_agent(tmp_path, replica.memory))
    assert replica.see().notes[0].startswith(note), "the note survives as well"
    replica.readmit()
    assert replica.see().notes == ()
    assert _restarted_agent(tmp_path, replica.memory) == Memory()


def test_faults_that_cannot_be_saved_are_a_note(tmp_path: Path) -> None:
    replica = Replica()
    replica.see(gpu(xids=(79,)))
    replica.memory = saved_faults.save(str(tmp_path / "missing"), _ENGINE, replica.memory)
    found = replica.see()
    assert codes(found) == ["xid"]
    assert found.notes == ("the faults will not survive a restart of the agent: No such file or directory",)
    replica.memory = saved_faults.save(str(tmp_path), _ENGINE, replica.memory)
    assert replica.see().notes == ()


def test_faults_of_gpus_that_are_not_watched_any_more_end(tmp_path: Path) -> None:
    faults = (Reason("gpu_lost", "the driver does not list device 7", "7"), Reason("xid", "GPU 0 reported XID 79", "0"))
    saved_faults.save(str(tmp_path), _ENGINE, Memory(faults=faults))
    for devices, kept in ((("0", "1"), faults[1:]), (("GPU-5fd4",), faults), (None, faults)):
        assert saved_faults.load(str(tmp_path), _ENGINE, devices).faults == kept
