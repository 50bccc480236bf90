"""`python -m tests.benchmarks.kubernetes_semantics KUBECONFIG`: compare the API server of the tests with a real one.

Both servers get the same requests, and the observable results are compared: pages, watches, labels that no longer
match, versions that are too old, conflicts. If the real server has no EndpointSlices, a custom resource definition adds
them. The namespace `lbctl-semantics` is used and left empty.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

from lbctl.runtime.net.kubernetes import kubeconfig
from lbctl.runtime.net.kubernetes.client import JSON, METADATA, METADATA_LIST, ApiClient, ApiError
from tests.support.kubernetes import SLICES, serving_api

COLLECTION = SLICES.format("lbctl-semantics")
SELECTOR = {"labelSelector": "kubernetes.io/service-name=vllm"}
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "endpointslices.discovery.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, test only"},
    },
    "spec": {
        "group": "discovery.k8s.io",
        "scope": "Namespaced",
        "names": {"plural": "endpointslices", "singular": "endpointslice", "kind": "EndpointSlice"},
        "versions": [
            {
                "name": "v1", "served": True, "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}  # fmt: skip


def piece(name: str, service: str = "vllm", **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "labels": {"kubernetes.io/service-name": service}}
    return {
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata, "addressType": "IPv4",
        "endpoints": [], **more,
    }  # fmt: skip


async def refused(work: Awaitable[Any]) -> str:
    """Return the error of a rejected request; empty if it succeeds."""
    try:
        await work
    except ApiError as error:
        return f"{error.status} {error.reason}"
    return ""


async def events(client: ApiClient, version: str, seconds: int, accept: str = JSON, **query: str) -> list[Any]:
    """Return type, name and kind of each event of a watch of this length. For an error, return its code and reason."""
    found = []
    asked = {**SELECTOR, "resourceVersion": version, "timeoutSeconds": str(seconds), **query}
    watch = client.watch(COLLECTION, asked, seconds + 10.0, accept)
    async with aclosing(watch):
        async for event in watch:
            if event is not None and event["type"] == "ERROR":
                found.append(("ERROR", event["object"].get("code"), event["object"].get("reason")))
            elif event is not None and event["type"] != "BOOKMARK":
                found.append((event["type"], event["object"]["metadata"]["name"], event["object"]["kind"]))
    return found


async def observe(client: ApiClient) -> dict[str, Any]:
    """Return the observable results of the requests."""
    seen: dict[str, Any] = {}
    for number in range(5):
        await client.request("POST", COLLECTION, body=piece(f"s{number}"))
    await client.request("POST", COLLECTION, body=piece("other", service="another"))
    page = await client.get(COLLECTION, {**SELECTOR, "limit": "2"})
    sizes, version = [], page["metadata"]["resourceVersion"]
    while True:
        sizes.append(len(page["items"]))
        token = page["metadata"].get("continue")
        if not token:
            break
        page = await client.get(COLLECTION, {**SELECTOR, "limit": "2", "continue": token})
    seen["pages"] = sizes
    seen["all pages have one version"] = page["metadata"]["resourceVersion"] == version
    short = await client.get(COLLECTION, SELECTOR, METADATA_LIST)
    seen["metadata"] = [sorted(item.keys() - {"apiVersion", "kind"}) for item in short["items"]][:1]
    seen["a name twice"] = await refused(client.request("POST", COLLECTION, body=piece("s0")))
    seen["a name that is none"] = await refused(client.get(f"{COLLECTION}/none"))
    stale = await client.get(f"{COLLECTION}/s0")
    watching = asyncio.create_task(events(client, version, 4))
    short_watch = asyncio.create_task(events(client, version, 4, METADATA))
    await asyncio.sleep(0.5)
    await client.request("PUT", f"{COLLECTION}/s0", body={**stale, "endpoints": [{"addresses": ["10.0.0.1"]}]})
    seen["a stale write"] = await refused(client.request("PUT", f"{COLLECTION}/s0", body=stale))
    moved = await client.get(f"{COLLECTION}/s1")
    moved["metadata"]["labels"] = {"kubernetes.io/service-name": "another"}
    await client.request("PUT", f"{COLLECTION}/s1", body=moved)
    await client.request("DELETE", f"{COLLECTION}/s2")
    await client.request("POST", COLLECTION, body=piece("s9"))
    await client.request("DELETE", f"{COLLECTION}/other")
    seen["a watch, until its time is up"] = await watching
    seen["a watch of metadata"] = await short_watch
    seen["a watch from the list's version on"] = await events(client, version, 1)
    seen["a version that is too old"] = await events(client, "1", 2)
    return seen


async def whole(file: Path, prepare: Callable[[ApiClient], Awaitable[None]]) -> dict[str, Any]:
    client = ApiClient(lambda: kubeconfig.read(file))
    try:
        await prepare(client)
        return await observe(client)
    finally:
        for item in (await client.get(COLLECTION)).get("items", ()):
            await client.request("DELETE", f"{COLLECTION}/{item['metadata']['name']}")
        await client.close()


async def install(client: ApiClient) -> None:
    """Add EndpointSlices as a custom resource if the server has none, and delete the objects of earlier runs."""
    with suppress(ApiError):
        await client.request("POST", _CRDS, body=_CRD)
    for _ in range(100):
        if not await refused(client.get(COLLECTION)):
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(1)


async def nothing(_: ApiClient) -> None:
    """Do nothing: the server of the tests needs no preparation."""


def main() -> int:
    real = asyncio.run(whole(Path(sys.argv[1]), install))
    with serving_api() as api, tempfile.TemporaryDirectory() as directory:
        api.expire()
        ours = asyncio.run(whole(api.kubeconfig(Path(directory) / "config"), nothing))
    for name, value in real.items():
        same = "the same" if ours[name] == value else f"NOT THE SAME: {ours[name]}"
        print(f"{name}: {value}: {same}")
    return int(real != ours)


if __name__ == "__main__":
    sys.exit(main())
