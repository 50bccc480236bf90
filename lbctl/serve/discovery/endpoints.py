"""Derives a pool's replicas from the endpoints of a Kubernetes service or InferencePool.

Each pod is one replica, even if it is in several EndpointSlices or has addresses of both families; IPv4 takes
precedence. A ready endpoint gets requests. An endpoint that is still serving while it terminates is drained. All other
endpoints are ignored. If no endpoint is ready, requests go to terminating endpoints that are still serving, as with
kube-proxy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lbctl.compile.gpus import GPUS, gpu_of_label
from lbctl.compile.replicas import replica_name
from lbctl.ir.address import Address
from lbctl.ir.pools import KubernetesDiscovery, LabelSource, Replica
from lbctl.model.values import NAME

Object = Mapping[str, Any]
Labels = Mapping[str, Mapping[str, str]]
"""Maps the name of each node or pod to its labels."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address and port of a service or InferencePool."""

    name: str
    """Name of the replica; see `endpoint_name`."""
    address: Address
    """The address on which the replica listens."""
    pod: str
    """Name of the endpoint's pod; empty if it is not a pod."""
    family: int
    """0 for IPv4, 1 for IPv6."""
    ready: bool
    """Whether the endpoint should get requests."""
    serving: bool
    """Whether the endpoint responds to requests, even if it is terminating."""
    terminating: bool
    """Whether the endpoint's pod is being deleted, which cannot be undone."""
    node: str
    """Name of the endpoint's node; empty if unknown."""
    zone: str
    """Zone given in the EndpointSlice; empty if unknown."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The replicas of a service or InferencePool."""

    replicas: tuple[Replica, ...]
    """The replicas, sorted by name."""
    left_out: int = 0
    """Number of endpoints that exceed `max_replicas`."""
    problems: tuple[str, ...] = ()
    """Problems that prevent endpoints from being used, without duplicates."""


def endpoint_name(pod: str, address: Address, suffix: str = "") -> str:
    """Return a replica's name: its pod's name plus the suffix, or its address if that is not a valid name."""
    name = pod + suffix
    return name if pod and NAME.fullmatch(name) else replica_name(address)


def replicas_of(
    discovery: KubernetesDiscovery,
    endpoints: Iterable[Endpoint],
    labels: Mapping[str, Labels],
    earlier: Iterable[Replica] = (),
) -> Reading:
    """Return a pool's replicas.

    `labels` contains two maps, `node` and `pod`, from the names of nodes and pods to their labels. If labels have not
    been listed yet, they are absent, and the GPU and zone are copied from the replica in `earlier`.
    """
    before = {item.name: item for item in earlier}
    problems: dict[str, None] = {}
    chosen: dict[str, Endpoint] = {}
    for item in endpoints:
        other = chosen.get(item.name)
        if other is None or _rank(item) < _rank(other):
            chosen[item.name] = item
    any_ready = any(item.ready for item in chosen.values())
    members = sorted((item for item in chosen.values() if item.ready or _leaves(item)), key=lambda item: item.name)
    limited = members[: discovery.max_replicas]
    places = [_place(discovery, item, labels, before.get(item.name), problems) for item in limited]
    replicas = [
        Replica(
            item.name, item.address, drain=_leaves(item) and any_ready, zone=place.zone or None, gpu=place.gpu or None
        )
        for item, place in zip(limited, places, strict=True)
    ]
    return Reading(_with_capacities(discovery, replicas), len(members) - len(limited), tuple(problems))


def _rank(item: Endpoint) -> tuple[int, bool, str]:
    return item.family, not item.ready, str(item.address)


def _leaves(item: Endpoint) -> bool:
    return item.terminating and item.serving


@dataclass(frozen=True, slots=True)
class _Place:
    """An endpoint's node and GPU."""

    gpu: str
    """The endpoint's GPU type; empty if unknown."""
    zone: str
    """The endpoint's zone; empty if unknown."""


def _place(
    discovery: KubernetesDiscovery,
    item: Endpoint,
    labels: Mapping[str, Labels],
    earlier: Replica | None,
    problems: dict[str, None],
) -> _Place:
    def label(source: LabelSource) -> str:
        name = item.node if source.of == "node" else item.pod
        return labels.get(source.of, {}).get(name, {}).get(source.label, "")

    gpu, zone = "", item.zone if discovery.zone_from == "endpoint" else ""
    if discovery.gpu_from is not None:
        kept = (earlier.gpu or "") if earlier and discovery.gpu_from.of not in labels else ""
        gpu = kept if kept in _throughputs(discovery) else _gpu(discovery, label(discovery.gpu_from), problems)
    if isinstance(discovery.zone_from, LabelSource):
        is_missing = discovery.zone_from.of not in labels
        zone = (earlier.zone or "") if earlier and is_missing else label(discovery.zone_from)
    return _Place(gpu, zone)


def _gpu(discovery: KubernetesDiscovery, written: str, problems: dict[str, None]) -> str:
    """Return the GPU type given in a label; if there is none, return an empty string and add a problem."""
    gpu = gpu_of_label(written, (name for name, _ in discovery.gpus))
    if not gpu and discovery.gpu_from is not None:
        what = f"unknown GPU: {written[:63]}" if written else "no label"
        problems[f"gpu_from {discovery.gpu_from.label}: {what}"] = None
    return gpu


def _throughputs(discovery: KubernetesDiscovery) -> Mapping[str, float]:
    return {name: gpu.throughput for name, gpu in GPUS.items()} | dict(discovery.gpus)


def _with_capacities(discovery: KubernetesDiscovery, replicas: Sequence[Replica]) -> tuple[Replica, ...]:
    """Return the replicas with capacities that match their GPUs' throughput.

    Replicas with an unknown GPU type get the lowest throughput among the others.
    """
    table = _throughputs(discovery)
    throughputs = [table[item.gpu] for item in replicas if item.gpu]
    lowest = min(throughputs, default=1.0)
    return tuple(replace(item, capacity=table[item.gpu] if item.gpu else lowest) for item in replicas)
