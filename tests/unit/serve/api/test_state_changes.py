"""Replicas that go down and return: each change is a record, and many changes of one replica are few records."""

from __future__ import annotations

import logging

import pytest
from msgspec.structs import replace

from lbctl.api import schema
from lbctl.serve.api.state_changes import StateChanges
from tests.support import api

DOWN = replace(api.REPLICA, state="down", state_reason="refused")
HOUR = 3600


class Records:
    """The audit records, and the replica states that lead to them."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, ...]] = []
        self._changes = StateChanges(lambda *row: self.rows.append(row))

    def note(self, now: float, *replicas: schema.Replica) -> None:
        self._changes.note([api.pool("llama", *replicas)], now)


def test_replica_that_goes_down_and_returns_has_two_records() -> None:
    records = Records()
    for now, replica in enumerate([api.REPLICA, DOWN, DOWN, replace(DOWN, state="unknown"), api.REPLICA]):
        records.note(now, replica)
    assert records.rows == [("down", "llama", "a", "refused"), ("back", "llama", "a", "")]


def test_new_replica_is_not_reported_before_a_check_fails() -> None:
    records, starting = Records(), replace(DOWN, state="starting")
    for now, replica in enumerate([starting, api.REPLICA, DOWN, starting, api.REPLICA]):
        records.note(now, replica)
    assert [row[0] for row in records.rows] == ["down", "back"]


def test_flapping_replica_has_a_record_for_many_changes(caplog: pytest.LogCaptureFixture) -> None:
    records = Records()
    with caplog.at_level(logging.INFO):
        for number in range(8 * HOUR // 10):
            records.note(10.0 * number, DOWN if number % 2 else api.REPLICA, replace(api.REPLICA, name="b"))
    assert [row[0] for row in records.rows[:6]] == ["down", "back"] * 3
    assert records.rows[7] == ("back", "llama", "a", "120 changes in 20 minutes")
    assert len(records.rows) == len(caplog.messages) == 6 + 8 * 3 - 1


def test_last_state_of_a_flapping_replica_is_recorded() -> None:
    records = Records()
    for number in range(60):
        records.note(HOUR + 10.0 * number, DOWN if number % 2 else api.REPLICA)
    before = len(records.rows)
    records.note(2 * HOUR, DOWN)
    assert records.rows[before:] == [("down", "llama", "a", "53 changes in 60 minutes; refused")]
    for now in (3.5 * HOUR, 4 * HOUR):
        records.note(now, DOWN)
    records.note(4 * HOUR, api.REPLICA)
    assert records.rows[before + 1 :] == [("back", "llama", "a", "")]
