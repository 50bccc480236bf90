"""Processor time and memory of processes and all their children, and of the machine, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_GONE = (FileNotFoundError, ProcessLookupError)


def seconds(roots: Iterable[int], without: Iterable[int] = ()) -> float:
    """Return the processor seconds of these processes and their children, including ended children.

    `without`: children that do not count.
    """
    return sum(_seconds(pid) for pid in _trees(roots, set(without)))


def memory(roots: Iterable[int], without: Iterable[int] = ()) -> float:
    """Return the proportional set size of these processes and their children in MiB."""
    return sum(_memory(pid) for pid in _trees(roots, set(without)))


def busy() -> float:
    """Return the seconds for which all cores together have been busy since the machine started."""
    fields = [int(field) for field in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return (sum(fields) - idle) / _TICKS


def _trees(roots: Iterable[int], without: set[int]) -> Iterator[int]:
    for pid in roots:
        if pid in without:
            continue
        yield pid
        try:
            children = " ".join(each.read_text() for each in Path(f"/proc/{pid}/task").glob("*/children"))
        except _GONE:
            continue
        yield from _trees(map(int, children.split()), without)


def _seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except _GONE:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS


def _memory(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except _GONE:
        return 0.0
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
