"""What is to be read for a replica: its sources with their templates filled in, and which lines of them are its own.

Only `{address}`, `{host}`, `{port}`, `{name}` and `{device}` are replaced; every other brace is the query's. An IPv6
host stands in brackets where a port may follow it. Several devices stand in a query with `|` between them, for `=~`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lbctl.base.urls import without_values
from lbctl.ir.pools import MetricsSource, Pool, Replica, Telemetry
from lbctl.signals import custom
from lbctl.signals import table as table_of
from lbctl.signals.devices import EVERYTHING, Selection, selection
from lbctl.signals.source import Table

_WORD = re.compile(r"\{(address|host|port|name|device)\}")


@dataclass(frozen=True, slots=True)
class Source:
    """One of a replica's. `table`: None for `prometheus`, which has `query`, `signal` and `unit` instead."""

    kind: str
    url: str
    table: Table | None = None
    selection: Selection = EVERYTHING
    query: str = ""
    signal: str = ""
    unit: str | None = None

    @property
    def shown(self) -> str:
        """The URL as people may read it."""
        return without_values(self.url)


@dataclass(frozen=True, slots=True)
class Watched:
    """A replica with its sources, in the order in which they count; times in seconds. `reserves_memory`: an engine of
    its holds the GPU's memory, so free memory means nothing."""

    pool: str
    replica: str
    sources: tuple[Source, ...]
    interval: float
    timeout: float
    stale_after: float
    reserves_memory: bool


def watched(pool: Pool, replica: Replica) -> Watched | None:
    """What is to be read for it; None where the fleet names no source."""
    telemetry = replica.telemetry or pool.telemetry
    if telemetry is None or not telemetry.sources:
        return None
    sources = tuple(_source(item, replica) for item in telemetry.sources)
    return Watched(pool.name, replica.name, sources, *_seconds(telemetry), _reserves(sources))


def _seconds(telemetry: Telemetry) -> tuple[float, float, float]:
    return telemetry.interval / 1000, telemetry.timeout / 1000, telemetry.stale_after / 1000


def _reserves(sources: tuple[Source, ...]) -> bool:
    return any(item.table is not None and item.table.reserves_memory for item in sources)


def _source(item: MetricsSource, replica: Replica) -> Source:
    url = _filled(item.url, replica, ",")
    if item.kind == "prometheus":
        query = _filled(item.query or "", replica, "|")
        return Source(item.kind, url, query=query, signal=item.signal or "", unit=item.unit)
    table = _table(item)
    match = tuple((key, _label(value, replica)) for key, value in item.match_labels)
    return Source(item.kind, url, table, selection(match, replica.devices, table.gpus))


def _table(item: MetricsSource) -> Table:
    if item.kind == "custom":
        return custom.table(item.metric, item.signal, item.unit)
    return table_of(item.kind)


def _filled(text: str, replica: Replica, between: str) -> str:
    address = replica.address
    host = f"[{address.host}]" if ":" in address.host else address.host
    words = {
        "address": str(address),
        "host": host,
        "port": str(address.port),
        "name": replica.name,
        "device": between.join(replica.devices),
    }
    return _WORD.sub(lambda match: words[match.group(1)], text)


def _label(text: str, replica: Replica) -> str:
    """`{device}` stays: each device has its own value."""
    address = replica.address
    words = {"address": str(address), "host": address.host, "port": str(address.port), "name": replica.name}
    return _WORD.sub(lambda match: words.get(match.group(1), match.group(0)), text)
