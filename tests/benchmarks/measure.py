"""What a whole process costs: seconds from its start to its end, and the most memory that it held."""

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
    """`seconds` of each run; `memory`: the peak resident size in MB, of the run that took most."""

    seconds: tuple[float, ...]
    memory: float

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


class FailedError(Exception):
    """The command ended with another exit code than 0."""


def measure(arguments: Sequence[str], runs: int) -> Cost:
    """`lbctl` with these arguments, so many times, after one run that counts for nothing."""
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
