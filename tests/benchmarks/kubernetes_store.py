"""Compare the store `kubernetes://` on the API server of the tests with the store on a real one.

`python -m tests.benchmarks.kubernetes_store KUBECONFIG` runs the same operations on both, and compares the results. On
a server without Leases and ConfigMaps, custom resource definitions add both, the latter as `configmaps.test.k8s.io`.
The namespace `lbctl-semantics` is used.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

from lbctl.ir.proxies import Store
from lbctl.runtime.net.kubernetes import kubeconfig
from lbctl.runtime.net.kubernetes.client import ApiClient, ApiError
from lbctl.store import kubernetes, kubernetes_client
from lbctl.store.interface import ABSENT, StoreError
from lbctl.store.open import open_shared
from tests.support.kubernetes import serving_api

_NAMESPACE = "lbctl-semantics"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_CONFIG_MAPS = "/apis/test.k8s.io/v1/namespaces/{}/configmaps"
_LEASE = 8_000
_WRITES = 40


def _crd(group: str, plural: str, kind: str) -> dict[str, Any]:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, test only"},
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


async def _install(file: Path) -> bool:
    """Add the missing resources to the server, and return whether it has real ConfigMaps."""
    client = ApiClient(lambda: kubeconfig.read(file))
    try:
        own = not await _refused(client.get(kubernetes_client.CONFIG_MAPS.format(_NAMESPACE)))
        crds = [_crd("coordination.k8s.io", "leases", "Lease"), _crd("test.k8s.io", "configmaps", "ConfigMap")]
        for crd in () if own else crds:
            with suppress(ApiError):
                await client.request("POST", _CRDS, body=crd)
        paths = (kubernetes_client.LEASES, kubernetes_client.CONFIG_MAPS if own else _CONFIG_MAPS)
        while any([await _refused(client.get(path.format(_NAMESPACE))) for path in paths]):
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)
        return own
    finally:
        await client.close()


async def _refused(work: Awaitable[Any]) -> str:
    """Return the class of the error; empty if there is none."""
    try:
        await work
    except (ApiError, StoreError) as error:
        return type(error).__name__
    return ""


async def _observe() -> tuple[dict[str, Any], list[float]]:
    """Return the results that a member observes, and the duration of its writes in milliseconds."""
    name = f"t-{secrets.token_hex(3)}"
    first, second = (open_shared(Store(f"kubernetes://{_NAMESPACE}/{name}", lease=_LEASE), cp) for cp in ("a", "b"))
    seen: dict[str, Any] = {}
    epoch = (await first.acquire()).epoch
    seen["a lease that is held"] = await _refused(second.acquire())
    seen["the leader"] = await second.leader()
    entry = await first.put("overrides", "1", ABSENT, epoch)
    seen["a key twice"] = await _refused(first.put("overrides", "2", ABSENT, epoch))
    seen["an old version"] = await _refused(second.put("overrides", "2", "1", epoch))
    seen["a large value"] = await _refused(first.put("fleet/files", secrets.token_hex(300_000), ABSENT, epoch))
    seen["one that is too large"] = await _refused(
        first.put("loop_output", secrets.token_hex(1_200_000), ABSENT, epoch)
    )
    changes = second.watch("overrides", "rollouts")
    async with aclosing(changes) as watched:  # type: ignore[type-var]
        seen["watched"] = [(change := await anext(watched)).key, change.entry == entry]
        await first.put("rollouts", "1", ABSENT, epoch)
        seen["watched later"] = (await anext(watched)).key
        await first.delete("overrides", entry.version, epoch)
        seen["watched a deletion"] = (await anext(watched)).entry
    await first.announce("a", "{}", 5)
    await second.announce("b", "{}", 5)
    seen["members"] = [item.member for item in await second.members()]
    times = []
    for number in range(_WRITES):
        version = next(item.version for item in await first.read("rollouts"))
        started = time.perf_counter()
        await first.put("rollouts", str(number), version, epoch)
        times.append((time.perf_counter() - started) * 1000)
    while await _refused(second.acquire()):
        await asyncio.sleep(0.1)
    seen["a write of the old leader"] = await _refused(first.put("rollouts", "late", ABSENT, epoch))
    seen["a renewal of the old leader"] = await _refused(first.renew())
    await first.close()
    await second.close()
    return seen, times


def _whole(file: Path) -> tuple[dict[str, Any], list[float]]:
    os.environ["KUBECONFIG"] = str(file)
    return asyncio.run(_observe())


def main() -> int:
    file = Path(sys.argv[1])
    with serving_api() as api, tempfile.TemporaryDirectory() as directory:
        ours, _ = _whole(api.kubeconfig(Path(directory) / "config"))
    if not asyncio.run(_install(file)):
        print("the server has no ConfigMaps: a custom resource stands for them")
        kubernetes_client._KINDS[_CONFIG_MAPS] = ("test.k8s.io/v1", "ConfigMap")
        kubernetes.CONFIG_MAPS = _CONFIG_MAPS  # type: ignore[misc]
    real, times = _whole(file)
    for name, value in real.items():
        print(f"{name}: {value}: {'the same' if ours[name] == value else f'NOT THE SAME: {ours[name]}'}")
    quantiles = statistics.quantiles(times, n=100)
    print(f"{_WRITES} writes: p50 {quantiles[49]:.1f} ms, p99 {quantiles[98]:.1f} ms")
    return int(real != ours)


if __name__ == "__main__":
    sys.exit(main())
