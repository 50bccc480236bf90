"""A control plane with few file descriptors, and a client that holds connections to its API."""

from __future__ import annotations

import asyncio
import re
import resource
import socket
import time
from contextlib import ExitStack
from pathlib import Path

from lbctl.xds.resource import CDS
from tests.support.processes.control import ControlPlane, controlling
from tests.support.processes.fleet import fleet_of
from tests.support.processes.ports import HOST
from tests.support.processes.waiting import eventually
from tests.support.xds import connected

_HELD = 1100
_FLEET = fleet_of({"replicas": [{"name": "a", "address": "127.0.0.1:1"}]})


def _limits(control: ControlPlane) -> tuple[int, int]:
    assert control.process is not None
    text = Path(f"/proc/{control.process.pid}/limits").read_text()
    limits = re.search(r"Max open files +(\d+) +(\d+)", text)
    assert limits
    return int(limits[1]), int(limits[2])


def _limited(control: ControlPlane, soft: int, hard: int) -> None:
    """Start it under these limits."""
    assert control.process is not None
    resource.prlimit(control.process.pid, resource.RLIMIT_NOFILE, (soft, hard))


def test_soft_limit_is_raised_at_start() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = len(list(Path("/proc/self/fd").iterdir())) + 100  # the test process itself must continue under it
    assert low < min(before[1], 65_536)
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, before[1]))
    try:
        with controlling(_FLEET) as control:
            assert _limits(control)[0] == min(before[1], 65_536)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_idle_api_connections_block_neither_api_nor_xds() -> None:
    with controlling(_FLEET) as control, ExitStack() as stack:
        _limited(control, 1024, 1024)
        before = len(control.log)
        for _ in range(_HELD):
            held = stack.enter_context(socket.socket())
            held.connect((HOST, control.api))
        assert control.status["ready"]
        assert asyncio.run(_served(control.xds)) == ["pool"]
        assert len(control.log) - before < 5000


async def _served(port: int) -> list[str]:
    async with connected(port, "edge") as client:
        return await client.fetch(CDS)


def test_failed_accepts_are_logged_once() -> None:
    with controlling(_FLEET) as control, ExitStack() as stack:
        assert control.process is not None
        used = len(list(Path(f"/proc/{control.process.pid}/fd").iterdir()))
        _limited(control, used + 20, used + 20)
        for _ in range(100):
            held = stack.enter_context(socket.socket())
            held.connect((HOST, control.api))
        eventually(lambda: "cannot be accepted" in control.log)
        time.sleep(2.5)  # it retries every second
        assert control.log.count("cannot be accepted") == 1
        assert "system resource" not in control.log
        assert len(control.log) < 20_000
