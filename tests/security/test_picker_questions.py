"""Another user of the machine neither takes the picker's ports nor asks it."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import closing

import pytest

from lbctl.ir.address import Address
from lbctl.serve.picker.ports import CannotKeepError, PickerPorts
from tests.support.processes.control import controlling
from tests.support.processes.fleet import fleet_of, pool_of
from tests.support.processes.picker import picker_section, pid_of
from tests.support.processes.ports import HOST, free_pair
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually

_NOBODY = 65534
_ALL_OPTIONS = ((), (socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,), (socket.SO_REUSEADDR, socket.SO_REUSEPORT))


def _binds(port: int, kind: socket.SocketKind, *options: int) -> bool:
    with socket.socket(socket.AF_INET, kind) as taken:
        for option in options:
            taken.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            taken.bind((HOST, port))
        except OSError:
            return False
    return True


def _as_nobody(act: Callable[[], bool]) -> bool:
    """Return whether another user of the machine succeeds."""
    pid = os.fork()
    if pid == 0:
        os.setuid(_NOBODY)
        os._exit(int(act()))
    return bool(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _taken_ports(port: int, tried: Sequence[tuple[int, ...]] = _ALL_OPTIONS) -> list[int]:
    """Return those of a picker's ports that can be bound with some of the options that are tried."""
    return [
        number
        for number, kind in ((port, socket.SOCK_STREAM), (port + 1, socket.SOCK_STREAM), (port + 1, socket.SOCK_DGRAM))
        if any(_binds(number, kind, *options) for options in tried)
    ]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_binds_no_kept_port() -> None:
    port = free_pair()
    with closing(PickerPorts(Address(HOST, port))):
        assert not _as_nobody(lambda: bool(_taken_ports(port)))
        with socket.socket() as listening:  # as the process of the picker does
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listening.bind((HOST, port))
            listening.listen()
            with socket.create_connection((HOST, port), 5), listening.accept()[0]:
                pass
        assert not _as_nobody(lambda: bool(_taken_ports(port)))
    assert _as_nobody(lambda: bool(_taken_ports(port)))


def test_kept_ports_refuse_questions_at_once() -> None:
    port = free_pair()
    with closing(PickerPorts(Address(HOST, port))):
        for number in (port, port + 1):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((HOST, number), 5)


def test_ports_are_kept_by_one_serve() -> None:
    place = Address(HOST, free_pair())
    with closing(PickerPorts(place)), pytest.raises(CannotKeepError, match="cannot listen on"):
        PickerPorts(place)


def test_ports_are_kept_while_the_picker_restarts() -> None:
    with replicas("a", "b") as pool:
        section = picker_section()
        port = int(section["control"]["picker"]["bind"].rpartition(":")[2])
        fleet = fleet_of(pool_of(pool, balance={"algorithm": "pick"}), **section)
        with controlling(fleet) as control:
            eventually(lambda: control.status["picker"]["running"])
            starts = control.status["picker"]["starts"]
            os.kill(pid_of(control), signal.SIGKILL)
            taken: set[int] = set()

            def runs_again() -> bool:
                taken.update(_taken_ports(port, _ALL_OPTIONS[:2]))
                picker = control.status["picker"]
                return bool(picker["running"] and picker["starts"] > starts)

            eventually(runs_again)
            assert not taken
