"""Running a program: its time and output are bounded, and its children end with it."""

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


async def with_longest_pause(work: Awaitable[T]) -> tuple[T, float]:
    """Return the result, and the longest pause of the event loop in the meantime, in seconds."""
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


@pytest.mark.slow
def test_large_output_costs_little_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    script = "echo first words; head -c 600000000 /dev/zero; echo; echo last words; exit 3"
    begun = time.monotonic()
    result, pause = asyncio.run(with_longest_pause(run(["sh", "-c", script], 120)))
    assert (result.code, result.last_line) == (3, "last words")
    assert result.output.startswith("first words")
    assert len(result.output) < 3 * KEPT
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024
    assert pause < (time.monotonic() - begun) / 2, "the event loop stood still"


@pytest.mark.slow
def test_timeout_kills_the_program_and_its_child(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    begun = time.monotonic()
    result = asyncio.run(run(["sh", "-c", f"sleep 60 & echo $! > {file}; wait"], 3))
    assert result == Done(None, "it did not end within 3 s")
    assert time.monotonic() - begun < 50
    child = int(file.read_text())
    deadline = time.monotonic() + 30
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(child)


def is_running(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_daemon_that_keeps_the_output_open_survives(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    begun = time.monotonic()
    result = asyncio.run(run(["sh", "-c", f"sleep 60 & echo $! > {file}; echo started"], 40))
    assert result == Done(0, "started\n")
    assert time.monotonic() - begun < 50
    child = int(file.read_text())
    assert is_running(child)
    os.kill(child, 9)


def test_cancelled_run_kills_its_program(tmp_path: Path) -> None:
    file = tmp_path / "pid"

    async def script() -> None:
        task = asyncio.create_task(run(["sh", "-c", f"echo $$ > {file}; sleep 60; true"], 60))
        while not (file.exists() and file.read_text()):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(script())
    assert not is_running(int(file.read_text()))


@pytest.mark.parametrize(
    ("command", "code", "words", "last_line"),
    [
        (["/nowhere"], None, "the command cannot be started: No such file or directory", None),
        (["sh", "-c", "exit 2"], 2, "exit code 2: no output", "exit code 2"),
        (["sh", "-c", "echo a; echo b >&2; exit 1"], 1, "exit code 1: a / b", "b"),
        (["sh", "-c", "printf '\\377'; exit 1"], 1, "exit code 1: \ufffd", "\ufffd"),
        (["sh", "-c", "yes x | head -c 90000 | tr -d '\\n'; exit 1"], 1, f"exit code 1: {'x' * 500}", "x" * 500),
    ],
)
def test_output_of_a_failed_program_is_its_message(
    command: list[str], code: int | None, words: str, last_line: str
) -> None:
    result = run_blocking(command, 10)
    assert (result.code, result.message, result.last_line) == (code, words, last_line or words)


def test_reload_log_is_read_in_pieces_for_emergencies(tmp_path: Path) -> None:
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
