"""`python -m tests.benchmarks.pick_in_process [KIND …]`: measure the CPU time of a picker query without a network.

The bytes that a proxy sends go to the protocol object of a connection, whose responses are dropped, and then to the
reader of the datagram that reports the end of the request. A row therefore has the cost of the picker's code alone:
parsing, decision, response and end. The fastest of many short rounds counts, so that other work on the machine matters
little. For a comparison, alternate with another version of lbctl in PYTHONPATH.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from lbctl.ir.address import Address
from lbctl.ir.pools import PickPolicy, SessionKey
from lbctl.pick.table import Candidate, PoolTable
from lbctl.picker.admission import QuestionKey
from lbctl.picker.http_api import HttpApi, RequestEnds
from lbctl.picker.process import connections
from lbctl.picker.service import PickService

ROUNDS, QUESTIONS = 300, 40
_KEY = "k" * 43
_WORDS = "the picker names a replica for each request and the proxy carries it "
_HEAD = (
    "{method} HTTP/1.1\r\nHost: lb_picker\r\nContent-Length: {length}\r\nx-lbctl-proxy: edge\r\n"
    f"x-lbctl-pick-key: {_KEY}\r\nx-lbctl-body-length: {{length}}\r\n"
)
_ENVOY = "x-lbctl-pool: chat\r\nx-lbctl-region: eu\r\nx-lbctl-zone: a\r\nx-lbctl-regions: \r\nx-lbctl-busy: 1\r\n"


class _Connection(asyncio.Transport):
    """The transport of a connection whose peer reads everything. It keeps the newest answer."""

    answer = b""

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return the address of the peer."""
        return ("127.0.0.1", 1) if name == "peername" else default

    def write(self, data: Any) -> None:
        """Keep an answer."""
        self.answer = data


def body(number: int, size: int = 8 << 10) -> bytes:
    """Return a unique prompt that begins with one of a hundred common prefixes."""
    text = f"{number % 100} " * 500 + f"{number} " + _WORDS * (size // len(_WORDS) + 1)
    return json.dumps({"model": "m", "prompt": text[: size - 40]}).encode()


def chat(number: int, messages: int = 20, size: int = 8 << 10) -> bytes:
    """A conversation whose messages have the same length."""
    length = size // messages - 40
    turns = [f"{number} {turn} " + _WORDS * (length // len(_WORDS) + 1) for turn in range(messages)]
    roles = ("user", "assistant")
    document = [{"role": roles[turn % 2], "content": text[:length]} for turn, text in enumerate(turns)]
    return json.dumps({"model": "m", "messages": document}).encode()


def _session(number: int) -> str:
    return f"x-session-id: s{number % 1000}\r\n"


def _question(method: str, more: str, data: bytes) -> bytes:
    return f"{_HEAD.format(method=method, length=len(data))}{more}\r\n".encode() + data


KINDS: dict[str, Callable[[int], bytes]] = {
    "session": lambda number: _question("GET /pick/chat", _session(number), b""),
    "4-KiB": lambda number: _question("POST /pick/chat?regions=eu", _session(number), body(number, 4 << 10)),
    "8-KiB": lambda number: _question("POST /pick/chat?regions=eu", "", body(number)),
    "chat-8-KiB": lambda number: _question("POST /pick/chat", _session(number), chat(number)),
    "envoy-4-KiB": lambda number: _question(
        "POST /envoy?path=/v1/completions", _ENVOY + _session(number), body(number, 4 << 10)
    ),
}


def _service(replica_count: int) -> PickService:
    service = PickService()
    replicas = (
        Candidate(f"r{number:03}", f"10.0.{number // 250}.{number % 250}:80", region="eu")
        for number in range(replica_count)
    )
    service.set_table("chat", PoolTable("chat", PickPolicy((SessionKey(header="x-session-id"),)), tuple(replicas)))
    return service


async def measure(replica_count: int, kind: str, rounds: int = ROUNDS) -> float:
    """Return the seconds of CPU that a question and the end of its request take."""
    service, key = _service(replica_count), QuestionKey()
    key.set(_KEY)
    api = HttpApi(service, bytes, bind=Address("127.0.0.1", 18002), key=key)
    protocol, transport, ends = connections(api)(), _Connection(), RequestEnds(service)
    protocol.connection_made(transport)
    best = float("inf")
    for number in range(rounds):
        questions = [KINDS[kind](number * QUESTIONS + index) for index in range(QUESTIONS)]
        before = time.process_time()
        for question in questions:
            protocol.get_buffer(-1)[: len(question)] = question
            protocol.buffer_updated(len(question))
            pick = transport.answer.partition(b"x-lbctl-pick-id: ")[2].partition(b"\r")[0]
            ends.received(b'<190>Nov 23 19:00:00 lbctl: {"pick":"%s","left":"","status":200,"unreached":false}' % pick)
        best = min(best, (time.process_time() - before) / QUESTIONS)
        assert service.open_picks == 0
        await asyncio.sleep(0)  # as a server does: canceled timers go
    protocol.connection_lost(None)
    return best


def main() -> None:
    """Print a row for each kind of question."""
    for kind in sys.argv[1:] or KINDS:
        for replica_count in (3, 200):
            seconds = asyncio.run(measure(replica_count, kind))
            print(f"{kind:<12} {replica_count:4} replicas  {seconds * 1e6:7.1f} us CPU/question", flush=True)


if __name__ == "__main__":
    main()
