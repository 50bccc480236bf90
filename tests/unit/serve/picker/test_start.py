"""The picker as a child process: it serves its parent, whatever the parent's process id, and no other process."""

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
from contextlib import contextmanager

import pytest

from lbctl.ir.address import Address
from lbctl.serve.picker import wire
from lbctl.serve.picker.child import PickerChild, PickerEndedError
from lbctl.serve.picker.feed import Feed
from lbctl.serve.picker.tables import FleetMeasurements
from tests.support.processes.ports import HOST, free_pair, release

AS_IN_A_CONTAINER = "import os; os.getppid = lambda: 1\n"
"""The parent is the first process of a container."""
START = "from lbctl.serve.picker.__main__ import main\nraise SystemExit(main())"


@contextmanager
def _started(parent: int, before: str = "") -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """A picker whose parent should be `parent`, and the link to it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(30)
        command = [sys.executable, "-c", before + START, str(theirs.fileno()), str(parent)]
        process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stderr=subprocess.DEVNULL)
        theirs.close()
        try:
            ours.sendall(wire.line("settings", id="x", bind=[HOST, free_pair()], tls=None))
            yield process, ours
        finally:
            ours.close()
            process.wait(60)
            release()


def test_it_starts_where_its_parent_is_the_first_process_of_a_container() -> None:
    with _started(1, AS_IN_A_CONTAINER) as (_, link), link.makefile("rb") as lines:
        assert json.loads(lines.readline())["kind"] == "report"


def test_it_ends_at_once_where_its_parent_has_already_ended() -> None:
    with _started(os.getpid() + 1) as (process, _):
        assert process.wait(60) == 0


@pytest.mark.parametrize("taken", [0, 1])
def test_a_taken_port_is_the_reason_with_its_address_and_the_next_picker_runs(taken: int) -> None:
    asyncio.run(_with_a_taken_port(taken))


async def _with_a_taken_port(taken: int) -> None:
    bind, reported = Address(HOST, free_pair()), asyncio.Event()
    child = PickerChild(Feed(lambda: FleetMeasurements(0.0)), lambda: (bind, None), lambda _: reported.set())
    release()
    with socket.create_server((HOST, bind.port + taken)), pytest.raises(PickerEndedError) as ended:
        await child.run()
    assert f"{HOST}:{bind.port + taken}" in str(ended.value)
    assert "cannot listen" in child.state.problem
    runs = asyncio.get_running_loop().create_task(child.run())
    async with asyncio.timeout(60):
        await reported.wait()
    assert (child.state.problem, child.state.starts) == ("", 2)
    runs.cancel()
    await asyncio.gather(runs, return_exceptions=True)


def test_a_killed_picker_is_said_to_have_ended() -> None:
    asyncio.run(_killed_again_and_again())


async def _killed_again_and_again() -> None:
    bind, reported = Address(HOST, free_pair()), asyncio.Event()
    child = PickerChild(Feed(lambda: FleetMeasurements(0.0)), lambda: (bind, None), lambda _: reported.set())
    for _ in range(5):
        runs = asyncio.get_running_loop().create_task(child.run())
        async with asyncio.timeout(60):
            await reported.wait()
        assert child.state.pid is not None
        os.kill(child.state.pid, signal.SIGKILL)
        with pytest.raises(PickerEndedError, match="ended with code -9"):
            await runs
        reported.clear()
    release()


def test_a_picker_is_not_charged_with_the_time_in_which_serve_itself_stood_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lbctl.serve.picker.child._SILENT", 4.0)
    asyncio.run(_standing_still())


async def _standing_still() -> None:
    bind, reported = Address(HOST, free_pair()), asyncio.Event()
    child = PickerChild(Feed(lambda: FleetMeasurements(0.0)), lambda: (bind, None), lambda _: reported.set())
    runs = asyncio.get_running_loop().create_task(child.run())
    async with asyncio.timeout(60):
        await reported.wait()
        time.sleep(6.0)  # as a process that is stopped
        for _ in range(2):
            reported.clear()
            await reported.wait()
    assert (child.state.starts, runs.done()) == (1, False)
    runs.cancel()
    await asyncio.gather(runs, return_exceptions=True)
    release()
