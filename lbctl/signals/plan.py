"""A replica's scrape plan: its sources with expanded templates, and filters for its lines.

Only `{address}`, `{host}`, `{port}`, `{name}` and `{device}` are replaced, as well as `{agent_port}` in the URL that
the compiler adds for agents; all other braces belong to the query. An IPv6 host is bracketed if a port may follow it.
In a query, several devices are joined by `|`, for use with `=~`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from lbctl.base.urls import without_values
from lbctl.ir.pools import MetricsSource, Pool, Replica, Telemetry
from lbctl.signals import custom
from lbctl.signals import table as table_of
from lbctl.signals.devices import ALL_LINES, Selection, selection
from lbctl.signals.source import MetricsTable

_PLACEHOLDER = re.compile(r"\{(address|host|port|name|device)\}")
_AGENT_PORT = "{agent_port}"
"""Placeholder that fleet files cannot contain."""


@dataclass(frozen=True, slots=True)
class ScrapeSource:
    """One of a replica's sources."""

    kind: str
    """Name of the kind in the registry."""
    url: str
    """The URL, with its placeholders filled."""
    table: MetricsTable | None = None
    """None for `prometheus`, which has `query`, `signal` and `unit` instead."""
    selection: Selection = ALL_LINES
    """Selects the lines of the page that belong to the replica."""
    query: str = ""
    """PromQL expression for the `prometheus` kind; otherwise empty."""
    signal: str = ""
    """Signal represented by the query's value; otherwise empty."""
    unit: str | None = None
    """Unit of the query's value; None means the signal's unit."""
    key: tuple[str, str] | None = field(default=None, repr=False)
    """Name and value of the header with the key that the replica requires; None if it does not require one."""

    @property
    def display_url(self) -> str:
        """The URL without secrets, for use in messages."""
        return without_values(self.url)


@dataclass(frozen=True, slots=True)
class ScrapePlan:
    """A replica with its sources in order of preference. Times are in seconds."""

    pool: str
    replica: str
    sources: tuple[ScrapeSource, ...]
    """Sources in order of preference."""
    interval: float
    """Time between two scrapes."""
    timeout: float
    """Maximum duration of a scrape."""
    stale_after: float
    """Maximum age at which a value is still used."""
    reserves_memory: bool
    """Whether an engine reserves the GPU's memory when it starts, so that free memory is meaningless."""
    together: bool = False
    """Whether the pool's replicas are scraped at the same time, because the picker compares them."""


def scrape_plan(pool: Pool, replica: Replica, key: tuple[str, str] | None = None) -> ScrapePlan | None:
    """Return the replica's scrape plan; None if the fleet does not list any sources for it.

    `key`: name and value of a header required by the replica; it is not sent to pages at other addresses.
    """
    telemetry = replica.telemetry or pool.telemetry
    if telemetry is None or not telemetry.sources:
        return None
    sources = tuple(_with_key(_source(source, pool, replica), replica, key) for source in telemetry.sources)
    together = pool.balance.pick is not None
    return ScrapePlan(pool.name, replica.name, sources, *_seconds(telemetry), _reserves_memory(sources), together)


def _with_key(source: ScrapeSource, replica: Replica, key: tuple[str, str] | None) -> ScrapeSource:
    authority = re.split("[/?#]", source.url.partition("://")[2], maxsplit=1)[0]
    if key is None or authority != str(replica.address):
        return source
    return replace(source, key=key)


def _seconds(telemetry: Telemetry) -> tuple[float, float, float]:
    return telemetry.interval / 1000, telemetry.timeout / 1000, telemetry.stale_after / 1000


def _reserves_memory(sources: tuple[ScrapeSource, ...]) -> bool:
    return any(source.table is not None and source.table.reserves_memory for source in sources)


def _source(section: MetricsSource, pool: Pool, replica: Replica) -> ScrapeSource:
    url = _expanded(section.url, replica, ",").replace(_AGENT_PORT, str(pool.check_port(replica)))
    if section.kind == "prometheus":
        query = _expanded(section.query or "", replica, "|")
        return ScrapeSource(section.kind, url, query=query, signal=section.signal or "", unit=section.unit)
    table = _table(section)
    labels = tuple((key, _label(value, replica)) for key, value in section.match_labels)
    return ScrapeSource(section.kind, url, table, selection(labels, replica.devices, table.gpus))


def _table(section: MetricsSource) -> MetricsTable:
    if section.kind == "custom":
        return custom.table(section.metric, section.signal, section.unit)
    return table_of(section.kind)


def _expanded(text: str, replica: Replica, separator: str) -> str:
    address = replica.address
    host = f"[{address.host}]" if ":" in address.host else address.host
    values = {
        "address": str(address),
        "host": host,
        "port": str(address.port),
        "name": replica.name,
        "device": separator.join(replica.devices),
    }
    return _PLACEHOLDER.sub(lambda match: values[match.group(1)], text)


def _label(text: str, replica: Replica) -> str:
    """Expand a label's value, except for `{device}`, because each device needs its own value."""
    address = replica.address
    values = {"address": str(address), "host": address.host, "port": str(address.port), "name": replica.name}
    return _PLACEHOLDER.sub(lambda match: values.get(match.group(1), match.group(0)), text)
