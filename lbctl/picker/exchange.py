"""Exchanges requests in flight and affinity memories between pickers that serve the same pools.

Each picker opens a stream to every other picker listed by the control plane. It sends its counts up to twenty times per
second when they change, and otherwise once per second as confirmation. Messages are not acknowledged, because lost
counts are replaced 50 ms later. If a picker cannot be reached, the sender retries. Until it succeeds, the other picker
does not know about the sender's requests. A second stream sends changes to the affinity memory (`shared_memory`).
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, NoReturn

import grpc

from lbctl.base.errors import reason_of
from lbctl.pick.books import Count, Counts
from lbctl.pick.waiting import PRIORITIES
from lbctl.picker.peer_tls import PeerTls
from lbctl.picker.queue_shares import Demand, Demands
from lbctl.picker.shared_memory import SharedMemory
from lbctl.runtime import log
from lbctl.runtime.guard import Guard

INTERVAL = 0.05
"""Seconds between checks for changes in the picker's own counts."""
_REPEAT = 1.0
"""Seconds after which unchanged counts are resent."""
_PAUSE = 1.0
"""Seconds before the next attempt to reach a picker that was unreachable."""
_TELLING = 2
"""Number of failed attempts after which the reason is logged. The first failures are not logged because a new picker
may not be listening yet."""
_SERVICE, _METHOD = "lbctl.picker.Exchange", "Counts"
_MAX_COUNTS = 100_000
"""Maximum number of replicas in a message."""
_MAX_REQUESTS, _MAX_TOKENS = 1_000_000, 10**15
"""Upper bounds on a replica's counts. A message with larger counts is invalid."""
_NORMAL = PRIORITIES.index("normal")


class Exchange:
    """One picker's exchange with the others.

    `counts` returns the picker's own counts, and `merge` accepts another picker's ID and counts. `demands` returns the
    requests waiting at this picker. `merge_demands` accepts another picker's ID and demands, and whether that picker
    takes precedence in a tie.
    """

    def __init__(
        self,
        memory: SharedMemory,
        counts: Callable[[], Counts],
        merge: Callable[[str, Counts], None],
        tls: PeerTls | None,
        guard: Guard,
        demands: Callable[[], Demands] = dict,
        merge_demands: Callable[[str, Demands, bool], None] = lambda _sender, _demands, _precedes: None,
    ) -> None:
        self.own = memory.own
        self._memory = memory
        self._counts = counts
        self._merge = merge
        self._tls = tls
        self._guard = guard
        self._demands = demands
        self._merge_demands = merge_demands
        self._tasks: dict[tuple[str, str], tuple[asyncio.Task[NoReturn], ...]] = {}
        self._peer_ids: frozenset[str] = frozenset()
        """IDs of the other pickers. Messages from any other sender are ignored."""
        self._failures: Counter[str] = Counter()
        """Maps each address to the number of failed attempts since the picker was last reached."""
        self._copying: asyncio.Task[NoReturn] | None = None

    @property
    def peers(self) -> int:
        """Number of other pickers."""
        return len(self._tasks)

    def follow(self, peers: Mapping[str, str]) -> None:
        """From now on, exchange counts and affinity memories with these pickers.

        The keys are IDs, and the values are addresses.
        """
        others = {name: address for name, address in peers.items() if name != self.own}
        wanted = set(others.items())
        self._peer_ids = frozenset(others)
        self._memory.follow(others)
        for address in self._failures.keys() - set(others.values()):
            del self._failures[address]
        for key in self._tasks.keys() - wanted:
            for task in self._tasks.pop(key):
                task.cancel()
        for key in wanted - self._tasks.keys():
            self._tasks[key] = self._start(key[1])
        if others and self._copying is None:
            self._copying = self._guard.start("copy of a memory", lambda: self._memory.copy(self._channel))

    def close(self) -> None:
        """End all streams."""
        if self._copying is not None:
            self._copying.cancel()
        self.follow({})

    # ── Sending ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _start(self, address: str) -> tuple[asyncio.Task[NoReturn], ...]:
        """Start the streams to another picker. The streams are independent of each other."""
        counts = self._guard.start("counts for another picker", lambda: self._send_always(address), address=address)
        entries = self._guard.start("memory for another picker", lambda: self._share_always(address), address=address)
        return counts, entries

    async def _send_always(self, address: str) -> None:
        while True:
            try:
                await self._send(address)
            except grpc.RpcError as error:
                self._failures[address] += 1
                if self._failures[address] == _TELLING:
                    log.warn("another picker cannot be reached", address=address, why=_reason(error))
            await asyncio.sleep(_PAUSE)

    async def _share_always(self, address: str) -> None:
        while True:
            async with self._channel(address) as channel:
                await self._memory.send(channel, address)
            await asyncio.sleep(_PAUSE)

    async def _send(self, address: str) -> None:
        """Send counts until the other picker ends the stream.

        The method writes the messages itself, because gRPC hides exceptions raised by a message iterator and only
        cancels the call. Raises grpc.RpcError.
        """
        loop = asyncio.get_running_loop()
        async with self._channel(address) as channel:
            method: grpc.aio.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary(f"/{_SERVICE}/{_METHOD}")
            call = method()
            before, sent_at = b"", 0.0
            while not call.done():
                message = message_of(self.own, self._counts(), self._demands())
                if message != before or loop.time() - sent_at >= _REPEAT:
                    before, sent_at = message, loop.time()
                    await call.write(message)
                    del self._failures[address]
                await asyncio.sleep(INTERVAL)
            await call

    def _channel(self, address: str) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(address) if self._tls is None else self._tls.channel(address)

    # ── Receiving ────────────────────────────────────────────────────────────────────────────────────────────────────

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the service's handler."""
        methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            _METHOD: grpc.stream_unary_rpc_method_handler(self._receive)
        }
        return grpc.method_handlers_generic_handler(_SERVICE, methods)

    async def _receive(self, messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        async for message in messages:
            parsed = parse(message)
            if parsed is None:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "this is not a picker message")
            elif parsed[0] in self._peer_ids:
                sender, counts, demands = parsed
                self._merge_demands(sender, demands, sender < self.own)
                self._merge(sender, counts)
                del counts, demands
            del message, parsed  # they may be large, and the next message may never arrive
        return b""


def message_of(sender: str, counts: Counts, demands: Demands) -> bytes:
    """Return the message sent by a picker with this ID.

    Expected cached tokens and prompt lengths have separate keys, because earlier versions require exactly four numbers
    per replica. lbctl 1.0 sends and requires three lengths under the key `lengths`, so the four lengths are sent under
    a different key. Pickers do not learn from prompts sent by pickers of the other version. Earlier versions interpret
    `waiting`, the sum of the weights of the waiting flows, as the number of these flows. They ignore the tag and
    `shares`, which contains these weights by priority.
    """
    rows = {pool: {name: count[:4] for name, count in replicas.items()} for pool, replicas in counts.items()}
    cached = {
        pool: {name: count.cached_tokens for name, count in replicas.items() if count.cached_tokens}
        for pool, replicas in counts.items()
    }
    prompts = {
        pool: {name: count[5:] for name, count in replicas.items() if any(count[5:])}
        for pool, replicas in counts.items()
    }
    waiting = {pool: max(1, min(round(sum(item.weights)), _MAX_REQUESTS)) for pool, item in demands.items()}
    shares = {pool: (*item.weights, item.tag) for pool, item in demands.items()}
    message = {
        "from": sender, "counts": rows, "cached": cached, "prompts": prompts, "waiting": waiting, "shares": shares,
    }  # fmt: skip
    return json.dumps(message, separators=(",", ":")).encode()


def parse(message: bytes) -> tuple[str, Counts, Demands] | None:
    """Return the sender's ID, its counts and its demands; None if the message is invalid."""
    try:
        values: Any = json.loads(message)
        cached, prompts, shares = (values.get(key, {}) for key in ("cached", "prompts", "shares"))
        counts = {
            str(pool): {
                str(name): _counts(
                    row, cached.get(pool, {}).get(name, 0), prompts.get(pool, {}).get(name, (0, 0, 0, 0))
                )
                for name, row in replicas.items()
            }
            for pool, replicas in values["counts"].items()
        }
        demands = {str(pool): _demand(flows, shares.get(pool)) for pool, flows in values.get("waiting", {}).items()}
        sender = values["from"]
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    if not isinstance(sender, str) or len(sender) > 64 or sum(map(len, counts.values())) > _MAX_COUNTS:
        return None
    return (sender, counts, demands) if len(demands) <= _MAX_COUNTS else None


def _counts(row: Sequence[object], cached_tokens: object, lengths: Sequence[object]) -> Count:
    """Return a replica's counts. Raises TypeError or ValueError if they are invalid."""
    requests, *tokens = row
    if (len(tokens), len(lengths)) != (3, 4):
        raise ValueError
    return Count(
        _count(requests, _MAX_REQUESTS),
        *(_count(value, _MAX_TOKENS) for value in (*tokens, cached_tokens, *lengths)),
    )


def _demand(flows: object, share: Sequence[object] | None) -> Demand:
    """Return the requests waiting for a pool. Raises TypeError or ValueError if they are invalid.

    `share` is None if the sender runs an earlier version. That sender's flows are treated as flows of normal priority
    with weight 1.
    """
    number = _count(flows, _MAX_REQUESTS)
    if share is None:
        return Demand(tuple(float(number if index == _NORMAL else 0) for index in range(len(PRIORITIES))))
    *weights, tag = (_number(value, _MAX_TOKENS) for value in share)
    if len(weights) != len(PRIORITIES):
        raise ValueError
    return Demand(tuple(weights), tag)


def _count(value: object, most: int) -> int:
    """Return the value as a number of requests. Raises ValueError if it is not a valid number of requests."""
    return int(_number(value, most))


def _number(value: object, most: int) -> float:
    """Return the value as a number. Raises ValueError if it is not a valid number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise ValueError
    return value


def _reason(error: grpc.RpcError) -> str:
    return str(error.details()) if isinstance(error, grpc.aio.AioRpcError) else reason_of(error)
