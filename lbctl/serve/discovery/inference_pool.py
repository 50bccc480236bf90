"""Derives an InferencePool's endpoints from the pods that it selects, as a pure function of Kubernetes API objects.

Each of a pod's target ports is an endpoint, as for endpoint pickers of the Gateway API Inference Extension: an engine
with data parallelism has one port per rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from lbctl.base.foreign_json import Shape
from lbctl.base.hosts import is_ip
from lbctl.ir.address import Address
from lbctl.serve.discovery.endpoints import Endpoint, Object, endpoint_name

POOL_SHAPE: dict[str, Shape] = {"spec": {"selector": {"matchLabels": {...: str}}, "targetPorts": [{"number": int}]}}
"""The InferencePool fields that lbctl reads, with their types in the Kubernetes API."""
POD_SHAPE: dict[str, Shape] = {
    "spec": {"nodeName": str},
    "status": {"phase": str, "podIPs": [{"ip": str}], "conditions": [{"type": str, "status": str}]},
}
"""The pod fields that lbctl reads, with their types in the Kubernetes API."""
_ENDED = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class InferencePool:
    """The parts of an InferencePool used by lbctl."""

    labels: tuple[tuple[str, str], ...]
    """The labels of the pool's pods, as sorted (name, value) pairs."""
    ports: tuple[int, ...]
    """The pool's target ports."""

    @property
    def selector(self) -> str:
        """Return the label selector for its pods, in the format expected by the API server."""
        return ",".join(f"{label}={value}" for label, value in self.labels)


def read(item: Object) -> InferencePool | None:
    """Parse an InferencePool. Return None if it does not select any pods or does not have a valid port."""
    spec: dict[str, Any] = item.get("spec") or {}
    labels = (spec.get("selector") or {}).get("matchLabels") or {}
    numbers = [int(port.get("number") or 0) for port in spec.get("targetPorts") or ()]
    ports = tuple(dict.fromkeys(number for number in numbers if 0 < number <= 65535))
    return InferencePool(tuple(sorted(labels.items())), ports) if labels and ports else None


def endpoints(pool: InferencePool, pods: Iterable[Object]) -> Iterator[Endpoint]:
    """Yield the endpoints of all pods that have an address and have not terminated.

    If the pool has several ports, endpoints are named `POD-PORT`.
    """
    for pod in pods:
        metadata, status = pod.get("metadata") or {}, pod.get("status") or {}
        hosts = [str(item.get("ip") or "") for item in status.get("podIPs") or ()]
        hosts = sorted((host for host in hosts if is_ip(host)), key=lambda host: ":" in host)
        if not hosts or status.get("phase") in _ENDED:
            continue
        name, terminating = str(metadata.get("name") or ""), "deletionTimestamp" in metadata
        ready = any(
            item.get("type") == "Ready" and item.get("status") == "True" for item in status.get("conditions") or ()
        )
        for port in pool.ports:
            address = Address(hosts[0], port)
            yield Endpoint(
                name=endpoint_name(name, address, f"-{port}" if len(pool.ports) > 1 else ""),
                address=address,
                pod=name,
                family=int(":" in hosts[0]),
                ready=ready and not terminating,
                serving=ready,
                terminating=terminating,
                node=str((pod.get("spec") or {}).get("nodeName") or ""),
                zone="",
            )
