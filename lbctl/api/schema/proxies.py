"""`GET /api/v1/proxies`."""

from __future__ import annotations

from dataclasses import dataclass

from lbctl.api.schema.values import Timestamp


@dataclass(frozen=True, slots=True)
class ResourceTypeStatus:
    """What one Envoy has of one xDS resource type."""

    type: str
    """The short name of the type: `cds`, `eds`, `lds`, `rds`, `sds`."""
    state: str
    """`SYNCED`, `WAITING` (it asked for what does not exist), `STALE` (sent or due, not yet accepted), `NACKED`."""
    since: Timestamp | None
    """When the type came into this state."""
    wildcard: bool
    """Whether the Envoy asks for all resources of the type."""
    names: int
    """The number of resources that it asks for by name."""
    offered: str
    """The version last sent; empty before."""
    acked: str
    """The version last accepted; empty before."""
    pushed_at: Timestamp | None
    """When a response was last sent; None: never."""
    acked_at: Timestamp | None
    """When a response was last accepted; None: never."""
    message: str
    """The Envoy's error while it is NACKED; otherwise empty."""
    nacked: tuple[str, ...]
    """The names of the resources that it rejects."""


@dataclass(frozen=True, slots=True)
class NackRecord:
    """A rejection by an Envoy."""

    at: Timestamp
    """When it came."""
    type: str
    """The short name of the resource type."""
    version: str
    """The version that was rejected."""
    names: tuple[str, ...]
    """The resources that were rejected."""
    message: str
    """The Envoy's error."""
    findings: tuple[str, ...]
    """The error for each resource at its place in the YAML, as one line each."""


@dataclass(frozen=True, slots=True)
class _ProxyStatus:
    """What is common to all proxies."""

    node: str
    """The node id of an Envoy, the name of any other proxy."""
    proxy: str | None
    """The name in `proxies` of the fleet; None for a node that is none of them."""
    kind: str
    """`envoy`, `haproxy`, `nginx`, or `reader` for `lbctl xds get|watch`."""
    connected: bool
    """Whether it is connected now."""
    since: Timestamp
    """When the connection, or the last attempt, began; of a proxy that is GONE, when it left."""
    state: str
    """The worst state of its types, or `REFUSED` (it is given nothing new), `GONE` (it has left); for HAProxy and nginx
    `SYNCED`, `WAITING`, `FAILING` or `NOT DRIVEN`."""
    reason: str
    """Why it is not in sync; empty where it is or where its types say it."""
    version: str
    """The version last sent; empty before."""
    last_good: str
    """The version that it last accepted as a whole; empty before."""
    confirmed: bool
    """Whether it counts as a proxy of the fleet: it has a client certificate, is connected by the Unix socket, is
    driven, or has accepted a fleet over this connection. Any user of the machine can connect to a port of loopback."""
    types: tuple[ResourceTypeStatus, ...]
    """A row for each xDS type; empty for HAProxy and nginx."""
    nacks: tuple[NackRecord, ...]
    """The last rejections, the newest first."""


@dataclass(frozen=True, slots=True)
class XdsProxy(_ProxyStatus):
    """An Envoy, or a reader, as its xDS streams show it."""

    cluster: str
    """The cluster of its node."""
    region: str
    """The region of its node; empty where it sends none."""
    zone: str
    """The zone of its node; empty where it sends none."""
    sub_zone: str
    """The sub-zone of its node; empty where it sends none."""
    envoy: str
    """Its version; empty where it sends none."""
    peer: str
    """The address that it connected from."""
    delta: bool
    """Whether it speaks delta xDS."""
    reports_refused: str
    """Why its reports of traffic are not taken; empty where they are, or where it sends none."""


@dataclass(frozen=True, slots=True)
class DrivenProxy(_ProxyStatus):
    """A HAProxy or nginx that lbctl drives on its own machine."""

    reloads: int
    """How many reloads lbctl has caused."""
    leaving: int
    """Replicas that are to be removed and still have requests."""


Proxy = XdsProxy | DrivenProxy


@dataclass(frozen=True, slots=True)
class Proxies:
    """The answer of `/api/v1/proxies`."""

    proxies: tuple[Proxy, ...]
    """Envoys by node id, then the driven proxies by name; an Envoy that has left stays for an hour."""
