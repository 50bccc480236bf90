"""Ejections, readmissions and modes of pools are recorded once, even if the state cannot be written for a while."""

from __future__ import annotations

import asyncio

from lbctl.control.effects import HealthChanged, ModeChanged, Verdict, WeightsChanged
from lbctl.control.loop_output import LoopOutput
from lbctl.ir.weight import Weight
from lbctl.runtime.errors import NotSavedError
from lbctl.serve.telemetry.decision_audit import DecisionAudit
from lbctl.store.audit import AuditLog


class Records(AuditLog):
    """An audit log in memory that fails while `broken` is set."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str, str]] = []
        self.broken = False

    async def record(self, actor: str, action: str, subject: str, reason: str = "") -> None:
        if self.broken:
            raise NotSavedError("the disk is full")
        self.rows.append((actor, action, subject, reason))


def health(replica: str, verdict: Verdict, *reasons: str) -> HealthChanged:
    return HealthChanged("chat", replica, verdict, reasons)


def weights(**speeds: float) -> WeightsChanged:
    return WeightsChanged("chat", {name: Weight(speed, 1.0, speed) for name, speed in speeds.items()}, False)


def test_slow_replica_is_recorded_once_until_it_recovers() -> None:
    records = Records()
    audit = DecisionAudit(records)
    for speed in (1.0, 0.8, 0.7, 0.33, 0.8, 0.7, 0.95, 0.85, 0.5):
        audit.note(weights(a=speed, b=1.0))
    asyncio.run(audit.save())
    assert [row[1:] for row in records.rows] == [
        ("slow", "chat/a", "its speed is 70% of its peers' speed, so its weight is lowered"),
        ("no longer slow", "chat/a", ""),
        ("slow", "chat/a", "its speed is 50% of its peers' speed, so its weight is lowered"),
    ]


def test_adopted_decisions_are_not_recorded_again() -> None:
    records = Records()
    audit = DecisionAudit(records)
    audit.adopt(LoopOutput({"chat": {"a": Weight(0.5, 1.0, 0.5)}}, {"chat": {"b": ("it is hot",)}}))
    for effect in (weights(a=0.4), health("b", "out", "it is hotter"), weights(a=1.0), health("b", "in")):
        audit.note(effect)
    asyncio.run(audit.save())
    assert [row[1:3] for row in records.rows] == [("no longer slow", "chat/a"), ("readmit", "chat/b")]


def test_sleep_is_recorded_as_such() -> None:
    records = Records()
    audit = DecisionAudit(records)
    audit.adopt(LoopOutput(asleep={"chat": frozenset({"a"})}))
    for effect in (health("a", "asleep", "its engine is asleep"), health("a", "in"), health("a", "asleep")):
        audit.note(effect)
    asyncio.run(audit.save())
    assert [row[1:3] for row in records.rows] == [("awake", "chat/a"), ("asleep", "chat/a")]


def test_weights_and_new_reasons_are_not_recorded() -> None:
    records = Records()
    audit = DecisionAudit(records)
    for effect in (
        WeightsChanged("chat", {}, True),
        health("a", "out", "it is hot"),
        health("a", "out", "it is hot", "it is slow"),
        health("b", "floor", "it is slow"),
        ModeChanged("chat", "frozen", "most are stale"),
        health("a", "in"),
        health("a", "out", "it is hot"),
    ):
        audit.note(effect)
    asyncio.run(audit.save())
    assert records.rows == [
        ("lbctl", "eject", "chat/a", "it is hot"),
        ("lbctl", "keep at the floor weight", "chat/b", "it is slow"),
        ("lbctl", "mode frozen", "chat", "most are stale"),
        ("lbctl", "readmit", "chat/a", ""),
        ("lbctl", "eject", "chat/a", "it is hot"),
    ]


def test_many_ejections_are_one_record() -> None:
    records = Records()
    audit = DecisionAudit(records)
    for number in range(100, 130):
        audit.note(health(f"r{number}", "out", "an Xid"))
    asyncio.run(audit.save())
    ((_, action, subject, reason),) = records.rows
    assert (action, subject) == ("eject", "chat")
    assert reason.startswith("30 replicas: r100, r101, ")
    assert reason.endswith(" and 10 more; r100: an Xid")


def test_unsaved_records_are_saved_later() -> None:
    records = Records()
    audit = DecisionAudit(records)
    records.broken = True
    audit.note(health("a", "out", "it is hot"))
    asyncio.run(audit.save())
    audit.note(health("a", "in"))
    records.broken = False
    asyncio.run(audit.save())
    asyncio.run(audit.save())
    assert [row[1] for row in records.rows] == ["eject", "readmit"]
