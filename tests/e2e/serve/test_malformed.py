"""Requests to the API of `lbctl serve` that are not HTTP are refused, and their lines are not logged."""

from __future__ import annotations

import socket

from tests.support.processes.control import controlling
from tests.support.processes.fleet import fleet_of
from tests.support.processes.ports import HOST
from tests.support.processes.waiting import eventually

_LINES = {
    "space before the colon": b"Authorization : Bearer HUNTER2",
    "no colon": b"Authorization Bearer HUNTER2",
    "a zero byte": b"Authorization: Bearer HUNTER2\0",
    "folded": b"Authorization: Bearer\r\n HUNTER2",
    "an odd name": b"Authoriz\xe4tion: Bearer HUNTER2",
    "too long": b"Authorization: Bearer HUNTER2" + b"x" * 20000,
    "a bare line feed": b"Authorization: Bearer\nHUNTER2",
}


def test_malformed_line_with_a_token_is_not_logged() -> None:
    with controlling(fleet_of({"replicas": [{"name": "a", "address": f"{HOST}:9"}]})) as control:
        for name, line in _LINES.items():
            with socket.create_connection((HOST, control.api), timeout=30) as opened:
                opened.sendall(b"GET /readyz HTTP/1.1\r\nHost: %s\r\n%s\r\n\r\n" % (HOST.encode(), line))
                answer = opened.recv(65536)
            assert b" 400 " in answer, name
        eventually(lambda: control.log.count("rejected a request that is not valid HTTP") == 1)
        assert "HUNTER2" not in control.log
        assert "Traceback" not in control.log
