"""The queries to the picker and its responses, independent of the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from lbctl.ir.locality import Place

MAX_BODY_BYTES = 256 << 10
"""Upper bound on the bytes of a body that the picker reads."""
_ANYWHERE = Place()


@dataclass(frozen=True, slots=True)
class Caller:
    """A proxy and its route, as the proxy reports them."""

    pool: str | None
    """Pool that the request goes to; None for a gateway, which does not know pools."""
    proxy: str = ""
    """Name of the proxy; empty if it does not send one."""
    regions: frozenset[str] = frozenset()
    """The regions that the route allows; empty: any."""
    place: Place = _ANYWHERE
    """Location of the proxy."""
    leaves_busy: bool = False
    """Whether the request is retried on another replica if the picked one is busy."""
    tenant: str = ""
    """Tenant that the proxy authenticated; empty if the route has none."""
    priority: str = "normal"
    """Priority of the route: high, normal or low."""
    route: str = ""
    """Name of the route, if it has limits that the picker enforces; otherwise empty."""
    waits: bool = False
    """Whether the proxy waits for a replica. A proxy that does not wait asks again if the request has to wait."""


class PickerQuestion(NamedTuple):
    """One query."""

    caller: Caller
    """The querying proxy and its route."""
    headers: Mapping[str, list[str]]
    """Maps each lowercase name to its values."""
    body: bytes
    """The beginning of the body."""
    body_length: int
    """Length of the whole body in bytes, if it is known."""
    subset: frozenset[str] | None = None
    """Allowed addresses of the replica; None: any."""
    id: str = ""
    """ID by which the proxy will report the end of the request; empty: the picker chooses the ID."""
    client: str = ""
    """Address of the client, for queues by client; empty if the proxy does not send it."""
    left: str = ""
    """ID of the request's pick in the pool that it left for its fallback; empty if it has left none."""


class PickerAnswer(NamedTuple):
    """The response. Without names, the proxy falls back to `otherwise`."""

    id: str = ""
    """ID of the pick, for the report of its end; empty without a replica."""
    names: tuple[str, ...] = ()
    """Names of the replicas, in the order in which the proxy should try them."""
    addresses: tuple[str, ...] = ()
    """Addresses of the replicas, in the same order."""
    full: bool = False
    """Whether no replica is named because all ready replicas are full."""
    refused: int = 0
    """Seconds after which the client should try again, if the request is rejected; 0: it is not rejected."""
    must_wait: bool = False
    """Whether the request has to wait in the queue of its pool."""


class ResponseStart(NamedTuple):
    """The start of the response to a request."""

    served: str = ""
    """Address of the replica that responds; empty if the proxy does not report it."""
    by_replica: bool = True
    """Whether a replica responds; False if the proxy could not reach any."""
    moved: bool = False
    """Whether a replica other than the picked one responds, if the proxy reports this instead of the address."""
