"""The command line and the environment of the picker's process.

gRPC reads the environment when it is loaded. With its event engine, gRPC passes each read and write of a connection to
another thread. Without the engine, the thread that waits for events does them itself, which saves a tenth of the CPU
time of a pick.
"""

from __future__ import annotations

import os
import sys

_DEFAULTS = {"GRPC_EXPERIMENTS": "-event_engine_listener"}


def environment() -> dict[str, str]:
    """Return the environment of this process, plus the variables that a picker needs."""
    return {**_DEFAULTS, **os.environ}


def command(link: int, datagrams: int) -> tuple[str, ...]:
    """Return the command line of a picker that is a child of this process and inherits these file descriptors."""
    return (sys.executable, "-m", "lbctl.picker", str(link), str(datagrams), str(os.getpid()))
