"""Databases of earlier versions, and databases that something has damaged: what is good of them is kept."""

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
from lbctl.serve.state import records, schema
from lbctl.serve.state.interface import FencedError
from lbctl.serve.state.records import SavedFleet
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


class Place:
    """A state directory. `state` takes its lease; all that were taken are closed in the end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = directory / "lbctl.db"
        self.states: list[OpenState] = []

    def state(self) -> OpenState:
        self.states.append(led(self.directory))
        return self.states[-1]

    def filled(self) -> None:
        """A database with every record, closed again."""
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
        """What a fault of lbctl itself would have written: the checksum fits."""
        database = sqlite3.connect(self.file)
        with database:
            schema.write(database, key, value)
        database.close()

    def aside(self) -> list[str]:
        return sorted(item.name for item in self.directory.iterdir() if ".damaged-" in item.name)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    for state in made.states:
        state.close()


def everything(state: OpenState) -> tuple[object, ...]:
    return state.last_fleet(), state.drains(), state.loop_output(), state.overrides()


# ── Earlier schemas ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_database_of_schema_2_is_migrated_in_place_and_nothing_is_lost(place: Place) -> None:
    database = sqlite3.connect(place.file)
    database.executescript(SCHEMA_2.read_text())
    database.close()
    state = place.state()
    assert everything(state) == (FLEET, DRAINS, OUTPUT, OVERRIDES)
    assert (state.lost, place.aside()) == ([], [])
    state.save_drains({})
    state.close()
    assert everything(place.state()) == (FLEET, {}, OUTPUT, OVERRIDES)


def test_a_database_of_schema_1_is_migrated_in_place(place: Place) -> None:
    database = sqlite3.connect(place.file)
    database.executescript(SCHEMA_2.read_text() + "DROP TABLE live; DROP TABLE overrides; PRAGMA user_version = 1;")
    database.close()
    state = place.state()
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
        ("UPDATE fleet SET body = '[]'", "last good fleet", {"fleet": None}),
        ("UPDATE fleet SET body = x'ff00'", "last good fleet", {"fleet": None}),
    ],
)  # fmt: skip
def test_of_an_old_database_with_an_odd_row_only_that_row_is_lost(
    place: Place, statement: str, lost: str, left: dict[str, object]
) -> None:
    database = sqlite3.connect(place.file)
    database.executescript(SCHEMA_2.read_text())
    database.close()
    place.execute(statement)
    state = place.state()
    whole = {"fleet": FLEET, "drains": DRAINS, "output": OUTPUT, "overrides": OVERRIDES}
    assert dict(zip(whole, everything(state), strict=True)) == whole | left
    assert len(state.lost) == 1
    assert lost in state.lost[0]


@pytest.mark.parametrize("addresses", ["'nonsense'", "'[1, 2]'", "'{}'", "''", "x'ff'"])
def test_of_an_odd_answer_of_discovery_the_others_are_kept(place: Place, addresses: str) -> None:
    database = sqlite3.connect(place.file)
    database.executescript(SCHEMA_2.read_text())
    database.close()
    place.execute(f"UPDATE discovered SET addresses = {addresses} WHERE name = 'embedder.test'")
    state = place.state()
    fleet = state.last_fleet()
    assert fleet is not None
    assert fleet.discovered == {"b.test@10.0.0.53:53": ("10.0.1.1",)}
    assert "embedder.test" in state.lost[0]


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
def test_a_record_that_makes_no_sense_is_lost_and_named_and_the_others_count(
    place: Place, key: str, value: str
) -> None:
    place.filled()
    place.replace(key, value)
    state = place.state()
    everything(state)
    assert len(state.lost) >= 1
    if key != "drains":
        assert state.drains() == DRAINS
    state.save_overrides(OVERRIDES)
    assert state.overrides() == OVERRIDES


@pytest.mark.slow
def test_of_too_many_overrides_the_newest_are_kept_and_the_others_are_counted(place: Place) -> None:
    many = MAX_OVERRIDES + 7
    place.filled()
    rows = [Override("drain", "p", f"r{number:06}", None, "", float(number)) for number in range(many, 0, -1)]
    place.replace("overrides", records.write_overrides(tuple(rows)))
    state = place.state()
    kept = state.overrides()
    assert (len(kept), min(item.since for item in kept)) == (MAX_OVERRIDES, 8.0)
    assert "the 7 oldest, since there may be 20,000" in state.lost[0]


def test_not_every_one_of_many_bad_overrides_is_named(place: Place) -> None:
    place.filled()
    place.replace("overrides", json.dumps([{"kind": "dance", "pool": f"p{number}"} for number in range(1000)]))
    state = place.state()
    assert state.overrides() == ()
    assert "dance p9 " in state.lost[0]
    assert "dance p10 " not in state.lost[0]
    assert state.lost[0].endswith("and 990 more")


def test_a_value_that_is_not_what_was_written_is_lost_and_the_others_are_kept(place: Place) -> None:
    place.filled()
    damaged = place.file.read_bytes().replace(b"10.0.0.1:80", b"10.0.0.9:80")
    place.file.write_bytes(damaged)
    state = place.state()
    assert everything(state) == (None, DRAINS, OUTPUT, OVERRIDES)
    assert (place.directory / place.aside()[0]).read_bytes() == damaged
    assert "lost: fleet/files" in state.lost[0]


def test_the_epoch_never_goes_back_when_a_database_is_set_aside(place: Place) -> None:
    place.filled()
    state = place.state()
    before = state.state.lease
    state.close()
    place.execute("UPDATE entries SET value = 'odd' WHERE key = 'drains'")
    second = place.state()
    second_lease = second.state.lease
    second.close()
    place.file.write_bytes(b"nonsense" * 4000)
    third_lease = place.state().state.lease
    assert before is not None
    assert second_lease is not None
    assert third_lease is not None
    assert before.epoch < second_lease.epoch < third_lease.epoch


@pytest.mark.parametrize("seed", range(40))
def test_whatever_bits_flip_the_start_goes_on_and_nothing_wrong_is_believed(place: Place, seed: int) -> None:
    place.filled()
    chance = random.Random(seed)
    data = bytearray(place.file.read_bytes())
    for _ in range(chance.choice((1, 1, 3, 50))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    place.file.write_bytes(bytes(data))
    state = place.state()
    fleet, drains, output, overrides = everything(state)
    if isinstance(fleet, SavedFleet):
        assert (fleet.texts, fleet.targets) == (FLEET.texts, FLEET.targets)
        assert fleet.discovered in ({}, FLEET.discovered)
    assert drains in ({}, DRAINS)
    assert output in (None, OUTPUT)
    assert overrides in ((), OVERRIDES)
    assert bool(state.lost) == bool(place.aside())
    state.save_drains(DRAINS)


@pytest.mark.parametrize("kind", ["fifo", "link to itself", "dangling link", "directory", "link to a database"])
def test_what_is_no_file_in_the_place_of_the_database_is_set_aside(place: Place, kind: str, tmp_path: Path) -> None:
    if kind == "fifo":
        os.mkfifo(place.file)
    elif kind == "directory":
        place.file.mkdir()
    else:
        target = {"link to itself": place.file, "dangling link": tmp_path / "none"}.get(kind, tmp_path / "other")
        (tmp_path / "other").write_bytes(b"")
        place.file.symlink_to(target)
    state = place.state()
    state.save_drains(DRAINS)
    assert state.drains() == DRAINS
    assert len(place.aside()) == 1
    assert "is not a regular file" in state.lost[0]
    assert place.aside()[0] in state.lost[0]


@pytest.mark.parametrize("end", ["-wal", "-shm"])
def test_what_is_no_file_beside_the_database_is_set_aside_with_it(place: Place, end: str) -> None:
    place.filled()
    os.mkfifo(place.directory / f"lbctl.db{end}")
    state = place.state()
    assert "is not a regular file" in state.lost[0]
    state.save_drains(DRAINS)


def test_an_epoch_of_before_the_damage_is_refused_after_it(place: Place) -> None:
    place.filled()
    state = place.state()
    old = state.state.lease
    assert old is not None
    state.close()
    place.execute("UPDATE entries SET value = 'odd' WHERE key = 'drains'")
    again = place.state()
    with pytest.raises(FencedError):
        asyncio.run(again.state._store.put("key", json.dumps(1), "", old.epoch))
