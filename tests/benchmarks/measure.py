"""Measure a whole process: the time from its start to its end, and its peak memory."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """`seconds`: duration of each run; `memory`: the largest peak resident size of all runs, in MB."""

    seconds: tuple[float, ...]
    memory: float

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


class FailedError(Exception):
    """The command ended with an exit code other than 0."""


def measure(arguments: Sequence[str], runs: int) -> Cost:
    """Run `lbctl` with these arguments `runs` times, after a warm-up run."""
    _once(arguments)
    each = [_once(arguments) for _ in range(runs)]
    return Cost(tuple(seconds for seconds, _ in each), max(memory for _, memory in each))


def _once(arguments: Sequence[str]) -> tuple[float, float]:
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "lbctl", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    words = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stderr.close()
    if process.returncode != 0:
        raise FailedError(f"lbctl {' '.join(arguments)}: exit code {process.returncode}\n{words.decode()[-2000:]}")
    return seconds, used.ru_maxrss / 1024
