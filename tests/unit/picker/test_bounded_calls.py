"""The limits of the picker's calls leave room for the questions of honest gateways."""

from __future__ import annotations

import asyncio
from typing import Any

from lbctl.picker.bounded_calls import BoundedCalls


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
