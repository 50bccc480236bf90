"""Derives the replicas of a pool from EndpointSlices: a pure function of Kubernetes API objects.

A service has several slices: one for each 100 endpoints (or as many as the cluster allows), and separate slices for
each address family. One pod is one replica, even if several slices contain it or it has addresses of both families;
IPv4 takes precedence. A ready endpoint gets requests. An endpoint that still serves while it terminates is drained.
Other endpoints are not replicas. If no endpoint is ready, terminating endpoints that still serve get the requests, as
with kube-proxy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lbctl.base.foreign_json import Shape
from lbctl.base.hosts import is_ip
from lbctl.compile.gpus import GPUS, gpu_of_label
from lbctl.compile.replicas import replica_name
from lbctl.ir.address import Address
from lbctl.ir.pools import KubernetesDiscovery, LabelSource, Replica
from lbctl.model.values import NAME

Object = Mapping[str, Any]
Labels = Mapping[str, Mapping[str, str]]
"""Name of a node or a pod → its labels."""
SHAPE: dict[str, Shape] = {
    "addressType": str,
    "ports": [{"name": str, "port": int, "protocol": str}],
    "endpoints": [
        {
            "addresses": [str],
            "conditions": {"ready": bool, "serving": bool, "terminating": bool},
            "targetRef": {"kind": str, "name": str},
            "nodeName": str,
            "zone": str,
        }
    ],
}
"""The used fields of a slice, with the types of the Kubernetes API."""
_FAMILIES = {"IPv4": 0, "IPv6": 1}


@dataclass(frozen=True, slots=True)
class SliceEndpoint:
    """One endpoint of a slice, in the terms of this module."""

    name: str
    """The name of the pod, otherwise the address with `-` for each character that is not allowed in a name."""
    address: Address
    """Where it listens."""
    is_pod: bool
    family: int
    """0 for IPv4, 1 for IPv6."""
    ready: bool
    """Whether it should get requests."""
    serving: bool
    """Whether it answers requests, even if it is about to terminate."""
    terminating: bool
    """Whether its pod is being deleted, which cannot be undone."""
    node: str
    """The name of its node; empty if the slice does not contain it."""
    zone: str
    """The zone; empty if the slice does not contain it."""


@dataclass(frozen=True, slots=True)
class SliceReading:
    """The content of a service's slices."""

    replicas: tuple[Replica, ...]
    """The replicas, sorted by name."""
    left_out: int = 0
    """Number of endpoints in excess of `max_replicas`."""
    problems: tuple[str, ...] = ()
    """Problems that prevent the use of endpoints, without duplicates."""


def replicas_of(
    discovery: KubernetesDiscovery,
    slices: Iterable[Object],
    labels: Mapping[str, Labels],
    earlier: Iterable[Replica] = (),
) -> SliceReading:
    """Return the replicas of a pool.

    `labels`: `node` and `pod` → their labels, without labels that could not be listed yet. In this case, the GPU and
    the zone are taken from the replica in `earlier`.
    """
    before = {item.name: item for item in earlier}
    problems: dict[str, None] = {}
    chosen: dict[str, SliceEndpoint] = {}
    for item in _one_family(endpoints(discovery.port, slices, problems)):
        other = chosen.get(item.name)
        if other is None or (item.family, not item.ready, str(item.address)) < _rank(other):
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
    return SliceReading(_with_capacities(discovery, replicas), len(members) - len(limited), tuple(problems))


def endpoints(port: str, slices: Iterable[Object], problems: dict[str, None] | None = None) -> Iterator[SliceEndpoint]:
    """Yield every endpoint of the slices that has an address and the port."""
    problems = {} if problems is None else problems
    for item in slices:
        family = _FAMILIES.get(str(item.get("addressType")))
        number = _port(port, item, problems)
        for endpoint in item.get("endpoints") or () if family is not None and number is not None else ():
            addresses = endpoint.get("addresses") or ()
            if addresses and is_ip(str(addresses[0])):
                yield _endpoint(endpoint, Address(str(addresses[0]), number or 0), family or 0)


def _endpoint(endpoint: Object, address: Address, family: int) -> SliceEndpoint:
    target, conditions = endpoint.get("targetRef") or {}, endpoint.get("conditions") or {}
    pod = str(target.get("name") or "") if target.get("kind") == "Pod" else ""
    is_pod = NAME.fullmatch(pod) is not None
    ready = conditions.get("ready") is not False  # absent means ready
    terminating = conditions.get("terminating") is True
    serving = conditions.get("serving")
    return SliceEndpoint(
        name=pod if is_pod else replica_name(address),
        address=address,
        is_pod=is_pod,
        family=family,
        ready=ready and not terminating,
        serving=ready if serving is None else serving is True,
        terminating=terminating,
        node=str(endpoint.get("nodeName") or ""),
        zone=str(endpoint.get("zone") or ""),
    )


def _port(wanted: str, item: Object, problems: dict[str, None]) -> int | None:
    """Return the number of the port in this slice; None if the slice does not have the port."""
    if wanted.isdecimal():
        return int(wanted)
    ports = [port for port in item.get("ports") or () if port.get("port") and port.get("protocol", "TCP") == "TCP"]
    named = [port for port in ports if port.get("name") == wanted] if wanted else ports
    if len(named) == 1:
        return int(named[0]["port"])
    if item.get("endpoints"):
        names = ", ".join(str(port.get("name") or port["port"]) for port in ports) or "none"
        what = f"no TCP port {wanted}" if wanted else "no or several TCP ports, and `port` is not set"
        problems[f"the service has {what} (its ports: {names})"] = None
    return None


def _one_family(endpoints: Iterable[SliceEndpoint]) -> Iterator[SliceEndpoint]:
    """Yield the endpoints, without the second addresses of endpoints that are not pods.

    Manual slices do not show which addresses belong to one machine: if a service has both families, only IPv4 is used.
    """
    endpoints = list(endpoints)
    has_ipv4 = any(not item.is_pod and item.family == 0 for item in endpoints)
    return (item for item in endpoints if item.is_pod or item.family == 0 or not has_ipv4)


def _rank(item: SliceEndpoint) -> tuple[int, bool, str]:
    return item.family, not item.ready, str(item.address)


def _leaves(item: SliceEndpoint) -> bool:
    return item.terminating and item.serving


@dataclass(frozen=True, slots=True)
class _Place:
    """The node and GPU of an endpoint."""

    gpu: str
    """The type of its GPU; empty if unknown."""
    zone: str
    """Its zone; empty if unknown."""


def _place(
    discovery: KubernetesDiscovery,
    item: SliceEndpoint,
    labels: Mapping[str, Labels],
    earlier: Replica | None,
    problems: dict[str, None],
) -> _Place:
    def label(source: LabelSource) -> str:
        name = item.node if source.of == "node" else item.name
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
    """Return the GPU type that a label contains; empty, with a problem, if the label contains none."""
    gpu = gpu_of_label(written, (name for name, _ in discovery.gpus))
    if not gpu and discovery.gpu_from is not None:
        what = f"an unknown GPU: {written[:63]}" if written else "no label"
        problems[f"gpu_from {discovery.gpu_from.label}: {what}"] = None
    return gpu


def _throughputs(discovery: KubernetesDiscovery) -> Mapping[str, float]:
    return {name: gpu.throughput for name, gpu in GPUS.items()} | dict(discovery.gpus)


def _with_capacities(discovery: KubernetesDiscovery, replicas: Sequence[Replica]) -> tuple[Replica, ...]:
    """Return the replicas with the throughput of their GPUs; an unknown type gets the lowest one of the others."""
    table = _throughputs(discovery)
    throughputs = [table[item.gpu] for item in replicas if item.gpu]
    lowest = min(throughputs, default=1.0)
    return tuple(replace(item, capacity=table[item.gpu] if item.gpu else lowest) for item in replicas)
