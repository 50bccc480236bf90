"""A continuously updated copy of a Kubernetes API collection: list, then watch.

The copy follows the API's conventions. A list is split into pages, and replaces the copy once all pages have arrived. A
watch continues from the version of the list or of the last event. Bookmarks advance this version without providing an
object. If the server has discarded a version (410, as a status or an ERROR event) or sends any other ERROR event, the
collection is listed again. After a lost connection, a new watch starts from the same version. Failed requests are
retried with back-off and jitter, and do not change the copy. Only the parts of an object that are in its shape are
kept, and a response with different types is treated as a failure. A copy has at most `MAX_SIZE` objects, including
their items.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NoReturn

from lbctl.base.foreign_json import InvalidJsonError, Shape, shaped
from lbctl.runtime.net.kubernetes.client import JSON, METADATA, METADATA_LIST, ApiClient, ApiError, error_of_status
from lbctl.runtime.net.kubernetes.cluster import ClusterError

_log = logging.getLogger(__name__)
PAGES = {False: "15", True: "150"}
"""Number of objects per page of a list, for entire objects and for metadata only.

These numbers keep each page within the response limits: a slice has up to 1,000 endpoints of about 20 values each, and
the metadata of a node with GPUs has 600 to 2,000 values.
"""
MAX_SIZE = 40_000
"""Maximum number of objects and their items in a copy."""
LIST_TIMEOUT = 120.0
"""Timeout in seconds for all pages of a list."""
_TURN = 100
"""Number of events to process before yielding to the event loop."""
_WATCH = (120, 240)
"""Range of a watch's random duration, in seconds."""
_MARGIN = 15.0
"""Additional seconds to wait for a silent watch."""
_FIRST_PAUSE = 0.2
_MAX_PAUSE = 0.8
"""Maximum pause in seconds before a failed request is retried.

The pause doubles with each failure and is randomly shortened by up to half. New pods are not noticed during the pause,
and one request per second is not a significant load on an API server.
"""
_SHORT = 1.0
"""Duration in seconds. A watch that is shorter than this and has no event is treated as a failure, to avoid a loop of
requests."""
_NOT_FOUND = 404
_GONE = 410
_METADATA = {
    "name": str, "namespace": str, "resourceVersion": str, "labels": {...: str}, "deletionTimestamp": str,
}  # fmt: skip
_PAGE = {"resourceVersion": str, "continue": str}
Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CollectionKey:
    """Identifies a collection."""

    path: str
    """Path of the collection in the API."""
    selector: str = ""
    """Label selector for its objects; empty selects all objects."""
    metadata_only: bool = False
    """Whether names and labels are sufficient."""
    items: str = ""
    """Key of the list that makes up most of an object; empty if there is none."""

    @property
    def resource(self) -> str:
        """Return the plural name of the objects' kind, as in RBAC."""
        return self.path.rsplit("/", 1)[-1]

    @property
    def version(self) -> str:
        """Return the API group and version of the objects, as in `apiVersion`."""
        return self.path.partition("/namespaces/")[0].removesuffix(f"/{self.resource}").split("/", 2)[2]


class Collection:
    """The copy. `on_object` is called with each new or changed object, then `on_change` once."""

    def __init__(
        self,
        client: ApiClient,
        key: CollectionKey,
        shape: Mapping[str, Shape],
        on_change: Callable[[], None],
        on_object: Callable[[Object], None] = lambda _: None,
        now: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        self.objects: dict[str, Object] = {}
        """Maps `namespace/name` to the object, reduced to its shape."""
        self.answered: float | None = None
        """Time of the last message from the server, in seconds since the epoch; None if there has been none."""
        self.error = ""
        """Reason why the last request failed; empty after a success."""
        self.failed: float | None = None
        """Time of the last failed request, in seconds since the epoch; None if none has failed."""
        self.listed = False
        """Whether the copy has been complete at least once."""
        self.attempted = asyncio.Event()
        """Set once the first list has succeeded or failed."""
        self._client = client
        self._key = key
        self._shape: dict[str, Shape] = {"metadata": _METADATA, **shape}
        self._size = 0
        self._on_change = on_change
        self._on_object = on_object
        self._now = now
        self._rng = rng or random.Random()
        self._version = ""
        self._failures = 0

    async def follow(self) -> NoReturn:
        """List and watch until cancelled."""
        while True:
            try:
                if not self._version:
                    await self.read_all()
                await self._watch()
            except ApiError as error:
                if error.status == _GONE or error.status == 0:
                    self._version = ""
                self._fail(self._explained(error), quiet=error.status == _GONE)
                await self._pause(error.retry_after)
            except ClusterError as error:
                self._fail(str(error))
                await self._pause(0.0)

    async def read_all(self) -> None:
        """Replace the copy with a new list of the entire collection. Raises ApiError, ClusterError."""
        try:
            async with asyncio.timeout(LIST_TIMEOUT):
                await self._list()
        except TimeoutError:
            raise ClusterError(f"no complete list of {self._key.resource} within {LIST_TIMEOUT:g} s") from None

    async def _list(self) -> None:
        query = {"limit": PAGES[self._key.metadata_only]}
        accept = METADATA_LIST if self._key.metadata_only else JSON
        objects: dict[str, Object] = {}
        size = 0
        while True:
            page = self._shaped(await self._client.get(self._key.path, self._query(query), accept), [self._shape])
            metadata = page.get("metadata", {})
            objects |= {_name(item): item for item in page.get("items", ())}
            size += sum(map(self._size_of, page.get("items", ())))
            self._check_size(size)
            if not metadata.get("continue"):
                break
            query["continue"] = metadata["continue"]
        changed = [item for name, item in objects.items() if self.objects.get(name) != item]
        differs = bool(changed) or objects.keys() != self.objects.keys() or not self.listed
        self.objects, self._version, self.listed = objects, metadata.get("resourceVersion", ""), True
        self._size = size
        self.attempted.set()
        self._succeed()
        if differs:
            self._report(changed)

    async def _watch(self) -> None:
        seconds = self._rng.randint(*_WATCH)
        query = {"resourceVersion": self._version, "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        accept = METADATA if self._key.metadata_only else JSON
        opened, limit = time.monotonic(), seconds + _MARGIN
        events = self._client.watch(self._key.path, self._query(query), limit, limit, accept)
        count = 0
        async with aclosing(events):
            async for event in events:
                self._succeed()
                if event is not None:
                    self._apply(event)
                    self._failures = 0
                count += 1
                if count % _TURN == 0:
                    await asyncio.sleep(0)
        if time.monotonic() - opened < _SHORT:
            self._failures += 1
            await self._pause(0.0)
        else:
            self._failures = 0

    def _apply(self, event: Object) -> None:
        kind, given = event.get("type"), event.get("object")
        if not isinstance(given, dict):
            raise ClusterError(f"an event for {self._key.resource} has no object")
        if kind == "ERROR":
            self._version = ""
            raise error_of_status(given, reason="Error")
        item = self._shaped(given, self._shape)
        if kind in ("ADDED", "MODIFIED", "DELETED"):
            before = self.objects.get(_name(item))
            size = self._size - (self._size_of(before) if before is not None else 0)
            if kind != "DELETED":
                size += self._size_of(item)
                self._check_size(size)
                self.objects[_name(item)] = item
            elif before is not None:
                del self.objects[_name(item)]
            self._size = size
            self._report([] if kind == "DELETED" else [item])
        self._version = item.get("metadata", {}).get("resourceVersion") or self._version

    def _shaped(self, value: Object, shape: list[dict[str, Shape]] | dict[str, Shape]) -> Object:
        """Return an object, or a page of objects if the shape is a list's, without unused parts.

        Raises ClusterError.
        """
        try:
            result: Object = shaped(value, {"metadata": _PAGE, "items": shape} if isinstance(shape, list) else shape)
        except InvalidJsonError as error:
            raise ClusterError(f"a response about {self._key.resource} has the wrong type: {error}") from None
        return result

    def _size_of(self, item: Object) -> int:
        return 1 + len(item.get(self._key.items, ()))

    def _check_size(self, size: int) -> None:
        if size > MAX_SIZE:
            self._version = ""
            raise ClusterError(f"more than {MAX_SIZE:,} {self._key.resource}")

    def _query(self, query: Mapping[str, str]) -> dict[str, str]:
        return {**query, "labelSelector": self._key.selector} if self._key.selector else dict(query)

    def _report(self, changed: list[Object]) -> None:
        for item in changed:
            self._on_object(item)
        self._on_change()

    def _succeed(self) -> None:
        if self.error:
            _log.info("Kubernetes requests for %s succeed again", self._key.path)
        self.answered, self.error = self._now(), ""

    def _fail(self, reason: str, quiet: bool = False) -> None:
        if not self.attempted.is_set():
            self.attempted.set()
            self._on_change()
        if not quiet:
            if reason != self.error:
                kept = "; its last response stays in use" if self.listed else ""
                _log.warning("Kubernetes requests for %s fail: %s%s", self._key.path, reason, kept)
            self.error, self.failed = reason, self._now()
        self._failures += 1

    def _explained(self, error: ApiError) -> str:
        if error.status == 403:
            return f"{error} (RBAC: grant get, list and watch on {self._key.resource})"
        if error.status == _NOT_FOUND:
            return f"{error} (the cluster does not have {self._key.resource} of the API {self._key.version})"
        return str(error)

    async def _pause(self, least: float) -> None:
        """Wait at least `least` seconds before the next attempt."""
        pause = min(_MAX_PAUSE, _FIRST_PAUSE * 2.0 ** min(self._failures, 8))
        await asyncio.sleep(max(least, pause * self._rng.uniform(0.5, 1.0)))


def _name(item: Object) -> str:
    metadata = item.get("metadata", {})
    return f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
