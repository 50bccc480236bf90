"""Programs that are run: bounded in time and in bytes, with everything that they have started."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest

from lbctl.apply.command import KEPT, Done, run, run_blocking
from lbctl.apply.nginx.master import Log

T = TypeVar("T")


async def _with_pulse(work: Awaitable[T]) -> tuple[T, float]:
    """The result, and the longest pause of the event loop meanwhile, in seconds."""
    longest = 0.0

    async def beat() -> None:
        nonlocal longest
        while True:
            begun = time.monotonic()
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - begun - 0.01)

    pulse = asyncio.create_task(beat())
    try:
        return await work, longest
    finally:
        pulse.cancel()


def test_a_program_that_prints_without_end_costs_neither_memory_nor_the_event_loop() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    script = "echo first words; head -c 600000000 /dev/zero; echo; echo last words; exit 3"
    begun = time.monotonic()
    done, pause = asyncio.run(_with_pulse(run(["sh", "-c", script], 120)))
    assert (done.code, done.last_line) == (3, "last words")
    assert done.output.startswith("first words")
    assert len(done.output) < 3 * KEPT
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024
    assert pause < (time.monotonic() - begun) / 2, "the event loop stood still"


@pytest.mark.slow
def test_a_program_is_killed_with_the_child_that_it_waits_for(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    begun = time.monotonic()
    done = asyncio.run(run(["sh", "-c", f"sleep 60 & echo $! > {file}; wait"], 3))
    assert done == Done(None, "it did not end within 3 s")
    assert time.monotonic() - begun < 50
    child = int(file.read_text())
    deadline = time.monotonic() + 30
    while _runs(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(child)


def _runs(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_daemon_that_keeps_the_output_open_is_not_waited_for_and_lives_on(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    begun = time.monotonic()
    done = asyncio.run(run(["sh", "-c", f"sleep 60 & echo $! > {file}; echo started"], 40))
    assert done == Done(0, "started\n")
    assert time.monotonic() - begun < 50
    child = int(file.read_text())
    assert _runs(child)
    os.kill(child, 9)


def test_a_cancelled_run_kills_its_program(tmp_path: Path) -> None:
    file = tmp_path / "pid"

    async def script() -> None:
        task = asyncio.create_task(run(["sh", "-c", f"echo $$ > {file}; sleep 60; true"], 60))
        while not (file.exists() and file.read_text()):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(script())
    assert not _runs(int(file.read_text()))


@pytest.mark.parametrize(
    ("command", "code", "words", "last_line"),
    [
        (["/nowhere"], None, "it cannot be started: No such file or directory", None),
        (["sh", "-c", "exit 2"], 2, "exit code 2: it said nothing", "exit code 2"),
        (["sh", "-c", "echo a; echo b >&2; exit 1"], 1, "exit code 1: a / b", "b"),
        (["sh", "-c", "printf '\\377'; exit 1"], 1, "exit code 1: \ufffd", "\ufffd"),
        (["sh", "-c", "yes x | head -c 90000 | tr -d '\\n'; exit 1"], 1, f"exit code 1: {'x' * 500}", "x" * 500),
    ],
)
def test_what_a_program_said_is_a_message(command: list[str], code: int | None, words: str, last_line: str) -> None:
    done = run_blocking(command, 10)
    assert (done.code, done.message, done.last_line) == (code, words, last_line or words)


def test_the_log_of_a_reload_is_read_in_pieces_and_only_for_emergencies(tmp_path: Path) -> None:
    file = tmp_path / "error.log"
    file.write_bytes(b"[emerg] 1#1: of yesterday\n")
    log = Log(file)
    noise = b"[error] upstream timed out\n" * 100_000
    with file.open("ab") as stream:
        stream.write(noise + b"[emerg] 1#1: bind() failed\n" + noise)
    first = log.read()
    for _ in range(10):
        log.read()
    assert (first, log.read()) == ("", "[emerg] 1#1: bind() failed")
    with file.open("ab") as stream:
        stream.write(b"[emerg] 1#1: again " + b"x" * 100_000 + b"\n")
    assert len(log.read()) < 10_000
