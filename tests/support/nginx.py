"""Views for nginx, and a real nginx on them in its own directory."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lbctl.ir.address import Address
from lbctl.ir.listeners import Listener
from lbctl.ir.pools import Pool
from lbctl.ir.proxies import Proxy
from lbctl.ir.routes import Route
from lbctl.ir.snapshot import View
from lbctl.targets.nginx import TARGET
from lbctl.targets.target import Bundle
from tests.support.processes.binaries import require
from tests.support.weights import row_of_plain

SOCKET = "front.sock"


def nginx_view(
    listener: Listener,
    routes: tuple[Route, ...],
    pools: tuple[Pool, ...] = (),
    version: tuple[int, ...] = (1, 22),
    weights: Mapping[str, tuple[float, ...]] | None = None,
    **proxy: str,
) -> View:
    named = {pool.name: pool for pool in sorted(pools, key=lambda item: item.name)}
    return View(
        proxy=Proxy("edge", "nginx", version, **proxy),
        listeners=(listener,),
        routes={route.name: route for route in sorted(routes, key=lambda item: item.name)},
        pools=named,
        weights={
            name: row_of_plain((weights or {}).get(name) or [r.capacity for r in pool.replicas])
            for name, pool in named.items()
        },
        drained={name: frozenset(r.name for r in pool.replicas if r.drain) for name, pool in named.items()},
    )


def checker_errors(bundle: Bundle, directory: Path) -> str:
    """Return the errors of `nginx -t` for the configuration; empty if it accepts the configuration."""
    for file in bundle.files:
        (directory / file.name).write_text(file.text)
    command = TARGET.check_command(str(require("nginx")), str(directory), str(directory / bundle.main.name))
    process = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return process.stderr if process.returncode else ""


@contextmanager
def running(view: View, directory: Path) -> Iterator[Path]:
    """Run nginx on that view in the foreground, and yield its directory. The listener is the socket SOCKET in it."""
    bundle = TARGET.render(view)
    for file in bundle.files:
        (directory / file.name).write_text(file.text)
    arguments = ["-p", str(directory), "-c", str(directory / bundle.main.name), "-e", "stderr"]
    with (directory / "stderr.log").open("wb") as errors:
        process = subprocess.Popen(
            [str(require("nginx")), *arguments, "-g", "daemon off; pid nginx.pid;"], stderr=errors
        )
    try:
        _await_socket(directory, process)
        yield directory
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def socket_in(directory: Path) -> Address:
    return Address(path=str(directory / SOCKET))


class Connection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("gateway.test", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(str(self._path))


def send_request(
    directory: Path, path: str, method: str = "GET", headers: Mapping[str, str] | None = None, body: bytes | None = None
) -> tuple[int, str, dict[str, str]]:
    """Send a request, and return status, body, and response headers in lower case."""
    connection = Connection(directory / SOCKET)
    try:
        connection.request(method, path, body, dict(headers or {}))
        response = connection.getresponse()
        return response.status, response.read().decode(), {name.lower(): text for name, text in response.getheaders()}
    finally:
        connection.close()


def send_raw(directory: Path, data: bytes) -> bytes:
    """Send bytes unchanged, and return the response until nginx closes the connection or sends nothing for 20 s."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(str(directory / SOCKET))
        client.sendall(data)
        response = b""
        try:
            while part := client.recv(65536):
                response += part
        except TimeoutError:
            pass
        return response


def _await_socket(directory: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, (directory / "stderr.log").read_text()
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(str(directory / SOCKET))
                return
        except OSError:
            time.sleep(0.02)
    raise AssertionError("nginx does not listen")
