"""Settings and values that the Redis store rejects before it asks the server."""

from __future__ import annotations

import asyncio

import pytest

from lbctl.ir.proxies import Store
from lbctl.store.interface import ABSENT, StoreError
from lbctl.store.redis import RedisStore
from lbctl.store.redis_client import MAX_VALUE_BYTES


def test_value_that_no_member_would_read_is_not_written() -> None:
    async def run() -> None:
        store = RedisStore.open(Store("redis://127.0.0.1:1/0"), "cp-1", "instance")
        with pytest.raises(StoreError, match="fleet/files is larger than 8 MiB"):
            await store.put("fleet/files", "é" * (MAX_VALUE_BYTES // 2 + 1), ABSENT, 1)
        await store.close()

    asyncio.run(run())
