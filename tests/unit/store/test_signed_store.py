"""The memory of a shared store's verification: its content and its bounds."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from lbctl.store import signed_store
from lbctl.store.interface import ABSENT, Presence
from lbctl.store.memory import MemoryStore
from lbctl.store.signed_store import SignedStore
from lbctl.store.signing import Keyring

KEYS = Keyring("lbctl", (b"key-" * 8,), accepts_unsigned=False)


class _Announcements:
    """A shared store that never ends an announcement."""

    instance = "instance"

    def __init__(self) -> None:
        self.last: tuple[Presence, ...] = ()

    async def announce(self, member: str, value: str, ttl: float) -> None:
        self.last = (Presence(member, self.instance, value),)

    async def members(self) -> tuple[Presence, ...]:
        return self.last


def test_member_that_announces_nothing_new_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(signed_store, "elapsed", lambda: now)

    async def run() -> None:
        nonlocal now
        store = SignedStore(cast(Any, _Announcements()), KEYS)
        await store.announce("cp-2", "here", 5.0)
        assert [item.value for item in await store.members()] == ["here"]
        now = 29.0
        assert [item.value for item in await store.members()] == ["here"]
        now = 30.0
        assert await store.members() == ()
        await store.announce("cp-2", "again", 5.0)
        assert [item.value for item in await store.members()] == ["again"]

    asyncio.run(run())


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
