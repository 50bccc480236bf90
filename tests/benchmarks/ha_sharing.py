"""`python -m tests.benchmarks.ha_sharing [PART…]`: measure members of a control plane that share a fleet and a real
Redis.

The parts are:
- `share`: two members and a thousand replicas: how many replicas each member scrapes, the load of the store, the age of
  samples at decisions, and the time until all replicas are scraped again after a member was killed.
- `decide`: the time from a decision to the clients of each member.
- `streams`: a hundred clients on three members, one of which is killed.
- `start`: a member with ten thousand replicas.

The replicas run in another process, which counts the requests of each connection. The output is rows of a Markdown
table; values beyond their limit are marked. All parts take about three minutes, and with `--short` about two.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from tests.benchmarks.xds_clients import Client, clients
from tests.support.fleets import Fleet
from tests.support.processes.fleet import bind
from tests.support.processes.members import MemberPlane, members
from tests.support.processes.ports import HOST
from tests.support.processes.waiting import eventually
from tests.support.stores import STORES, RedisServer, Server

ROOT = Path(__file__).resolve().parents[2]
_LEASE = 10.0
_TIMEOUT = 300.0
Ports = tuple[int, int]
"""Ports of the replica and of the client."""
_PAGE = """\
vllm:num_requests_running{model_name="m"} 3
vllm:num_requests_waiting{model_name="m"} 0
vllm:kv_cache_usage_perc{model_name="m"} 0.25
"""


# ── The replicas ─────────────────────────────────────────────────────────────────────────────────────────────────────


class _Replica(asyncio.Protocol):
    """One connection to a replica."""

    def __init__(self, number: int, requests: Counter[Ports], last: list[float]) -> None:
        self._number, self._requests, self._last = number, requests, last
        self._transport: asyncio.Transport | None = None
        self._ports = (0, 0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ports = transport.get_extra_info("sockname")[1], transport.get_extra_info("peername")[1]

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._requests[self._ports] += 1
        self._last[self._number] = time.monotonic()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len(_PAGE)}\r\n\r\n"
        self._transport.write((head + _PAGE).encode())


async def _serve(count: int) -> None:
    """Print the ports. Then, for each line of input, print the requests by their ports, and the oldest scrape time."""
    loop, requests, last = asyncio.get_running_loop(), Counter[Ports](), [0.0] * count
    servers = [
        await loop.create_server(lambda number=number: _Replica(number, requests, last), HOST, 0)  # type: ignore[misc]
        for number in range(count)
    ]
    print(" ".join(str(server.sockets[0].getsockname()[1]) for server in servers), flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps({"requests": list(requests.items()), "oldest": min(last)}), flush=True)


class Replicas:
    """The process of the replicas."""

    def __init__(self, process: subprocess.Popen[str], ports: list[int]) -> None:
        self._process, self.ports = process, ports

    def ask(self) -> tuple[Counter[Ports], float]:
        """Return the requests by the ports of their connection, and the time of the oldest last scrape."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        row = json.loads(self._process.stdout.readline())
        return Counter({tuple(ports): count for ports, count in row["requests"]}), float(row["oldest"])


@contextmanager
def _replicas(count: int) -> Iterator[Replicas]:
    command = [sys.executable, "-m", "tests.benchmarks.ha_sharing", "--serve", str(count)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield Replicas(process, [int(port) for port in process.stdout.readline().split()])
        process.communicate()


def _connections(plane: MemberPlane) -> set[Ports]:
    """Return the ports of the process's connections, as the replicas see them.

    Several connections may share a local port.
    """
    assert plane.control.process is not None
    directory = Path(f"/proc/{plane.control.process.pid}/fd")
    links = {str(item.readlink()) for item in directory.iterdir() if item.is_symlink()}
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return {(_port(row[2]), _port(row[1])) for row in rows if f"socket:[{row[9]}]" in links}


def _port(address: str) -> int:
    return int(address.split(":")[1], 16)


# ── The parts ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _fleet(ports: list[int], pools: int, interval: str = "") -> Fleet:
    telemetry = {"interval": interval, "sources": [{"kind": "vllm", "url": "http://{address}/metrics"}]}
    names = [f"pool-{number}" for number in range(pools)]
    return {
        "version": 1,
        "listeners": {"gateway": {"bind": bind()}},
        "routes": {name: {"match": {"path_prefix": f"/{name}/"}, "pool": name} for name in names},
        "pools": {
            name: {
                "replicas": [{"name": f"r{port}", "address": f"{HOST}:{port}"} for port in ports[number::pools]],
                **({"telemetry": telemetry} if interval else {}),
            }
            for number, name in enumerate(names)
        },
        "proxies": {"edge": {"kind": "envoy", "nodes": ["*"]}},
    }


def _writes(store: Server) -> int:
    """Return the number of writes of the store so far: entries, announcements (two keys each), renewals of the
    lease."""
    assert isinstance(store, RedisServer)
    text = store.call("INFO", "commandstats").decode()
    calls = {name: int(count) for name, count in re.findall(r"cmdstat_(\w+):calls=(\d+)", text)}
    entries = calls.get("publish", 0)
    return entries + calls.get("pexpireat", 0) // 2 + calls.get("pexpire", 0) + calls.get("set", 0)


def _share(store: Server, options: argparse.Namespace) -> Iterator[str]:
    interval = options.interval
    with _replicas(options.replicas) as replicas:
        fleet = _fleet(replicas.ports, options.replicas // 10, f"{interval:g}s")
        with members(fleet, f"redis://{HOST}:{store.port}/0", 2, lease=f"{_LEASE:g}s") as planes:
            leader, other = planes
            eventually(lambda: len(_ages(leader)) == options.replicas, _TIMEOUT, 0.5)
            time.sleep(2 * interval)
            before, writes, started = replicas.ask()[0], _writes(store), time.monotonic()
            time.sleep(10 if options.short else 30)
            took = time.monotonic() - started
            made = replicas.ask()[0] - before
            written = (_writes(store) - writes) / took
            by = [sum(made[ports] for ports in _connections(plane)) for plane in planes]
            total = made.total()
            due = options.replicas / interval
            yield _row(f"`share`: requests at {options.replicas:,} replicas", total / took, "/s", 1.1 * due)
            for name, count in zip(("the leader", "the other one"), by, strict=True):
                yield _row(f"… of two members by {name}", 100 * count / total, " %", 65)
            yield _row("… writes of the store", written, "/s", 20)
            ages = sorted(_ages(leader))
            yield _row("… age of samples where it is decided, p50", ages[len(ages) // 2], " s")
            yield _row("… age of samples where it is decided, most", ages[-1], " s")
            version = leader.version
            other.control.kill()
            killed = time.monotonic()
            eventually(lambda: replicas.ask()[1] > killed, _TIMEOUT, 0.05)
            yield _row("… the other one killed: all replicas scraped again after", time.monotonic() - killed, " s")
            other.control.start()
            eventually(lambda: leader.control.metric("lbctl_ha_owned_pools") < options.replicas // 10, 60)
            leader.control.kill()
            killed = time.monotonic()
            eventually(lambda: replicas.ask()[1] > killed, _TIMEOUT, 0.05)
            yield _row(f"… the leader (lease {_LEASE:g} s): scraped again after", time.monotonic() - killed, " s")
            yield _row("… changes of what is served", int(other.version != version), "", 0)


def _ages(plane: MemberPlane) -> list[float]:
    series = plane.control.metrics().items()
    return [value for name, value in series if name.startswith("lbctl_sample_age_seconds{")]


def _decide(store: Server, options: argparse.Namespace) -> Iterator[str]:
    with members(_fleet(list(range(10_001, 11_001)), 100), f"redis://{HOST}:{store.port}/0", 3) as planes:
        found = asyncio.run(_decisions(planes, 100 if options.short else 300))
        for plane, took in zip(planes, zip(*found, strict=True), strict=True):
            each = sorted(took)
            yield _row(f"`decide`: to the client of {plane.name}, p50", each[len(each) // 2] * 1000, " ms")
            yield _row(f"… p99 of {len(each)}", each[int(len(each) * 0.99)] * 1000, " ms", 200)


async def _decisions(planes: tuple[MemberPlane, ...], count: int) -> list[list[float]]:
    """Return, for each decision, the seconds until the client of each member had received it."""
    crowd = [Client("edge") for _ in planes]
    for client, plane in zip(crowd, planes, strict=True):
        client.connect(f"{HOST}:{plane.control.xds}")
    wanted = [(_EDS, "pool-7")]
    await asyncio.gather(*(client.has(wanted) for client in crowd))
    found = []
    for number in range(count):
        body = {"kind": "weight", "pool": "pool-7", "replica": "r10008", "value": 2 + number % 7}
        started = time.monotonic()
        waiting = [asyncio.ensure_future(client.has(wanted, started)) for client in crowd]
        answer = await asyncio.to_thread(planes[0].write, "POST", "overrides", body)
        assert answer.ok, answer.text
        async with asyncio.timeout(30):
            found.append([await each - started for each in waiting])
        await asyncio.sleep(0.3)
    await asyncio.gather(*(client.disconnect() for client in crowd))
    return found


_EDS = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"


def _streams(store: Server, options: argparse.Namespace) -> Iterator[str]:
    with members(_fleet(list(range(10_001, 10_101)), 10), f"redis://{HOST}:{store.port}/0", 3) as planes:
        yield from asyncio.run(_reconnected(planes, options.clients))


async def _reconnected(planes: tuple[MemberPlane, ...], count: int) -> list[str]:
    crowd, targets = clients(count), [f"{HOST}:{plane.control.xds}" for plane in planes]
    ends = asyncio.Event()
    tasks = [asyncio.create_task(_stay(client, targets, at, ends)) for at, client in zip(cycle(range(3)), crowd)]
    alive = planes[1:]
    await _until(lambda: sum(_streams_of(plane) for plane in planes) == count)
    await _until(lambda: all(len(client.versions.get(_EDS, ())) == 10 for client in crowd))
    sent = sum(plane.control.metric("lbctl_xds_pushed_resources_total") for plane in alive)
    planes[0].control.kill()
    killed = time.monotonic()
    await _until(lambda: sum(_streams_of(plane) for plane in alive) == count)
    took = time.monotonic() - killed
    await asyncio.sleep(2)
    again = sum(plane.control.metric("lbctl_xds_pushed_resources_total") for plane in alive) - sent
    ends.set()
    await asyncio.gather(*tasks)
    return [
        _row(f"`streams`: {count} clients on three members, one killed: all are back after", took, " s", 5),
        _row("… resources sent again", again, "", 0),
    ]


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(_TIMEOUT):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.05)


def _streams_of(plane: MemberPlane) -> float:
    return plane.control.metric("lbctl_xds_streams")


async def _stay(client: Client, targets: list[str], first: int, ends: asyncio.Event) -> None:
    """Keep a stream open. When it ends, connect to the next member after a tenth of a second, as an Envoy does."""
    for target in islice(cycle(targets), first, None):
        client.connect(target)
        ended = asyncio.ensure_future(ends.wait())
        while not ended.done():
            moved = asyncio.ensure_future(client.moved())
            await asyncio.wait((moved, ended), return_when=asyncio.FIRST_COMPLETED)
            if moved.done() and moved.exception() is not None:
                break
            moved.cancel()
        await client.disconnect()
        if ended.done():
            return
        ended.cancel()
        await asyncio.sleep(0.1)


def _start(store: Server, options: argparse.Namespace) -> Iterator[str]:
    fleet: dict[str, Any] = _fleet(list(range(10_001, 20_001)), 100)
    with members(fleet, f"redis://{HOST}:{store.port}/0", 2, start=False) as planes:
        for plane in planes:
            started = time.monotonic()
            plane.control.start()
            took = time.monotonic() - started
            assert plane.control.process is not None
            used = Path(f"/proc/{plane.control.process.pid}/stat").read_text().rpartition(")")[2].split()
            processor = (int(used[11]) + int(used[12])) / os.sysconf("SC_CLK_TCK")
            name = f"`start`: {plane.name}, 10,000 replicas ({processor:.1f} s of processor): ready after"
            yield _row(name, took, " s", 4)


def _row(what: str, measured: float, unit: str, limit: float | None = None) -> str:
    """Return one row. `limit` is the maximum for the measured value."""
    missed = " MISSED" if limit is not None and measured > limit else ""
    return f"| {what} | {measured:.3g}{unit}{missed} | {'' if limit is None else f'{limit:g}{unit}'} |"


PARTS: dict[str, Callable[[Server, argparse.Namespace], Iterator[str]]] = {
    "share": _share, "decide": _decide, "streams": _streams, "start": _start,
}  # fmt: skip


def main() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 65_536), most))
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.ha_sharing")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []])
    parser.add_argument("--short", action="store_true", help="a third of the time of share, a third of the decisions")
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--interval", type=float, default=2.0)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(_serve(options.serve))
        return
    print("| what | measured | limit |\n|---|---|---|", flush=True)
    store = STORES["redis"]()
    store.start()
    try:
        for name in options.parts or PARTS:
            for line in PARTS[name](store, options):
                print(line, flush=True)
    finally:
        store.close()


if __name__ == "__main__":
    main()
