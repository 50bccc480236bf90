"""Databases of earlier versions, and damaged databases: valid records are kept."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from lbctl.control.loop_output import LoopOutput
from lbctl.control.overrides import MAX_OVERRIDES, Override
from lbctl.ir.weight import Weight
from lbctl.model.load import SourceText
from lbctl.store import records, sqlite_schema
from lbctl.store.interface import FencedError
from lbctl.store.records import SavedFleet
from tests.support.paths import ROOT
from tests.support.state import OpenState, led

SCHEMA_2 = ROOT / "tests" / "fixtures" / "state" / "schema-2.sql"
FLEET = SavedFleet(
    texts=(SourceText("fleet/a.yaml", "version: 1\n# ü\n".encode(), "fleet"), SourceText("b.yaml", b"\xff\xfe", ".")),
    targets={"fleet/targets.json": b'[{"targets": ["10.0.0.1:80"]}]'},
    discovered={"embedder.test": ("10.0.0.7", "10.0.0.8"), "b.test@10.0.0.53:53": ("10.0.1.1",)},
    version="abc",
)
DRAINS = {("llama", "a"): 1763683200.123456, ("llama", "b"): 2.0}
OUTPUT = (LoopOutput({"p": {"a": Weight(0.5, 0.8, 0.7)}}, {"p": {"b": ("stalled",)}}), 1000.25)
OVERRIDES = (
    Override("drain", "p", "a", None, "", 5.0, 10.0),
    Override("freeze", "p", "", None, "busy", 5.5, None),
    Override("weight", "p", "b", 2.5, "why", 6.0),
)


class StateDirectory:
    """A state directory. `state` takes its lease; the fixture closes every state."""

    def __init__(self, directory: Path) -> None:
        self.path = directory
        self.file = directory / "lbctl.db"
        self.states: list[OpenState] = []

    def state(self) -> OpenState:
        self.states.append(led(self.path))
        return self.states[-1]

    def filled(self) -> None:
        """Create a database with every record, and close it."""
        state = self.state()
        state.save_fleet(FLEET)
        state.save_drains(DRAINS)
        state.save_loop_output(*OUTPUT)
        state.save_overrides(OVERRIDES)
        state.close()

    def execute(self, *statements: str) -> None:
        database = sqlite3.connect(self.file)
        for statement in statements:
            database.execute(statement)
        database.commit()
        database.close()

    def replace(self, key: str, value: str) -> None:
        """Write an entry with a valid checksum, as a bug of lbctl would."""
        database = sqlite3.connect(self.file)
        with database:
            sqlite_schema.write(database, key, value)
        database.close()

    def aside(self) -> list[str]:
        return sorted(item.name for item in self.path.iterdir() if ".damaged-" in item.name)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[StateDirectory]:
    opened = StateDirectory(tmp_path)
    yield opened
    for state in opened.states:
        state.close()


def everything(state: OpenState) -> tuple[object, ...]:
    return state.last_fleet(), state.drains(), state.loop_output(), state.overrides()


# ── Earlier schemas ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_database_of_schema_2_is_migrated_without_loss(directory: StateDirectory) -> None:
    database = sqlite3.connect(directory.file)
    database.executescript(SCHEMA_2.read_text())
    database.close()
    state = directory.state()
    assert everything(state) == (FLEET, DRAINS, OUTPUT, OVERRIDES)
    assert (state.lost, directory.aside()) == ([], [])
    state.save_drains({})
    state.close()
    assert everything(directory.state()) == (FLEET, {}, OUTPUT, OVERRIDES)


def test_database_of_schema_1_is_migrated(directory: StateDirectory) -> None:
    database = sqlite3.connect(directory.file)
    database.executescript(SCHEMA_2.read_text() + "DROP TABLE live; DROP TABLE overrides; PRAGMA user_version = 1;")
    database.close()
    state = directory.state()
    assert everything(state) == (FLEET, DRAINS, None, ())
    assert state.lost == []


@pytest.mark.parametrize(
    ("statement", "lost", "left"),
    [
        ("UPDATE overrides SET value = 'heavy' WHERE kind = 'weight'", "weight p b", {"overrides": OVERRIDES[:2]}),
        ("UPDATE overrides SET value = 9e999 WHERE kind = 'weight'", "weight p b", {"overrides": OVERRIDES[:2]}),
        ("UPDATE overrides SET kind = 'dance' WHERE kind = 'drain'", "dance p a", {"overrides": OVERRIDES[1:]}),
        ("UPDATE drains SET since = 'now'", "drains", {"drains": {}}),
        ("UPDATE live SET body = '[]'", "weights", {"output": None}),
        ("UPDATE live SET body = '{'", "weights", {"output": None}),
        ("UPDATE fleet SET body = '[]'", "last valid fleet", {"fleet": None}),
        ("UPDATE fleet SET body = x'ff00'", "last valid fleet", {"fleet": None}),
    ],
)  # fmt: skip
def test_migration_drops_only_invalid_rows(
    directory: StateDirectory, statement: str, lost: str, left: dict[str, object]
) -> None:
    database = sqlite3.connect(directory.file)
    database.executescript(SCHEMA_2.read_text())
    database.close()
    directory.execute(statement)
    state = directory.state()
    complete = {"fleet": FLEET, "drains": DRAINS, "output": OUTPUT, "overrides": OVERRIDES}
    assert dict(zip(complete, everything(state), strict=True)) == complete | left
    assert len(state.lost) == 1
    assert lost in state.lost[0]


@pytest.mark.parametrize("addresses", ["'nonsense'", "'[1, 2]'", "'{}'", "''", "x'ff'"])
def test_migration_drops_only_an_invalid_discovery_answer(directory: StateDirectory, addresses: str) -> None:
    database = sqlite3.connect(directory.file)
    database.executescript(SCHEMA_2.read_text())
    database.close()
    directory.execute(f"UPDATE discovered SET addresses = {addresses} WHERE name = 'embedder.test'")
    state = directory.state()
    fleet = state.last_fleet()
    assert fleet is not None
    assert fleet.discovered == {"b.test@10.0.0.53:53": ("10.0.1.1",)}
    assert "embedder.test" in state.lost[0]


def test_decisions_of_an_earlier_version_are_read(directory: StateDirectory) -> None:
    directory.filled()
    directory.replace("loop_output", '{"at": 1, "output": {"weights": {}, "out": {"p": {"b": ["stalled"]}}}}')
    assert directory.state().loop_output() == (LoopOutput({}, {"p": {"b": ("stalled",)}}), 1.0)


# ── Damage ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("overrides", '[{"kind": "weight", "pool": "p", "replica": "b", "value": NaN}]'),
        ("overrides", '{"kind": 1}'),
        ("overrides", "[[1], null]"),
        ("drains", '[["p", "a", -Infinity]]'),
        ("loop_output", '{"at": 1, "output": {"weights": {"p": {"a": [NaN, 1, 1]}}, "out": {}}}'),
        ("loop_output", "[" * 100_000),
        ("fleet/files", '{"texts": 7}'),
        ("fleet/served", "null"),
    ],
)
def test_invalid_record_is_dropped_and_reported(directory: StateDirectory, key: str, value: str) -> None:
    directory.filled()
    directory.replace(key, value)
    state = directory.state()
    everything(state)
    assert len(state.lost) >= 1
    if key != "drains":
        assert state.drains() == DRAINS
    state.save_overrides(OVERRIDES)
    assert state.overrides() == OVERRIDES


@pytest.mark.slow
def test_newest_overrides_are_kept_beyond_the_limit(directory: StateDirectory) -> None:
    many = MAX_OVERRIDES + 7
    directory.filled()
    rows = [Override("drain", "p", f"r{number:06}", None, "", float(number)) for number in range(many, 0, -1)]
    directory.replace("overrides", records.write_overrides(tuple(rows)))
    state = directory.state()
    kept = state.overrides()
    assert (len(kept), min(item.since for item in kept)) == (MAX_OVERRIDES, 8.0)
    assert "the 7 oldest, because the limit is 20,000" in state.lost[0]


def test_report_names_at_most_ten_invalid_overrides(directory: StateDirectory) -> None:
    directory.filled()
    directory.replace("overrides", json.dumps([{"kind": "dance", "pool": f"p{number}"} for number in range(1000)]))
    state = directory.state()
    assert state.overrides() == ()
    assert "dance p9 " in state.lost[0]
    assert "dance p10 " not in state.lost[0]
    assert state.lost[0].endswith("and 990 more")


def test_value_with_a_wrong_checksum_is_dropped(directory: StateDirectory) -> None:
    directory.filled()
    damaged = directory.file.read_bytes().replace(b"10.0.0.1:80", b"10.0.0.9:80")
    directory.file.write_bytes(damaged)
    state = directory.state()
    assert everything(state) == (None, DRAINS, OUTPUT, OVERRIDES)
    assert (directory.path / directory.aside()[0]).read_bytes() == damaged
    assert "lost: fleet/files" in state.lost[0]


def test_epoch_grows_when_a_database_is_set_aside(directory: StateDirectory) -> None:
    directory.filled()
    state = directory.state()
    before = state.state.lease
    state.close()
    directory.execute("UPDATE entries SET value = 'odd' WHERE key = 'drains'")
    second = directory.state()
    second_lease = second.state.lease
    second.close()
    directory.file.write_bytes(b"nonsense" * 4000)
    third_lease = directory.state().state.lease
    assert before is not None
    assert second_lease is not None
    assert third_lease is not None
    assert before.epoch < second_lease.epoch < third_lease.epoch


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_flipped_bits_never_yield_wrong_records(directory: StateDirectory, seed: int) -> None:
    directory.filled()
    chance = random.Random(seed)
    data = bytearray(directory.file.read_bytes())
    for _ in range(chance.choice((1, 1, 3, 50))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    directory.file.write_bytes(bytes(data))
    state = directory.state()
    fleet, drains, output, overrides = everything(state)
    if isinstance(fleet, SavedFleet):
        assert (fleet.texts, fleet.targets) == (FLEET.texts, FLEET.targets)
        assert fleet.discovered in ({}, FLEET.discovered)
    assert drains in ({}, DRAINS)
    assert output in (None, OUTPUT)
    assert overrides in ((), OVERRIDES)
    assert bool(state.lost) == bool(directory.aside())
    state.save_drains(DRAINS)


@pytest.mark.parametrize("kind", ["fifo", "link to itself", "dangling link", "directory", "link to a database"])
def test_database_that_is_not_a_file_is_set_aside(directory: StateDirectory, kind: str, tmp_path: Path) -> None:
    if kind == "fifo":
        os.mkfifo(directory.file)
    elif kind == "directory":
        directory.file.mkdir()
    else:
        target = {"link to itself": directory.file, "dangling link": tmp_path / "none"}.get(kind, tmp_path / "other")
        (tmp_path / "other").write_bytes(b"")
        directory.file.symlink_to(target)
    state = directory.state()
    state.save_drains(DRAINS)
    assert state.drains() == DRAINS
    assert len(directory.aside()) == 1
    assert "is not a regular file" in state.lost[0]
    assert directory.aside()[0] in state.lost[0]


@pytest.mark.parametrize("end", ["-wal", "-shm"])
def test_database_with_an_odd_wal_file_is_set_aside(directory: StateDirectory, end: str) -> None:
    directory.filled()
    os.mkfifo(directory.path / f"lbctl.db{end}")
    state = directory.state()
    assert "is not a regular file" in state.lost[0]
    state.save_drains(DRAINS)


def test_epoch_from_before_the_damage_is_rejected(directory: StateDirectory) -> None:
    directory.filled()
    state = directory.state()
    old = state.state.lease
    assert old is not None
    state.close()
    directory.execute("UPDATE entries SET value = 'odd' WHERE key = 'drains'")
    again = directory.state()
    with pytest.raises(FencedError):
        asyncio.run(again.state._store.put("key", json.dumps(1), "", old.epoch))
