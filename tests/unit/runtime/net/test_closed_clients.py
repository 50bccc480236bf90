"""A closed client opens no new connection, so that calls at the end of `serve` leave none open."""

from __future__ import annotations

import asyncio

import pytest

from lbctl.ir.proxies import Store
from lbctl.runtime.net.kubernetes.client import ApiClient
from lbctl.runtime.net.kubernetes.cluster import Cluster, ClusterError
from lbctl.store.etcd_client import EtcdClient
from lbctl.store.interface import StoreUnreachableError
from tests.support.processes.ports import HOST, free_port


def test_closed_etcd_client_rejects_calls() -> None:
    async def call_after_close() -> None:
        client = EtcdClient(Store(f"etcd://{HOST}:{free_port()},{HOST}:{free_port()}"), 5.0)
        await client.close()
        with pytest.raises(StoreUnreachableError, match="the client is closed"):
            await client.call("kv/range", {}, bool)

    asyncio.run(call_after_close())


def test_closed_kubernetes_client_rejects_requests() -> None:
    async def call_after_close() -> None:
        client = ApiClient(lambda: Cluster(f"http://{HOST}:{free_port()}"))
        await client.close()
        with pytest.raises(ClusterError, match="the client is closed"):
            await client.get("/api/v1/pods")

    asyncio.run(call_after_close())
