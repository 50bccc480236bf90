"""A program of `up` whose output can no longer be read or shown ends `up`; nothing runs on without its log."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lbctl.up.child import CannotShowError, Child


def _run_until_it_ends(log: Path, error: Exception | None, script: str) -> tuple[int, list[str]]:
    """The exit code and the lines of a shell script; each shown line raises `error`."""
    lines: list[str] = []

    def show(_name: str, line: str) -> None:
        lines.append(line)
        if error is not None:
            raise error

    async def run() -> int:
        child = Child("nginx", ["/bin/sh", "-c", script], log, show)
        await child.start()
        try:
            async with asyncio.timeout(30):
                return await child.ended()
        finally:
            await child.end(5.0)

    return asyncio.run(run()), lines


def test_its_lines_and_its_code(tmp_path: Path) -> None:
    assert _run_until_it_ends(tmp_path / "log", None, "echo one; echo two; exit 3") == (3, ["one", "two"])


def test_a_log_that_cannot_be_read_is_said_with_the_name_of_the_program(tmp_path: Path) -> None:
    with pytest.raises(CannotShowError, match="output of nginx can no longer be shown: No space left on device"):
        _run_until_it_ends(tmp_path / "log", OSError(28, "No space left on device"), "echo one; exec sleep 60")


def test_an_error_of_ours_is_raised(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a bug"):
        _run_until_it_ends(tmp_path / "log", ValueError("a bug"), "echo one; exec sleep 60")
