"""`lbctl doctor`: the checks of the store that several control planes share."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lbctl.cli.doctor.check import DoctorResult
from lbctl.cli.doctor.store import checks
from lbctl.serve.ha.format import write_format
from lbctl.serve.ha.presence import MemberInfo, write_info
from lbctl.serve.settings import Options, ServeSettings, settings
from lbctl.store.etcd import EtcdStore
from lbctl.store.interface import ABSENT, SharedStore, Usage
from lbctl.store.open import open_shared
from tests.support.member import write_keys
from tests.support.stores import STORES, KubernetesServer, reachable, shared_server, store_of


def _settings(scheme: str, port: int = 0) -> ServeSettings:
    chosen = settings(Options(()), None)
    store = store_of(scheme, f"test:{secrets.token_hex(4)}", port)
    return replace(chosen, control=replace(chosen.control, store=store))


def _checks(chosen: ServeSettings, scheme: str, port: int = 0) -> list[DoctorResult]:
    with reachable(scheme, port):
        return list(checks(chosen))


def _opened(chosen: ServeSettings, scheme: str, member: str) -> SharedStore:
    assert chosen.control.store is not None
    with reachable(scheme):
        return open_shared(chosen.control.store, member)


def _do(store: SharedStore, work: Callable[[SharedStore], Awaitable[object]]) -> None:
    async def done() -> None:
        await work(store)

    asyncio.run(done())


@pytest.mark.parametrize("scheme", STORES)
def test_members_and_deviating_clocks_are_listed(scheme: str) -> None:
    chosen = _settings(scheme)
    store = _opened(chosen, scheme, "cp-1")

    async def announce(store: SharedStore) -> None:
        await store.announce("cp-1", write_info(MemberInfo("cp-1", clock=300.0)), 20)
        await store.close()

    _do(store, announce)
    result, clock = _checks(chosen, scheme)
    assert (result.state, result.message) == ("ok", "there is no leader; members: cp-1")
    assert (clock.state, clock.what, clock.message) == (
        "warn",
        "clock of member cp-1",
        "300.0 s behind the leader's",
    )


@pytest.mark.parametrize("scheme", STORES)
def test_refused_and_unsigned_content_is_reported(scheme: str, tmp_path: Path) -> None:
    plain = _settings(scheme)
    assert plain.control.store is not None

    def keyed(*lines: str) -> ServeSettings:
        assert plain.control.store is not None
        store = replace(plain.control.store, key_file=write_keys(tmp_path, *lines))
        return replace(plain, control=replace(plain.control, store=store))

    async def spoil(store: SharedStore) -> None:
        epoch = (await store.acquire()).epoch
        await write_format(store, epoch, signed=False)
        await store.put("overrides", "[]", ABSENT, epoch)
        await store.close()

    _do(_opened(plain, scheme, "x"), spoil)
    key = "a-key-of-this-control-plane-only"
    refused, kept = _checks(keyed(key), scheme)[1:]
    assert (refused.state, refused.message) == ("failed", "overrides: it is not signed")
    assert (kept.state, kept.what) == ("ok", "store keys")
    (accepted,) = _checks(keyed(key, "unsigned"), scheme)[1:]
    assert accepted.state == "warn"
    assert "content without a signature is accepted" in accepted.message


@pytest.mark.parametrize("scheme", STORES)
def test_foreign_keys_and_a_missing_server_are_failures(scheme: str) -> None:
    chosen = _settings(scheme)

    async def spoil(store: SharedStore) -> None:
        await store.put("overrides", "[]", ABSENT, (await store.acquire()).epoch)
        await store.close()

    _do(_opened(chosen, scheme, "x"), spoil)
    (result,) = _checks(chosen, scheme)
    assert (result.state, result.absent) == ("failed", False)
    assert "did not write" in result.message
    (result,) = _checks(_settings(scheme, port=9), scheme, port=9)
    assert (result.state, result.absent) == ("failed", True)


def test_missing_rights_of_the_account_are_listed() -> None:
    chosen, server = _settings("kubernetes"), shared_server("kubernetes")
    assert isinstance(server, KubernetesServer)
    server.api.forbidden.add("leases")
    try:
        (result,) = _checks(chosen, "kubernetes")
    finally:
        server.api.forbidden.clear()
    assert result.state == "failed"
    assert result.message.startswith("the account lacks permission to create leases, get leases test-")


def test_full_store_is_a_warning_or_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usages = (Usage("a", 80, 100), Usage("b", 70, 100), Usage("etcd's database", 1, problem="NOSPACE"))

    async def usage(_: object) -> tuple[Usage, ...]:
        return usages

    monkeypatch.setattr(EtcdStore, "usage", usage)
    _, *results = _checks(_settings("etcd"), "etcd")
    assert [(item.what, item.state) for item in results] == [("a", "warn"), ("etcd's database", "failed")]
    assert "NOSPACE: it rejects writes" in results[1].message


def test_without_a_store_there_are_no_results(tmp_path: Path) -> None:
    assert not list(checks(settings(Options((), state=str(tmp_path)), None)))
