"""Creates API keys and appends them to key files that only their owner can read."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat

_BYTES = 32
"""Number of random bytes in a key."""
HASH = "sha256:"
"""Prefix of a key-file line that contains a key's hash instead of the key."""


def new_key() -> str:
    """Return a random API key."""
    return f"sk-{secrets.token_urlsafe(_BYTES)}"


def key_line(key: str, tenant: str, *, plain: bool) -> str:
    """Return the key-file line for a key. It contains the key itself if `plain` is true, and its hash otherwise."""
    return f"{key if plain else f'{HASH}{hashlib.sha256(key.encode()).hexdigest()}'}: {tenant}\n"


def append_line(file: str, line: str) -> None:
    """Append a line to a key file in a single write. A new file is created with mode 0600. Raises OSError."""
    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "r+b", buffering=0) as opened:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is not a regular file")
        ended = not status.st_size or os.pread(handle, 1, status.st_size - 1) == b"\n"
        opened.write(("" if ended else "\n").encode() + line.encode())
