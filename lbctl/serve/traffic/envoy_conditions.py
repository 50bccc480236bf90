"""Each replica's condition at an Envoy (active checks and ejections), read from the Envoy's admin interface.

Load reports do not contain it. `/clusters` is therefore read every few seconds if the fleet sets `admin` for a proxy.
The page is also read if an Envoy on the Unix socket reports its admin address, as it does with the bootstrap written by
`lbctl bootstrap`. An entry with several `instances` has only one `admin`, which may belong to any of them, so it is not
read. For a fleet with 10,000 replicas, the page is about ten megabytes. Pages that are too large, late or invalid are
ignored.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import aiohttp

from lbctl.base.bounded import whole
from lbctl.base.errors import reason_of
from lbctl.base.foreign_json import parse
from lbctl.base.quantities import QuantityError, parse_address
from lbctl.control.replica_state import ReplicaCondition
from lbctl.ir.address import Address
from lbctl.ir.proxies import Proxy
from lbctl.runtime import log
from lbctl.runtime.net.http_client import session
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.traffic.envoy_endpoints import FleetPlaces
from lbctl.serve.traffic.ledger import ReplicaKey, TrafficLedger
from lbctl.serve.traffic.pace import Pace
from lbctl.targets import xds_kinds
from lbctl.xds.protocol.load_reports import Place

INTERVAL = 5.0
"""Seconds between two reads of a page."""
MAX_BYTES = 24 << 20
"""Maximum size of a page in bytes."""
MAX_VALUES = 1_000_000
"""Maximum number of values in a page; a page has about 55 values per replica."""
TIMEOUT = 4.0
"""Timeout for the entire page, in seconds."""
_MAX_SHOWN = 64
"""Maximum number of characters shown of a string received from Envoy."""
_PAUSE = 1.0
"""Seconds before the next search for Envoys with an admin interface, if none was found."""
_STARTING = "pending_active_hc"
"""Flag of a host whose first check has not finished; Envoy then also sets the flag for a failed check."""
_DOWN = ("failed_active_health_check", "active_hc_timeout")
_EJECTED = ("failed_outlier_check",)
_BEST_FIRST = ("up", "draining", "starting", "ejected", "down")
_UP = ReplicaCondition("up")


class UnreadablePageError(Exception):
    """The page cannot be read; the message states the reason."""


class EnvoyConditions:
    """Reads the pages of the fleet's Envoys into the ledger.

    `nodes` returns the IDs of the connected nodes that match an entry under `proxies`. If there is exactly one such
    node, its conditions are stored under its node ID, so that an Envoy has only one name in the ledger; otherwise, they
    are stored under the entry's name. `admins` returns a map from node IDs to the admin interfaces reported by trusted
    Envoys.
    """

    def __init__(
        self,
        ledger: TrafficLedger,
        nodes: Callable[[str], Iterable[str]],
        admins: Callable[[], Mapping[str, str]] = dict,
        clock: Callable[[], float] = time.monotonic,
        pace: Pace | None = None,
    ) -> None:
        self._ledger = ledger
        self._pace = pace or Pace()
        self._nodes = nodes
        self._admins = admins
        self._clock = clock
        self._places = FleetPlaces()
        self._proxies: tuple[Proxy, ...] = ()
        self._failing: set[str] = set()

    def use_fleet(self, served: PublishedFleet) -> None:
        """From now on, read the pages of this fleet's Envoys."""
        fleet = served.composed.whole
        places = self._places.copy()  # threads may still be reading pages using the previous places
        places.use_fleet(fleet)
        self._places = places
        kinds = xds_kinds()
        self._proxies = tuple(
            item for item in fleet.topology.proxies if item.kind in kinds and item.admin and item.instances == 1
        )

    async def run(self) -> None:
        """Read the pages until the task is cancelled."""
        async with session() as client:
            while True:
                pages = dict(self._pages())
                self._failing &= pages.keys()
                await asyncio.gather(*(self._read(client, name, *page) for name, page in pages.items()))
                await self._pace.pause(INTERVAL if pages else _PAUSE)

    def _pages(self) -> Iterator[tuple[str, tuple[Address, bool]]]:
        """Yield each Envoy's name in the ledger, its admin interface, and whether it is connected."""
        named: set[str] = set()
        for proxy in self._proxies:
            nodes = list(self._nodes(proxy.name))
            named.update(nodes)
            if proxy.admin is not None:
                yield nodes[0] if len(nodes) == 1 else proxy.name, (proxy.admin, bool(nodes))
        for node, text in self._admins().items():
            admin = _admin_of(text)
            if node not in named and admin is not None:
                yield node, (admin, True)

    async def _read(self, client: aiohttp.ClientSession, name: str, admin: Address, is_connected: bool) -> None:
        """Read one page; a failure is logged once, but not while the Envoy may still be starting."""
        try:
            conditions = await asyncio.to_thread(_conditions, await _page(client, admin), self._places)
        except UnreadablePageError as error:
            if name not in self._failing and is_connected:
                self._failing.add(name)
                log.warn(
                    "the results of a proxy's health checks are unknown", proxy=name, admin=str(admin), why=str(error)
                )
            return
        self._failing.discard(name)
        self._ledger.set_conditions(name, conditions, self._clock())


def _admin_of(text: str) -> Address | None:
    """Return the address reported by an Envoy; None for any other value."""
    try:
        endpoint = parse_address(text)
    except QuantityError:
        return None
    return Address(endpoint.host, endpoint.port, endpoint.path)


async def _page(client: aiohttp.ClientSession, admin: Address) -> bytes:
    """Return the `/clusters` page. Raises UnreadablePageError."""
    try:
        async with asyncio.timeout(TIMEOUT):
            if not admin.path:
                return await _body(client, str(admin.from_here))
            async with session(unix=admin.path) as own:
                return await _body(own, "localhost")
    except TimeoutError:
        raise UnreadablePageError(f"no complete response within {TIMEOUT:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise UnreadablePageError(reason_of(error)) from None


async def _body(client: aiohttp.ClientSession, authority: str) -> bytes:
    async with client.get(f"http://{authority}/clusters?format=json", allow_redirects=False) as response:
        if response.status != 200:
            raise UnreadablePageError(f"status {response.status}")
        return await whole(response.content.iter_any(), MAX_BYTES)


def _conditions(page: bytes, places: FleetPlaces) -> Mapping[ReplicaKey, ReplicaCondition]:
    """Return the worst condition of each replica across its clusters and addresses. Raises UnreadablePageError."""
    try:
        clusters = parse(page, MAX_VALUES)["cluster_statuses"]
        conditions: dict[ReplicaKey, ReplicaCondition] = {}
        for key, condition in _all_conditions(clusters, places):
            before = conditions.get(key, condition)
            conditions[key] = max(before, condition, key=lambda item: _BEST_FIRST.index(item.state))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UnreadablePageError("the response is not Envoy's /clusters page") from None
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
    """Return the condition indicated by the flags, in Envoy's own words."""
    if flags.get(_STARTING):
        return ReplicaCondition("starting", _STARTING)
    if failed := [name for name in _DOWN if flags.get(name)]:
        return ReplicaCondition("down", ", ".join(failed))
    if ejected := [name for name in _EJECTED if flags.get(name)]:
        return ReplicaCondition("ejected", ", ".join(ejected))
    by_lbctl = flags.get("eds_health_status", "HEALTHY")
    return (
        _UP
        if by_lbctl in ("HEALTHY", "UNKNOWN")
        else ReplicaCondition("draining", f"eds_health_status {str(by_lbctl)[:_MAX_SHOWN]}")
    )
