"""Shares the affinity memory among several pickers, so that all of them prefer a replica chosen by one of them.

Each picker sends its new entries to every other picker, at most every `saved_memory.INTERVAL`. A new picker copies
another picker's entire memory before it becomes ready. Entries for an unreachable picker are queued, up to a limit.

A message is a JSON line followed by 64-bit integers, three per entry. Keys are hashes with a secret seed
(`lbctl.picker.launch`), so messages do not reveal sessions or prompts. Entries with a different seed are ignored.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import grpc

from lbctl.pick.affinity import BLOCK, MAX_BATCH, AffinityBatch, AffinityChanges, AffinityMemory
from lbctl.pick.prompt import MAX_PROMPT_TOKENS
from lbctl.picker.saved_memory import hash_version
from lbctl.runtime import log

_SERVICE, _CHANGES, _TABLE = "lbctl.picker.Affinity", "Changes", "Table"
_WAITING = 100
"""Maximum number of messages queued for one picker: ten seconds' worth of changes."""
_CHECK = 1.0
"""Seconds without entries after which a stream is checked."""
JOIN_TIMEOUT = 5.0
"""Seconds for which a new picker tries to copy another picker's memory. After this time, it becomes ready without the
memory."""
_FIRST_TIMEOUT = 1.0
"""Seconds within which another picker must send the first part of its memory."""
_PAUSE = 0.1
"""Seconds before a new picker queries the others again."""
_REFUSALS = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNIMPLEMENTED)
"""Statuses returned by pickers whose memory cannot be used."""
_ACCEPTED = "lbctl-accepted"
"""Metadata with which a picker signals that it accepts another picker's entries. Until then, the sender queues the
entries."""
_UNKNOWN = "this is not another picker's ID"
_INTEGER = 8
Accept = Callable[[AffinityBatch, bool], None]


class SharedMemory:
    """The memory of the picker whose ID is `own`.

    `accept` merges a batch; its argument indicates whether this picker yields. `joined` is called once another picker's
    memory has been copied, or if no other pickers are known.
    """

    def __init__(self, own: str, memory: AffinityMemory, accept: Accept, joined: Callable[[], None]) -> None:
        self.own = own
        self._memory = memory
        self._accept = accept
        self._joined = joined
        self._peers: Mapping[str, str] = {}
        self._waiting: dict[str, deque[bytes]] = {}
        """Maps each address to the messages queued for that picker."""
        self._news: dict[str, asyncio.Event] = {}
        self._different: set[str] = set()
        """IDs of the pickers with different hashes for which a message has already been logged."""
        self._copying: set[str] = set()
        """IDs of the pickers that are currently copying this memory."""

    def follow(self, peers: Mapping[str, str]) -> None:
        """From now on, share the memory with these pickers, given as a map from IDs to addresses."""
        self._peers = peers
        addresses = set(peers.values())
        for address in self._waiting.keys() - addresses:
            del self._waiting[address], self._news[address]
        for address in addresses - self._waiting.keys():
            self._waiting[address], self._news[address] = deque(maxlen=_WAITING), asyncio.Event()
        self._different &= peers.keys()
        if not peers:
            self._joined()

    # ── Sending ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def publish(self, changes: Sequence[AffinityChanges]) -> None:
        """Send changes to the other pickers."""
        if not self._waiting:
            return
        for batch in self._memory.batches(changes):
            message = encode(self.own, batch)
            for address, waiting in self._waiting.items():
                waiting.append(message)
                self._news[address].set()

    async def send(self, channel: grpc.aio.Channel, address: str) -> None:
        """Send new entries until the other picker ends the stream.

        If the other picker runs an older version of lbctl, the method waits until it is cancelled.
        """
        method: grpc.aio.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary(f"/{_SERVICE}/{_CHANGES}")
        call = method()
        with suppress(grpc.RpcError, asyncio.InvalidStateError):
            await call.write(encode(self.own, AffinityBatch({}, ())))
            metadata = await call.initial_metadata()
            if metadata and metadata.get(_ACCEPTED):
                await self._send_waiting(call, address)
            await call
        if await self._status(call) == grpc.StatusCode.UNIMPLEMENTED:
            log.warn("another picker does not share its memory: it runs an older version of lbctl", address=address)
            await asyncio.Event().wait()

    async def _status(self, call: grpc.aio.StreamUnaryCall[bytes, bytes]) -> grpc.StatusCode | None:
        """Return the status of a call that has ended; None if it has not ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_CHECK):
                return await call.code()
        call.cancel()
        return None

    async def _send_waiting(self, call: grpc.aio.StreamUnaryCall[bytes, bytes], address: str) -> None:
        waiting, news = self._waiting[address], self._news[address]
        while not call.done():
            while waiting and not call.done():
                await call.write(waiting[0])
                waiting.popleft()
            news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_CHECK):
                    await news.wait()

    # ── Copying ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def copy(self, channel: Callable[[str], grpc.aio.Channel]) -> None:
        """Copy another picker's memory. If all attempts fail, retry until `JOIN_TIMEOUT` has passed.

        Then wait to be cancelled, because a guard restarts tasks that end.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(JOIN_TIMEOUT):
                refused: set[str] = set()
                while left := [address for address in self._peers.values() if address not in refused]:
                    for address in left:
                        status = await self._copied(channel, address)
                        if status == grpc.StatusCode.OK:
                            left = []
                            break
                        if status in _REFUSALS:
                            refused.add(address)
                    if not left:
                        break
                    await asyncio.sleep(_PAUSE)
        self._joined()
        await asyncio.Event().wait()

    async def _copied(self, channel: Callable[[str], grpc.aio.Channel], address: str) -> grpc.StatusCode:
        """Copy the memory of the picker at this address. Return the status of the call."""
        entries = 0
        async with channel(address) as connected:
            method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes]
            method = connected.unary_stream(f"/{_SERVICE}/{_TABLE}")
            call = method(encode(self.own, AffinityBatch({}, ())))
            try:
                async with asyncio.timeout(_FIRST_TIMEOUT):
                    message = await call.read()
                while isinstance(message, bytes):
                    entries += self.merge(message)
                    message = await call.read()
            except (grpc.RpcError, TimeoutError):
                call.cancel()
            status = await call.code()
        if status == grpc.StatusCode.OK:
            log.event("the picker has copied the memory of another picker", address=address, entries=entries)
        return status

    # ── Receiving ────────────────────────────────────────────────────────────────────────────────────────────────────

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the service's handler."""
        methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            _CHANGES: grpc.stream_unary_rpc_method_handler(self._receive),
            _TABLE: grpc.unary_stream_rpc_method_handler(self._send_all),
        }
        return grpc.method_handlers_generic_handler(_SERVICE, methods)

    async def _receive(self, messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        is_accepted = False
        async for message in messages:
            if (parsed := parse(message)) is None:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "this is not a picker message")
            if parsed[0] not in self._peers:
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, _UNKNOWN)
            if not is_accepted:
                await context.send_initial_metadata(((_ACCEPTED, "1"),))
            is_accepted = True
            self._merge(*parsed)
            del parsed
            del message  # it may be large, and the next message may never arrive
        return b""

    async def _send_all(self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
        parsed = parse(request)
        if parsed is None or parsed[0] not in self._peers:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, _UNKNOWN)
        if parsed[1] != hash_version():
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the pickers have different keys or versions")
        if parsed[0] in self._copying:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "this picker is already copying the memory")
        self._copying.add(parsed[0])
        try:
            for batch in self._memory.all_batches():
                yield encode(self.own, batch)
                await asyncio.sleep(0)  # picks take precedence
        finally:
            self._copying.discard(parsed[0])

    def merge(self, message: bytes) -> int:
        """Merge the entries in a message from another picker and return their number; 0 if they are not usable."""
        parsed = parse(message)
        return self._merge(*parsed) if parsed is not None and parsed[0] in self._peers else 0

    def _merge(self, sender: str, version: int, batch: AffinityBatch) -> int:
        if version != hash_version():
            if sender not in self._different:
                log.warn(
                    "another picker does not share its memory, because it started with a different picker key or "
                    "Python version: set the same control.picker.key_file for all of them, and restart them",
                    address=self._peers[sender],
                )
            self._different.add(sender)
            return 0
        self._accept(batch, self.own > sender)
        return len(batch.entries) // 3


def encode(sender: str, batch: AffinityBatch) -> bytes:
    """Return the message that contains a batch."""
    head = {"from": sender, "hash": hash_version(), "replicas": batch.replicas}
    numbers = struct.pack(f"<{len(batch.entries)}q", *batch.entries)
    return json.dumps(head, separators=(",", ":")).encode() + b"\n" + numbers


def parse(message: bytes) -> tuple[str, int, AffinityBatch] | None:
    """Return the sender's ID, its hash version, and the batch; None if the message is invalid."""
    head, _, data = message.partition(b"\n")
    try:
        values: Any = json.loads(head)
        sender, version = values["from"], values["hash"]
        replicas = {int(number): (str(pool), str(name)) for number, (pool, name) in values["replicas"].items()}
        entries = struct.unpack(f"<{len(data) // _INTEGER}q", data)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, struct.error):
        return None
    if not isinstance(sender, str) or len(sender) > 64 or type(version) is not int or len(entries) % 3:
        return None
    if len(entries) > 3 * MAX_BATCH:
        return None
    tokens = entries[2::3]
    if tokens and (min(tokens) < BLOCK or max(tokens) > MAX_PROMPT_TOKENS):
        return None
    return sender, version, AffinityBatch(replicas, entries)
