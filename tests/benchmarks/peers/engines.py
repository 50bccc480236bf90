"""Simulated vLLM servers with OpenAI's API: `python -m tests.benchmarks.peers.engines GROUPS SPEED …`.

Each is an engine of `lbctl.simulate` with a prefix cache that runs in real time. Its answer is an event stream with one
event for the first token, one for every 16 iterations after that, and a last one.

GROUPS sets of engines are started, and their ports are printed as a JSON list of lists. Then each line of standard
input is a JSON list `[COMMAND, engine number, …]`, which is applied to that engine of every group. `["counts"]` prints,
for each group and engine, the number of requests, of their prompt tokens, and of the cached ones among these.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque

from lbctl.demo.replica import HOST, ConnectedRequest, PacedReplica, ReplicaConnection
from lbctl.simulate.engine import CostModel, Engine, PrefixCache, cache_tokens
from tests.benchmarks.descriptors import many_connections
from tests.benchmarks.peers import prompts

SCALE = 2.0
"""Factor by which the engines are faster than their profile."""
CURVE = CostModel(29.8e-3 / SCALE, 0.202e-3 / SCALE, 1.78e-7 / SCALE, 0.0715e-3 / SCALE)
_EVERY = 16
_INFO = {"model_path": "m", "served_model_name": "m", "model_id": "m", "is_generation": True}
_MODELS = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "vllm", "max_model_len": 131072}]}
_PAGES = (b"/health", b"/get_model_info", b"/model_info", b"/get_server_info", b"/server_info")
"""Paths that routers query before they start. Other paths are not found, including the preparation of prompts
(`…/render`)."""
_CACHE_LINES = (
    'vllm:prefix_cache_queries_total{{model_name="m"}} {}\nvllm:prefix_cache_hits_total{{model_name="m"}} {}\n'
)


class ChatReplica(PacedReplica):
    """A replica that accepts chat requests."""

    def __init__(self, name: str, speed: float) -> None:
        super().__init__(name, speed, CURVE)
        blocks = cache_tokens(speed, CURVE) / prompts.BLOCK
        self._engine = Engine(speed, curve=CURVE, prefix_cache=PrefixCache(blocks, prompts.BLOCK))
        self._talking: dict[int, _Connection] = {}
        self.counts = [0, 0, 0]

    async def start(self) -> None:
        """Listen on the port of the replica. Without one, the system assigns a port."""
        self._server = await asyncio.get_running_loop().create_server(lambda: _Connection(self), HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

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


async def _do(groups: list[list[ChatReplica]], command: str, arguments: list[float]) -> None:
    if command == "counts":
        print(json.dumps([[engine.counts for engine in group] for group in groups]), flush=True)
        return
    for engine in (group[int(arguments[0])] for group in groups):
        match command:
            case "throttle":
                engine.throttle(arguments[1])
            case "wedge":
                engine.wedge(bool(arguments[1]))
            case "kill":
                await engine.stop()
            case "start":
                await engine.start()


async def _serve(count: int, speeds: list[float]) -> None:
    groups = [[ChatReplica(f"r{number}", speed) for number, speed in enumerate(speeds)] for _ in range(count)]
    await asyncio.gather(*(engine.start() for group in groups for engine in group))
    print(json.dumps([[engine.port for engine in group] for group in groups]), flush=True)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        command, *arguments = json.loads(line)
        await _do(groups, command, arguments)


if __name__ == "__main__":
    many_connections(20_000)
    asyncio.run(_serve(int(sys.argv[1]), [float(each) for each in sys.argv[2:]]))
