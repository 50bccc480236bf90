"""A failed long-lived task is logged with its name, counted and restarted; a fatal error ends the process."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

import pytest

from lbctl.runtime.guard import Guard, end_tasks


class _FatalError(Exception):
    pass


def _starts(guard: Guard, works: list[object]) -> int:
    """Run a task through `works` (an exception to raise, or None to return), and return how often it started."""
    starts = 0

    async def work() -> None:
        nonlocal starts
        starts += 1
        if starts > len(works):
            await asyncio.Event().wait()
        step = works[starts - 1]
        if isinstance(step, Exception):
            raise step

    async def run() -> None:
        task = guard.start("scrape", work, url="http://127.0.0.1/metrics")
        async with asyncio.timeout(30):
            while starts <= len(works) and not task.done():
                await asyncio.sleep(0.001)
        if task.done():
            task.result()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    return starts


def test_ended_task_is_restarted_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    failed: list[str] = []
    with caplog.at_level(logging.INFO, "lbctl.serve"):
        assert _starts(Guard(failed.append, first_pause=0.001), [ValueError("x"), None, KeyError("y")]) == 4
    assert failed == ["scrape"] * 3
    raised, returned, _ = caplog.records
    assert raised.exc_info
    assert "restarting it" in raised.getMessage()
    assert raised.__dict__["fields"] == {"task": "scrape", "url": "http://127.0.0.1/metrics", "seconds": 0.001}
    assert "ended unexpectedly" in returned.getMessage()


def test_pause_doubles_with_each_failure(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "lbctl.serve"):
        _starts(Guard(first_pause=0.001), [ValueError()] * 4)
    assert [record.__dict__["fields"]["seconds"] for record in caplog.records] == [0.001, 0.002, 0.004, 0.008]


def test_expected_error_is_logged_without_a_traceback(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbctl.runtime.guard.time", SimpleNamespace(monotonic=lambda: 0.0))  # each run takes no time
    guard = Guard(first_pause=0.01, longest_pause=0.02, expected=(_FatalError,))
    with caplog.at_level(logging.INFO, "lbctl.serve"):
        _starts(guard, [_FatalError("the port is taken")] * 3)
    assert not any(record.exc_info for record in caplog.records)
    assert [record.__dict__["fields"]["seconds"] for record in caplog.records] == [0.01, 0.02, 0.02]
    assert {record.__dict__["fields"]["why"] for record in caplog.records} == {"the port is taken"}


def test_fatal_error_is_raised_and_not_counted() -> None:
    failed: list[str] = []
    with pytest.raises(_FatalError):
        _starts(Guard(failed.append, fatal=(_FatalError,)), [_FatalError()])
    assert not failed


def test_failed_callback_does_not_stop_the_next(caplog: pytest.LogCaptureFixture) -> None:
    failed: list[str] = []
    called: list[str] = []
    guard = Guard(failed.append)

    def broken() -> None:
        raise RuntimeError

    with caplog.at_level(logging.INFO, "lbctl.serve"):
        for callback in (broken, lambda: called.append("telemetry")):
            guard.call("drivers", callback)
    assert (failed, called) == (["drivers"], ["telemetry"])


def test_task_that_swallows_its_cancellation_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbctl.runtime.guard._AGAIN", 0.01)
    swallowed: list[str] = []

    async def work() -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if len(swallowed) == 2:
                    raise
                swallowed.append("as of a connection")

    async def run() -> None:
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        await end_tasks([task])
        assert task.cancelled()

    asyncio.run(run())
    assert len(swallowed) == 2
