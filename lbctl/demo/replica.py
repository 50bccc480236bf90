"""A simulated vLLM replica: an engine from `lbctl.simulate` that runs in real time behind HTTP.

A request is `POST …?q=PROMPT&n=ANSWER` (tokens). The response's headers and first byte are sent when the first token is
ready, and its second and last byte when the last token is ready. `/metrics` uses vLLM's names, and `/health` returns
200. Requests are not pipelined. The faults are those that also occur in real replicas: a throttled GPU, an engine that
makes no progress even though its port is healthy, an exporter that does not respond, a dead process, and a version that
responds with errors.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass

from lbctl.apply.reserved_ports import LOOPBACK, port_of, reserve
from lbctl.simulate.engine import CostModel, Engine, SimulatedRequest, cache_tokens

HOST = LOOPBACK
_TOKENS = re.compile(rb"[?&]q=(\d+)&n=(\d+)")
_BUCKETS = (0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Upper bounds of the buckets in vLLM's time-to-first-token histogram, in seconds."""
_PAGE = """\
vllm:num_requests_running{{model_name="m"}} {counters.running}
vllm:num_requests_waiting{{model_name="m"}} {counters.waiting}
vllm:kv_cache_usage_perc{{model_name="m"}} {cache:.4f}
vllm:iteration_tokens_total_count{{model_name="m"}} {counters.iterations}
vllm:prompt_tokens_total{{model_name="m"}} {prompt_tokens}
vllm:generation_tokens_total{{model_name="m"}} {counters.decode_tokens}
vllm:inter_token_latency_seconds_sum{{model_name="m"}} {counters.itl_seconds}
vllm:inter_token_latency_seconds_count{{model_name="m"}} {counters.itl_count}
vllm:time_to_first_token_seconds_sum{{model_name="m"}} {first_seconds}
vllm:time_to_first_token_seconds_count{{model_name="m"}} {firsts}
vllm:request_success_total{{model_name="m",finished_reason="length"}} {finished}
"""


class PacedReplica:
    """One replica on its own port, which remains reserved while its process is dead."""

    def __init__(self, name: str, speed: float, curve: CostModel) -> None:
        self.name = name
        self.port = 0
        self.connections: set[ReplicaConnection] = set()
        self.wedged = False
        self.silent = False
        """Whether `/metrics` returns 503."""
        self.error_rate = 0.0
        """Share of requests, from 0 to 1 and spread evenly, that immediately get a 500 response."""
        self._owed_errors = 0.0
        self._engine = Engine(speed, curve=curve)
        self._factor = 1.0
        self._held = False
        self._fresh: deque[ConnectedRequest] = deque()
        self._server: asyncio.Server | None = None
        self._reserved: socket.socket | None = None
        self._first_seconds = 0.0
        self._buckets = [0] * (len(_BUCKETS) + 1)
        self._finished = 0

    async def start(self) -> None:
        """Listen on the replica's port. If the replica has no port yet, the system assigns a free one."""
        if self._reserved is None:
            self._reserved = reserve()
            self.port = port_of(self._reserved)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), sock=reserve(self.port))

    async def stop(self) -> None:
        """Stop listening and abort all connections, like a process that dies."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self.connections):
            connection.close()
        await asyncio.sleep(0)

    async def close(self) -> None:
        """Stop the replica and release the port."""
        await self.stop()
        if self._reserved is not None:
            self._reserved.close()

    @property
    def alive(self) -> bool:
        """Whether the replica is listening."""
        return self._server is not None

    @property
    def running(self) -> int:
        """Number of requests in the current batch."""
        return self._engine.counters.running

    @property
    def waiting(self) -> int:
        """Number of requests in the queue."""
        return self._engine.counters.waiting

    @property
    def cache(self) -> float:
        """Used share of the KV cache, from 0 to 1."""
        return min(1.0, self._engine.context / cache_tokens(self._engine.speed, self._engine.curve))

    def throttle(self, factor: float) -> None:
        """Multiply the configured speed, from the next iteration on. The cache size does not change."""
        self._engine.curve = _slower(self._engine.curve, self._factor / factor)
        self._factor = factor

    def wedge(self, wedged: bool) -> None:
        """Stop or resume the engine's iterations while it has requests.

        The port, `/health` and `/metrics` continue to respond.
        """
        self.wedged = wedged
        if not wedged and self._held:
            self._held = False
            self._begin(time.monotonic())

    def page(self) -> bytes:
        """Return the text of `/metrics`."""
        firsts, running, counters = sum(self._buckets), 0, self._engine.counters
        lines = []
        for bound, count in zip((*_BUCKETS, "+Inf"), self._buckets, strict=True):
            running += count
            lines.append(f'vllm:time_to_first_token_seconds_bucket{{model_name="m",le="{bound}"}} {running}\n')
        page = _PAGE.format(
            counters=counters, cache=self.cache, first_seconds=self._first_seconds, firsts=firsts,
            finished=self._finished, prompt_tokens=counters.prefill_tokens + counters.cached_tokens,
        )  # fmt: skip
        return (page + "".join(lines)).encode()

    def add(self, connection: ReplicaConnection, prompt: int, answer: int) -> ConnectedRequest:
        """Queue a request from this connection."""
        request = ConnectedRequest(time.monotonic(), max(1, prompt), max(1, answer), connection=connection)
        self._fresh.append(request)
        self._engine.add(request)
        if not self._engine.busy and not self._held:
            self._begin(request.arrived)
        return request

    def refuses(self) -> bool:
        """Return whether the next request gets an error response."""
        self._owed_errors += self.error_rate
        refused = self._owed_errors >= 1
        self._owed_errors -= refused
        return refused

    def _begin(self, now: float) -> None:
        if self.wedged and self.running:
            self._held = True
            return
        end = self._engine.begin(now)
        if end is not None:
            asyncio.get_running_loop().call_at(end, self._end, end)

    def _end(self, now: float) -> None:
        """End an iteration at the planned time. A delayed event loop does not slow the engine down."""
        done = self._engine.end(now)
        while self._fresh and (self._fresh[0].first is not None or self._fresh[0].left):
            request = self._fresh.popleft()
            if request.first is not None:
                self._first_seconds += request.first - request.arrived
                self._buckets[bisect_left(_BUCKETS, request.first - request.arrived)] += 1
            request.connection.first()
        for finished in done:
            assert isinstance(finished, ConnectedRequest)
            self._finished += 1
            finished.connection.last()
        self._begin(now)


class ReplicaConnection(asyncio.Protocol, ABC):
    """A connection from a proxy, which handles one request at a time."""

    def __init__(self, replica: PacedReplica) -> None:
        self._replica = replica
        self._transport: asyncio.Transport | None = None
        self._request: ConnectedRequest | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection with the replica, which aborts it when the replica dies."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._replica.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        """Drop the connection and cancel its request. If the request is still queued, it is not run."""
        del error
        self._replica.connections.discard(self)
        if self._request is not None:
            self._request.left = True

    def close(self) -> None:
        """Abort the connection."""
        if self._transport is not None:
            self._transport.abort()

    @abstractmethod
    def first(self) -> None:
        """Send the first token."""

    @abstractmethod
    def last(self) -> None:
        """Send the last token."""

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)


class _Connection(ReplicaConnection):
    """A connection whose requests specify their token counts in the path."""

    def __init__(self, replica: PacedReplica) -> None:
        super().__init__(replica)
        self._name = replica.name.encode()
        self._read = b""

    def data_received(self, data: bytes) -> None:
        self._read += data
        if not self._read.endswith(b"\r\n\r\n"):
            return
        line, self._read = self._read.partition(b"\r\n")[0], b""
        tokens = _TOKENS.search(line)
        if tokens and self._replica.refuses():
            self._respond(b"500 Internal Server Error", b"error")
        elif tokens:
            self._request = self._replica.add(self, int(tokens[1]), int(tokens[2]))
        elif b" /metrics" in line:
            self._respond(b"503 Service Unavailable" if self._replica.silent else b"200 OK", self._replica.page())
        else:
            self._respond(b"200 OK", b"ok")

    def first(self) -> None:
        self._write(b"HTTP/1.1 200 OK\r\nx-replica: " + self._name + b"\r\ncontent-length: 2\r\n\r\na")

    def last(self) -> None:
        self._write(b"b")

    def _respond(self, status: bytes, body: bytes) -> None:
        head = b"HTTP/1.1 %b\r\nx-replica: %b\r\ncontent-type: text/plain\r\n" % (status, self._name)
        self._write(head + b"content-length: %d\r\n\r\n" % len(body) + body)


@dataclass(slots=True, kw_only=True)
class ConnectedRequest(SimulatedRequest):
    """A request that arrived on a connection."""

    connection: ReplicaConnection
    """The request's connection."""


def _slower(curve: CostModel, factor: float) -> CostModel:
    return CostModel(
        curve.a * factor, curve.b * factor, curve.c * factor, curve.p * factor, curve.sequences, curve.cache
    )  # fmt: skip
