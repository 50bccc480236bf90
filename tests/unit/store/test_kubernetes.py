"""Behaviour of the Kubernetes store only: sizes, names, foreign objects, missing permissions."""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Awaitable, Callable, Iterator

import pytest

from lbctl.store.interface import ABSENT, FencedError, StoreError, UnusableError
from lbctl.store.kubernetes_client import CONFIG_MAPS, LEASES
from lbctl.store.kubernetes_objects import MAX_BYTES, key_of, name_of
from lbctl.store.open import open_shared
from lbctl.store.signed_store import SignedStore
from tests.support.kubernetes import ApiServer, Object
from tests.support.stores import NAMESPACE, KubernetesServer, opened, shared_server, store_of

MAPS = CONFIG_MAPS.format(NAMESPACE)


@pytest.fixture
def api() -> Iterator[ApiServer]:
    server = shared_server("kubernetes")
    assert isinstance(server, KubernetesServer)
    yield server.api
    server.api.forbidden.clear()


def run(work: Callable[[SignedStore, str], Awaitable[None]]) -> None:
    """Run the work with a store and the name of its objects."""
    name = f"t-{secrets.token_hex(4)}"

    async def bounded() -> None:
        store = opened("kubernetes", name, lease=10_000)
        assert isinstance(store, SignedStore)
        try:
            async with asyncio.timeout(60):
                await work(store, name)
        finally:
            await store.close()

    asyncio.run(bounded())


def noise(kib: int) -> str:
    """Return a text that does not compress."""
    return base64.b85encode(secrets.token_bytes(kib << 10)).decode()


@pytest.mark.parametrize("key", ["fleet/files", "audit/000000000001", "a.b_c%d é\u2028", "-", "A"])
def test_key_survives_its_kubernetes_name(key: str) -> None:
    name = name_of(key)
    assert key_of(name) == key
    assert not set(name) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")


def test_too_large_value_is_rejected_and_old_audit_is_dropped(api: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    async def work(store: SignedStore, name: str) -> None:
        epoch = (await store.acquire()).epoch
        small = await store.put("fleet/files", "small", ABSENT, epoch)
        with pytest.raises(StoreError, match=r"fleet/files.*1024 KiB: it is 11\d\d KiB"):
            await store.put("fleet/files", noise(1100), small.version, epoch)
        assert await store.read("fleet/") == (small,)
        for number in range(5):
            await store.put(f"audit/{number}", noise(250), ABSENT, epoch)
        assert [item.key for item in await store.read("audit/")] == ["audit/1", "audit/2", "audit/3", "audit/4"]
        (usage,) = [item for item in await store.usage() if item.name == f"ConfigMap {name}.audit"]
        assert usage.limit == MAX_BYTES >= usage.size > 1000 << 10
        assert "one of the state's ConfigMaps is nearly full" in caplog.text

    run(work)


def test_foreign_objects_are_reported_and_not_touched(api: ApiServer) -> None:
    async def work(store: SignedStore, name: str) -> None:
        theirs: Object = {"data": {"main.yaml": "version: 1"}}
        api.put(MAPS, f"{name}.fleet", theirs)
        with pytest.raises(UnusableError, match=rf"did not write \({name}\.fleet\)"):
            await store.acquire()
        assert await store.leader() == ""
        assert api.objects(MAPS)[f"{name}.fleet"]["data"] == theirs["data"]

    run(work)


def test_value_edited_by_others_is_read_and_can_be_replaced(api: ApiServer) -> None:
    async def work(store: SignedStore, name: str) -> None:
        epoch = (await store.acquire()).epoch
        await store.put("rollouts", "[]", ABSENT, epoch)
        decisions = api.objects(MAPS)[f"{name}.decisions"]
        damaged = base64.b64encode(b"1 x").decode()
        edited = {**decisions, "data": {"rollouts": "oops"}, "binaryData": {"overrides": damaged}}
        api.put(MAPS, f"{name}.decisions", edited)
        entries = {item.key: item for item in await store.read()}
        assert {key: item.value for key, item in entries.items()} == {"rollouts": "oops", "overrides": "1 x"}
        await store.put("overrides", "[]", entries["overrides"].version, epoch)
        assert [item.value for item in await store.read("overrides")] == ["[]"]

    run(work)


def test_only_the_leader_recreates_a_deleted_configmap(api: ApiServer) -> None:
    async def work(store: SignedStore, name: str) -> None:
        epoch = (await store.acquire()).epoch
        await store.put("rollouts", "[]", ABSENT, epoch)
        api.delete(MAPS, f"{name}.decisions")
        await store.put("rollouts", "[1]", ABSENT, epoch)
        api.delete(MAPS, f"{name}.decisions")
        api.delete(LEASES.format(NAMESPACE), name)
        with pytest.raises(FencedError):
            await store.put("rollouts", "[2]", ABSENT, epoch)
        assert await store.read() == ()

    run(work)


@pytest.mark.parametrize("resource", ["leases", "configmaps"])
def test_missing_permission_is_reported(api: ApiServer, resource: str) -> None:
    async def work(store: SignedStore, _: str) -> None:
        api.forbidden.add(resource)
        with pytest.raises(UnusableError, match=f"Role in docs/how-to/deploy-in-kubernetes.*{resource}"):
            await store.acquire()
        api.forbidden.clear()

    run(work)


def test_without_a_cluster_the_store_cannot_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = store_of("kubernetes", "x")
    monkeypatch.setenv("KUBECONFIG", "a:b")
    with pytest.raises(UnusableError, match="KUBECONFIG lists several files"):
        open_shared(settings, "cp-1")
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(UnusableError, match="is not running in a pod"):
        open_shared(settings, "cp-1")
