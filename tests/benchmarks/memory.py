"""The resident memory of a process, in MB, from /proc.

`getrusage` is unsuitable for a peak: a new process inherits the peak of the process that started it.
"""

from __future__ import annotations

from pathlib import Path


def resident(pid: int | str = "self") -> float:
    """Return the current resident memory in MB. Raises FileNotFoundError if the process has ended."""
    return _megabytes(pid, "VmRSS")


def most_resident(pid: int | str = "self") -> float:
    """Return the peak resident memory in MB. Raises FileNotFoundError if the process has ended."""
    return _megabytes(pid, "VmHWM")


def _megabytes(pid: int | str, name: str) -> float:
    text = Path(f"/proc/{pid}/status").read_text().partition(f"{name}:")[2]
    return int(text.split()[0]) / 1024
