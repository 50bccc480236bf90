"""A separate process with an xDS server: the floor or lbctl.

It reads orders as lines of JSON, and answers each with its cost.

`python -m tests.benchmarks.xds_server floor|lbctl FLEET [--tls CERTIFICATE KEY] [--profile FILE]`
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import grpc

from lbctl.ir.address import Address
from lbctl.ir.proxies import ServerTls
from lbctl.ir.snapshot import Snapshot
from lbctl.ir.weight import Weight, from_capacity
from lbctl.serve.fleet.reload import FleetReloader
from lbctl.targets.load import Loaded
from tests.benchmarks.memory import most_resident
from tests.benchmarks.xds_floor import Floor


class Subject(Protocol):
    """A measured server. `push`: send new weights for all replicas of these pools to every stream."""

    async def start(self, tls: ServerTls | None) -> int: ...

    def push(self, pools: Sequence[str], weight: int) -> None: ...

    def reload(self, loaded: Loaded) -> None: ...

    async def stop(self) -> None: ...


class FloorSubject:
    def __init__(self, loaded: Loaded) -> None:
        self._floor = Floor(loaded.compiled.topology)

    async def start(self, tls: ServerTls | None) -> int:
        pairs = tls and [(Path(tls.key).read_bytes(), Path(tls.certificate).read_bytes())]
        return await self._floor.start(grpc.ssl_server_credentials(pairs) if pairs else None)

    def push(self, pools: Sequence[str], weight: int) -> None:
        self._floor.push(pools, weight)

    def reload(self, loaded: Loaded) -> None:
        raise NotImplementedError

    async def stop(self) -> None:
        await self._floor.stop()


class LbctlSubject:
    """lbctl after a weight in the snapshot has changed: the snapshot is built, checked and published."""

    def __init__(self, loaded: Loaded) -> None:
        from lbctl.xds.build.snapshot_cache import Builder

        self._loaded = loaded
        self._snapshot = Snapshot(loaded.compiled.topology, secrets=loaded.secrets)
        self._builder = Builder()
        self._server: Any = None

    async def start(self, tls: ServerTls | None) -> int:
        from lbctl.xds.protocol.node_status import NodeStatus
        from lbctl.xds.protocol.server import Limits, XdsServer

        limits = Limits(host_streams=1_000_000, first_messages=10_000)
        self._server = XdsServer(NodeStatus(), _Unobserved(), bind=Address("127.0.0.1", 0), tls=tls, limits=limits)
        port: int = await self._server.start()
        self._server.publish(self._builder.build(self._loaded, self._snapshot))
        return port

    def push(self, pools: Sequence[str], weight: int) -> None:
        wanted = set(pools)
        weights: dict[str, Mapping[str, Weight]] = {
            pool.name: {item.name: from_capacity(weight + number) for number, item in enumerate(pool.replicas)}
            for pool in self._loaded.compiled.topology.pools
            if pool.name in wanted
        }
        self._snapshot = replace(self._snapshot, weights={**self._snapshot.weights, **weights})
        self._server.publish(self._builder.build(self._loaded, self._snapshot))

    def reload(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._snapshot = replace(self._snapshot, topology=loaded.compiled.topology, secrets=loaded.secrets)
        self._server.publish(self._builder.build(self._loaded, self._snapshot))

    async def stop(self) -> None:
        await self._server.stop(0.1)


class _Unobserved:
    def __getattr__(self, _: str) -> Any:
        return lambda *_: None


async def serve(
    subject: Subject, files: FleetReloader, tls: ServerTls | None, profile: cProfile.Profile | None
) -> None:
    """Execute the orders of standard input until it ends."""
    _say(port=await subject.start(tls))
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        order = json.loads(line)
        if order["do"] == "push":
            if profile:
                profile.enable()
            cpu, started = time.process_time(), time.monotonic()
            subject.push(order["pools"], order["weight"])
            _say(cpu=cpu, started=started, pushed=time.monotonic() - started)
        elif order["do"] == "reload":
            cpu = time.process_time()
            loaded = _read(files)
            read, started = time.process_time() - cpu, time.monotonic()
            subject.reload(loaded)
            _say(took=time.monotonic() - started, read=read)
        else:
            if profile:
                profile.disable()
            _say(cpu=time.process_time(), peak=most_resident())
    await subject.stop()


def _read(files: FleetReloader) -> Loaded:
    """Load the current files of the fleet, which then become the running fleet."""
    outcome = files.load()
    assert outcome.loaded is not None, outcome.diagnostics
    files.accept(outcome)
    return outcome.loaded


def _say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("subject", choices=("floor", "lbctl"))
    parser.add_argument("fleet")
    parser.add_argument("--tls", nargs=2, metavar=("CERTIFICATE", "KEY"))
    parser.add_argument("--profile")
    options = parser.parse_args()
    gc.set_threshold(100_000, 50)  # as in lbctl.cli
    files = FleetReloader([options.fleet])
    loaded = _read(files)
    subject = FloorSubject(loaded) if options.subject == "floor" else LbctlSubject(loaded)
    profile = cProfile.Profile() if options.profile else None
    asyncio.run(serve(subject, files, ServerTls(*options.tls) if options.tls else None, profile))
    if profile:
        profile.dump_stats(options.profile)


if __name__ == "__main__":
    main()
