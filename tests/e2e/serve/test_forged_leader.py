"""Another client of the store announces its own address as the leader's: no follower sends it a token."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from redis import Redis

from tests.support.fleets import fleet_of
from tests.support.processes.members import TOKEN, MemberPlane, members
from tests.support.processes.ports import HOST
from tests.support.processes.waiting import eventually
from tests.support.stores import RedisServer


class Thief:
    """A server that stores everything it receives, and always answers with success."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self._socket = socket.create_server((HOST, 0))
        self.url = f"http://{HOST}:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                with connection, suppress(OSError):
                    connection.settimeout(2)
                    self.got.append(connection.recv(65536))
                    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")

    def close(self) -> None:
        self._socket.close()


def _redirected(text: str, url: str) -> str:
    """Return a stored text with this address, and with its old signature if it has one."""
    start = min(at for at in (text.find("["), text.find("{")) if at >= 0)
    row = json.loads(text[start:])
    if isinstance(row, list):
        row[2] = url
    else:
        row["api"] = url
    return text[:start] + json.dumps(row)


@contextmanager
def _forging(port: int, url: str) -> Iterator[None]:
    """Rewrite the leader's announcements thirty times per second."""
    store = Redis(HOST, port, decode_responses=True)
    prefix = next(iter(store.scan_iter("*:announcements"))).removesuffix("announcements")
    ended = threading.Event()

    def forge() -> None:
        while not ended.wait(0.03):
            with suppress(ValueError, TypeError):
                sign = _redirected(store.hget(prefix + "values", "leader/status"), url)
                store.hset(prefix + "values", "leader/status", sign)
                store.publish(prefix + "changes", "leader/status")
                for name, text in store.hgetall(prefix + "announcements").items():
                    if '"role": "leader"' in text:
                        store.hset(prefix + "announcements", name, _redirected(text, url))

    thread = threading.Thread(target=forge)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        store.close()


def _drain(member: MemberPlane) -> int:
    return member.write("POST", "overrides", {"kind": "drain", "pool": "pool", "replica": "a"}).status_code


@pytest.mark.parametrize("signed", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_forged_address_of_the_leader_gets_no_token(redis: RedisServer, signed: bool) -> None:
    url = f"redis://{HOST}:{redis.port}/0"
    with members(fleet_of(), url, lease="20s", signed=signed) as (first, second):
        assert first.leads
        eventually(lambda: _drain(second) == 200)
        thief = Thief()
        with _forging(redis.port, thief.url):
            until = time.monotonic() + (3 if signed else 20)
            statuses = []
            while time.monotonic() < until and not thief.got:
                statuses.append(_drain(second))
                time.sleep(0.05)
        thief.close()
        assert set(statuses) <= {200, 503}
        assert not any(TOKEN.encode() in request for request in thief.got)
        if signed:
            assert thief.got == [], "the address is not believed"
        else:
            assert thief.got, "without a key the address is believed"
