"""The affinity memory that several pickers share: a replica that one picker chose counts for the others, too.

Each picker sends its new entries to every other picker, at most every `saved_memory.INTERVAL`. A new picker copies the
whole memory of another one before it is ready. Entries for an unreachable picker wait, up to a limit.

A message is a JSON line followed by integers of 64 bits, three for each entry. Keys are hashes with a secret seed
(`lbctl.picker.launch`), so messages do not contain sessions or prompts. Entries with another seed are ignored.
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

from lbctl.pick.affinity import BLOCK, AffinityBatch, AffinityChanges, AffinityMemory
from lbctl.pick.prompt import MAX_PROMPT_TOKENS
from lbctl.picker.saved_memory import hash_version
from lbctl.runtime import log

_SERVICE, _CHANGES, _TABLE = "lbctl.picker.Affinity", "Changes", "Table"
_WAITING = 100
"""Upper bound on the messages that wait for one picker: the changes of ten seconds."""
_CHECK = 1.0
"""Seconds after which a stream without entries is checked."""
JOIN_TIMEOUT = 5.0
"""Seconds that a new picker tries to copy the memory of another one. After that, it is ready without it."""
_PAUSE = 0.1
"""Seconds before a new picker asks the others again."""
_INTEGER = 8
Accept = Callable[[AffinityBatch, bool], None]


class SharedMemory:
    """The memory of the picker with the id `own`.

    `accept` merges a batch, and gets whether this picker yields. `joined` is called once the memory of another picker
    has been copied, or if there is no other picker.
    """

    def __init__(self, own: str, memory: AffinityMemory, accept: Accept, joined: Callable[[], None]) -> None:
        self.own = own
        self._memory = memory
        self._accept = accept
        self._joined = joined
        self._peers: Mapping[str, str] = {}
        self._waiting: dict[str, deque[bytes]] = {}
        """Address → messages for this picker."""
        self._news: dict[str, asyncio.Event] = {}
        self._different: set[str] = set()
        """Ids of the pickers with other hashes, which the log already contains."""
        self._copying: set[str] = set()
        """Ids of the pickers that are copying this memory."""

    def follow(self, peers: Mapping[str, str]) -> None:
        """Share the memory with these other pickers from now on: id → address."""
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
        """Send new entries until the other picker ends the stream. Raises grpc.RpcError."""
        method: grpc.aio.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary(f"/{_SERVICE}/{_CHANGES}")
        call = method()
        waiting, news = self._waiting[address], self._news[address]
        try:
            while not call.done():
                while waiting:
                    await call.write(waiting.popleft())
                news.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_CHECK):
                        await news.wait()
            await call
        except grpc.aio.AioRpcError as error:
            if error.code() != grpc.StatusCode.UNIMPLEMENTED:
                raise
            log.warn("another picker does not share its memory: it has an older version of lbctl", address=address)
            await asyncio.Event().wait()

    # ── Copying ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def copy(self, channel: Callable[[str], grpc.aio.Channel]) -> None:
        """Copy the memory of one of the other pickers. If all fail, try again until `JOIN_TIMEOUT`.

        Afterwards, the method waits until it is cancelled, because guards restart a task that ends.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(JOIN_TIMEOUT):
                while self._peers and not await self._copied(channel, dict(self._peers)):
                    await asyncio.sleep(_PAUSE)
        self._joined()
        await asyncio.Event().wait()

    async def _copied(self, channel: Callable[[str], grpc.aio.Channel], peers: Mapping[str, str]) -> bool:
        for address in peers.values():
            entries = 0
            try:
                async with channel(address) as connected:
                    method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes]
                    method = connected.unary_stream(f"/{_SERVICE}/{_TABLE}")
                    async for message in method(encode(self.own, AffinityBatch({}, ()))):
                        entries += self.merge(message) or 0
            except grpc.RpcError:
                continue
            log.event("the picker has copied the memory of another picker", address=address, entries=entries)
            return True
        return False

    # ── Receiving ────────────────────────────────────────────────────────────────────────────────────────────────────

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler of the service."""
        methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            _CHANGES: grpc.stream_unary_rpc_method_handler(self._receive),
            _TABLE: grpc.unary_stream_rpc_method_handler(self._send_all),
        }
        return grpc.method_handlers_generic_handler(_SERVICE, methods)

    async def _receive(self, messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        async for message in messages:
            if self.merge(message) is None:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "this is not a picker message")
            del message  # it may be large, and the next message may never come
        return b""

    async def _send_all(self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
        parsed = parse(request)
        if parsed is None or parsed[0] not in self._peers:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "this is not the id of another picker")
        if parsed[0] in self._copying:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "this picker is copying the memory already")
        self._copying.add(parsed[0])
        try:
            for batch in self._memory.all_batches():
                yield encode(self.own, batch)
                await asyncio.sleep(0)  # picks come first
        finally:
            self._copying.discard(parsed[0])

    def merge(self, message: bytes) -> int | None:
        """Merge the entries of a message, and return their number; None if the message is invalid."""
        parsed = parse(message)
        if parsed is None:
            return None
        sender, version, batch = parsed
        if sender not in self._peers:
            return 0
        if version != hash_version():
            if sender not in self._different:
                log.warn(
                    "another picker does not share its memory, because it started with another picker key or another "
                    "version of Python: set the same control.picker.key_file for all of them, and restart them",
                    address=self._peers[sender],
                )
            self._different.add(sender)
            return 0
        self._accept(batch, self.own > sender)
        return len(batch.entries) // 3


def encode(sender: str, batch: AffinityBatch) -> bytes:
    """Return the message with a batch."""
    head = {"from": sender, "hash": hash_version(), "replicas": batch.replicas}
    numbers = struct.pack(f"<{len(batch.entries)}q", *batch.entries)
    return json.dumps(head, separators=(",", ":")).encode() + b"\n" + numbers


def parse(message: bytes) -> tuple[str, int, AffinityBatch] | None:
    """Return the id of the sender, the version of its hashes, and the batch; None if the message is invalid."""
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
    tokens = entries[2::3]
    if tokens and (min(tokens) < BLOCK or max(tokens) > MAX_PROMPT_TOKENS):
        return None
    return sender, version, AffinityBatch(replicas, entries)
