"""Views for nginx, and a real nginx that serves them from its own directory."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from lbctl.ir.address import Address
from lbctl.ir.listeners import AccessLog, Certificate, ClientAddress, Listener, ListenerTls, PathMatch, Rule
from lbctl.ir.pools import Affinity, Balance, DnsDiscovery, HashKey, Locality, Pool, PoolTls, Replica
from lbctl.ir.proxies import Proxy
from lbctl.ir.routes import Forward, Pin, Route, Share, StickySplit
from lbctl.ir.snapshot import View
from lbctl.targets.nginx import TARGET
from lbctl.targets.target import Bundle
from tests.support.processes.binaries import require
from tests.support.processes.ports import await_listeners
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


def replica_at(name: str, port: int = 8000, **more: object) -> Replica:
    return Replica(name, Address("127.0.0.1", port), **more)  # type: ignore[arg-type]


def forward_to(pool: str) -> Forward:
    return Forward((Share(pool, 1),))


def view_of(pool: Pool, version: tuple[int, ...] = (1, 22), **route: object) -> View:
    listener = Listener("public", Address("127.0.0.1", 8080), rules=(Rule("r"),))
    return nginx_view(listener, (Route("r", forward_to(pool.name), **route),), (pool,), version)  # type: ignore[arg-type]


def view_of_everything(version: tuple[int, ...]) -> View:
    """Return a view with all features of nginx."""
    two = (replica_at("a"), replica_at("b", 8001, capacity=2.5, priority=1, zone="z", region="y"))
    pools = (
        Pool("plain", two, locality=Locality()),
        Pool("hashed", two, balance=Balance("hash", HashKey("source_ip"))),
        Pool("random", two, balance=Balance("random")),
        Pool("timed", two, balance=Balance("least_time"), affinity=Affinity("lb")),
        Pool("grpc", two, protocol="grpc", tls=PoolTls("ca.crt", "models.internal", "c.crt", "c.key")),
        Pool("h2", two, protocol="http2", tls=PoolTls()),
        Pool("many-names", (*two, Replica("n", Address("other.example", 1))), tls=PoolTls("ca.crt")),
        Pool("dns", discovery=DnsDiscovery("replicas.invalid", 80, resolvers=(Address("127.0.0.1", 53),))),
        Pool("v6", (Replica("six", Address("::1", 80)), Replica("unix", Address(path="/run/a b.sock")))),
    )
    split = Forward(
        (Share("plain", 95), Share("grpc", 5)), (Pin("cookie", "x", "y", "h2"),), StickySplit("cookie", "v")
    )
    routes = (Route("a-split", split, websocket=True), *(Route(pool.name, forward_to(pool.name)) for pool in pools))
    rules = tuple(Rule(route.name, "", PathMatch("prefix", f"/{route.name}")) for route in routes)
    certificates = (Certificate("a.crt", "a.key"), Certificate("b.crt", "b.key", ("other.example.com", "*.x.org")))
    listener = Listener(
        "public",
        Address("0.0.0.0", 443),
        tls=ListenerTls(certificates, "1.3", "clients.crt", "required"),
        client_address=ClientAddress(("10.0.0.0/8", "fd00::/8")),
        proxy_protocol=True,
        max_connections=4000,
        max_body=1 << 20,
        idle_timeout=None,
        access_log=AccessLog("/var/log/x.log", "text"),
        rules=rules,
    )
    cleartext = Listener("inner", Address("127.0.0.1", 80), rules=rules, access_log=AccessLog(format="none"))
    view = nginx_view(listener, routes, pools, version, zone="z", region="y")
    return replace(view, listeners=(listener, cleartext))


def checker_errors(bundle: Bundle, directory: Path) -> str:
    """Return the errors of `nginx -t` for the configuration; empty if it accepts the configuration."""
    for file in bundle.files:
        (directory / file.name).write_text(file.text)
    command = TARGET.check_command(str(require("nginx")), str(directory), str(directory / bundle.main.name))
    process = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return process.stderr if process.returncode else ""


@contextmanager
def running(view: View, directory: Path) -> Iterator[Path]:
    """Run nginx with that view in the foreground, and yield its directory. The listener is the socket SOCKET in it."""
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
        missing = await_listeners([item.bind.port for item in view.listeners if not item.bind.path])
        assert not missing, (directory / "stderr.log").read_text()
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
