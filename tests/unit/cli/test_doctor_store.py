"""What `lbctl doctor` says of the store of several control planes."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lbctl.cli.doctor.store import checks
from lbctl.ir.proxies import Store
from lbctl.serve.ha.presence import MemberInfo, write_info
from lbctl.serve.settings import Options, Settings, settings
from lbctl.serve.state.interface import ABSENT, SharedStore
from lbctl.serve.state.open import open_shared
from tests.support.stores import STORES, shared_server


def _settings(scheme: str, port: int = 0) -> Settings:
    chosen = settings(Options(()), None)
    url = f"{scheme}://127.0.0.1:{port or shared_server(scheme).port}"
    return replace(chosen, control=replace(chosen.control, store=Store(url, f"test:{secrets.token_hex(4)}")))


def _do(store: SharedStore, work: Callable[[SharedStore], Awaitable[object]]) -> None:
    async def done() -> None:
        await work(store)

    asyncio.run(done())


@pytest.mark.parametrize("scheme", STORES)
def test_it_names_the_members_and_a_clock_that_differs(scheme: str) -> None:
    chosen = _settings(scheme)
    assert chosen.control.store is not None
    store = open_shared(chosen.control.store, "cp-1")

    async def announce(store: SharedStore) -> None:
        await store.announce("cp-1", write_info(MemberInfo("cp-1", clock=300.0)), 20)
        await store.close()

    _do(store, announce)
    found, clock = checks(chosen)
    assert (found.state, found.message) == ("ok", "nobody leads; members: cp-1")
    assert (clock.state, clock.what, clock.message) == (
        "warn",
        "clock of the member cp-1",
        "300.0 s behind the leader's",
    )


@pytest.mark.parametrize("scheme", STORES)
def test_it_names_keys_of_others_and_a_server_that_is_not_there(scheme: str) -> None:
    chosen = _settings(scheme)
    assert chosen.control.store is not None

    async def spoil(store: SharedStore) -> None:
        await store.put("overrides", "[]", ABSENT, (await store.acquire()).epoch)
        await store.close()

    _do(open_shared(chosen.control.store, "x"), spoil)
    (found,) = checks(chosen)
    assert (found.state, found.absent) == ("failed", False)
    assert "has not written" in found.message
    (found,) = checks(_settings(scheme, port=9))
    assert (found.state, found.absent) == ("failed", True)


def test_without_a_store_nothing_is_said(tmp_path: Path) -> None:
    assert not list(checks(settings(Options((), state=str(tmp_path)), None)))
