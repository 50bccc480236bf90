"""The Kubernetes API: discovery of replicas, and the store."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from unittest.mock import patch

from lbctl.base import foreign_json
from lbctl.runtime.net.kubernetes import client, collection
from lbctl.runtime.net.kubernetes.client import ApiClient, ApiError
from lbctl.runtime.net.kubernetes.cluster import Cluster, ClusterError
from lbctl.runtime.net.kubernetes.collection import Collection, CollectionKey
from lbctl.serve.discovery.endpoint_slices import SHAPE
from tests.support.bounds import Reader, against, inputs, json_peers, mib, sends, trickles

_SECONDS = 0.5
_OK = b"HTTP/1.1 200 OK\r\n\r\n"
_KEY = CollectionKey("/apis/discovery.k8s.io/v1/namespaces/ml/endpointslices", items="endpoints")
_SLICE = {
    "metadata": {"name": "s", "namespace": "ml", "resourceVersion": "7"},
    "addressType": "IPv4",
    "ports": [{"port": 8000}],
    "endpoints": [{"addresses": ["10.0.0.1"]}],
}


def _api(port: int) -> ApiClient:
    return ApiClient(lambda: Cluster(f"http://127.0.0.1:{port}"), _SECONDS)


async def _list(port: int) -> bool:
    api = _api(port)
    followed = Collection(api, _KEY, SHAPE, lambda: None)
    try:
        await followed.read_all()
        return followed.listed
    except (ApiError, ClusterError):
        return False
    finally:
        await api.close()


async def _watch(port: int) -> bool:
    """Apply events until one is rejected or the watch ends. Return whether the copy then has objects."""
    api = _api(port)
    followed = Collection(api, _KEY, SHAPE, lambda: None)
    try:
        async with aclosing(api.watch(_KEY.path, {}, _SECONDS, 2 * _SECONDS)) as events:
            async for event in events:
                if event is not None:
                    followed._apply(event)
                await asyncio.sleep(0)
    except (ApiError, ClusterError):
        pass
    finally:
        await api.close()
    return bool(followed.objects)


def _page(item: object, **metadata: object) -> bytes:
    return json.dumps({"metadata": {"resourceVersion": "1", **metadata}, "items": [item]}).encode()


def _event(item: object, kind: str = "ADDED") -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


_WRONG = {
    "name": {**_SLICE, "metadata": {"name": ["a"]}},
    "ports": {**_SLICE, "ports": {"a": 1}},
    "port": {**_SLICE, "ports": [{"port": [1]}]},
    "endpoint": {**_SLICE, "endpoints": [None]},
    "addresses": {**_SLICE, "endpoints": [{"addresses": "10.0.0.1"}]},
    "zone": {**_SLICE, "endpoints": [{"addresses": ["10.0.0.1"], "zone": {"a": 1}}]},
    "conditions": {**_SLICE, "endpoints": [{"addresses": ["10.0.0.1"], "conditions": []}]},
    "object": 7,
}
_LISTS = {
    **json_peers(b'{"items":'),
    "endless pages": sends(_OK + _page(_SLICE, **{"continue": "x"})),
    **{f"malformed {name}": sends(_OK + _page(item)) for name, item in _WRONG.items()},
    "malformed size": sends(_OK + _page({**_SLICE, "endpoints": [{}] * 41_000})),
}
_EVENTS = {
    **json_peers(b'{"type":"ADDED","object":'),
    "endless events": sends(_OK, _event(_SLICE)),
    "slow": trickles(_OK + b"\n", pause=0.01),
    **{f"malformed {name}": sends(_OK + _event(item)) for name, item in _WRONG.items()},
}
_JSON = f"{foreign_json.MAX_VALUES} values, {foreign_json.MAX_DEPTH} levels"
READERS = (
    Reader(
        "Kubernetes API, response",
        f"{mib(client.MAX_ANSWER_BYTES)}, {_JSON}, {client.TIMEOUT:g} s per page, "
        f"{collection.LIST_TIMEOUT:g} s per list; "
        f"{collection.MAX_SIZE} objects and endpoints per list",
        against(sends(_OK + _page(_SLICE)), _list),
        inputs(_list, _LISTS),
        2 * _SECONDS,
        patched=lambda: patch.object(collection, "LIST_TIMEOUT", 2 * _SECONDS),
    ),
    Reader(
        "Kubernetes API, watch event",
        f"{mib(client.MAX_EVENT_BYTES)}, {_JSON}, 255 s per watch in total; "
        f"{collection.MAX_SIZE} objects and endpoints per copy",
        against(sends(_OK + _event(_SLICE)), _watch),
        inputs(_watch, _EVENTS),
        2 * _SECONDS,
        ignores=frozenset({"endless events"}),
    ),
)
