"""The picker as a child process: start, restart, and end with its parent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from lbctl.ir.address import Address
from lbctl.picker import wire
from lbctl.serve.picker.child import PickerChild, PickerEndedError
from lbctl.serve.picker.feed import Feed
from lbctl.serve.picker.ports import PickerPorts
from lbctl.serve.picker.tables import FleetMeasurements
from tests.support.processes.picker import frozen
from tests.support.processes.ports import HOST, free_pair, release

AS_IN_A_CONTAINER = "import os; os.getppid = lambda: 1\n"
"""The parent is the first process of a container."""
START = "from lbctl.picker.__main__ import main\nraise SystemExit(main())"


@contextmanager
def _started(parent: int, before: str = "") -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """Start a picker that expects the parent process `parent`; yield it and the link to it."""
    port = free_pair()
    release()
    ours, theirs = socket.socketpair()
    with ours, theirs, closing(PickerPorts(Address(HOST, port))) as ports:
        ours.settimeout(30)
        inherited = theirs.fileno(), ports.datagrams.fileno()
        command = [sys.executable, "-c", before + START, *map(str, (*inherited, parent))]
        process = subprocess.Popen(command, pass_fds=inherited, stderr=subprocess.DEVNULL)
        theirs.close()
        try:
            ours.sendall(wire.line("settings", id="x", bind=[HOST, port], tls=None))
            yield process, ours
        finally:
            ours.close()
            process.wait(60)


def test_picker_starts_if_its_parent_is_process_1() -> None:
    with _started(1, AS_IN_A_CONTAINER) as (_, link), link.makefile("rb") as lines:
        assert json.loads(lines.readline())["kind"] == "report"


def test_picker_ends_if_its_parent_has_ended() -> None:
    with _started(os.getpid() + 1) as (process, _):
        assert process.wait(60) == 0


@pytest.mark.parametrize("used_offset", [0, 1])
def test_port_in_use_is_reported_and_the_picker_restarts(used_offset: int) -> None:
    asyncio.run(_run_with_a_taken_port(used_offset))


async def _run_with_a_taken_port(used_offset: int) -> None:
    bind, reported = Address(HOST, free_pair()), asyncio.Event()
    child = PickerChild(Feed(lambda: FleetMeasurements(0.0)), lambda: (bind, None), lambda _: reported.set())
    release()
    with socket.create_server((HOST, bind.port + used_offset)), pytest.raises(PickerEndedError) as ended:
        await child.run()
    assert f"{HOST}:{bind.port + used_offset}" in str(ended.value)
    assert "cannot listen" in child.state.problem
    runs = asyncio.get_running_loop().create_task(child.run())
    async with asyncio.timeout(60):
        await reported.wait()
    assert (child.state.problem, child.state.starts) == ("", 1)
    runs.cancel()
    await asyncio.gather(runs, return_exceptions=True)
    child.close()


def test_picker_that_closes_its_connection_is_not_silent() -> None:
    """A picker that ends closes it first, and may need a moment for its open queries."""

    async def reason() -> str:
        child = PickerChild(Feed(lambda: FleetMeasurements(0.0)), lambda: None, lambda _: None)
        (reader := asyncio.StreamReader()).feed_eof()
        try:
            return await child._receive(reader)
        finally:
            child.close()

    assert asyncio.run(reason()) == "the picker has closed its connection to serve"


@pytest.mark.slow
def test_picker_that_starts_slowly_is_not_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbctl.serve.picker.child._SILENT", 0.5)
    asyncio.run(_start_slowly())


async def _start_slowly() -> None:
    bind, reported = Address(HOST, free_pair()), asyncio.Event()
    release()
    child = PickerChild(Feed(lambda: FleetMeasurements(0.0)), lambda: (bind, None), lambda _: reported.set())
    runs = asyncio.get_running_loop().create_task(child.run())
    async with asyncio.timeout(60):
        while child.state.pid is None:
            await asyncio.sleep(0)
        with frozen(child.state.pid):
            await asyncio.sleep(3)
        await reported.wait()
    assert child.state.starts == 1
    runs.cancel()
    await asyncio.gather(runs, return_exceptions=True)
    child.close()


@pytest.mark.slow
def test_picker_that_does_not_start_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbctl.serve.picker.child._START_TIMEOUT", 0.01)

    async def reason() -> str:
        child = PickerChild(Feed(lambda: FleetMeasurements(0.0)), lambda: None, lambda _: None)
        try:
            return await child._receive(asyncio.StreamReader())
        finally:
            child.close()

    assert asyncio.run(reason()) == "the picker has not started within 0.01 s"


@pytest.mark.slow
def test_killed_picker_is_reported_as_ended() -> None:
    asyncio.run(_kill_repeatedly())


async def _kill_repeatedly() -> None:
    bind, reported = Address(HOST, free_pair()), asyncio.Event()
    release()
    child = PickerChild(Feed(lambda: FleetMeasurements(0.0)), lambda: (bind, None), lambda _: reported.set())
    for _ in range(5):
        runs = asyncio.get_running_loop().create_task(child.run())
        async with asyncio.timeout(60):
            await reported.wait()
        assert child.state.pid is not None
        os.kill(child.state.pid, signal.SIGKILL)
        with pytest.raises(PickerEndedError, match="exited with code -9"):
            await runs
        reported.clear()
    child.close()


@pytest.mark.slow
def test_stall_of_the_parent_does_not_count_as_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lbctl.serve.picker.child._SILENT", 5)
    asyncio.run(_stall_the_parent())


async def _stall_the_parent() -> None:
    bind, reported = Address(HOST, free_pair()), asyncio.Event()
    release()
    child = PickerChild(Feed(lambda: FleetMeasurements(0.0)), lambda: (bind, None), lambda _: reported.set())
    runs = asyncio.get_running_loop().create_task(child.run())
    async with asyncio.timeout(60):
        await reported.wait()
        time.sleep(5.5)  # like a stopped process
        for _ in range(2):
            reported.clear()
            await reported.wait()
    assert (child.state.starts, runs.done()) == (1, False)
    runs.cancel()
    await asyncio.gather(runs, return_exceptions=True)
    child.close()
