"""`python -m tests.benchmarks.pick_memory [PROXY…]`: how many sessions keep their replica when a picker restarts.

10,000 sessions send requests through a real proxy to four replicas. Then the picker is killed, `serve` is killed, or
`serve` is restarted. From this moment on, each session sends another request, in a random order. A row has:
- the time until the new picker is ready,
- the share of all requests that went to their session's replica; until the picker is ready, requests use `otherwise`,
- the same share, from one second after the picker is ready.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import requests

from tests.support.processes.client import Client
from tests.support.processes.control import ControlPlane
from tests.support.processes.fleet import pool_of
from tests.support.processes.picker import KINDS, PICK, picked, pid_of
from tests.support.processes.ports import HOST
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually

SESSIONS = 10_000
_CONNECTIONS = 16
_RATE = 500.0
"""Requests per second."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A request of a session."""

    at: float
    """When it was sent, on the monotonic clock."""
    replica: str


def send(port: int, sessions: Sequence[int]) -> dict[int, Sent]:
    """Send a request of each session through the proxy at this port. Return session → its request."""
    return asyncio.run(_send(port, sessions))


async def _send(port: int, sessions: Sequence[int]) -> dict[int, Sent]:
    sent: dict[int, Sent] = {}
    waiting, began = iter(enumerate(sessions)), time.monotonic()

    async def client() -> None:
        reader, writer = await asyncio.open_connection(HOST, port)
        for number, session in waiting:
            await asyncio.sleep(began + number / _RATE - time.monotonic())
            at = time.monotonic()
            writer.write(f"GET /v1/models HTTP/1.1\r\nhost: a\r\nx-session-id: session-{session}\r\n\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r")[0]))
            sent[session] = Sent(at, head.partition(b"x-replica: ")[2].partition(b"\r")[0].decode())
        writer.close()

    await asyncio.gather(*(client() for _ in range(_CONNECTIONS)))
    return sent


def kill_picker(control: ControlPlane) -> None:
    os.kill(pid_of(control), signal.SIGKILL)


def kill_serve(control: ControlPlane) -> None:
    control.kill()
    control.start()


def restart_serve(control: ControlPlane) -> None:
    control.stop()
    control.start()


EVENTS: Mapping[str, Callable[[ControlPlane], None]] = {
    "picker killed": kill_picker,
    "serve killed": kill_serve,
    "serve restarted": restart_serve,
}


@contextmanager
def _watched(port: int) -> Iterator[list[float]]:
    """Yield a list of the times at which the picker at this port becomes ready."""
    ready: list[float] = []
    ends, was = threading.Event(), True

    def watch() -> None:
        nonlocal was
        while not ends.wait(0.01):
            try:
                now = requests.get(f"http://{HOST}:{port + 1}/ready", timeout=1).status_code == 200
            except requests.RequestException:
                now = False
            if now and not was:
                ready.append(time.monotonic())
            was = now

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield ready
    finally:
        ends.set()
        thread.join()


def _row(kind: str, name: str, control: ControlPlane, client: Client, picker: int, before: Mapping[int, Sent]) -> str:
    sessions = random.sample(range(SESSIONS), SESSIONS)
    with _watched(picker) as ready:
        began = time.monotonic()
        event = threading.Thread(target=EVENTS[name], args=(control,))
        event.start()
        after = send(client.port, sessions)
        event.join()
    since = ready[0]
    kept = [(item.at, item.replica == before[session].replica) for session, item in after.items()]
    later = [same for at, same in kept if at >= since + 1]
    every = sum(same for _, same in kept) / len(kept)
    return (
        f"| {kind} | {name} | {since - began:.1f} s | {every:.1%} | {sum(later) / len(later):.2%} of {len(later):,} |"
    )


def main() -> None:
    """Print a row for each proxy and event."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.pick_memory")
    parser.add_argument("proxies", nargs="*", default=KINDS, metavar="PROXY")
    options = parser.parse_args()
    print("| proxy | event | picker ready after | all requests | from a second later |\n|---|---|---|---|---|")
    for kind in options.proxies:
        with replicas("a", "b", "c", "d") as pool, picked(kind, pool_of(pool, balance=PICK)) as (control, client):
            bind = control.status["picker"]["listens"]
            picker = int(bind.rpartition(":")[2])
            before = send(client.port, range(SESSIONS))
            for name in EVENTS:
                eventually(lambda: control.status["picker"]["running"])
                time.sleep(1)
                print(_row(kind, name, control, client, picker, before), flush=True)
                before = send(client.port, range(SESSIONS))


if __name__ == "__main__":
    main()
