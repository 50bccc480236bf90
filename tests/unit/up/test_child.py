"""A program of `up` ends if its output can no longer be read or shown: no program runs without its log."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lbctl.up.child import CannotShowError, Child


def _run_until_it_ends(log: Path, error: Exception | None, script: str) -> tuple[int, list[str]]:
    """Run a shell script. Return its exit code and its lines. Showing a line raises `error`."""
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


def test_lines_and_exit_code_of_the_program_are_returned(tmp_path: Path) -> None:
    assert _run_until_it_ends(tmp_path / "log", None, "echo one; echo two; exit 3") == (3, ["one", "two"])


def test_entries_of_the_access_log_are_not_shown(tmp_path: Path) -> None:
    entries = ['{"ts":"1","request_id":null,"listener":"l"}', '{"bytes_in":0,"listener":"l","request_id":"a","ts":"1"}']
    script = f"echo '{entries[0]}'; echo a replica is down; echo '{entries[1]}'; echo '{{}}'"
    assert _run_until_it_ends(tmp_path / "log", None, script) == (0, ["a replica is down", "{}"])


def test_output_that_cannot_be_shown_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CannotShowError, match="output of nginx can no longer be shown: No space left on device"):
        _run_until_it_ends(tmp_path / "log", OSError(28, "No space left on device"), "echo one; exec sleep 60")


def test_other_errors_are_raised(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a bug"):
        _run_until_it_ends(tmp_path / "log", ValueError("a bug"), "echo one; exec sleep 60")
