"""Services without a selector and their EndpointSlices, for replicas outside the cluster.

Kubernetes connects the two by the label `kubernetes.io/service-name` and by the name of the port. The label
`endpointslice.kubernetes.io/managed-by` keeps Kubernetes' own controllers away from the slices.

Applying new objects does not delete old objects. The name of a Service therefore states how many slices it has: either
the new slices replace all old slices, or the routes refer to a Service with another name, and the old one gets no
requests.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from lbctl.base.diagnostics import Path
from lbctl.base.hosts import parse_ip
from lbctl.ir.pools import Pool, Replica
from lbctl.targets.manifests.names import NameGrammar, Parts, names, object_name
from lbctl.targets.manifests.objects import Objects

_MAX_ENDPOINTS = 1000
"""Maximum number of endpoints of an EndpointSlice."""
_HOSTNAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_SLICE: NameGrammar = object_name("EndpointSlice")


@dataclass(frozen=True, slots=True)
class PoolService:
    """A Service to render, and the replicas behind it."""

    name: str
    replicas: tuple[Replica, ...]
    port: int
    protocol: str
    """`appProtocol` of the port."""


def service_port(pool: Pool) -> int:
    """Return the port of the pool's Services: the lowest port of its replicas, or 80 for an empty pool."""
    return min((item.address.port for item in pool.replicas if item.address.port), default=80)


def app_protocol(pool: Pool, *, websocket: bool) -> str:
    """Return the `appProtocol` of the pool's Services. `websocket`: whether a route to the pool allows WebSockets."""
    if websocket and pool.protocol == "http1":
        return "kubernetes.io/wss" if pool.tls else "kubernetes.io/ws"
    if pool.tls:
        return "https"
    return "http" if pool.protocol == "http1" else "kubernetes.io/h2c"


def shape(replicas: Iterable[Replica]) -> Parts:
    """Return the last parts of a Service's name: the number of slices for each address family.

    A single IPv4 slice adds no parts.
    """
    counts = {family: len(slices) for family, slices in _slices(replicas).items()}
    if counts == {"ipv4": 1}:
        return ()
    return tuple(family if count == 1 else f"{family}x{count}" for family, count in counts.items()) or ("empty",)


def add_service(
    objects: Objects, service: PoolService, drained: Collection[str], source: Path, *, same_zone: bool
) -> None:
    """Add a Service and its slices, which contain addresses, so replicas must not have host names.

    `same_zone`: whether clients prefer endpoints in their own zone.
    """
    dual_stack = {"ipFamilyPolicy": "PreferDualStack"} if any(map(_is_ipv6, service.replicas)) else {}
    zone = {"trafficDistribution": "PreferSameZone"} if same_zone else {}
    port = {"name": "http", "port": service.port, "protocol": "TCP", "appProtocol": service.protocol}
    spec = {"type": "ClusterIP", **dual_stack, **zone, "ports": [port]}
    objects.add("v1", "Service", service.name, "pool", source, spec=spec)
    slices = {
        (service.name, family, *([str(index)] if index > 1 else [])): (family, *part)
        for family, parts in _slices(service.replicas).items()
        for index, part in enumerate(parts, start=1)
    }
    for parts, name in names(_SLICE, slices).items():
        family, number, replicas = slices[parts]
        objects.add(
            "discovery.k8s.io/v1",
            "EndpointSlice",
            name,
            "pool",
            source,
            labels={
                "endpointslice.kubernetes.io/managed-by": "lbctl",
                "kubernetes.io/service-name": service.name,
            },
            addressType="IPv6" if family == "ipv6" else "IPv4",
            ports=[{**port, "port": number}],
            endpoints=[_endpoint(item, drained=item.name in drained) for item in replicas],
        )


def _slices(replicas: Iterable[Replica]) -> dict[str, list[tuple[int, Sequence[Replica]]]]:
    """Map each address family to its slices, as (port, replicas). All endpoints in a slice have the same port."""
    groups: dict[tuple[str, int], list[Replica]] = {}
    for replica in replicas:
        family = "ipv6" if _is_ipv6(replica) else "ipv4"
        groups.setdefault((family, replica.address.port), []).append(replica)
    slices: dict[str, list[tuple[int, Sequence[Replica]]]] = {}
    for (family, port), group in sorted(groups.items()):
        slices.setdefault(family, []).extend((port, part) for part in _parts(group))
    return slices


def _parts(replicas: Sequence[Replica]) -> list[Sequence[Replica]]:
    return [replicas[start : start + _MAX_ENDPOINTS] for start in range(0, len(replicas), _MAX_ENDPOINTS)]


def _is_ipv6(replica: Replica) -> bool:
    return ":" in _address(replica)


def _address(replica: Replica) -> str:
    """Return the address. An IPv4-mapped address counts as IPv4, because IPv6 slices cannot contain it."""
    return str(parse_ip(replica.address.host))


def _endpoint(replica: Replica, *, drained: bool) -> dict[str, object]:
    """Return an endpoint. A drained endpoint finishes its requests and gets no new requests."""
    conditions = {"ready": not drained, "serving": True, "terminating": drained}
    hostname = {"hostname": replica.name} if _HOSTNAME.fullmatch(replica.name) else {}
    zone = {"zone": replica.zone} if replica.zone is not None else {}
    return {"addresses": [_address(replica)], "conditions": conditions, **hostname, **zone}
