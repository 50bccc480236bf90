"""Has the C library return large pieces of memory that are freed to the system.

By default it keeps pieces of up to 32 MiB after the first that was freed, for each of gRPC's threads. A client whose
messages end without having come completely would so leave hundreds of megabytes behind.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

_MMAP_THRESHOLD = -3
"""`M_MMAP_THRESHOLD` of malloc.h."""
_LARGE = 64 << 10
"""Bytes from which on a piece is taken from the system, and returned to it."""


def return_large_pieces() -> None:
    """Set it for this process, where the C library has it."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE)
