"""What the verification of a shared store remembers."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from lbctl.serve.state.interface import ABSENT
from lbctl.serve.state.keyring import Keyring
from lbctl.serve.state.memory import MemoryStore
from lbctl.serve.state.signed import SignedStore

KEYS = Keyring("lbctl", (b"key-" * 8,), accepts_unsigned=False)


def test_records_of_the_audit_log_are_not_remembered_one_by_one() -> None:
    async def run() -> None:
        store = SignedStore(cast(Any, MemoryStore()), KEYS)
        epoch = (await store.acquire()).epoch
        for number in range(100):
            await store.put(f"audit/{number:012}", "record", ABSENT, epoch)
        await store.put("overrides", "held", ABSENT, epoch)
        assert len(await store.read()) == 101
        assert list(store._stamps) == ["overrides"]

    asyncio.run(run())
