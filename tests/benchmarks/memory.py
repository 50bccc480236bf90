"""The resident memory of a process, in MB, from /proc.

`getrusage` is of no use for a most: a new process has that of the one that started it.
"""

from __future__ import annotations

from pathlib import Path


def resident(pid: int | str = "self") -> float:
    """MB that the process has now. Raises FileNotFoundError where it has ended."""
    return _megabytes(pid, "VmRSS")


def most_resident(pid: int | str = "self") -> float:
    """The most MB that it ever had. Raises FileNotFoundError where it has ended."""
    return _megabytes(pid, "VmHWM")


def _megabytes(pid: int | str, name: str) -> float:
    text = Path(f"/proc/{pid}/status").read_text().partition(f"{name}:")[2]
    return int(text.split()[0]) / 1024
