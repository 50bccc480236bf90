"""Repeated log messages of a lasting failure."""

from __future__ import annotations

import pytest

from lbctl.runtime.log import LastingFailure


def test_lasting_failure_is_logged_every_five_minutes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "lbctl")
    now = 0.0
    failure = LastingFailure("it is written again", lambda: now)
    failure.succeeded()
    for now in map(float, range(650)):
        failure.failed("no room" if now < 640 else "no disk")
    failure.succeeded()
    failure.succeeded()
    failure.failed("no disk")
    assert caplog.messages == ["no room", "no room", "no room", "no disk", "it is written again", "no disk"]
