"""Derives a service's endpoints from its EndpointSlices, as a pure function of Kubernetes API objects.

A service has several slices: one per 100 endpoints (or whatever limit the cluster sets), and separate slices for each
address family.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lbctl.base.foreign_json import Shape
from lbctl.base.hosts import is_ip
from lbctl.ir.address import Address
from lbctl.serve.discovery.endpoints import Endpoint, Object, endpoint_name

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
"""The EndpointSlice fields that lbctl reads, with their types in the Kubernetes API."""
_FAMILIES = {"IPv4": 0, "IPv6": 1}


def endpoints(port: str, slices: Iterable[Object], problems: dict[str, None]) -> list[Endpoint]:
    """Return the service's endpoints that have an address and the port.

    `port` is a name or a number; if it is empty, the service must have only one port. If there are no such endpoints,
    the reason is added to `problems`.
    """
    return list(_one_family(list(_endpoints(port, slices, problems))))


def _endpoints(port: str, slices: Iterable[Object], problems: dict[str, None]) -> Iterator[Endpoint]:
    for item in slices:
        family = _FAMILIES.get(str(item.get("addressType")))
        number = _port(port, item, problems)
        for endpoint in item.get("endpoints") or () if family is not None and number is not None else ():
            addresses = endpoint.get("addresses") or ()
            if addresses and is_ip(str(addresses[0])):
                yield _endpoint(endpoint, Address(str(addresses[0]), number or 0), family or 0)


def _endpoint(endpoint: Object, address: Address, family: int) -> Endpoint:
    target, conditions = endpoint.get("targetRef") or {}, endpoint.get("conditions") or {}
    pod = str(target.get("name") or "") if target.get("kind") == "Pod" else ""
    ready = conditions.get("ready") is not False  # a missing value means ready
    terminating = conditions.get("terminating") is True
    serving = conditions.get("serving")
    return Endpoint(
        name=endpoint_name(pod, address),
        address=address,
        pod=pod,
        family=family,
        ready=ready and not terminating,
        serving=ready if serving is None else serving is True,
        terminating=terminating,
        node=str(endpoint.get("nodeName") or ""),
        zone=str(endpoint.get("zone") or ""),
    )


def _port(wanted: str, item: Object, problems: dict[str, None]) -> int | None:
    """Return the port number in this slice; None if the slice lacks the port."""
    if wanted.isdecimal():
        return int(wanted)
    ports = [port for port in item.get("ports") or () if port.get("port") and port.get("protocol", "TCP") == "TCP"]
    named = [port for port in ports if port.get("name") == wanted] if wanted else ports
    if len(named) == 1:
        return int(named[0]["port"])
    if item.get("endpoints"):
        names = ", ".join(str(port.get("name") or port["port"]) for port in ports) or "none"
        what = f"no TCP port {wanted}" if wanted else "no TCP port or more than one, and `port` is not set"
        problems[f"the service has {what} (its ports: {names})"] = None
    return None


def _one_family(endpoints: list[Endpoint]) -> Iterator[Endpoint]:
    """Yield the endpoints, keeping only one address family for endpoints that are not named after a pod.

    Manually created slices do not show which addresses belong to the same machine. Therefore, if a service has both
    families, only IPv4 is used.
    """
    has_ipv4 = any(not _has_pod_name(item) and item.family == 0 for item in endpoints)
    return (item for item in endpoints if _has_pod_name(item) or item.family == 0 or not has_ipv4)


def _has_pod_name(item: Endpoint) -> bool:
    return item.pod != "" and item.name == item.pod
