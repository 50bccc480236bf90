"""Unauthorized writes to the API of a running `serve`: each is rejected, and nothing has changed."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress

import pytest

from lbctl.cli import run
from tests.support.processes.control import ControlPlane, controlling
from tests.support.processes.fleet import fleet_of
from tests.support.processes.ports import HOST
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually

pytestmark = pytest.mark.e2e
GIGABYTE = 1_000_000_000
OPERATOR, READER = "alice-operates-this", "bob-only-reads-this"
DRAIN = b'{"kind": "drain", "pool": "pool", "replica": "a", "reason": "a test"}'
Answer = tuple[int, str]
PATHS = ("/api/v1/reload", "/api/v1/overrides", "/api/v1/rollouts")


@pytest.fixture(scope="module")
def control() -> Iterator[ControlPlane]:
    with replicas("a", "b") as members, controlling(fleet_of(list(members))) as running:
        (running.state / "api-token").write_text(f"alice:operate:{OPERATOR}\nbob:read:{READER}\n")
        yield running
        assert running.get("overrides")["overrides"] == []


def headers(control: ControlPlane, **more: str) -> dict[str, str]:
    """Return the headers of a valid write, with replacements; an empty one is left out."""
    good = {"host": f"{HOST}:{control.api}", "authorization": f"Bearer {OPERATOR}", "content-type": "application/json"}
    return {name: value for name, value in (good | more).items() if value}


def send(
    control: ControlPlane, method: str, path: str, sent: Mapping[str, str], body: bytes = DRAIN
) -> tuple[int, str]:
    """Send exactly this, and return the status and the rest of the response."""
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items()), "connection: close"]
    if "content-length" not in sent and "transfer-encoding" not in sent:
        lines.append(f"content-length: {len(body)}")
    with socket.create_connection((HOST, control.api), timeout=60) as opened:
        opened.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        return answer(opened)


def answer(opened: socket.socket) -> Answer:
    """Read the response to its end."""
    received = b""
    with suppress(ConnectionError):
        while part := opened.recv(65536):
            received += part
    head = received.split(b" ", 2)
    return int(head[1]), received.decode()


@pytest.mark.parametrize("path", PATHS)
def test_write_without_token_gets_401(control: ControlPlane, path: str) -> None:
    status, text = send(control, "POST", path, headers(control, authorization=""))
    assert status == 401
    assert "this operation needs the token" in text
    assert send(control, "POST", path, headers(control, authorization="Bearer wrong"))[0] == 401


@pytest.mark.parametrize("path", PATHS)
def test_write_with_reader_token_gets_403(control: ControlPlane, path: str) -> None:
    status, text = send(control, "POST", path, headers(control, authorization=f"Bearer {READER}"))
    assert status == 403
    assert "bob's token allows read access only" in text


@pytest.mark.parametrize("path", PATHS)
def test_write_to_another_host_gets_403(control: ControlPlane, path: str) -> None:
    status, text = send(control, "POST", path, headers(control, host="rebound.example"))
    assert (status, "this Host header is not allowed" in text) == (403, True)


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
def test_write_from_another_origin_gets_403(control: ControlPlane, origin: str) -> None:
    status, text = send(control, "POST", "/api/v1/overrides", headers(control, origin=origin))
    assert (status, "this Origin header is not allowed" in text) == (403, True)


@pytest.mark.parametrize("path", ["/api/v1/reload"])
def test_write_as_get_gets_405(control: ControlPlane, path: str) -> None:
    assert send(control, "GET", path, headers(control), b"")[0] == 405
    assert send(control, "GET", f"{path}?kind=drain", headers(control, authorization=""), b"")[0] == 405


@pytest.mark.parametrize("beginning", [b"", b"[" * 100_000], ids=["nothing", "a part"])
@pytest.mark.parametrize("path", PATHS)
def test_declared_gigabyte_gets_413(control: ControlPlane, path: str, beginning: bytes) -> None:
    before = control.memory
    status, _ = send(control, "POST", path, headers(control, **{"content-length": str(GIGABYTE)}), beginning)
    assert status == 413
    assert control.memory - before < 10


def test_streamed_gigabyte_gets_413_before_its_end(control: ControlPlane) -> None:
    before, sent = control.memory, 0
    head = headers(control, **{"transfer-encoding": "chunked"})
    lines = ["POST /api/v1/overrides HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
    chunk = b"10000\r\n" + b"[" * 65536 + b"\r\n"
    with socket.create_connection((HOST, control.api), timeout=60) as opened:
        opened.sendall("\r\n".join(lines).encode() + b"\r\n\r\n")
        with suppress(ConnectionError):
            answered = select.poll()  # select() does not accept descriptors above 1023
            answered.register(opened, select.POLLIN)
            while sent < GIGABYTE and not answered.poll(0):
                opened.sendall(chunk)
                sent += 65536
        status, _ = answer(opened)
    assert status == 413
    assert sent < GIGABYTE / 10
    assert control.memory - before < 10


def test_drain_of_the_last_replica_warns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with replicas("a", "b") as members, controlling(fleet_of(list(members))) as running:
        where = ["--server", running.url, "--token-file", str(running.state / "api-token")]
        assert run(["drain", "pool/a", *where]) == 0
        assert "warning" not in capsys.readouterr().err
        assert run(["drain", "pool/b", *where]) == 0
        assert "warning: pool pool has no available replica: route " in capsys.readouterr().err
        running.write_text("version: 1\npools: {pool: {replicas: 7}}\n")
        eventually(lambda: not running.get("status")["fleet"]["valid"])
        assert run(["undrain", "pool/b", *where]) == 0
        err = capsys.readouterr().err
        assert "warning: the last valid fleet is published instead of the files: " in err
        assert "fleet.yaml:2:" in err
        assert "no available replica" not in err


def test_valid_write_is_applied(control: ControlPlane) -> None:
    assert send(control, "POST", "/api/v1/overrides", headers(control))[0] == 200
    assert control.get("overrides")["overrides"][0]["author"] == "alice"
    body = b'{"kind": "drain", "pool": "pool", "replica": "a"}'
    own = f"http://{HOST}:{control.api}"
    assert send(control, "DELETE", "/api/v1/overrides", headers(control, origin=own), body)[0] == 200
