"""Simulated vLLM servers with OpenAI's API: `python -m tests.benchmarks.peers.engines GROUPS SEQUENCES SPEED …`.

Each is an engine of `lbctl.simulate` with a prefix cache that runs in real time, with at most SEQUENCES requests in its
batch. Its answer is an event stream with one event for the first token, one for every 16 iterations after that, and a
last one. It publishes KV-cache events, and renders prompts.

GROUPS sets of engines are started, and the ports of each engine (HTTP, events) are printed as a JSON list of lists.
Then each line of standard input is a JSON list `[COMMAND, engine number, …]`, which is applied to that engine of every
group. `["counts"]` prints, for each group and engine, the number of requests, of their prompt tokens, and of the cached
ones among these.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from lbctl.apply.reserved_ports import port_of, reserve
from lbctl.demo.replica import ConnectedRequest, PacedReplica, ReplicaConnection
from lbctl.simulate.engine import CostModel, Engine, PrefixCache, SimulatedRequest, cache_tokens
from tests.benchmarks.descriptors import many_connections
from tests.benchmarks.peers import prompts
from tests.benchmarks.peers.kv_events import Publisher

SCALE = 2.0
"""Factor by which the engines are faster than their profile."""
CURVE = CostModel(29.8e-3 / SCALE, 0.202e-3 / SCALE, 1.78e-7 / SCALE, 0.0715e-3 / SCALE)
_EVERY = 16
_INFO = {"model_path": "m", "served_model_name": "m", "model_id": "m", "is_generation": True}
_MODELS = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "vllm", "max_model_len": 131072}]}
_PAGES = (b"/get_model_info", b"/model_info", b"/get_server_info", b"/server_info")
"""Paths that routers query before they start. Other paths are not found."""
_CACHE_LINES = (
    'vllm:prefix_cache_queries_total{{model_name="m"}} {}\nvllm:prefix_cache_hits_total{{model_name="m"}} {}\n'
)


class PublishingCache(PrefixCache):
    """A prefix cache that publishes which blocks it stores and removes."""

    def __init__(self, blocks: float, publisher: Publisher) -> None:
        super().__init__(blocks, prompts.BLOCK)
        self._publisher = publisher

    def use(self, request: SimulatedRequest) -> int:
        """Add the request's blocks to the cache. Return how many of its tokens were already there."""
        if not self._publisher.is_used:
            return super().use(request)
        stored = {block for block in request.blocks if block not in self._held}
        oldest = [*islice(self._held, len(request.blocks)), *stored]
        tokens = super().use(request)
        events = [*_stored(request.blocks, stored)]
        if removed := [block for block in oldest if block not in self._held]:
            events.append({"type": "BlockRemoved", "block_hashes": removed, "medium": "GPU"})
        if events:
            self._publisher.publish(events)
        return tokens

    def clear(self) -> None:
        """Publish that the cache is empty."""
        self._publisher.publish([{"type": "AllBlocksCleared"}])


def _stored(blocks: tuple[int, ...], fresh: set[int]) -> Iterator[dict[str, Any]]:
    """Yield an event for each fresh block."""
    for parent, block in zip((None, *blocks), blocks, strict=False):
        if block in fresh:
            yield {
                "type": "BlockStored", "block_hashes": [block], "parent_block_hash": parent,
                "token_ids": [prompts.token(block)] * prompts.BLOCK, "block_size": prompts.BLOCK, "lora_id": None,
                "lora_name": None, "medium": "GPU",
            }  # fmt: skip


class ChatReplica(PacedReplica):
    """A replica that accepts chat requests."""

    def __init__(self, name: str, speed: float, curve: CostModel = CURVE, publisher: Publisher | None = None) -> None:
        super().__init__(name, speed, curve)
        self.publisher = publisher or Publisher()
        self._cache = PublishingCache(cache_tokens(speed, curve) / prompts.BLOCK, self.publisher)
        self._engine = Engine(speed, curve=curve, prefix_cache=self._cache)
        self._talking: dict[int, _Connection] = {}
        self.counts = [0, 0, 0]
        self.is_draining = False
        """Whether `/health` returns 503."""

    async def start(self) -> None:
        """Listen on the port of the replica. Without one, the system assigns a port."""
        if self._reserved is None:
            self._reserved = reserve(self.port)
            self.port = port_of(self._reserved)
        if not self.publisher.port:
            await self.publisher.start()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), sock=reserve(self.port), backlog=1024)

    async def close(self) -> None:
        """Stop, and release the ports."""
        await super().close()
        self.publisher.close()

    async def successor(self, speed: float, curve: CostModel) -> ChatReplica:
        """Return a new process of this dead replica, with an empty cache and the same ports and counts."""
        fresh = ChatReplica(self.name, speed, curve, self.publisher)
        fresh.port, fresh._reserved, fresh.counts = self.port, self._reserved, self.counts
        fresh._cache.clear()
        await fresh.start()
        return fresh

    def chat(self, connection: _Connection, text: str, answer: int) -> ConnectedRequest:
        """Queue a chat request of this connection."""
        tokens, blocks = prompts.read(text)
        request = self.add(connection, tokens, answer)
        request.blocks = blocks
        self.counts[0] += 1
        self.counts[1] += request.prompt
        return request

    def add(self, connection: _Connection, prompt: int, answer: int) -> ConnectedRequest:
        """Queue a request. Its first iteration begins after its blocks are known."""
        loop = asyncio.get_running_loop()
        request = ConnectedRequest(loop.time(), prompt, max(1, answer), connection=connection)
        self._fresh.append(request)
        self._engine.add(request)
        if not self._engine.busy and not self._held:
            loop.call_soon(self._wake)
        return request

    def page(self) -> bytes:
        """Return the text of `/metrics`."""
        return super().page() + _CACHE_LINES.format(self.counts[1], self.counts[2]).encode()

    def began(self, request: ConnectedRequest) -> None:
        """Record a first token."""
        self.counts[2] += request.cached
        self._talking[id(request)] = request.connection

    def ended(self, request: ConnectedRequest) -> None:
        """Forget a request that is answered or whose client has left."""
        self._talking.pop(id(request), None)

    def _wake(self) -> None:
        if not self._engine.busy and not self._held:
            self._begin(asyncio.get_running_loop().time())

    def _end(self, now: float) -> None:
        super()._end(now)
        if int(self._engine.counters.iterations) % _EVERY == 0:
            for connection in self._talking.values():
                connection.more(_EVERY)


class _Connection(ReplicaConnection):
    """A connection with chat requests."""

    _replica: ChatReplica

    def __init__(self, replica: ChatReplica) -> None:
        super().__init__(replica)
        self._read = bytearray()

    def connection_lost(self, error: Exception | None) -> None:
        """Abandon the request, and count it as ended."""
        super().connection_lost(error)
        if self._request is not None:
            self._replica.ended(self._request)

    def data_received(self, data: bytes) -> None:
        self._read += data
        end = self._read.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._read[:end]).lower()
        body = _unframed(head, self._read, end + 4)
        if body is None:
            return
        self._read.clear()
        self._answer(head.split(b" ", 2)[1], body)

    def _answer(self, path: bytes, body: bytes) -> None:
        if path == b"/v1/chat/completions":
            asked = json.loads(body)
            text = "".join(_text(message["content"]) for message in asked["messages"])
            answer = asked.get("max_tokens") or asked.get("max_completion_tokens") or 16
            self._request = self._replica.chat(self, text, answer)
        elif path == b"/v1/chat/completions/render":
            self._respond(prompts.rendered("".join(_text(item["content"]) for item in json.loads(body)["messages"])))
        elif path == b"/health":
            self._respond(b"", status=b"503 Service Unavailable" if self._replica.is_draining else b"200 OK")
        elif path == b"/metrics":
            self._respond(self._replica.page(), b"text/plain")
        elif path == b"/v1/models":
            self._respond(json.dumps(_MODELS).encode())
        elif path in _PAGES:
            self._respond(json.dumps(_INFO).encode())
        else:
            self._respond(b"{}", status=b"404 Not Found")

    def _respond(self, body: bytes, kind: bytes = b"application/json", status: bytes = b"200 OK") -> None:
        self._write(
            b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (status, kind, len(body), body)
        )

    def first(self) -> None:
        """Send the head and the first token."""
        assert self._request is not None
        self._replica.began(self._request)
        self._write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            + _chunk(_event({"role": "assistant", "content": "a"}))
        )

    def more(self, tokens: int) -> None:
        """Send this number of tokens."""
        self._write(_chunk(_event({"content": " a" * tokens})))

    def last(self) -> None:
        """Send the last token."""
        assert self._request is not None
        self._replica.ended(self._request)
        self._request = None
        self._write(_chunk(_event({"content": " b"}, "stop") + b"data: [DONE]\n\n") + b"0\r\n\r\n")


def _text(content: object) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _unframed(head: bytes, data: bytearray, start: int) -> bytes | None:
    """Return the body of a request, or None while it is incomplete."""
    if b"transfer-encoding: chunked" in head:
        parts: deque[bytes] = deque()
        while (line := data.find(b"\r\n", start)) >= 0:
            size = int(data[start:line], 16)
            start = line + 2 + size + 2
            if len(data) < start:
                return None
            if not size:
                return b"".join(parts)
            parts.append(bytes(data[line + 2 : line + 2 + size]))
        return None
    _, marker, rest = head.partition(b"content-length:")
    length = int(rest.split(b"\r\n", 1)[0]) if marker else 0
    return bytes(data[start : start + length]) if len(data) >= start + length else None


def _event(delta: dict[str, str], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    whole = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(whole).encode() + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class _Groups:
    """All sets of engines."""

    def __init__(self, count: int, curve: CostModel, speeds: list[float]) -> None:
        self._curve, self._speeds = curve, speeds
        self._groups = [
            [ChatReplica(f"r{number}", speed, curve) for number, speed in enumerate(speeds)] for _ in range(count)
        ]

    async def start(self) -> None:
        """Start all engines, and print their ports."""
        await asyncio.gather(*(engine.start() for group in self._groups for engine in group))
        ports = [[(engine.port, engine.publisher.port) for engine in group] for group in self._groups]
        print(json.dumps(ports), flush=True)

    async def do(self, command: str, arguments: list[float]) -> None:
        """Apply a command."""
        if command == "counts":
            print(json.dumps([[engine.counts for engine in group] for group in self._groups]), flush=True)
            return
        number = int(arguments[0])
        for group in self._groups:
            match command:
                case "throttle":
                    group[number].throttle(arguments[1])
                case "wedge":
                    group[number].wedge(bool(arguments[1]))
                case "drain":
                    group[number].is_draining = True
                case "kill":
                    await group[number].stop()
                case "start":
                    group[number] = await group[number].successor(self._speeds[number], self._curve)


async def _serve(count: int, sequences: int, speeds: list[float]) -> None:
    groups = _Groups(count, replace(CURVE, sequences=sequences), speeds)
    await groups.start()
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        command, *arguments = json.loads(line)
        await groups.do(command, arguments)


if __name__ == "__main__":
    many_connections(20_000)
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2]), [float(each) for each in sys.argv[3:]]))
