"""The limits of calls leave room for honest gateways, and the client with most questions gives way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lbctl.picker import bounded_calls
from lbctl.picker.bounded_calls import BoundedCalls, UnfinishedQuestions


def test_thousand_questions_at_once_are_all_read() -> None:
    async def run() -> None:
        first = BoundedCalls().first

        async def ask(number: int) -> int:
            call: Any = object()

            async def read() -> int:
                await asyncio.sleep(0)
                return number

            return await first.read(f"gateway {number % 4}", call, read)

        assert await asyncio.gather(*map(ask, range(1_000))) == list(range(1_000))

    asyncio.run(run())


class _Call:
    def __init__(self) -> None:
        self.reason = ""

    def end(self, _: object, reason: str) -> None:
        self.reason = reason


def _calls(count: int) -> Any:
    return [_Call() for _ in range(count)]


def test_client_with_most_questions_loses_its_oldest() -> None:
    async def run() -> None:
        questions, (honest, *others) = UnfinishedQuestions(most=3), _calls(4)
        questions.add("a", honest, 1)
        for call in others:
            questions.add("b", call, 1)
        assert [bool(call.reason) for call in (honest, *others)] == [False, True, False, False]

    asyncio.run(run())


def test_thousand_clients_may_upload_at_once() -> None:
    async def run() -> None:
        questions, calls = UnfinishedQuestions(), _calls(1_000)
        for number, call in enumerate(calls):
            questions.add(f"gateway {number % 4}", call, 10_000)
        assert not any(call.reason for call in calls)

    asyncio.run(run())


def test_bytes_of_questions_are_limited_in_sum() -> None:
    async def run() -> None:
        questions, calls = UnfinishedQuestions(held=100), _calls(3)
        questions.add("a", calls[0], 60)
        questions.leave("a", calls[0])
        questions.add("a", calls[1], 60)
        questions.add("a", calls[2], 60)
        assert [bool(call.reason) for call in calls] == [False, True, False]

    asyncio.run(run())


def test_body_that_does_not_come_ends_its_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_calls, "BODY_TIMEOUT", 0.01)

    async def run() -> None:
        questions, (late, complete) = UnfinishedQuestions(), _calls(2)
        questions.add("a", late, 1)
        questions.add("a", complete, 1)
        questions.leave("a", complete)
        async with asyncio.timeout(30):
            while not late.reason:
                await asyncio.sleep(0.01)
        assert (late.reason, complete.reason) == ("no body within 0.01 seconds", "")

    asyncio.run(run())
