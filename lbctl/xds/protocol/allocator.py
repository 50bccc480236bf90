"""Has the C library return memory that is freed to the system.

By default it keeps pieces of up to 32 MiB after the first that was freed, for each of gRPC's threads. A client whose
messages end without having come completely would so leave hundreds of megabytes behind.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

_MMAP_THRESHOLD = -3
"""`M_MMAP_THRESHOLD` of malloc.h."""
_LARGE = 512 << 10
"""Bytes from which on a piece is taken from the system, and returned to it."""


def return_large_pieces() -> None:
    """Have large pieces returned as soon as they are freed, where the C library can do that."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE)


def trim() -> None:
    """Return small pieces that are free now, where the C library can do that. It takes milliseconds."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
