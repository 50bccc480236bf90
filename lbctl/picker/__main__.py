"""`python -m lbctl.picker FD UDP PARENT`: the picker as a child of `lbctl serve`.

FD is the file descriptor of the socket connected to the parent, and UDP is the file descriptor of the datagram socket.
PARENT is the parent's process ID, which is 1 in a container.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
from pathlib import Path

from lbctl.ir.address import Address
from lbctl.ir.proxies import ServerTls
from lbctl.picker.child_link import SocketLink
from lbctl.picker.grpc_server import CannotBindError
from lbctl.picker.process import PickerEndpoints, PickerProcess
from lbctl.runtime import log
from lbctl.runtime.descriptors import raise_limit
from lbctl.xds.protocol.allocator import return_large_pieces

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Run the picker and return its exit code."""
    handler = log.start(sys.stderr)
    _end_with_parent(int(sys.argv[3]))
    raise_limit()
    return_large_pieces()
    try:
        return asyncio.run(_run(*(socket.socket(fileno=int(number)) for number in sys.argv[1:3])))
    finally:
        log.stop(handler)


async def _run(connection: socket.socket, datagrams: socket.socket) -> int:
    link = SocketLink(connection)
    settings = await link.settings()
    tls = ServerTls(*settings["tls"]) if settings["tls"] else None
    try:
        places = PickerEndpoints(Address(*settings["bind"]), tls, datagrams)
        memory = Path(settings["memory"]) if settings.get("memory") else None
        return await PickerProcess(places, link.run, settings["id"], memory=memory).run()
    except CannotBindError as error:
        await link.fail(str(error))
        return 1


def _end_with_parent(parent: int) -> None:
    """Make Linux end this process with its parent, even if the process is stopped and cannot see its link close."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before the call above
            sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
