"""The environment of a process of the picker, which gRPC reads when it is loaded.

With its own event engine gRPC hands each read and write of a connection to another thread. Without it the thread that
waits for events does them, which is a tenth less processor time for a pick.
"""

from __future__ import annotations

import os

_DEFAULTS = {"GRPC_EXPERIMENTS": "-event_engine_listener"}


def environment() -> dict[str, str]:
    """Return the variables of this process, and those that a picker needs beside them."""
    return {**_DEFAULTS, **os.environ}
