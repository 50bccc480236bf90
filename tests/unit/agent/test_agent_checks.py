"""Answers to HAProxy's agent checks."""

from __future__ import annotations

import pytest

from lbctl.agent.agent_checks import answer
from lbctl.agent.assessment import Assessment, Reason

HEALTHY = Assessment("healthy", weight=75)
DRAINING = Assessment("draining", (Reason("draining", "draining since 12:00"),))
XID = Assessment("unhealthy", (Reason("xid", "GPU 0 reported XID 79", "0"), Reason("engine", "status 503")))
ASLEEP = Assessment("asleep", (Reason("asleep", "the engine is asleep"),))


@pytest.mark.parametrize(
    ("question", "healthy", "draining"),
    [
        ("full", "up ready 75%", "up drain"),
        ("full maint", "up ready 75%", "up maint"),
        ("health", "up", "down #draining"),
        ("", "up ready 75%", "up drain"),
        ("anything else", "up ready 75%", "up drain"),
    ],
)
def test_answers_depend_on_the_question(question: str, healthy: str, draining: str) -> None:
    assert answer(HEALTHY, question) == healthy
    assert answer(DRAINING, question) == draining


@pytest.mark.parametrize("question", ["full", "full maint", "health", ""])
def test_unhealthy_replica_is_down_with_its_first_reason(question: str) -> None:
    assert answer(XID, question) == "down #GPU 0 reported XID 79"
    assert answer(ASLEEP, question) == "down #the engine is asleep"


def test_reason_contains_no_word_of_the_protocol() -> None:
    reason = Reason("engine", "a#b;c,d\nup ready 100%\x7fé" + "x" * 100)
    text = answer(Assessment("unhealthy", (reason,)), "full")
    assert text == ("down #a b c d up ready 100%  " + "x" * 100)[: len("down #") + 80]
