"""Another user of the machine gets neither the API token nor access to the API's socket."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from lbctl.api import token_guard
from lbctl.api.client import ServeClient
from lbctl.apply import listening_sockets
from lbctl.apply.listening_sockets import listening_users
from lbctl.cli import run
from lbctl.ir.address import Address
from lbctl.serve.api.authorization import ApiAccess
from lbctl.serve.api.server import ApiServer
from tests.support.api import Fleet
from tests.support.paths import ROOT
from tests.support.tools import require_tool

TOKEN = "a-token-for-the-test"
NOBODY = 65_534
UNAUTHORIZED = (
    b"HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: 33\r\n\r\n"
    b'{"error": "this needs the token"}'
)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can open a socket of another user")
Listens = Callable[..., tuple[str, list[bytes]]]


@pytest.fixture
def listens() -> Iterator[Listens]:
    """Open a listener of a user that answers each request with 401.

    Return its URL and the requests that it received.
    """
    with ExitStack() as opened:
        yield lambda user=None: opened.enter_context(_listener(os.geteuid() if user is None else user))


@contextmanager
def _listener(user: int) -> Iterator[tuple[str, list[bytes]]]:
    before, requests = os.geteuid(), []
    os.seteuid(user)
    try:
        listening = socket.create_server(("127.0.0.1", 0))
    finally:
        os.seteuid(before)

    def answer() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                requests.append(connection.recv(65_536))
                body = b'{"error": "this needs the token"}'
                connection.sendall(
                    UNAUTHORIZED + b"content-length: %d\r\nconnection: close\r\n\r\n%s" % (len(body), body)
                )

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", requests
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(10)


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "api-token"
    file.write_text(f"{TOKEN}\n")
    return file


@as_root
def test_listener_of_another_user_gets_no_token(
    listens: Listens, token: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, requests = listens(NOBODY)
    for command in (["status"], ["reload"], ["drain", "pool/a"]):
        assert run([*command, "--server", url, "--token-file", str(token)]) == 4
        message = capsys.readouterr().err
        assert "no token is sent: 127.0.0.1:" in message
        assert "belongs to the user nobody, not to you, root or the owner of the state directory" in message
    assert all(TOKEN.encode() not in item for item in requests)
    assert [item.split(b" ")[0] for item in requests if item] == [b"GET"], "no write reaches it"
    with pytest.raises(ConnectionError, match="no token is sent"):
        ServeClient(url, str(token), None).token_for_stream()


def test_reading_sends_the_token_only_when_asked(listens: Listens, token: Path) -> None:
    url, requests = listens()
    assert run(["status", "--server", url, "--token-file", str(token)]) == 4
    assert [f"Bearer {TOKEN}".encode() in item for item in requests] == [False, True]
    assert run(["reload", "--server", url, "--token-file", str(token)]) == 4
    assert f"Bearer {TOKEN}".encode() in requests[-1]
    assert ServeClient(url, str(token), None).token_for_stream() == TOKEN


@as_root
@pytest.mark.parametrize("owner", ["token file", "state of the fleet"])
def test_owner_of_the_state_gets_the_token(owner: str, listens: Listens, token: Path, tmp_path: Path) -> None:
    url, requests = listens(NOBODY)
    (tmp_path / "state").mkdir()
    fleet = tmp_path / "fleet.yaml"
    bind = url.removeprefix("http://")
    fleet.write_text(f"version: 1\ncontrol: {{state: state, api: {{bind: {bind!r}, token_file: api-token}}}}\n")
    os.chown(token if owner == "token file" else tmp_path / "state", NOBODY, NOBODY)
    given = ["--server", url, "--token-file", str(token)] if owner == "token file" else ["--fleet", str(fleet)]
    assert run(["reload", *given]) == 4
    assert f"Bearer {TOKEN}".encode() in requests[-1]


def test_unknown_listener_gets_no_token(
    listens: Listens, token: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, requests = listens()
    monkeypatch.setattr(listening_sockets, "_PROC", tmp_path)
    assert run(["reload", "--server", url, "--token-file", str(token)]) == 4
    assert "the system does not show which user is listening on 127.0.0.1:" in capsys.readouterr().err
    assert not any(requests)


def _capabilities(unit: Path) -> set[str]:
    """Return the capabilities that a systemd unit grants."""
    lines = [line.split("=", 1)[1] for line in unit.read_text().splitlines() if line.startswith("AmbientCapabilities=")]
    assert f"CapabilityBoundingSet={lines[-1]}\n" in unit.read_text()
    return set(lines[-1].split())


@pytest.mark.parametrize("proxy", ["lbctl-envoy.service", "nginx.service.d/lbctl.conf", "haproxy.service.d/lbctl.conf"])
def test_units_of_proxies_lack_a_capability_of_serve(proxy: str) -> None:
    """Linux then hides `serve` in /proc/PID from a proxy, although both run as the same user."""
    kit = ROOT / "deploy" / "systemd" / "system"
    drop_in = kit / "lbctl-serve.service.d" / f"{proxy.partition('.')[0]}.conf"
    for serve in (kit / "lbctl-serve.service", *([drop_in] if drop_in.exists() else [])):
        assert _capabilities(serve) - _capabilities(kit / proxy) == {"CAP_AUDIT_WRITE"}


@as_root
@pytest.mark.parametrize(("capability", "is_hidden"), [("+audit_write", True), ("-all", False)])
def test_process_with_more_capabilities_is_hidden(capability: str, is_hidden: bool) -> None:
    user = [str(require_tool("setpriv")), "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    caps = ["--inh-caps", capability, "--ambient-caps", capability]
    with subprocess.Popen([*user, *caps, "sh", "-c", "echo started; read line"], stdin=-1, stdout=-1) as serve:
        assert serve.stdout is not None
        assert serve.stdout.readline() == b"started\n"
        reading = subprocess.run([*user, "ls", f"/proc/{serve.pid}/root/"], capture_output=True, check=False)
        serve.communicate(b"\n")
    assert (reading.returncode != 0) == is_hidden


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_socket_of_the_api_is_for_its_owner_under_any_umask(mask: int, tmp_path: Path) -> None:
    async def modes() -> tuple[int, bytes]:
        api = ApiServer(Fleet(), ApiAccess(Address(path=str(tmp_path / "api.sock"))))
        await api.start()
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "api.sock"))
        writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
        answer, mode = await reader.readline(), (tmp_path / "api.sock").stat().st_mode
        writer.close()
        await api.stop()
        return mode & 0o777, answer

    before = os.umask(mask)
    try:
        assert asyncio.run(modes()) == (0o600, b"HTTP/1.0 200 OK\r\n")
    finally:
        os.umask(before)
    assert list(tmp_path.iterdir()) == [], "it is removed at the end"


@pytest.mark.parametrize(
    ("bind", "reached", "other"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.2"), ("0.0.0.0", "127.0.0.2", "::1"),
        ("::", "127.0.0.1", None), ("::1", "::1", "127.0.0.1"),
    ],
)  # fmt: skip
def test_users_of_a_port_are_those_that_accept_there(bind: str, reached: str, other: str | None) -> None:
    with ExitStack() as stack:
        port = _listen(bind, other, stack)
        found = listening_users(reached, port)
        assert found is not None
        assert list(found.values()) == [os.geteuid()]
        assert other is None or listening_users(other, port) == {}


def _listen(bind: str, other: str | None, stack: ExitStack) -> int:
    """Listen on a port that no other program has on the address `other`, and return it."""
    for _ in range(50):
        family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        listening = socket.create_server((bind, 0), family=family, dualstack_ipv6=bind == "::")
        port: int = stack.enter_context(listening).getsockname()[1]
        if other is None:
            return port
        reserved = stack.enter_context(socket.socket(socket.AF_INET6 if ":" in other else socket.AF_INET))
        with suppress(OSError):
            reserved.bind((other, port))
            return port
    raise AssertionError(f"no port is free on {bind} and {other}")


def test_stream_without_listener_names_the_reason(token: Path) -> None:
    """A picker may start before `serve`."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(ConnectionError, match=f"no process is listening on 127.0.0.1:{port}: start `lbctl serve`"):
        ServeClient(f"http://127.0.0.1:{port}", str(token), None).token_for_stream()


def test_listener_that_came_after_the_connection_gets_no_token() -> None:
    users = frozenset({os.geteuid()})
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as connected:
            token_guard._check_peer(connected, listening_sockets.listening_sockets(port) or set(), users)
            with pytest.raises(token_guard.UntrustedListenerError, match="does not show which user"):
                token_guard._check_peer(connected, set(), users)
