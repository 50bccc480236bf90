"""API rows about the process, the files and the proxies.

The functions take times in seconds since the epoch.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from lbctl.api import schema
from lbctl.api.fields import Timestamp
from lbctl.base.diagnostics import Diagnostic, as_json
from lbctl.ir.proxies import Control
from lbctl.ir.topology import Topology
from lbctl.serve.discovery.interface import NameState
from lbctl.serve.drivers.base import DriverRow
from lbctl.serve.drivers.supervisor import DriverSupervisor
from lbctl.serve.fleet.live import LiveFleet
from lbctl.xds.protocol.node_status import READER_KIND, NackRow, NodeRow, NodeStatus, NodeTypeRow

_NEEDS_RESTART = (
    "xds_bind",
    "xds_tls",
    "api_bind",
    "api_token_file",
    "api_tls",
    "logs_bind",
    "state",
    "store",
    "member",
)
"""The attributes of `control` that are read only at startup."""
_EMPTY = Topology((), (), ())
"""The fleet shown before the first fleet is published."""


def timestamp(seconds: float) -> Timestamp:
    """Return the time as an ISO 8601 string in UTC, with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def when(seconds: float | None) -> Timestamp | None:
    """Return the time in the format of `timestamp`; None for None."""
    return None if seconds is None else timestamp(seconds)


def diagnostic(item: Diagnostic) -> schema.Diagnostic:
    """Return a diagnostic's row."""
    fields: dict[str, Any] = as_json(item)
    return schema.Diagnostic(**fields, text=str(item))


def diagnostics(items: Iterable[Diagnostic]) -> tuple[schema.Diagnostic, ...]:
    """Return the rows of diagnostics."""
    return tuple(diagnostic(item) for item in items)


def restart_needed(running: Control, written: Control) -> tuple[str, ...]:
    """Return the keys in `control` that differ between the files and the start of the process."""
    return tuple(
        "control." + name.replace("_", ".", 1)
        for name in _NEEDS_RESTART
        if getattr(running, name) != getattr(written, name)
    )


def proxy_rows(nodes: NodeStatus, supervisor: DriverSupervisor) -> tuple[schema.Proxy, ...]:
    """Return a row for each Envoy and read-only client by node ID, then for each other proxy by name.

    An Envoy that may be reading files is listed with the other proxies until it connects.
    """
    envoys = nodes.proxies()
    by_xds = {row.proxy for row in envoys if row.confirmed and row.kind != READER_KIND}
    others = (row for row in supervisor.rows() if row.proxy not in by_xds)
    return (*map(xds_proxy, envoys), *map(driven_proxy, others))


def topology(live: LiveFleet) -> Topology:
    """Return the published fleet, or an empty fleet before the first publication."""
    served = live.served
    return served.composed.whole.topology if served else _EMPTY


def snapshot(live: LiveFleet) -> schema.Snapshot | None:
    """Return the published snapshot; None before the first fleet."""
    served = live.served
    if served is None:
        return None
    whole = served.composed.whole.topology
    return schema.Snapshot(
        version=served.cached_snapshot.version,
        at=timestamp(served.at),
        age=round(max(0.0, time.time() - served.at), 3),
        origin=served.origin,
        pools=len(whole.pools),
        replicas=sum(len(pool.replicas) for pool in whole.pools),
    )


def xds_proxy(row: NodeRow) -> schema.XdsProxy:
    """Return the row for an Envoy or a read-only client."""
    return schema.XdsProxy(
        node=row.node,
        proxy=row.proxy,
        kind=row.kind,
        connected=row.connected,
        since=timestamp(row.since),
        state=row.state,
        reason=row.reason,
        version=row.version,
        last_good=row.last_good,
        confirmed=row.confirmed,
        types=tuple(map(_type, row.types)),
        nacks=tuple(map(_nack, row.nacks)),
        cluster=row.cluster,
        region=row.region,
        zone=row.zone,
        sub_zone=row.sub_zone,
        envoy=row.envoy,
        peer=row.peer,
        delta=row.delta,
        reports_refused=row.reports_refused,
    )


def driven_proxy(row: DriverRow) -> schema.DrivenProxy:
    """Return the row for a proxy driven by lbctl. Its version is the one that the proxy is running."""
    return schema.DrivenProxy(
        node=row.proxy,
        proxy=row.proxy,
        kind=row.kind,
        connected=row.connected,
        since=timestamp(row.since),
        state=row.state,
        reason=row.reason,
        version=row.last_good,
        last_good=row.last_good,
        confirmed=True,
        types=(),
        nacks=(),
        reloads=row.reloads,
        leaving=row.leaving,
    )


def discovered_name(state: NameState) -> schema.DiscoveredName:
    """Return the row for a DNS name or Kubernetes service."""
    return schema.DiscoveredName(
        name=state.name,
        resolvers=state.resolvers,
        pools=state.pools,
        addresses=state.addresses,
        refused=state.refused,
        left_out=state.left_out,
        answered=when(state.answered),
        error=state.error or None,
        failed=when(state.failed),
    )


def _type(row: NodeTypeRow) -> schema.ResourceTypeStatus:
    return schema.ResourceTypeStatus(
        type=row.type,
        state=row.state,
        since=timestamp(row.since),
        wildcard=row.wildcard,
        names=row.names,
        offered=row.offered,
        acked=row.acked,
        pushed_at=when(row.pushed_at),
        acked_at=when(row.acked_at),
        message=row.message,
        nacked=row.nacked,
    )


def _nack(row: NackRow) -> schema.NackRecord:
    return schema.NackRecord(timestamp(row.at), row.type, row.version, row.names, row.message, row.findings)
