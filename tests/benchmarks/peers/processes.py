"""The processor time of processes and all their children, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def seconds(roots: Iterable[int], without: Iterable[int] = ()) -> float:
    """Return the processor seconds of these processes and their children, including ended children.

    `without`: children that do not count.
    """
    left_out = set(without)
    return sum(_tree(pid, left_out) for pid in roots)


def _tree(pid: int, without: set[int]) -> float:
    if pid in without:
        return 0.0
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = " ".join(each.read_text() for each in Path(f"/proc/{pid}/task").glob("*/children"))
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS + sum(_tree(int(child), without) for child in children.split())
