"""Waits for a store that does not answer, where nothing can be done without it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from lbctl.runtime import log
from lbctl.store.interface import StoreUnreachableError

_T = TypeVar("_T")
_RETRY = 1.0
"""Seconds between two attempts."""


async def answered(work: Callable[[], Awaitable[_T]]) -> _T:
    """Return what the work returns, which is tried until the store answers. Raises StoreError for all else."""
    reported = ""
    while True:
        try:
            return await work()
        except StoreUnreachableError as error:
            if str(error) != reported:
                log.error(f"waiting for the store: {error}")
                reported = str(error)
            await asyncio.sleep(_RETRY)
