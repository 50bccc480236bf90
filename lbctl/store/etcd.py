"""State in an etcd cluster shared by several control planes, accessed through etcd's JSON gateway.

Every change is a transaction that checks the leader's epoch and the key's version. The lease and the members'
announcements are keys that expire with an etcd lease. etcd does not expose its clock, so an epoch is at least this
member's time in milliseconds. It is also higher than the last epoch found in the store or seen by this member, so that
it increases even if the data has been lost.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

from lbctl.base.foreign_json import member, records
from lbctl.ir.proxies import Store
from lbctl.store.etcd_client import (
    Answer,
    EtcdClient,
    Events,
    Row,
    encoded,
    end_of,
    revision,
    rows,
    rows_of_responses,
)
from lbctl.store.interface import (
    ABSENT,
    ConflictError,
    FencedError,
    KeyChange,
    Lease,
    LeaseHeldError,
    Presence,
    StoreEntry,
    StoreError,
    UnusableError,
    Usage,
    changes_between,
    matches,
    presences,
)

_RESYNC = 5.0
"""Seconds without an event after which a watch rereads all keys."""


class EtcdStore:
    """A SharedStore in etcd.

    `member`: the name of this control plane. `instance`: a string that is unique to this handle.
    """

    def __init__(self, store: Store, member: str, instance: str) -> None:
        self.instance = instance
        self._member = member
        self._ttl = store.lease / 1000
        self._prefix = store.key_prefix + "/"
        self._entries = self._prefix + "entries/"
        self._client = EtcdClient(store, max(0.5, self._ttl / 4))
        self._epoch = 0
        """Epoch of this handle's lease; 0 if it does not have the lease."""
        self._highest = 0
        """Highest epoch that this handle has read or used."""
        self._leases: dict[str, str] = {}
        """Maps each etcd lease's purpose to its ID."""

    @classmethod
    def open(cls, store: Store, member: str, instance: str) -> EtcdStore:
        """Return the store at this URL, without connecting. Raises UnusableError."""
        return cls(store, member, instance)

    @property
    def location(self) -> str:
        """The server's host and port, and the prefix of the keys."""
        return f"etcd {self._client.hosts} ({self._prefix.rstrip('/')})"

    def notes(self) -> tuple[str, ...]:
        """Return no notes, because nothing is repaired here."""
        return ()

    # ── The lease ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def acquire(self) -> Lease:
        """Acquire or extend the lease. Raises LeaseHeldError and StoreError."""
        holder, rows = await self._holder()
        self._highest = max(self._highest, self._last_epoch(rows))
        if holder is not None:
            instance, member = holder
            if instance != self.instance:
                raise LeaseHeldError(self.location, member, instance)
            return await self.renew()
        epoch = max(self._highest + 1, int(time.time() * 1000))
        lease = await self._lease("leader", self._ttl, anew=True)
        puts = [
            _put(self._prefix + "leader", str(epoch), lease),
            _put(self._prefix + "holder", f"{self.instance} {self._member}", lease),
            _put(self._prefix + "epoch", str(epoch)),
        ]
        compared = [_absent(self._prefix + "leader"), _unchanged(rows, self._prefix + "epoch")]
        if not await self._transact(compared, puts):
            holder, _ = await self._holder()
            raise LeaseHeldError(self.location, holder[1] if holder else "another member")
        self._epoch = self._highest = epoch
        return Lease(self._member, epoch, self._ttl)

    def _last_epoch(self, rows: list[Row]) -> int:
        value = _value(rows, self._prefix + "epoch") or "0"
        try:
            return int(value)
        except ValueError:
            raise self._foreign("epoch") from None

    def _foreign(self, name: str) -> UnusableError:
        return UnusableError(
            f"{self.location} contains a key that lbctl did not write ({self._prefix}{name}): choose another "
            "control.store.key_prefix, or delete that key"
        )

    async def renew(self) -> Lease:
        """Extend the lease. Raises FencedError if the lease has been lost."""
        epoch = self._epoch
        if epoch and await self._keep_alive("leader"):
            holder, rows = await self._holder()
            is_own = holder is not None and holder[0] == self.instance
            if is_own and _value(rows, self._prefix + "leader") == str(epoch):
                return Lease(self._member, epoch, self._ttl)
        self._epoch = 0
        raise FencedError(f"the lease on {self.location} has been lost")

    async def release(self) -> None:
        """Release the lease, if this handle has it."""
        held, self._epoch = self._epoch, 0
        if held:
            await self._client.call("lease/revoke", {"ID": self._leases.pop("leader")}, bool)

    async def leader(self) -> str:
        """Return the member that has the lease; empty if it is free."""
        holder, _ = await self._holder()
        return holder[1] if holder else ""

    async def usage(self) -> tuple[Usage, ...]:
        """Return the size of etcd's database, and whether etcd is rejecting writes because it is full."""
        size = await self._client.call("maintenance/status", {}, lambda answer: int(member(answer, "dbSize", str) or 0))
        names = await self._client.call("maintenance/alarm", {"action": "GET"}, _alarms)
        return (Usage("etcd's database", size, problem=", ".join(sorted(names))),)

    async def _holder(self) -> tuple[tuple[str, str] | None, list[Row]]:
        """Return the (instance, member) of the leader, and the rows of all lease keys."""
        names = [self._prefix + name for name in ("epoch", "holder", "leader")]
        requests = [{"request_range": {"key": encoded(name)}} for name in names]
        rows = await self._client.call("kv/txn", {"success": requests}, rows_of_responses)
        value = _value(rows, self._prefix + "holder")
        instance, _, member = (value or "").partition(" ")
        if value is not None and not member:
            raise self._foreign("holder")
        return ((instance, member) if value else None), rows

    # ── The entries ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def read(self, prefix: str = "") -> tuple[StoreEntry, ...]:
        """Return all entries with the prefix, sorted by key."""
        return (await self._read(prefix))[0]

    async def put(self, key: str, value: str, expected_version: str, epoch: int) -> StoreEntry:
        """Write one key. Raises FencedError and ConflictError."""
        revision = await self._change(key, expected_version, epoch, _put(self._entries + key, value))
        return StoreEntry(key, value, revision)

    async def delete(self, key: str, expected_version: str, epoch: int) -> None:
        """Delete one key. Raises FencedError and ConflictError."""
        request = {"request_delete_range": {"key": encoded(self._entries + key)}}
        await self._change(key, expected_version, epoch, request)

    async def watch(self, *prefixes: str) -> AsyncIterator[KeyChange]:
        """Yield all entries with one of the prefixes, and then every later change."""
        current: dict[str, StoreEntry] = {}
        while True:
            entries: list[StoreEntry] = []
            revision = 0
            for prefix in prefixes or ("",):
                entries_of_prefix, at = await self._read(prefix)
                entries += entries_of_prefix
                revision = min(revision or at, at)
            for change in changes_between(current.values(), entries):
                yield change
            current = {entry.key: entry for entry in entries}
            events = self._client.watch(self._entries, end_of(self._entries), revision + 1, _RESYNC)
            async with aclosing(events) as watched:
                async for changed in watched:
                    for change in self._changes(changed, prefixes):
                        if change.entry is None:
                            current.pop(change.key, None)
                        elif current.get(change.key) == change.entry:
                            continue
                        else:
                            current[change.key] = change.entry
                        yield change

    def _changes(self, events: Events, prefixes: tuple[str, ...]) -> list[KeyChange]:
        entries = ((kind, self._entry(row)) for kind, row in events)
        return [
            KeyChange(entry.key, None if kind == "DELETE" else entry)
            for kind, entry in entries
            if matches(entry.key, prefixes)
        ]

    async def _read(self, prefix: str) -> tuple[tuple[StoreEntry, ...], int]:
        """Return the entries with the prefix, sorted by key, and the revision at which they were read."""
        first = self._entries + prefix
        body = {"key": encoded(first), "range_end": encoded(end_of(first))}
        found, at = await self._client.call("kv/range", body, lambda answer: (rows(answer), revision(answer)))
        return tuple(sorted(map(self._entry, found), key=lambda item: item.key)), at

    def _entry(self, row: Row) -> StoreEntry:
        return StoreEntry(row.key.removeprefix(self._entries), row.value, row.revision)

    async def _change(self, key: str, expected: str, epoch: int, request: dict[str, Any]) -> str:
        """Send the request if epoch and version match, and return the new version."""
        leader = self._prefix + "leader"
        led = {"key": encoded(leader), "target": "VALUE", "result": "EQUAL", "value": encoded(str(epoch))}
        name = self._entries + key
        version = _absent(name) if expected == ABSENT else _compare(name, "MOD", expected)
        failure = [{"request_range": {"key": encoded(leader)}}, {"request_range": {"key": encoded(name)}}]
        body = {"compare": [led, version], "success": [request], "failure": failure}
        changed, at, found = await self._client.call(
            "kv/txn", body, lambda answer: (_succeeded(answer), revision(answer), rows_of_responses(answer))
        )
        if changed:
            return str(at)
        current = _value(found, leader)
        if current != str(epoch):
            raise FencedError(f"epoch {epoch} is outdated: the current one is {current or 'none'}")
        there = next((row.revision for row in found if row.key == name), "none")
        raise ConflictError(f"{key} has the version {there}, not {expected or 'none'}")

    # ── The members ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def announce(self, member: str, value: str, ttl: float) -> None:
        """Announce this process as `member` for `ttl` seconds."""
        if not await self._keep_alive("member"):
            await self._lease("member", ttl, anew=True)
        request = _put(f"{self._prefix}members/{member}", f"{self.instance} {value}", self._leases["member"])
        if not await self._transact([], [request]):
            raise StoreError(f"{self.location} rejected an announcement")

    async def members(self) -> tuple[Presence, ...]:
        """Return the announcements that have not expired, sorted by name."""
        prefix = f"{self._prefix}members/"
        body = {"key": encoded(prefix), "range_end": encoded(end_of(prefix))}
        found = await self._client.call("kv/range", body, rows)
        return presences(sorted((row.key.removeprefix(prefix), row.value) for row in found))

    async def close(self) -> None:
        """Release the lease and close the connections."""
        with suppress(StoreError):
            await self.release()
        await self._client.close()

    # ── Calls ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _lease(self, purpose: str, ttl: float, *, anew: bool) -> str:
        if anew or purpose not in self._leases:
            body = {"TTL": str(max(1, math.ceil(ttl)))}
            self._leases[purpose] = await self._client.call("lease/grant", body, _lease_id)
        return self._leases[purpose]

    async def _keep_alive(self, purpose: str) -> bool:
        """Extend an etcd lease. Return False if it has expired."""
        if purpose not in self._leases:
            return False
        return await self._client.call("lease/keepalive", {"ID": self._leases[purpose]}, _remaining) > 0

    async def _transact(self, compare: list[dict[str, Any]], success: list[dict[str, Any]]) -> bool:
        return await self._client.call("kv/txn", {"compare": compare, "success": success}, _succeeded)


def _succeeded(answer: Answer) -> bool:
    return member(answer, "succeeded", bool)


def _alarms(answer: Answer) -> set[str]:
    return {member(item, "alarm", str) for item in records(answer, "alarms")}


def _lease_id(answer: Answer) -> str:
    return str(int(member(answer, "ID", str)))


def _remaining(answer: Answer) -> int:
    """Return a lease's remaining time in seconds; 0 if it has expired."""
    return int(member(member(answer, "result", dict), "TTL", str) or 0)


def _put(key: str, value: str, lease: str = "0") -> dict[str, Any]:
    return {"request_put": {"key": encoded(key), "value": encoded(value), "lease": lease}}


def _compare(key: str, target: str, revision: str) -> dict[str, Any]:
    names = {"MOD": "mod_revision", "CREATE": "create_revision"}
    return {"key": encoded(key), "target": target, "result": "EQUAL", names[target]: revision}


def _absent(key: str) -> dict[str, Any]:
    return _compare(key, "CREATE", "0")


def _unchanged(rows: list[Row], key: str) -> dict[str, Any]:
    changed_at = next((row.revision for row in rows if row.key == key), "")
    return _compare(key, "MOD", changed_at) if changed_at else _absent(key)


def _value(rows: list[Row], key: str) -> str | None:
    return next((row.value for row in rows if row.key == key), None)
