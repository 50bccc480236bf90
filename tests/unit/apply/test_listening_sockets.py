"""Whether a process of a session listens on a port, according to /proc."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lbctl.apply import listening_sockets
from lbctl.apply.listening_sockets import owner, session_listens
from lbctl.apply.reserved_ports import port_of, reserve

_LISTENS = """\
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


def test_session_listens_at_the_port_of_its_process() -> None:
    with (
        subprocess.Popen(
            [sys.executable, "-c", _LISTENS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        ) as program,
        reserve() as unused_port,
    ):
        assert program.stdout is not None
        port = int(program.stdout.readline())
        assert session_listens(program.pid, port)
        assert not session_listens(os.getsid(0), port)
        assert not session_listens(program.pid, port_of(unused_port))
        assert owner(listening_sockets.listening_sockets(port) or ()) == program.pid
        program.communicate()


def test_unreadable_descriptors_count_as_listening(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program with file capabilities hides its descriptors, even from its own user."""
    with reserve() as listener:
        listener.listen()
        assert not session_listens(1, port_of(listener))

        def refuse(_: Path) -> None:
            raise PermissionError

        monkeypatch.setattr(Path, "iterdir", lambda self: refuse(self) if self.name == "fd" else _iterdir(self))
        assert session_listens(os.getsid(0), port_of(listener))


_iterdir = Path.iterdir
