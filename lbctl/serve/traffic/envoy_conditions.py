"""What an Envoy thinks of each replica: its own active checks and ejections, from its admin interface.

Load reports do not say it. So where a fleet names the `admin` of a proxy, `/clusters` is read there every few seconds.
An entry with several `instances` has one `admin` for all of them, which cannot say whose it is: it is not read. The
page of a fleet with 10,000 replicas has some ten megabytes; a longer one, a late one and anything else is ignored.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import aiohttp

from lbctl.base.errors import reason_of
from lbctl.control.replica_state import ReplicaCondition
from lbctl.ir.address import Address
from lbctl.ir.proxies import Proxy
from lbctl.serve import log
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.net.http_client import session
from lbctl.serve.traffic.ledger import ReplicaKey, TrafficLedger
from lbctl.serve.traffic.places import FleetPlaces
from lbctl.targets import xds_kinds
from lbctl.xds.protocol.load_reports import Place

INTERVAL = 5.0
"""Seconds between two readings of a page."""
MAX_BYTES = 32 << 20
"""The largest page that is read."""
_TIMEOUT = 4.0
_DOWN = ("failed_active_health_check", "active_hc_timeout", "pending_active_hc")
_EJECTED = ("failed_outlier_check",)
_BEST_FIRST = ("up", "draining", "ejected", "down")
_UP = ReplicaCondition("up")


class UnreadablePageError(Exception):
    """The page cannot be read; the message says why."""


class EnvoyConditions:
    """Reads the pages of the fleet's Envoys into the ledger.

    `nodes` returns the ids of the connected nodes of an entry of `proxies`. What the page says is stored under the id
    of the one node, so that an Envoy has one name in the ledger; where there is not exactly one, under that of the
    entry.
    """

    def __init__(
        self,
        ledger: TrafficLedger,
        nodes: Callable[[str], Iterable[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._nodes = nodes
        self._clock = clock
        self._places = FleetPlaces()
        self._proxies: tuple[Proxy, ...] = ()
        self._failing: set[str] = set()
        self._news = asyncio.Event()

    def follow(self, served: PublishedFleet) -> None:
        """Read the pages of this fleet's Envoys from now on."""
        fleet = served.composed.whole
        places = self._places.copy()  # threads may be reading pages by the places so far
        places.follow(fleet)
        self._places = places
        kinds = xds_kinds()
        self._proxies = tuple(
            item for item in fleet.topology.proxies if item.kind in kinds and item.admin and item.instances == 1
        )
        self._news.set()

    async def run(self) -> None:
        """Read until the task is cancelled."""
        async with session() as client:
            while True:
                if not self._proxies:
                    self._news.clear()
                    await self._news.wait()
                await asyncio.gather(*(self._read(client, item) for item in self._proxies))
                await asyncio.sleep(INTERVAL)

    async def _read(self, client: aiohttp.ClientSession, proxy: Proxy) -> None:
        assert proxy.admin is not None, "only proxies with an admin interface are read"
        try:
            conditions = await asyncio.to_thread(_conditions, await _page(client, proxy.admin), self._places)
        except UnreadablePageError as error:
            if proxy.name not in self._failing:
                self._failing.add(proxy.name)
                log.warn("a proxy's checks are unknown", proxy=proxy.name, admin=str(proxy.admin), why=str(error))
            return
        self._failing.discard(proxy.name)
        nodes = list(self._nodes(proxy.name))
        self._ledger.set_conditions(nodes[0] if len(nodes) == 1 else proxy.name, conditions, self._clock())


async def _page(client: aiohttp.ClientSession, admin: Address) -> bytes:
    """Return the page of all clusters. Raises UnreadablePageError."""
    if admin.path:
        raise UnreadablePageError("lbctl reads an admin interface over TCP only")
    url = f"http://{admin.from_here}/clusters?format=json"
    body = bytearray()
    try:
        async with asyncio.timeout(_TIMEOUT), client.get(url, allow_redirects=False) as response:
            if response.status != 200:
                raise UnreadablePageError(f"status {response.status}")
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise UnreadablePageError(f"a page of more than {MAX_BYTES >> 20} MiB")
    except TimeoutError:
        raise UnreadablePageError(f"no whole answer within {_TIMEOUT:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise UnreadablePageError(reason_of(error)) from None
    return bytes(body)


def _conditions(page: bytes, places: FleetPlaces) -> Mapping[ReplicaKey, ReplicaCondition]:
    """Return the worst condition of each replica over its clusters and addresses. Raises UnreadablePageError."""
    try:
        clusters = json.loads(page)["cluster_statuses"]
        conditions: dict[ReplicaKey, ReplicaCondition] = {}
        for key, condition in _all_conditions(clusters, places):
            before = conditions.get(key, condition)
            conditions[key] = max(before, condition, key=lambda item: _BEST_FIRST.index(item.state))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UnreadablePageError("the answer is not a page of Envoy's clusters") from None
    return conditions


def _all_conditions(clusters: Any, places: FleetPlaces) -> Iterator[tuple[ReplicaKey, ReplicaCondition]]:
    for cluster in clusters:
        replicas = places.of(cluster["name"])
        for host in cluster.get("host_statuses", ()) if replicas else ():
            key = replicas.get(_place(host["address"]))
            if key is not None:
                yield key, _condition(host.get("health_status", {}))


def _place(address: Mapping[str, Any]) -> Place:
    if "pipe" in address:
        return address["pipe"]["path"], 0
    return address["socket_address"]["address"], address["socket_address"]["port_value"]


def _condition(flags: Mapping[str, Any]) -> ReplicaCondition:
    """Return the condition that the flags say, in Envoy's own words."""
    if failed := [name for name in _DOWN if flags.get(name)]:
        return ReplicaCondition("down", ", ".join(failed))
    if ejected := [name for name in _EJECTED if flags.get(name)]:
        return ReplicaCondition("ejected", ", ".join(ejected))
    by_lbctl = flags.get("eds_health_status", "HEALTHY")
    return _UP if by_lbctl in ("HEALTHY", "UNKNOWN") else ReplicaCondition("draining", f"eds_health_status {by_lbctl}")
