"""A copy of a collection of the Kubernetes API that follows its changes: list, then watch.

The rules are those of the API's conventions. A list comes in pages, and replaces the copy once all of it is there. A
watch goes on from the version of the list or of the last event; bookmarks move that version without an object. A
version that the server no longer has (410, as status or as ERROR event) and any other ERROR lead to a new list. A lost
connection leads to a new watch from the same version. Failures are repeated with back-off and jitter, and remove
nothing: the copy stays as it was.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any, NoReturn

from lbctl.base.records import dataclass
from lbctl.serve.net.kubernetes.client import JSON, METADATA, METADATA_LIST, ApiClient, ApiError, error_of_status
from lbctl.serve.net.kubernetes.cluster import ClusterError

_log = logging.getLogger(__name__)
_PAGE = "500"
"""The number of objects in a page of a list."""
_WATCH = (120, 240)
"""Seconds, chosen at random, after which the server is asked to end a watch."""
_MARGIN = 15.0
"""Seconds beyond that for which a silent watch is waited for."""
_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 0.8
"""Seconds until a failed request is repeated: doubled with each failure, less a random part of at most half. Pods that
came meanwhile wait for it, and a request a second is no load for an API server."""
_SHORT = 1.0
"""Seconds: a watch that ends sooner without an event counts as a failure, so that no server is asked in a loop."""
_GONE = 410
Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CollectionKey:
    """Which collection is followed."""

    path: str
    """The path of the collection in the API."""
    selector: str = ""
    """The labels that its objects have; empty: all objects."""
    metadata_only: bool = False
    """Whether names and labels are enough."""

    @property
    def resource(self) -> str:
        """The plural name of its kind, as RBAC has it."""
        return self.path.rsplit("/", 1)[-1]


class Collection:
    """The copy. `on_object` is called with each object that is new or has changed, then `on_change` once."""

    def __init__(
        self,
        client: ApiClient,
        key: CollectionKey,
        on_change: Callable[[], None],
        on_object: Callable[[Object], None] = lambda _: None,
        now: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        self.objects: Mapping[str, Object] = {}
        """Name with namespace → the object."""
        self.answered: float | None = None
        """When the server last said anything, in seconds since the epoch; None: never."""
        self.error = ""
        """Why the last request failed; empty where it did not."""
        self.failed: float | None = None
        """When a request last failed; None: never."""
        self.listed = False
        """Whether the copy has been complete once."""
        self.attempted = asyncio.Event()
        """Set once the first list has succeeded or failed."""
        self._client = client
        self._key = key
        self._on_change = on_change
        self._on_object = on_object
        self._now = now
        self._rng = rng or random.Random()
        self._version = ""
        self._failures = 0

    async def follow(self) -> NoReturn:
        """List and watch until this is cancelled."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except ApiError as error:
                if error.status == _GONE or error.status == 0:
                    self._version = ""
                self._fail(self._explained(error), quiet=error.status == _GONE)
                await self._pause(error.retry_after)
            except ClusterError as error:
                self._fail(str(error))
                await self._pause(0.0)

    async def _list(self) -> None:
        query = {"limit": _PAGE}
        accept = METADATA_LIST if self._key.metadata_only else JSON
        objects: dict[str, Object] = {}
        while True:
            page = await self._client.get(self._key.path, self._query(query), accept)
            metadata = page.get("metadata") or {}
            objects |= {_name(item): item for item in page.get("items") or ()}
            if not metadata.get("continue"):
                break
            query["continue"] = str(metadata["continue"])
        changed = [item for name, item in objects.items() if self.objects.get(name) != item]
        differs = bool(changed) or objects.keys() != self.objects.keys() or not self.listed
        self.objects, self._version, self.listed = objects, str(metadata.get("resourceVersion") or ""), True
        self.attempted.set()
        self._succeed()
        if differs:
            self._report(changed)

    async def _watch(self) -> None:
        seconds = self._rng.randint(*_WATCH)
        query = {"resourceVersion": self._version, "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        accept = METADATA if self._key.metadata_only else JSON
        opened, events = (
            time.monotonic(),
            self._client.watch(self._key.path, self._query(query), seconds + _MARGIN, accept),
        )
        async with aclosing(events):
            async for event in events:
                self._succeed()
                if event is not None:
                    self._apply(event)
                    self._failures = 0
        if time.monotonic() - opened < _SHORT:
            self._failures += 1
            await self._pause(0.0)
        else:
            self._failures = 0

    def _apply(self, event: Object) -> None:
        kind, item = event.get("type"), event.get("object")
        if not isinstance(item, dict):
            raise ClusterError(f"an event of {self._key.resource} has no object")
        if kind == "ERROR":
            self._version = ""
            raise error_of_status(item, reason="Error")
        version = (item.get("metadata") or {}).get("resourceVersion")
        if kind in {"ADDED", "MODIFIED"}:
            self.objects = {**self.objects, _name(item): item}
            self._report([item])
        elif kind == "DELETED":
            self.objects = {name: kept for name, kept in self.objects.items() if name != _name(item)}
            self._report([])
        self._version = str(version or self._version)

    def _query(self, query: Mapping[str, str]) -> dict[str, str]:
        return {**query, "labelSelector": self._key.selector} if self._key.selector else dict(query)

    def _report(self, changed: list[Object]) -> None:
        for item in changed:
            self._on_object(item)
        self._on_change()

    def _succeed(self) -> None:
        if self.error:
            _log.info("Kubernetes answers again for %s", self._key.path)
        self.answered, self.error = self._now(), ""

    def _fail(self, reason: str, quiet: bool = False) -> None:
        if not self.attempted.is_set():
            self.attempted.set()
            self._on_change()
        if not quiet:
            if reason != self.error:
                kept = "; what it said last is kept" if self.listed else ""
                _log.warning("Kubernetes does not answer for %s: %s%s", self._key.path, reason, kept)
            self.error, self.failed = reason, self._now()
        self._failures += 1

    def _explained(self, error: ApiError) -> str:
        if error.status == 403:
            return f"{error} (RBAC: give get, list and watch of {self._key.resource})"
        return str(error)

    async def _pause(self, least: float) -> None:
        """Wait until the next attempt."""
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(self._failures, 8))
        await asyncio.sleep(max(least, pause * self._rng.uniform(0.5, 1.0)))


def _name(item: Object) -> str:
    metadata = item.get("metadata") or {}
    return f"{metadata.get('namespace') or ''}/{metadata.get('name') or ''}"
