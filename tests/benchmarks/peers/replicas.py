"""The process of the engines, as the runner uses it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lbctl.demo.replica import HOST
from tests.benchmarks.peers.engines import CURVE


@dataclass(frozen=True, slots=True)
class Member:
    """A replica: its speed relative to the profile, and the weight that its operator configured."""

    name: str
    port: int
    events: int
    """Port of its KV-cache events."""
    speed: float
    weight: int

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"


Counts = tuple[int, int, int]
"""Numbers of requests, of their prompt tokens, and of the cached ones among these."""


class Engines:
    """Sets of the same engines, one set for each system."""

    def __init__(self, process: subprocess.Popen[str], speeds: tuple[float, ...]) -> None:
        self.process = process
        self.groups = [
            [
                Member(f"r{number}", *ports, speeds[number], round(10 * speeds[number]))
                for number, ports in enumerate(group)
            ]
            for group in self._line()
        ]

    def do(self, command: str, engine: int, *more: float) -> None:
        """Apply `throttle`, `wedge`, `drain`, `kill` or `start` to this engine in every set."""
        self._send([command, engine, *more])

    def counts(self) -> list[list[Counts]]:
        """Return the counts of each engine of each set."""
        self._send(["counts"])
        return [[(each[0], each[1], each[2]) for each in group] for group in self._line()]

    def _send(self, command: list[object]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def _line(self) -> list[list]:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


@contextmanager
def engines(count: int, speeds: tuple[float, ...], sequences: int = CURVE.sequences) -> Iterator[Engines]:
    """Run this number of sets in a separate process. `sequences`: maximum number of requests in the batch of each."""
    command = [sys.executable, "-m", "tests.benchmarks.peers.engines", *map(str, (count, sequences, *speeds))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Engines(process, speeds)
    finally:
        process.terminate()
        process.wait(20)
