"""Queries to the picker and the picker's responses, independent of the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from lbctl.ir.locality import Place

MAX_BODY_BYTES = 256 << 10
"""Maximum number of bytes of a body that the picker reads."""
_ANYWHERE = Place()


@dataclass(frozen=True, slots=True)
class Caller:
    """A proxy and its route, as reported by the proxy."""

    pool: str | None
    """Pool that the request is for; None for gateways, which do not know about pools."""
    proxy: str = ""
    """Name of the proxy; empty if the proxy does not send it."""
    regions: frozenset[str] = frozenset()
    """Regions that the route allows; empty allows any."""
    place: Place = _ANYWHERE
    """Location of the proxy."""
    leaves_busy: bool = False
    """Whether the request is retried on another replica if the picked one is busy."""
    tenant: str = ""
    """Tenant authenticated by the proxy; empty if the route does not define tenants."""
    priority: str = "normal"
    """Priority of the route: `high`, `normal` or `low`."""
    route: str = ""
    """Name of the route if it has limits that the picker enforces; otherwise empty."""
    waits: bool = False
    """Whether the proxy waits for a replica. A proxy that does not wait queries again if the request has to wait."""


class PickerQuestion(NamedTuple):
    """One query."""

    caller: Caller
    """The querying proxy and its route."""
    headers: Mapping[str, list[str]]
    """Maps each lowercase name to that header's values."""
    body: bytes
    """The beginning of the body."""
    body_length: int
    """Length of the entire body in bytes, if known."""
    subset: frozenset[str] | None = None
    """Replica addresses that are allowed; None allows any."""
    id: str = ""
    """ID that the proxy will use to report the end of the request; if it is empty, the picker chooses the ID."""
    client: str = ""
    """Client address, used for per-client queues; empty if the proxy does not send it."""
    left: str = ""
    """ID of the request's pick in the pool that it left for its fallback; empty if it has not left a pool."""


class PickerAnswer(NamedTuple):
    """The response. If it does not name a replica, the proxy falls back to `otherwise`."""

    id: str = ""
    """Pick ID for reporting the end of the request; empty if no replica was picked."""
    names: tuple[str, ...] = ()
    """Names of the replicas, in the order in which the proxy should try them."""
    addresses: tuple[str, ...] = ()
    """Addresses of the replicas, in the same order."""
    full: bool = False
    """Whether no replica is named because all ready replicas are full."""
    refused: int = 0
    """Seconds after which the client should retry if the request is rejected; 0 if it is not rejected."""
    must_wait: bool = False
    """Whether the request has to wait in its pool's queue."""


class ResponseStart(NamedTuple):
    """The start of a response."""

    served: str = ""
    """Address of the replica that sent the response; empty if the proxy does not report it."""
    by_replica: bool = True
    """Whether a replica sent the response; False if the proxy could not reach any."""
    moved: bool = False
    """Whether the response came from a replica other than the picked one, if the proxy reports this instead of the
    address."""
