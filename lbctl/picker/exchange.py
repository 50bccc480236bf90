"""Exchange of requests in flight and of affinity memories between pickers that serve the same pools.

Each picker opens a stream to every other picker that the control plane knows. It sends its counts up to twenty times
per second when they have changed, and otherwise once per second to confirm them. Messages are not acknowledged: lost
counts are replaced 50 ms later. If a picker cannot be reached, the sender retries, and that picker's requests are
unknown until it succeeds. A second stream sends the changes of the affinity memory (`shared_memory`).
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
"""Seconds between checks of whether the picker's own counts have changed."""
_REPEAT = 1.0
"""Seconds after which unchanged counts are sent again."""
_PAUSE = 1.0
"""Seconds before the next attempt to reach an unreachable picker."""
_TELLING = 2
"""Number of failed attempts after which the reason is logged, because a new picker may not listen yet."""
_SERVICE, _METHOD = "lbctl.picker.Exchange", "Counts"
_MAX_COUNTS = 100_000
"""Maximum number of replicas that a message may name."""
_MAX_REQUESTS, _MAX_TOKENS = 1_000_000, 10**15
"""Upper bounds on the counts of a replica. A message with larger counts is invalid."""
_NORMAL = PRIORITIES.index("normal")


class Exchange:
    """The exchange of one picker.

    `counts` returns its counts, and `merge` accepts the ID and the counts of another picker. `demands` returns the
    requests that wait at this picker. `merge_demands` accepts the ID and the demands of another picker, and whether
    that picker is the first of two equal pickers.
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
        """IDs of the other pickers. Messages of other senders are ignored."""
        self._failures: Counter[str] = Counter()
        """Maps each address to the number of attempts since the picker was last reached."""
        self._copying: asyncio.Task[NoReturn] | None = None

    @property
    def peers(self) -> int:
        """Number of other pickers."""
        return len(self._tasks)

    def follow(self, peers: Mapping[str, str]) -> None:
        """From now on, exchange counts and memories with these pickers. The keys are IDs, and the values addresses."""
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
        """Send the counts until the other picker ends the stream.

        The method writes the messages itself: gRPC would hide an exception in an iterator of messages, because it only
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
        """Return the handler of the service."""
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
            del message, parsed  # they may be large, and the next message may never come
        return b""


def message_of(sender: str, counts: Counts, demands: Demands) -> bytes:
    """Return the message of a picker with this ID.

    Expected cached tokens and the lengths of prompts have their own keys, because earlier versions require exactly four
    numbers for each replica. lbctl 1.0 sends and requires three lengths with the key `lengths`, so the key of the four
    lengths has another name. Pickers do not learn from the prompts of a picker of the other version. Earlier versions
    read `waiting`, the sum of the weights of the flows that wait, as their number. They ignore `shares`, which contains
    these weights by priority, and the tag.
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
    """Return the ID of the sender, its counts and its demands; None if this is not a valid message."""
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
    """Return the counts of a replica. Raises TypeError or ValueError if they are not valid."""
    requests, *tokens = row
    if (len(tokens), len(lengths)) != (3, 4):
        raise ValueError
    return Count(
        _count(requests, _MAX_REQUESTS),
        *(_count(value, _MAX_TOKENS) for value in (*tokens, cached_tokens, *lengths)),
    )


def _demand(flows: object, share: Sequence[object] | None) -> Demand:
    """Return the requests that wait for a pool. Raises TypeError or ValueError if they are not valid.

    `share`: None if the sender has an earlier version. The flows of that sender count as flows of normal priority with
    the weight 1.
    """
    number = _count(flows, _MAX_REQUESTS)
    if share is None:
        return Demand(tuple(float(number if index == _NORMAL else 0) for index in range(len(PRIORITIES))))
    *weights, tag = (_number(value, _MAX_TOKENS) for value in share)
    if len(weights) != len(PRIORITIES):
        raise ValueError
    return Demand(tuple(weights), tag)


def _count(value: object, most: int) -> int:
    """Return the value as a number of requests. Raises ValueError if it is not a valid count."""
    return int(_number(value, most))


def _number(value: object, most: int) -> float:
    """Return the value as a number. Raises ValueError if it is not valid."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise ValueError
    return value


def _reason(error: grpc.RpcError) -> str:
    return str(error.details()) if isinstance(error, grpc.aio.AioRpcError) else reason_of(error)
