"""Tables are sent to a picker as lines: complete first, then as changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lbctl.ir.pools import Locality, PickPolicy, QueuePolicy, SessionKey, SlowStart, TokenLimit
from lbctl.pick.table import Candidate, PoolTable
from lbctl.picker import wire
from lbctl.picker.received_tables import TableFollower

SENDER, READER = 500.0, 90_000.0
"""Clock readings of the two ends at the same moment."""
A = Candidate("a", "10.0.0.1:80", 1.5, region="eu", queue=0.0, kv=0.5)
B = Candidate("b", "[2001:db8::1]:80", fit=False, reason="drained by the files", limit=8)
C = Candidate("c", "10.0.0.3:80", started=SENDER - 12.5)
QUEUE = QueuePolicy(
    10_000, weights=(("acme", 3.0),), priority_header="x-priority", priority_tenants=(("acme", "high"),)
)
LIMIT = TokenLimit("chat", "header", 200_000, 60_000, "x-team")
TABLE = PoolTable(
    "chat",
    PickPolicy((SessionKey(header="x-session-id"), SessionKey(body="$.user")), queue=QUEUE, token_limits=(LIMIT,)),
    (A, B, C),
    "m",
    frozenset({"x"}),
    Locality("region"),
    SlowStart(30_000),
    15.0,
)


class _Reader:
    def __init__(self) -> None:
        self.tables: dict[str, PoolTable] = {}
        self.samples: list[wire.EngineSample] = []
        self.follower = TableFollower(self._changed, self.samples.append, clock=lambda: READER)

    def _changed(self, pool: str, table: PoolTable | None) -> None:
        if table is None:
            del self.tables[pool]
        else:
            self.tables[pool] = table

    def read(self, *lines: bytes | None) -> None:
        for line in lines:
            assert line is not None
            self.follower.apply(line)


def _as_read(table: PoolTable) -> PoolTable:
    """Return the table with the times of the reader's clock."""
    candidates = [
        replace(item, started=None if item.started is None else item.started - SENDER + READER)
        for item in table.candidates
    ]
    return replace(table, candidates=tuple(candidates))


def test_table_arrives_unchanged() -> None:
    reader = _Reader()
    reader.read(wire.line("begin", format=wire.FORMAT), wire.whole(TABLE, SENDER), wire.line("ready"))
    assert reader.tables == {"chat": _as_read(TABLE)}


def test_only_changed_candidates_are_sent() -> None:
    reader = _Reader()
    after = replace(TABLE, candidates=(replace(A, fit=False, reason="drained"), C, replace(C, name="d")))
    changes = wire.changes(TABLE, after, SENDER)
    assert changes is not None
    assert b"10.0.0.1:80" in changes
    assert b"2001:db8" not in changes
    reader.read(wire.whole(TABLE, SENDER), changes)
    assert reader.tables == {"chat": _as_read(after)}
    assert wire.changes(after, after, SENDER) is None


def test_changed_policy_sends_the_whole_table() -> None:
    after = replace(TABLE, policy=PickPolicy((), None, 2.0))
    assert wire.changes(TABLE, after, SENDER) == wire.whole(after, SENDER)


def test_old_tables_are_dropped_when_the_new_set_is_complete() -> None:
    reader = _Reader()
    reader.read(wire.whole(TABLE, SENDER), wire.whole(replace(TABLE, pool="old"), SENDER))
    reader.read(wire.line("begin", format=wire.FORMAT), wire.whole(TABLE, SENDER))
    assert reader.tables.keys() == {"chat", "old"}, "until the set is complete, the last tables stay"
    reader.read(wire.line("ready"))
    assert reader.tables.keys() == {"chat"}
    reader.read(wire.line("gone", pool="chat"), wire.line("gone", pool="never"))
    assert not reader.tables


def test_engine_samples_arrive() -> None:
    sample = wire.EngineSample("chat", "a", 3.0, None, 7.0, True, 0.5, 12.0, 0.25, 900.0, 0.125, 2.0, 0.9)
    reader = _Reader()
    reader.read(wire.samples([sample]))
    assert reader.samples == [sample]
    assert wire.samples([]) is None


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\xff{",
        b"[" * 100_000,
        b"[]",
        b"{}",
        b'{"kind": "begin", "format": 99}',
        b'{"kind": "pool", "pool": "x"}',
        b'{"kind": "changes", "pool": "never", "changed": [], "left": []}',
        b'{"kind": "changes", "pool": "chat", "changed": [["a"]], "left": []}',
        b'{"kind": "samples", "samples": [[1]]}',
    ],
)
def test_invalid_line_changes_nothing(line: bytes) -> None:
    reader = _Reader()
    reader.read(wire.whole(TABLE, SENDER))
    with pytest.raises(wire.WireError):
        reader.follower.apply(line)
    assert reader.tables == {"chat": _as_read(TABLE)}


def test_unknown_kind_is_ignored() -> None:
    _Reader().read(wire.line("of a newer version", value=1))
