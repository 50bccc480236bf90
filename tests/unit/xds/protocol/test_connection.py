"""Closing the connection of one peer address."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lbctl.xds.protocol.connection import close_connection


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize(
    ("bind", "target", "host"),
    [("127.0.0.1", "127.0.0.1", "127.0.0.1"), ("::", "127.0.0.1", "127.0.0.1"), ("::1", "::1", "[::1]")],
)
def test_only_the_connection_of_the_address_is_closed(stack: ExitStack, bind: str, target: str, host: str) -> None:
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    server = stack.enter_context(socket.create_server((bind, 0), family=family, dualstack_ipv6=bind == "::"))
    clients = [stack.enter_context(socket.create_connection((target, server.getsockname()[1]), 10)) for _ in range(2)]
    accepted = [stack.enter_context(server.accept()[0]) for _ in clients]
    stuck, other = clients
    before = open_descriptors()

    assert close_connection(host, stuck.getsockname()[1])
    assert stuck.recv(1) == b""
    for each in accepted:
        if each.getpeername()[1] == other.getsockname()[1]:
            each.sendall(b"x")
    assert other.recv(1) == b"x"
    assert open_descriptors() == before, "no descriptor is closed or left open"


def test_an_unused_address_closes_nothing() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert not close_connection("127.0.0.1", unused.getsockname()[1])


@pytest.mark.parametrize("family", [socket.AF_NETLINK, socket.AF_UNIX])
def test_other_sockets_are_skipped(stack: ExitStack, family: socket.AddressFamily) -> None:
    if family == socket.AF_NETLINK:
        stack.enter_context(socket.socket(family, socket.SOCK_RAW, 0)).bind((0, 0))
    else:
        for end in socket.socketpair():
            stack.enter_context(end)
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    client = stack.enter_context(socket.create_connection(server.getsockname(), 10))
    stack.enter_context(server.accept()[0])
    assert close_connection("127.0.0.1", client.getsockname()[1])
    assert client.recv(1) == b""
