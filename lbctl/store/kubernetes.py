"""State in the Kubernetes API shared by several control planes: a Lease, and ConfigMaps that contain the values.

Kubernetes changes one object at a time, so every ConfigMap contains the epoch. A process that acquires the Lease writes
its epoch to each ConfigMap before reading it. A write by an earlier leader then encounters a different resourceVersion
or epoch and does not change anything. A snapshot is consistent only within each ConfigMap.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Any
from urllib.parse import urlsplit

from lbctl.ir.proxies import Store
from lbctl.runtime import log
from lbctl.store import kubernetes_objects as objects
from lbctl.store.interface import (
    ABSENT,
    NEARLY_FULL,
    ConflictError,
    FencedError,
    KeyChange,
    Lease,
    Presence,
    StoreEntry,
    StoreError,
    UnusableError,
    Usage,
    changes_between,
    matches,
    presences,
)
from lbctl.store.kubernetes_client import CONFIG_MAPS, Object, ObjectClient
from lbctl.store.kubernetes_lease import EPOCH, KubernetesLease
from lbctl.store.kubernetes_objects import MEMBERS, PARTS, ConfigMapPart

_RESYNC = 5.0
"""Seconds without an event after which a watch rereads all keys."""
_PAUSE = 0.2
"""Seconds before a watch that has ended is reopened."""
_TRIES = 10
"""Maximum number of attempts to change an object that other clients are changing too."""
_MAX_NEWS = 16
"""Maximum number of part states that wait for a comparison."""
_FORGOTTEN = 60.0
"""Seconds after which a former member's announcement is deleted."""
_News = tuple[str, tuple[StoreEntry, ...]]


class KubernetesStore:
    """A SharedStore in the Kubernetes API.

    `member`: the name of this control plane. `instance`: a text that is unique to this handle.
    """

    def __init__(self, store: Store, member: str, instance: str) -> None:
        url = urlsplit(store.url)
        self.instance = instance
        self._name = url.path.strip("/")
        self._member = member
        self._ttl = store.lease / 1000
        self._client = ObjectClient(url.netloc, max(0.5, self._ttl / 4))
        self._lease = KubernetesLease(self._client, self._name, member, self.instance, self._ttl, self.location)
        self._claimed = 0
        """Epoch that this handle has written to all parts; initially 0."""
        self._parts: dict[str, ConfigMapPart] = {}
        """Last known state of each part."""
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._near: set[str] = set()

    @classmethod
    def open(cls, store: Store, member: str, instance: str) -> KubernetesStore:
        """Return the store at this URL without sending a request. Raises UnusableError."""
        return cls(store, member, instance)

    @property
    def location(self) -> str:
        """The namespace, and the name of the Lease."""
        return f"Kubernetes {self._client.namespace}/{self._name}"

    def notes(self) -> tuple[str, ...]:
        """Return no notes, because nothing is repaired here."""
        return ()

    # ── The lease ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def acquire(self) -> Lease:
        """Acquire or extend the lease. Raises LeaseHeldError and StoreError."""
        epoch = await self._lease.acquire()
        if self._claimed != epoch:
            try:
                await asyncio.gather(*(self._claim(part, epoch) for part in PARTS))
            except UnusableError:
                await self._lease.release()
                raise
            self._claimed = epoch
        return Lease(self._member, epoch, self._ttl)

    async def renew(self) -> Lease:
        """Extend the lease. Raises FencedError if the lease is lost."""
        await self._lease.renew()
        return Lease(self._member, self._lease.epoch, self._ttl)

    async def release(self) -> None:
        """Release the lease, if this handle has it."""
        await self._lease.release()

    async def leader(self) -> str:
        """Return the member that has the lease; empty if it is free."""
        return await self._lease.leader()

    async def _claim(self, part: str, epoch: int) -> ConfigMapPart:
        """Write the epoch into a ConfigMap, creating it if it is missing. Raises FencedError and StoreError."""
        for _ in range(_TRIES):
            held = await self._part(part)
            if held is not None and held.epoch > epoch:
                raise FencedError(f"epoch {epoch} is outdated: the current one is {held.epoch}")
            if held is not None and held.epoch == epoch:
                return held
            with suppress(ConflictError):
                if held is None:
                    await self._client.create(CONFIG_MAPS, self._object(part), {}, {EPOCH: str(epoch)})
                else:
                    await self._patch(part, held.version, {"metadata": {"annotations": {EPOCH: str(epoch)}}})
        raise ConflictError(f"another client keeps changing {self._object(part)}")

    # ── The entries ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def read(self, prefix: str = "") -> tuple[StoreEntry, ...]:
        """Return all entries with the prefix, sorted by key."""
        parts = await asyncio.gather(*map(self._part, objects.parts_with(prefix)))
        entries = [entry for part in parts if part is not None for entry in part.entries.values()]
        return tuple(sorted((item for item in entries if item.key.startswith(prefix)), key=lambda item: item.key))

    async def put(self, key: str, value: str, expected_version: str, epoch: int) -> StoreEntry:
        """Write one key. Raises FencedError and ConflictError."""
        version = await self._change(key, value, expected_version, epoch)
        return StoreEntry(key, value, version)

    async def delete(self, key: str, expected_version: str, epoch: int) -> None:
        """Delete one key. Raises FencedError and ConflictError."""
        await self._change(key, None, expected_version, epoch)

    async def usage(self) -> tuple[Usage, ...]:
        """Return the usage of each ConfigMap."""
        parts = await asyncio.gather(*map(self._part, PARTS))
        sizes = ((self._object(name), part.size) for name, part in zip(PARTS, parts, strict=True) if part is not None)
        return tuple(Usage(f"ConfigMap {name}", size, objects.MAX_BYTES) for name, size in sizes)

    async def _change(self, key: str, value: str | None, expected: str, epoch: int) -> str:
        """Write or delete a key if the epoch and version match, and return the new version."""
        name = objects.part_of(key)
        async with self._turns[name]:
            held = self._parts.pop(name, None)
            for _ in range(_TRIES):
                if held is None or _problem(held, key, expected, epoch) is not None:
                    held = await self._led_part(name, epoch)
                    if problem := _problem(held, key, expected, epoch):
                        raise problem
                try:
                    self._parts[name] = await self._written(name, held, key, value)
                except ConflictError:
                    held = None
                    continue
                return held.version
        raise ConflictError(f"another client keeps changing {self._object(name)}")

    async def _led_part(self, name: str, epoch: int) -> ConfigMapPart:
        """Return the current ConfigMap.

        If the ConfigMap has been deleted or restored, the leader's epoch is written to it again.
        """
        held = await self._part(name)
        if held is None or held.epoch < epoch:
            await self._lease.check(epoch)
            held = await self._claim(name, epoch)
        return held

    async def _written(self, name: str, held: ConfigMapPart, key: str, value: str | None) -> ConfigMapPart:
        """Write a value into a ConfigMap, or delete it, and return the resulting ConfigMap."""
        entries, sizes = dict(held.entries), dict(held.sizes)
        fields: dict[str, dict[str, str | None]] = {"data": {}, "binaryData": {}}
        field, content, size = objects.stored(value or "", held.version)
        for gone in (key, *(objects.dropped(held, key, size) if value is not None else ())):
            for each in fields.values():
                each[objects.name_of(gone)] = None
            entries.pop(gone, None), sizes.pop(gone, None)
        if value is not None:
            fields[field][objects.name_of(key)] = content
            entries[key], sizes[key] = StoreEntry(key, value, held.version), size
        version = await self._patch(name, held.version, fields)
        written = ConfigMapPart(version, held.epoch, entries, sizes)
        self._report_size(name, written.size)
        return written

    def _report_size(self, name: str, size: int) -> None:
        if size < NEARLY_FULL * objects.MAX_BYTES:
            self._near.discard(name)
        elif name not in self._near:
            self._near.add(name)
            limit = objects.MAX_BYTES >> 10
            log.warn(
                "one of the state's ConfigMaps is nearly full", name=self._object(name), KiB=size >> 10, limit=limit
            )

    async def _patch(self, part: str, version: str, body: dict[str, Any]) -> str:
        """Change a ConfigMap that has this resourceVersion, and return the new resourceVersion."""
        metadata = {"resourceVersion": version, **body.get("metadata", {})}
        changed = await self._client.patch(CONFIG_MAPS, self._object(part), {**body, "metadata": metadata})
        return str(changed["metadata"]["resourceVersion"])

    async def _part(self, part: str) -> ConfigMapPart | None:
        value = await self._client.get(CONFIG_MAPS, self._object(part))
        return None if value is None else self._parsed(part, value)

    def _parsed(self, part: str, value: Object) -> ConfigMapPart:
        parsed = objects.parsed(value)
        if parsed is None:
            raise UnusableError(
                f"{self.location} has a ConfigMap that lbctl did not write ({self._object(part)}): choose another "
                "name in control.store.url, or delete that ConfigMap"
            )
        return parsed

    def _object(self, part: str) -> str:
        return objects.object_name(self._name, part)

    async def watch(self, *prefixes: str) -> AsyncIterator[KeyChange]:
        """Yield all entries with one of the prefixes, then every later change."""
        parts = {part for prefix in prefixes or ("",) for part in objects.parts_with(prefix)}
        news: asyncio.Queue[_News | StoreError] = asyncio.Queue(_MAX_NEWS)
        tasks = [asyncio.create_task(self._follow(part, news)) for part in sorted(parts)]
        entries_by_part: dict[str, tuple[StoreEntry, ...]] = {}
        try:
            while True:
                item = await news.get()
                if isinstance(item, StoreError):
                    raise item
                part, entries = item[0], tuple(entry for entry in item[1] if matches(entry.key, prefixes))
                before, entries_by_part[part] = entries_by_part.get(part, ()), entries
                for change in changes_between(before, entries):
                    yield change
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, part: str, news: asyncio.Queue[_News | StoreError]) -> None:
        """Report a part's entries initially and after each change, until a request fails."""
        try:
            while True:
                held = await self._part(part)
                await news.put((part, tuple(held.entries.values()) if held else ()))
                states = self._client.watch(CONFIG_MAPS, self._object(part), held.version if held else "", _RESYNC)
                async with aclosing(states) as watched:
                    async for value in watched:
                        entries = self._parsed(part, value).entries.values() if value is not None else ()
                        await news.put((part, tuple(entries)))
                await asyncio.sleep(_PAUSE)
        except StoreError as error:
            await news.put(error)

    # ── The members ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def announce(self, member: str, value: str, ttl: float) -> None:
        """Announce this process as `member` for `ttl` seconds on the API server's clock."""
        now = self._client.server_time
        forgotten = {name: None for name, (until, _) in (await self._announced()).items() if until + _FORGOTTEN < now}
        data = {**forgotten, objects.name_of(member): f"{now + ttl:.3f} {self.instance} {value}"}
        try:
            await self._client.patch(CONFIG_MAPS, self._object(MEMBERS), {"data": data})
        except ConflictError:
            with suppress(ConflictError):
                await self._client.create(CONFIG_MAPS, self._object(MEMBERS), {}, {})
            await self._client.patch(CONFIG_MAPS, self._object(MEMBERS), {"data": data})

    async def members(self) -> tuple[Presence, ...]:
        """Return the announcements that have not expired, sorted by name."""
        announced, now = await self._announced(), self._client.server_time
        alive = ((objects.key_of(name), text) for name, (until, text) in announced.items() if until > now)
        return presences(sorted(alive))

    async def _announced(self) -> dict[str, tuple[float, str]]:
        """Map each name to its expiry and text, excluding announcements that were not written by lbctl."""
        value = await self._client.get(CONFIG_MAPS, self._object(MEMBERS))
        announced = {}
        for name, text in ((value or {}).get("data") or {}).items():
            until, _, rest = text.partition(" ")
            with suppress(ValueError):
                announced[name] = (float(until), rest)
        return announced

    async def close(self) -> None:
        """Release the lease and close the connections."""
        with suppress(StoreError):
            await self.release()
        await self._client.close()


def _problem(held: ConfigMapPart, key: str, expected: str, epoch: int) -> StoreError | None:
    """Return the reason why a key must not be changed, or None if it may be changed."""
    if held.epoch != epoch:
        return FencedError(f"epoch {epoch} is outdated: the current one is {held.epoch}")
    version = held.entries[key].version if key in held.entries else ABSENT
    if version != expected:
        return ConflictError(f"{key} has the version {version or 'none'}, not {expected or 'none'}")
    return None
