"""Makes the C library return freed memory to the system.

By default, it keeps freed blocks of up to 32 MiB for each of gRPC's threads. A client that leaves messages incomplete
could then cause hundreds of megabytes to remain allocated.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

_MMAP_THRESHOLD = -3
"""`M_MMAP_THRESHOLD` of malloc.h."""
_LARGE = 512 << 10
"""Minimum size, in bytes, of blocks that are allocated directly from the system and returned to it."""


def return_large_pieces() -> None:
    """Return large blocks as soon as they are freed, if the C library supports this."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE)


def trim() -> None:
    """Return small free blocks now, if the C library supports this. This takes milliseconds."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
