"""The command line and the environment of the picker's process.

gRPC reads the environment when it is loaded. With its own event engine gRPC hands each read and write of a connection
to another thread. Without it the thread that waits for events does them, which is a tenth less processor time for a
pick.
"""

from __future__ import annotations

import os
import sys

_DEFAULTS = {"GRPC_EXPERIMENTS": "-event_engine_listener"}


def environment() -> dict[str, str]:
    """Return the variables of this process, and those that a picker needs in addition."""
    return {**_DEFAULTS, **os.environ}


def command(link: int, datagrams: int) -> tuple[str, ...]:
    """Return the command line of a picker that is a child of this process and inherits these file descriptors."""
    return (sys.executable, "-m", "lbctl.picker", str(link), str(datagrams), str(os.getpid()))
