"""The results of `make bench-peers`, as JSON lines.

The first line is the machine with the versions of all systems. Each other line is the result of one system in one case
with one seed. Lines are appended, so that a run that was stopped can be continued.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lbctl.base.percentiles import percentile_of


@dataclass(frozen=True, slots=True)
class Times:
    """Distribution of the times of all requests, in ms."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Times:
        """Return the distribution of at least one time."""
        p50, p90, p99 = (round(percentile_of(values, part), 1) for part in (50, 90, 99))
        return cls(round(sum(values) / len(values), 1), p50, p90, p99)


@dataclass(frozen=True, slots=True)
class Cost:
    """Processor time in ms per request, or memory in MiB (PSS).

    The data path is the proxy or router with its workers, and lbctl's picker. The control plane is `lbctl serve`
    without the picker.
    """

    data_path: float
    control: float


@dataclass(frozen=True, slots=True)
class Harness:
    """Load of the benchmark itself: busy fraction of all cores, and fractions of one core."""

    machine: float
    clients: float
    engines: float
    late_ms: float
    """Delay of the clients, 99th percentile."""


@dataclass(frozen=True, slots=True)
class Result:
    """One system in one case with one seed. Fractions are from 0 to 1."""

    case: str
    system: str
    seed: int
    requests: int
    failed: int
    reasons: Mapping[str, int]
    first: Times
    """Time to the first token."""
    whole: Times
    tokens_per_s: float
    """Generated tokens of all successful requests, including the flood of a tenant."""
    cached: float | None
    """Fraction of the prompt tokens that were in a cache. None if prompts share nothing."""
    share_error: float | None
    """Fraction of the requests that should have gone to another replica. None if no shares are right, as with caches
    and faults."""
    cpu: Cost
    memory: Cost
    harness: Harness


BySeed = Mapping[int, Result]


class Results:
    """All results of one machine."""

    def __init__(self, machine: Mapping[str, Any], results: Iterable[Result] = ()) -> None:
        self.machine = machine
        """Empty if nothing has been run yet."""
        self._results = {(each.case, each.system, each.seed): each for each in results}

    @classmethod
    def read(cls, path: Path) -> Results:
        """Return the results in a file. A file that does not exist has none."""
        rows = map(json.loads, path.read_text(encoding="utf-8").splitlines() if path.exists() else ())
        machine: dict[str, Any] = {}
        found = []
        for row in rows:
            if row.pop("kind") == "machine":
                machine = row
            else:
                found.append(_result(row))
        return cls(machine, found)

    def of(self, case: str, system: str) -> dict[int, Result]:
        """Return the results of a system by seed."""
        return {key[2]: each for key, each in sorted(self._results.items()) if key[:2] == (case, system)}


def append_machine(path: Path, machine: Mapping[str, Any]) -> None:
    """Write the first line of a file."""
    _append(path, {"kind": "machine", **machine})


def append_result(path: Path, result: Result) -> None:
    """Write a result."""
    _append(path, {"kind": "result", **dataclasses.asdict(result)})


def _append(path: Path, row: Mapping[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as stream:
        print(json.dumps(row, separators=(",", ":")), file=stream)


def _result(row: dict[str, Any]) -> Result:
    parts = {"first": Times, "whole": Times, "cpu": Cost, "memory": Cost, "harness": Harness}
    return Result(**{name: parts[name](**value) if name in parts else value for name, value in row.items()})
