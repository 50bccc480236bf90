"""The Kubernetes API requests needed by a store: individual Leases and ConfigMaps by name.

The cluster is taken from KUBECONFIG, or else from the current pod. Every change is a merge patch that includes the
resourceVersion that it replaces. The patch contains only the differences, and is rejected if the object has been
changed concurrently.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any

from lbctl.base.foreign_json import InvalidJsonError, shaped
from lbctl.runtime.net.kubernetes import kubeconfig
from lbctl.runtime.net.kubernetes.client import JSON, METADATA, ApiClient, ApiError
from lbctl.runtime.net.kubernetes.cluster import ClusterError
from lbctl.store.interface import ConflictError, StoreError, StoreUnreachableError, UnusableError

LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
CONFIG_MAPS = "/api/v1/namespaces/{}/configmaps"
"""Paths of the collections, by namespace."""
_KINDS = {LEASES: ("coordination.k8s.io/v1", "Lease"), CONFIG_MAPS: ("v1", "ConfigMap")}
_QUERY = {"fieldManager": "lbctl"}
_LABELS = {"app.kubernetes.io/managed-by": "lbctl"}
_CONFLICT = 409
_NOT_FOUND = 404
_DENIED = (401, 403)
_INVALID = (400, 413, 422)
_TEXTS = {...: str}
_SHAPE = {
    "metadata": {"name": str, "resourceVersion": str, "annotations": _TEXTS},
    "data": _TEXTS,
    "binaryData": _TEXTS,
    "spec": {
        "holderIdentity": str,
        "renewTime": str,
        "acquireTime": str,
        "leaseDurationSeconds": int,
        "leaseTransitions": int,
    },
}
"""The parts of a Lease and of a ConfigMap that are used."""
WATCH_TIMEOUT = 60.0
"""Seconds after which a watch ends, so that a slow server does not block it."""
Object = Mapping[str, Any]


class ObjectClient:
    """Reads and changes the objects of one namespace."""

    def __init__(self, namespace: str, patience: float) -> None:
        """Check that a cluster is configured, without sending a request. `patience`: timeout of a request in seconds.

        Raises UnusableError.
        """
        self.namespace = namespace
        load = partial(kubeconfig.ambient, dict(os.environ))
        self._api = ApiClient(load, patience)
        try:
            load()
        except ClusterError as error:
            raise UnusableError(f"the store kubernetes:// cannot find its cluster: {error}") from None

    @property
    def server_time(self) -> float:
        """Return the API server's time in seconds since the epoch, taken from its responses."""
        return self._api.server_time

    async def get(self, collection: str, name: str) -> Object | None:
        """Return an object; None if it does not exist. Raises StoreError."""
        with self._explained(name):
            try:
                return _shaped(await self._api.get(self._path(collection, name)))
            except ApiError as error:
                if error.status != _NOT_FOUND:
                    raise
                return None

    async def create(self, collection: str, name: str, body: Object, annotations: Mapping[str, str]) -> Object:
        """Create an object. Raises ConflictError if the object exists, and StoreError."""
        version, kind = _KINDS[collection]
        metadata = {"name": name, "labels": _LABELS, "annotations": dict(annotations)}
        created = {"apiVersion": version, "kind": kind, "metadata": metadata, **body}
        with self._explained(name):
            return await self._api.request("POST", self._path(collection), _QUERY, created, METADATA)

    async def patch(self, collection: str, name: str, body: Object) -> Object:
        """Change an object, and return its metadata. `body` contains the expected resourceVersion.

        Raises ConflictError if the object has a different resourceVersion or does not exist, and StoreError.
        """
        with self._explained(name):
            return await self._api.patch(self._path(collection, name), body, _QUERY, METADATA)

    async def watch(self, collection: str, name: str, version: str, silence: float) -> AsyncGenerator[Object | None]:
        """Yield each later state of an object (None if it was deleted) until the watch ends.

        It ends after `silence` seconds without a change, after `WATCH_TIMEOUT`, and on any failure except a missing
        permission.
        """
        query = {"fieldSelector": f"metadata.name={name}", "resourceVersion": version}
        try:
            with self._explained(name):
                watched = self._api.watch(self._path(collection), query, silence, WATCH_TIMEOUT, JSON)
                async with aclosing(watched) as events:
                    async for event in events:
                        if event is not None and event.get("type") in ("ADDED", "MODIFIED", "DELETED"):
                            yield None if event["type"] == "DELETED" else _shaped(event.get("object"))
        except UnusableError:
            raise
        except StoreError:
            return

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()

    def _path(self, collection: str, name: str = "") -> str:
        path = collection.format(self.namespace)
        return f"{path}/{name}" if name else path

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        """Convert the API's errors to StoreError. Their messages do not contain any credentials."""
        try:
            yield
        except ClusterError as error:
            raise StoreUnreachableError(f"Kubernetes is not responding: {error}") from None
        except ApiError as error:
            raise _error_of(error, f"{self.namespace}/{name}") from None


def _shaped(value: object) -> Object:
    """Return an object without its unused parts. Raises ClusterError for wrong types."""
    try:
        result: Object = shaped(value, _SHAPE)
    except InvalidJsonError as error:
        raise ClusterError(f"an object has the wrong type: {error}") from None
    if not result.get("metadata", {}).get("resourceVersion"):
        raise ClusterError("an object has no resourceVersion")
    return result


def _error_of(error: ApiError, name: str) -> StoreError:
    if error.status in (_CONFLICT, _NOT_FOUND):
        return ConflictError(f"another client has changed {name}: {error}")
    if error.status in _DENIED:
        return UnusableError(
            f"Kubernetes rejects the account, see the Role in docs/how-to/deploy-in-kubernetes.md: {error}"
        )
    if error.status in _INVALID:
        return StoreError(f"Kubernetes rejects a change to {name}: {error}")
    return StoreUnreachableError(f"Kubernetes is not responding: {error}")
