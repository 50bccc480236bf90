"""A reserved port is available only to the server that it is meant for."""

from __future__ import annotations

import http.server
import socket

import pytest

from lbctl.apply.reserved_ports import LOOPBACK, port_of, reserve


def test_reserved_port_is_only_for_its_server() -> None:
    with reserve() as reserved:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((LOOPBACK, port_of(reserved)))
        with http.server.HTTPServer((LOOPBACK, port_of(reserved)), http.server.BaseHTTPRequestHandler) as server:
            assert server.server_port == port_of(reserved)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((LOOPBACK, port_of(reserved)), 5.0)


def test_bound_port_cannot_be_reserved() -> None:
    with socket.socket() as other:
        other.bind((LOOPBACK, 0))
        with pytest.raises(OSError, match="in use"):
            reserve(port_of(other))
