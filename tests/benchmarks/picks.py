"""What a pick costs: `python -m tests.benchmarks.picks`.

The picker runs in a process of its own, with a table of 200 replicas; its CPU is that of its process, from /proc. It is
asked by gRPC as a gateway asks (a stream for each request, until its end) and by HTTP as the proxies ask, one request
after the other on eight connections. Another one is asked about 100,000 prompts, for the memory that it then has. At
last a real Envoy answers 100 requests a second with and without the picker.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

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
from tests.support.processes.control import controlling, driven
from tests.support.processes.fleet import fleet_of, pool_of
from tests.support.processes.http1 import Request
from tests.support.processes.picker import await_picker, picker_section
from tests.support.processes.ports import HOST, free_pair, release
from tests.support.processes.replicas import replicas

REPLICAS, CLIENTS, SECONDS, PROMPTS = 200, 8, 5.0, 100_000
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


async def measure(pid: int, name: str, ask: Callable[[int], Awaitable[None]]) -> None:
    """Ask for `SECONDS` with `CLIENTS` clients, and print what it cost."""
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
    print(
        f"{name:<36} {len(times) / SECONDS:8.0f} picks/s  {each * 1e3:6.3f} ms CPU/pick  {1 / each:8.0f} picks/s of a "
        f"core  p50 {times[len(times) // 2] * 1e3:.2f} ms  p99 {times[len(times) * 99 // 100] * 1e3:.2f} ms",
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
        return request.SerializeToString()

    async def ask(number: int, mode: int, prompt: bytes) -> None:
        method = channels[number % CLIENTS].stream_stream(_METHOD)
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
    """Ask as the proxies do; no end is reported, as where all reports are lost."""
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

    def envoy(number: int) -> bytes:
        data = body(number)
        head = "POST /envoy?path=/v1/completions HTTP/1.1\r\nx-lbctl-pool: chat\r\nx-lbctl-proxy: edge\r\n"
        return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data

    await measure(pid, "HTTP, Envoy, body of 8 KiB", lambda number: ask(number, envoy(number)))
    await measure(pid, "HTTP, session in a header", lambda number: ask(number, get(number)))
    await measure(pid, "HTTP, body of 8 KiB", lambda number: ask(number, post(number)))
    for _, writer in streams:
        writer.close()


async def remembered(port: int, pid: int) -> None:
    """Print the resident memory before and after so many prompts of 8 KiB; the end of each request is reported."""
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


def through_envoy() -> None:
    """Print what the picker adds to a request through a real Envoy."""
    prompt = body(1, 4 << 10)
    request = Request("POST", "/v1/completions", {"content-type": "application/json"}, prompt)
    for name, balance in (
        ("without the picker", {"algorithm": "least_request"}),
        ("with the picker", {"algorithm": "pick"}),
    ):
        with replicas("a", "b", "c") as three:
            fleet = fleet_of(pool_of(three, balance=balance), **driven("edge"), **picker_section())
            with controlling(fleet) as control, control.envoy("edge", ["edge"], by_socket=True) as envoy:
                if balance["algorithm"] == "pick":
                    await_picker(envoy)
                with envoy.client().steady(100, request) as load:
                    time.sleep(SECONDS * 2)
                load.load.assert_no_failure()
                ordered = sorted(item.seconds for item in load.load.responses)
                p50, p99 = ordered[len(ordered) // 2] * 1e3, ordered[len(ordered) * 99 // 100] * 1e3
                print(f"Envoy, 100 requests/s, {name:<22} p50 {p50:.2f} ms  p99 {p99:.2f} ms", flush=True)


def main() -> None:
    """Print every row."""
    with picker() as (port, pid):
        asyncio.run(by_grpc(port, pid))
        asyncio.run(by_http(port, pid))
    with picker() as (port, pid):
        asyncio.run(remembered(port, pid))
    through_envoy()


if __name__ == "__main__":
    main()
