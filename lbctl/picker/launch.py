"""The command line and the environment of the picker's process.

gRPC reads the environment when it is loaded. With its event engine, gRPC passes each read and write of a connection to
another thread. Without the engine, the thread that waits for events does this itself, which saves a tenth of a pick's
CPU time.

The keys of the affinity memory are Python hashes. The seed of these hashes is also in the environment, so that a
restarted picker can use the previous picker's memory.
"""

from __future__ import annotations

import hashlib
import os
import sys

from lbctl.base.errors import reason_of
from lbctl.runtime import log

_RESTARTED = "LBCTL_PICKER_RESTARTED"
"""Variable that marks a process that has replaced an earlier one."""
_DEFAULTS = {"GRPC_EXPERIMENTS": "-event_engine_listener"}


def environment(key: str = "") -> dict[str, str]:
    """Return the environment of this process, plus the variables that a picker needs.

    `key` is the key for queries, from which the seed of hashes is derived; empty: the seed is random.
    """
    seed = hashlib.blake2b(key.encode(), digest_size=4, person=b"picker-memory").digest()
    variables = {"PYTHONHASHSEED": str(int.from_bytes(seed, "big"))} if key else {}
    return {**_DEFAULTS, **os.environ, **variables}


def use_seed(key: str) -> None:
    """Restart this process with the same command line and the key's seed, unless it already has this seed.

    This happens at most once, and only before the picker has tables. Without the seed, the picker cannot use other
    pickers' entries.
    """
    variables = environment(key)
    if not key or os.environ.get("PYTHONHASHSEED") == variables["PYTHONHASHSEED"]:
        return
    if _RESTARTED in os.environ:
        log.warn(
            "the picker does not share its memory, because the control planes at its URL have different picker keys"
        )
        return
    log.event("the picker restarts with the picker key's seed, to share its memory with other pickers")
    try:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**variables, _RESTARTED: "1"})
    except OSError as error:
        log.warn("the picker does not share its memory, because it cannot restart", why=reason_of(error))


def command(link: int, datagrams: int) -> tuple[str, ...]:
    """Return the command line of a picker that is a child of this process and inherits these file descriptors."""
    return (sys.executable, "-m", "lbctl.picker", str(link), str(datagrams), str(os.getpid()))
