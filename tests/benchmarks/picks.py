"""The cost of a pick: `python -m tests.benchmarks.picks [-k PART] [--seconds N]`.

- `protocols`: the picker runs in a separate process, with a table of 200 replicas; its processor time is from /proc. It
  gets queries by gRPC as a gateway sends them (a stream for each request, until its end), by HTTP as Envoy and nginx
  send them, and by SPOP as HAProxy does: one after the other on each of eight connections.
- `memory`: another picker gets queries about 100,000 prompts.
- `proxies`: a real Envoy, HAProxy and nginx respond to requests with and without the picker (`pick_through_proxies`).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import subprocess
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest

from lbctl.ir.address import Address
from lbctl.ir.pools import PickPolicy, SessionKey
from lbctl.pick.table import Candidate, PoolTable
from lbctl.picker import wire
from lbctl.picker.launch import command, environment
from lbctl.serve.picker.ports import PickerPorts
from tests.benchmarks.memory import resident
from tests.benchmarks.pick_in_process import body
from tests.benchmarks.pick_through_proxies import LOAD_SECONDS, through_proxies
from tests.support import spop
from tests.support.processes.ports import HOST, free_pair, release

REPLICAS, CLIENTS, SECONDS, PROMPTS = 200, 8, 5.0, 100_000
_SESSION_GOAL, _BODY_GOAL = 6_000, 3_500
"""Picks a second of a core."""
_POLICY = PickPolicy((SessionKey(header="x-session-id"),))
_METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
_TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def picker(replica_count: int = REPLICAS) -> Iterator[tuple[int, int]]:
    """A picker with one pool; its port and its process id."""
    port = free_pair()
    ours, theirs = socket.socketpair()
    candidates = tuple(
        Candidate(f"r{number}", f"10.0.{number // 250}.{number % 250}:80") for number in range(replica_count)
    )
    with ours, theirs, closing(PickerPorts(Address(HOST, port))) as ports:
        fds, env = (theirs.fileno(), ports.datagrams.fileno()), environment()
        process = subprocess.Popen(command(*fds), pass_fds=fds, env=env, stderr=subprocess.DEVNULL)
        theirs.close()
        ours.sendall(wire.line("settings", id="benchmark", bind=[HOST, port], tls=None))
        ours.sendall(wire.whole(PoolTable("chat", _POLICY, candidates), 0.0) + wire.line("ready"))
        try:
            _await(port + 1)
            _await(port)
            yield port, process.pid
        finally:
            ours.close()
            process.wait(10)
            release()


def _await(port: int) -> None:
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:
        try:
            socket.create_connection((HOST, port), 0.5).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise TimeoutError("the picker does not listen")


def cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


async def measure(pid: int, name: str, ask: Callable[[int], Awaitable[None]], goal: int | None = None) -> None:
    """Send queries for `SECONDS` with `CLIENTS` clients, and print their cost. `goal`: picks a second of a core."""
    times: list[float] = []
    end = time.perf_counter() + SECONDS

    async def client(number: int) -> None:
        while time.perf_counter() < end:
            started = time.perf_counter()
            await ask(number + CLIENTS * len(times))
            times.append(time.perf_counter() - started)

    before = cpu(pid)
    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    used = cpu(pid) - before
    times.sort()
    each = used / len(times)
    p50, p99 = times[len(times) // 2] * 1e3, times[len(times) * 99 // 100] * 1e3
    target = f" (>= {goal})" if goal else ""
    print(
        f"{name:<36} {len(times) / SECONDS:8.0f} picks/s  {each * 1e3:6.3f} ms CPU/pick  {1 / each:8.0f} picks/s of a "
        f"core{target:<10}  p50 {p50:.2f} ms  p99 {p99:.2f} ms",
        flush=True,
    )


async def by_grpc(port: int, pid: int) -> None:
    """Ask as a gateway does."""
    channels = [
        grpc.aio.insecure_channel(f"{HOST}:{port}", options=[("grpc.use_local_subchannel_pool", 1)])
        for _ in range(CLIENTS)
    ]

    def headers(number: int, mode: int, size: int) -> bytes:
        values = [
            {"key": ":path", "raw_value": b"/v1/chat/completions"},
            {"key": "content-length", "raw_value": str(size).encode()},
            *([{"key": "x-session-id", "raw_value": f"s{number % 1000}".encode()}] if not mode else []),
        ]
        request = ProcessingRequest(
            request_headers={"headers": {"headers": values}, "end_of_stream": False},
            protocol_config={"request_body_mode": mode},
        )
        data: bytes = request.SerializeToString()
        return data

    async def ask(number: int, mode: int, prompt: bytes) -> None:
        method: Any = channels[number % CLIENTS].stream_stream(_METHOD)
        call = method()
        await call.write(headers(number, mode, len(prompt)))
        await call.read()
        if mode:
            await call.write(
                ProcessingRequest(request_body={"body": prompt, "end_of_stream": True}).SerializeToString()
            )
            await call.read()
        await call.write(ProcessingRequest(response_headers={}).SerializeToString())
        await call.read()
        await call.done_writing()
        await call.read()

    await measure(pid, "gRPC, session in a header", lambda number: ask(number, 0, b"x" * 4000))
    await measure(pid, "gRPC, body of 8 KiB", lambda number: ask(number, 3, body(number)))
    for channel in channels:
        await channel.close()


async def by_http(port: int, pid: int) -> None:
    """Query as Envoy and nginx do. No end is reported, as if all reports were lost."""
    streams = [await asyncio.open_connection(HOST, port + 1) for _ in range(CLIENTS)]

    async def ask(number: int, request: bytes) -> None:
        reader, writer = streams[number % CLIENTS]
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r")[0]))

    def get(number: int) -> bytes:
        return (
            f"GET /pick/chat HTTP/1.1\r\nx-session-id: s{number % 1000}\r\nx-lbctl-body-length: 4000\r\n\r\n".encode()
        )

    def post(number: int) -> bytes:
        data = body(number)
        return f"POST /pick/chat HTTP/1.1\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data

    envoy = "POST /envoy?path=/v1/completions HTTP/1.1\r\nx-lbctl-pool: chat\r\nx-lbctl-proxy: edge\r\n"

    def envoy_session(number: int) -> bytes:
        return f"{envoy}x-session-id: s{number % 1000}\r\ncontent-length: 0\r\n\r\n".encode()

    def envoy_body(number: int) -> bytes:
        data = body(number)
        return f"{envoy}content-length: {len(data)}\r\n\r\n".encode() + data

    for name, request, goal in (
        ("HTTP, session in a header", get, _SESSION_GOAL),
        ("HTTP, body of 8 KiB", post, _BODY_GOAL),
        ("HTTP, Envoy, session in a header", envoy_session, _SESSION_GOAL),
        ("HTTP, Envoy, body of 8 KiB", envoy_body, _BODY_GOAL),
    ):
        await measure(pid, name, lambda number, make=request: ask(number, make(number)), goal)  # type: ignore[misc]
    for _, writer in streams:
        writer.close()


async def by_spop(port: int, pid: int) -> None:
    """Query as HAProxy does. No end is reported, as if all reports were lost."""
    streams = [await asyncio.open_connection(HOST, port + 1) for _ in range(CLIENTS)]

    async def exchange(number: int, frame: bytes) -> bytes:
        reader, writer = streams[number % CLIENTS]
        writer.write(frame)
        return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))

    async def ask(number: int, *more: tuple[str, bytes]) -> None:
        fields = {"proxy": "edge", "target": "/pick/chat", "id": str(uuid.uuid4()), "length": "4000"}
        frame = spop.notify([*((name, spop.string(value)) for name, value in fields.items()), *more], stream=number)
        assert spop.replica_of(await exchange(number, frame))

    async def with_session(number: int) -> None:
        session = spop.string(f"s{number % 1000}")
        await ask(number, ("headers", spop.string("x-session-id")), ("value", session))

    async def with_body(number: int) -> None:
        await ask(number, ("body", spop.string(body(number))))

    for number in range(CLIENTS):
        await exchange(number, spop.hello())
    await measure(pid, "SPOP, session in a header", with_session, _SESSION_GOAL)
    await measure(pid, "SPOP, body of 8 KiB", with_body, _BODY_GOAL)
    for _, writer in streams:
        writer.close()


async def remembered(port: int, pid: int) -> None:
    """Print the resident memory before and after this number of prompts of 8 KiB.

    The end of each request is reported.
    """
    before = resident(pid)
    ends = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    ends.connect((HOST, port + 1))

    async def client(first: int) -> None:
        reader, writer = await asyncio.open_connection(HOST, port + 1)
        for number in range(first, PROMPTS, CLIENTS):
            data = body(number)
            writer.write(f"POST /pick/chat HTTP/1.1\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
            head = await reader.readuntil(b"\r\n\r\n")
            name = head.partition(b"x-lbctl-pick-id: ")[2].partition(b"\r")[0]
            ends.send(b'<190>Nov 23 19:00:00 lbctl: {"pick":"%s"}' % name)
        writer.close()

    with ends:
        await asyncio.gather(*map(client, range(CLIENTS)))
    print(f"{PROMPTS:,} prompts of 8 KiB: {resident(pid):.0f} MB, {before:.0f} before", flush=True)


def protocols() -> None:
    """Print a row for each way to query the picker."""
    with picker() as (port, pid):
        for ask in (by_grpc, by_http, by_spop):
            asyncio.run(ask(port, pid))


def memory() -> None:
    """Print the memory of the picker before and after many prompts."""
    with picker() as (port, pid):
        asyncio.run(remembered(port, pid))


def main() -> None:
    """Print the parts."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.picks")
    parser.add_argument("-k", default="", metavar="PART", help="protocols, memory or proxies; default: all")
    parser.add_argument("--seconds", type=int, default=LOAD_SECONDS, help="seconds of load through each proxy")
    options = parser.parse_args()
    parts: dict[str, Callable[[], None]] = {
        "protocols": protocols, "memory": memory, "proxies": lambda: through_proxies(options.seconds)
    }  # fmt: skip
    for name, part in parts.items():
        if options.k in name:
            part()


if __name__ == "__main__":
    main()
