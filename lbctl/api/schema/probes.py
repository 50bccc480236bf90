"""Probes and errors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Probe:
    """The answer to a probe of the process."""

    status: str
    """`ok`, or why the process is not ready."""


@dataclass(frozen=True, slots=True)
class Error:
    """Every answer with a status of 400 or above, except that of `/readyz`."""

    error: str
    """What is wrong, for people."""
