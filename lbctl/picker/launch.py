"""The command line and the environment of the picker's process.

gRPC reads the environment when it is loaded. With its event engine, gRPC passes each read and write of a connection to
another thread. Without the engine, the thread that waits for events does this itself, which saves a tenth of the CPU
time of a pick.

The keys of the affinity memory are Python's hashes. Their seed is in the environment, too, so that a picker that starts
again can use the memory of the one before.
"""

from __future__ import annotations

import hashlib
import os
import sys
from typing import NoReturn

_DEFAULTS = {"GRPC_EXPERIMENTS": "-event_engine_listener"}


def environment(key: str = "") -> dict[str, str]:
    """Return the environment of this process, plus the variables that a picker needs.

    `key` is the key for queries, from which the seed of hashes is derived; empty: the seed is random.
    """
    seed = hashlib.blake2b(key.encode(), digest_size=4, person=b"picker-memory").digest()
    variables = {"PYTHONHASHSEED": str(int.from_bytes(seed, "big"))} if key else {}
    return {**_DEFAULTS, **os.environ, **variables}


def is_seeded_by(key: str) -> bool:
    """Return whether the hashes of this process have the seed of the key; empty: any seed is right."""
    return not key or os.environ.get("PYTHONHASHSEED") == environment(key)["PYTHONHASHSEED"]


def restart(key: str) -> NoReturn:
    """Replace this process by one with the same command line, and with the seed of the key."""
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment(key))


def command(link: int, datagrams: int) -> tuple[str, ...]:
    """Return the command line of a picker that is a child of this process and inherits these file descriptors."""
    return (sys.executable, "-m", "lbctl.picker", str(link), str(datagrams), str(os.getpid()))
