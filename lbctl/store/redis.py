"""State in a Redis or Valkey server shared by several control planes.

Every change is a single script on the server, which first checks the epoch and the version. All keys share a hash tag,
so that a cluster stores them in the same slot. A change is announced on a channel. A watch also rereads all keys
periodically, because channel messages can be lost. A server that fails over asynchronously may lose the last writes.
The leader therefore rewrites its records with every change. An epoch is never assigned twice, because it follows the
server's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from lbctl.base.bounded import size
from lbctl.base.errors import reason_of
from lbctl.ir.proxies import Store
from lbctl.ir.store_url import parse_store_url
from lbctl.store import redis_scripts as scripts
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
    StoreUnreachableError,
    UnusableError,
    Usage,
    changes_between,
    presences,
)
from lbctl.store.redis_client import MAX_VALUE_BYTES, connected, disconnect

_RESYNC = 5.0
"""Seconds without a message after which a watch reads all keys again."""


class RedisStore:
    """A SharedStore in a Redis or Valkey server.

    `member`: the name of this control plane. `instance`: a text that is unique to this handle.
    """

    def __init__(self, store: Store, member: str, instance: str) -> None:
        self.instance = instance
        self._member = member
        self._ttl = store.lease / 1000
        self._url = parse_store_url(store.url)
        self._prefix = f"{{{store.key_prefix}}}:"
        self._channel = self._prefix + "changes"
        names = ("leader", "epoch", "index", "values", "versions", "revision", "members", "announcements")
        self._keys = [self._prefix + name for name in names]
        self._held = ""
        """The leader's value while this handle has the lease."""
        self._redis = connected(store, self._ttl)

    @classmethod
    def open(cls, store: Store, member: str, instance: str) -> RedisStore:
        """Return the store at this URL, without connecting. Raises UnusableError."""
        return cls(store, member, instance)

    @property
    def location(self) -> str:
        """Host and port of the server, or of Sentinel, and the prefix of the keys."""
        server = "Redis of Sentinel" if self._url.kind == "redis+sentinel" else "Redis"
        return f"{server} {self._url.places} ({self._prefix.strip('{}:')})"

    def notes(self) -> tuple[str, ...]:
        """Return no notes, because nothing is repaired here."""
        return ()

    # ── The lease ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def acquire(self) -> Lease:
        """Acquire or extend the lease. Raises LeaseHeldError and StoreError."""
        held = str(await self._run(scripts.ACQUIRE, self.instance, self._member, self._milliseconds))
        epoch, instance, member = self._parsed(held)
        if instance != self.instance:
            raise LeaseHeldError(self.location, member, instance)
        self._held = held
        return Lease(member, epoch, self._ttl)

    async def renew(self) -> Lease:
        """Extend the lease. Raises FencedError if the lease is lost."""
        if not self._held or not await self._run(scripts.RENEW, self._held, self._milliseconds):
            self._held = ""
            raise FencedError(f"the lease on {self.location} has been lost")
        return Lease(self._member, int(self._held.split(" ")[0]), self._ttl)

    async def release(self) -> None:
        """Release the lease, if this handle has it."""
        held, self._held = self._held, ""
        if held:
            await self._run(scripts.RELEASE, held)

    async def leader(self) -> str:
        """Return the member that has the lease; empty if it is free."""
        with self._explained():
            held = await self._redis.get(self._keys[0])
        return self._parsed(str(held))[2] if held else ""

    async def usage(self) -> tuple[Usage, ...]:
        """Return nothing, because a server's limit applies to all of its keys."""
        return ()

    def _parsed(self, held: str) -> tuple[int, str, str]:
        """Return the epoch, instance and member in the leader's value. Raises UnusableError."""
        try:
            epoch, instance, member = held.split(" ", 2)
            return int(epoch), instance, member
        except ValueError:
            raise UnusableError(
                f"{self.location} has a leader that lbctl did not write ({self._keys[0]}): choose another "
                "control.store.key_prefix, or delete that key"
            ) from None

    # ── The entries ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def read(self, prefix: str = "") -> tuple[StoreEntry, ...]:
        """Return all entries with the prefix, sorted by key."""
        return await self._read((prefix,))

    async def put(self, key: str, value: str, expected_version: str, epoch: int) -> StoreEntry:
        """Write one key.

        Raises FencedError and ConflictError, and StoreError for a value that is too large for members to read.
        """
        if len(value.encode(errors="replace")) > MAX_VALUE_BYTES:
            raise StoreError(f"{key} is larger than {size(MAX_VALUE_BYTES)}, the limit for the members")
        version = await self._change(scripts.PUT, key, expected_version, epoch, value)
        return StoreEntry(key, value, version)

    async def delete(self, key: str, expected_version: str, epoch: int) -> None:
        """Delete one key. Raises FencedError and ConflictError."""
        await self._change(scripts.DELETE, key, expected_version, epoch)

    async def watch(self, *prefixes: str) -> AsyncIterator[KeyChange]:
        """Yield all entries with one of the prefixes, then every later change."""
        entries: tuple[StoreEntry, ...] = ()
        with self._explained():
            async with self._redis.pubsub() as messages:
                await messages.subscribe(self._channel)
                while True:
                    before, entries = entries, await self._read(prefixes or ("",))
                    for change in changes_between(before, entries):
                        yield change
                    deadline = asyncio.get_running_loop().time() + _RESYNC
                    while (key := await _changed_key(messages, prefixes, deadline)) is not None:
                        rest = tuple(entry for entry in entries if entry.key != key)
                        changed = [entry for entry in await self._read((key,)) if entry.key == key]
                        before, entries = entries, (*rest, *changed)
                        for change in changes_between(before, entries):
                            yield change

    async def _read(self, prefixes: tuple[str, ...]) -> tuple[StoreEntry, ...]:
        rows = self._texts(await self._run(scripts.READ, *prefixes), 3)
        return tuple(
            sorted((StoreEntry(*rows[at : at + 3]) for at in range(0, len(rows), 3)), key=lambda item: item.key)
        )

    async def _change(self, script: str, key: str, expected: str, epoch: int, *value: str) -> str:
        answer = await self._run(script, str(epoch), key, expected, self._channel, *value)
        if not isinstance(answer, list) or len(answer) != 2:
            raise StoreUnreachableError(f"{self.location} did not respond like a Redis server")
        result, current = answer
        if result == "FENCED":
            raise FencedError(f"epoch {epoch} is outdated: the current one is {current or 'none'}")
        if result == "CONFLICT":
            raise ConflictError(f"{key} has the version {current or 'none'}, not {expected or 'none'}")
        return str(current or ABSENT)

    # ── The members ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def announce(self, member: str, value: str, ttl: float) -> None:
        """Announce this process as `member` for `ttl` seconds."""
        await self._run(scripts.ANNOUNCE, member, f"{self.instance} {value}", int(ttl * 1000))

    async def members(self) -> tuple[Presence, ...]:
        """Return the announcements that have not expired, sorted by name."""
        rows = self._texts(await self._run(scripts.MEMBERS), 2)
        return presences(sorted(zip(rows[::2], rows[1::2], strict=True)))

    async def close(self) -> None:
        """Release the lease and close the connections."""
        try:
            with suppress(StoreError):
                await self.release()
        finally:
            await disconnect(self._redis)

    # ── The connection ───────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _milliseconds(self) -> int:
        return int(self._ttl * 1000)

    async def _run(self, script: str, *arguments: str | int) -> Any:
        with self._explained():
            return await self._redis.eval(script, len(self._keys), *self._keys, *arguments)

    def _texts(self, rows: Any, columns: int) -> list[str]:
        """Return the concatenated rows of a response. Raises StoreUnreachableError for any other response."""
        if not isinstance(rows, list) or len(rows) % columns or not all(isinstance(item, str) for item in rows):
            raise StoreUnreachableError(f"{self.location} did not respond like a Redis server")
        return rows

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise StoreError instead of the client's errors. The messages of these errors contain no password."""
        try:
            yield
        except StoreError:
            raise
        except UnicodeDecodeError:
            raise UnusableError(f"{self.location} contains data that lbctl did not write") from None
        except (AuthenticationError, NoPermissionError) as error:
            raise UnusableError(f"{self.location} rejects the password: {error}") from None
        except ResponseError as error:
            if "NOAUTH" in str(error).upper() or "WRONGPASS" in str(error).upper():
                raise UnusableError(f"{self.location} needs a password: {error}") from None
            raise StoreError(f"{self.location}: {error}") from None
        except (RedisError, OSError, TimeoutError, ValueError, RecursionError) as error:
            raise StoreUnreachableError(f"{self.location} is not responding: {reason_of(error)}") from None


async def _changed_key(messages: Any, prefixes: tuple[str, ...], deadline: float) -> str | None:
    """Wait for a message about a key with one of the prefixes; None at the deadline, when all keys are read again."""
    while (left := deadline - asyncio.get_running_loop().time()) > 0:
        message = await messages.get_message(ignore_subscribe_messages=True, timeout=left)
        if message is not None and (not prefixes or str(message["data"]).startswith(prefixes)):
            return str(message["data"])
    return None
