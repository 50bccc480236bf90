"""The picker fails under 200 requests a second through a real Envoy: `python -m tests.benchmarks.pick_failures`.

Twenty times each: killed, stopped (SIGSTOP) and continued, and in place of the picker a server that for half a second
says nothing, answers late, ends every stream with an error, names a replica that nobody knows, or answers what is no
message, and that names no replica in the other half. A row has the failed requests, the added latency in each state,
and the shares of the old policy. `pick_by_http` is the same for HAProxy and nginx.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import grpc
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest

from lbctl.serve.picker.ext_proc import ProcessorStream, _chosen
from lbctl.serve.picker.question import Caller
from lbctl.serve.picker.service import PickService
from tests.support.processes.client import Load
from tests.support.processes.control import ControlPlane, XdsEnvoy, controlling, driven
from tests.support.processes.fleet import entry, fleet_of
from tests.support.processes.http1 import Request
from tests.support.processes.picker import await_picker, frozen, pid_of
from tests.support.processes.ports import HOST, free_pair, release
from tests.support.processes.replicas import replicas

RATE, TIMES = 200, int(sys.argv[1]) if len(sys.argv) > 1 else 20
_REQUEST = Request("POST", "/v1/completions", {"x-session-id": "s1"}, b'{"prompt": "hello"}')
_HALF = 0.5
_Process = Callable[[AsyncIterator[bytes], Any], AsyncIterator[bytes]]
_PROCESSOR = "envoy.service.ext_proc.v3.ExternalProcessor"


def report(name: str, load: Load, calm: float) -> None:
    """Print a row about these requests; `calm`: the median of a request while the picker works, in seconds."""
    seconds = sorted(item.seconds for item in load.responses)
    added = [(seconds[min(len(seconds) - 1, len(seconds) * part // 1000)] - calm) * 1e3 for part in (500, 990, 1000)]
    shares = " ".join(f"{replica} {share:.2f}" for replica, share in load.shares().items())
    print(
        f"{name:<44} {len(load.responses):6} requests  {len(load.failures)} failed  "
        f"added p50 {added[0]:6.1f}  p99 {added[1]:6.1f}  max {added[2]:6.1f} ms  {shares}",
        flush=True,
    )


def stretch(envoy: XdsEnvoy, name: str, calm: float, during: Callable[[], None]) -> None:
    """Run a load for as long as `during` runs, and print its row."""
    with envoy.client().steady(RATE, _REQUEST) as load:
        during()
    report(name, load.load, calm)


class Behaviour:
    """How an impostor answers streams: as `process` says while it is broken, else without naming a replica."""

    def __init__(self, process: _Process) -> None:
        self._process = process
        self.broken = False

    async def answer(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Answer a stream."""
        process = self._process if self.broken else modest
        async for message in process(requests, context):
            yield message

    def break_often(self) -> None:
        """Be broken for half a second, again and again."""
        for _ in range(TIMES):
            self.broken = True
            time.sleep(_HALF)
            self.broken = False
            time.sleep(_HALF)


@contextmanager
def impostor(port: int, process: _Process) -> Iterator[None]:
    """A gRPC server in the picker's place, whose health is good and which answers streams with `process`."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def check(_request: bytes, _context: Any) -> bytes:
        return b"\x08\x01"

    async def start() -> grpc.aio.Server:
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        health = {"Check": grpc.unary_unary_rpc_method_handler(check)}
        stream = {"Process": grpc.stream_stream_rpc_method_handler(process)}
        server.add_generic_rpc_handlers([
            grpc.method_handlers_generic_handler("grpc.health.v1.Health", health),
            grpc.method_handlers_generic_handler(_PROCESSOR, stream),
        ])  # fmt: skip
        server.add_insecure_port(f"{HOST}:{port}")
        await server.start()
        return server

    server = asyncio.run_coroutine_threadsafe(start(), loop).result(20)
    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(0.1), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)


async def modest(requests: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
    """Answer as a picker without tables."""
    stream = ProcessorStream(PickService(), Caller("pool"))
    async for request in requests:
        for answer in stream.receive(ProcessingRequest.FromString(request)):
            yield answer


async def silent(_requests: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
    """Say nothing."""
    await asyncio.sleep(30)
    yield b""


async def failing(_requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    """End each stream with an error."""
    await context.abort(grpc.StatusCode.INTERNAL, "broken")
    yield b""


async def slow(requests: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
    """Answer after 150 ms, within the time that Envoy waits."""
    async for _ in requests:
        await asyncio.sleep(0.15)
        yield _chosen("request_headers", "10.255.255.1:9")


async def unknown(requests: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
    """Name a replica that no cluster has."""
    async for _ in requests:
        yield _chosen("request_headers", "10.255.255.1:9,127.0.0.1:1")


async def nonsense(requests: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
    """Answer what is no message of the protocol."""
    async for _ in requests:
        yield b"\xff\x00nonsense"


@contextmanager
def served(port: int) -> Iterator[tuple[ControlPlane, XdsEnvoy]]:
    """A control plane and an Envoy before three replicas, whose picker is at this port."""
    with replicas("a", "b", "c") as three:
        pool = {
            "replicas": [entry(item) for item in three],
            "balance": {"algorithm": "pick", "pick": {"otherwise": "round_robin"}},
        }
        fleet = fleet_of(pool, **driven("edge"), control={"picker": {"bind": f"{HOST}:{port}"}})
        with controlling(fleet) as control, control.envoy("edge", ["edge"]) as envoy:
            await_picker(envoy)
            yield control, envoy


def real(port: int) -> float:
    """Print the rows about the real picker, and return the median while it works."""
    with served(port) as (control, envoy):
        with envoy.client().steady(RATE, _REQUEST) as load:
            time.sleep(3.0)
        seconds = sorted(item.seconds for item in load.load.responses)
        calm = seconds[len(seconds) // 2]
        report(f"it works (median {calm * 1e3:.1f} ms)", load.load, calm)
        stretch(envoy, f"stopped for 2 s, {TIMES} times", calm, lambda: stop_often(control))
        await_picker(envoy)
        with frozen(pid_of(control)):
            await_picker(envoy, fit=False)
            stretch(envoy, "stopped, once the health check has seen it", calm, lambda: time.sleep(3.0))
        await_picker(envoy)
        stretch(envoy, f"killed, {TIMES} times", calm, lambda: kill_often(control))
        return calm


def kill_often(control: ControlPlane) -> None:
    """Kill whichever picker runs, again and again; its restarts come later and later."""
    for _ in range(TIMES):
        with suppress(AssertionError, ProcessLookupError):
            os.kill(pid_of(control), signal.SIGKILL)
        time.sleep(1.0)


def stop_often(control: ControlPlane) -> None:
    """Stop the picker for 2 s, again and again."""
    for _ in range(TIMES):
        with frozen(pid_of(control)):
            time.sleep(2.0)
        time.sleep(0.7)


def main() -> None:
    """Print every row."""
    port = free_pair()
    calm = real(port)
    for name, process in (
        ("it says nothing", silent),
        ("it answers after 150 ms", slow),
        ("it ends each stream with an error", failing),
        ("it names a replica that nobody knows", unknown),
        ("it answers what is no message", nonsense),
    ):
        behaviour = Behaviour(process)
        with impostor(port, behaviour.answer), served(port) as (_, envoy):
            stretch(envoy, f"{name}, {TIMES} times", calm, behaviour.break_often)
    release()


if __name__ == "__main__":
    main()
