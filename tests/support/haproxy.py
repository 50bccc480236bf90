"""A real HAProxy with a rendered view, in front of small replicas."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lbctl.apply.files import write_bundle
from lbctl.ir.address import Address
from lbctl.ir.listeners import Listener, PathMatch, Rule
from lbctl.ir.pools import (
    ActiveCheck,
    Affinity,
    Balance,
    CircuitBreaker,
    Connections,
    DnsDiscovery,
    GrpcCheck,
    HashKey,
    HttpCheck,
    LoadShedding,
    Pool,
    PoolTls,
    Replica,
    SlowStart,
    TcpCheck,
)
from lbctl.ir.proxies import Proxy
from lbctl.ir.routes import Auth, Forward, Route, Share
from lbctl.ir.secrets import Secrets
from lbctl.ir.snapshot import Snapshot, View, view
from lbctl.ir.topology import Topology
from lbctl.targets.haproxy import TARGET
from tests.support.processes import binaries
from tests.support.processes.client import pass_millisecond
from tests.support.processes.ports import free_port

VERSIONS = ("haproxy", pytest.param("haproxy-2.8", marks=pytest.mark.nightly))


def make_view(
    listeners: tuple[Listener, ...],
    routes: tuple[Route, ...],
    pools: tuple[Pool, ...],
    secrets: Secrets | None = None,
    **proxy: Any,
) -> View:
    """Return a view for an HAProxy; `proxy` has the keys of its entry in the fleet."""
    topology = Topology(
        listeners, tuple(sorted(routes, key=lambda r: r.name)), tuple(sorted(pools, key=lambda p: p.name))
    )
    edge = Proxy("edge", "haproxy", **{"version": (2, 6), **proxy})
    return view(Snapshot(topology, secrets=secrets or Secrets()), edge)


def forward(pool: str, **changes: Any) -> Route:
    """Return a route `r` to the one pool."""
    return Route("r", Forward((Share(pool, 1),)), ("pub",), **changes)


def everything(*routes: str) -> tuple[Rule, ...]:
    return tuple(Rule(name) for name in routes or ("r",))


def view_with_auth(port: int, pools: tuple[Pool, ...], auth: Auth, secrets: Secrets, **route: Any) -> View:
    listener = Listener("pub", Address("127.0.0.1", port), rules=everything())
    version = route.pop("version", (2, 6))
    return make_view((listener,), (forward("p", auth=auth, **route),), pools, secrets, version=version)


def two_replicas(name: str, **changes: Any) -> Pool:
    return Pool(name, (Replica("r1", Address("127.0.0.1", 9001)), Replica("r2", Address("127.0.0.1", 9002))), **changes)


def view_of_everything() -> View:
    """Return a view with each kind of pool."""
    pools = (
        two_replicas(
            "round", balance=Balance("round_robin"), active=ActiveCheck(HttpCheck(body_contains="it's %ok"), port=81)
        ),
        two_replicas("least", affinity=Affinity("sid"), slow_start=SlowStart(), load_shedding=LoadShedding()),
        two_replicas("time", balance=Balance("least_time"), active=ActiveCheck(TcpCheck())),
        two_replicas("random", balance=Balance("random"), passive=None),
        two_replicas("header", balance=Balance("hash", HashKey("header", "x-k'%#"), 1.25)),
        two_replicas("cookie", balance=Balance("hash", HashKey("cookie", "c"))),
        two_replicas("query", balance=Balance("hash", HashKey("query", "q"))),
        two_replicas("source", balance=Balance("hash", HashKey("source_ip"))),
        two_replicas("prompt", balance=Balance("hash", HashKey("prompt_prefix", bytes=64), 1.5)),
        two_replicas("body", balance=Balance("hash", HashKey("json_body", "$.user"))),
        two_replicas("grpc", protocol="grpc", active=ActiveCheck(GrpcCheck("x.Y")), connections=Connections(800, 10)),
        two_replicas(
            "http2", protocol="http2", active=ActiveCheck(HttpCheck(), port=80), tls=PoolTls(None, "a.example")
        ),
        two_replicas("limits", circuit_breaker=CircuitBreaker(9, 8, 7, 6, 5, 4)),
        Pool("dns", discovery=DnsDiscovery("p.example", 80, resolvers=(Address("10.0.0.1", 53),))),
        Pool("empty"),
        Pool("named", (Replica("n", Address("localhost", 9001)), Replica("u", Address(path="/run/a b.sock")))),
    )
    routes = tuple(Route(pool.name, Forward((Share(pool.name, 1),)), ("pub",)) for pool in pools)
    rules = tuple(Rule(route.name, path=PathMatch("prefix", f"/{route.name}")) for route in routes)
    return make_view((Listener("pub", Address("::1", free_port()), rules=rules, max_connections=50),), routes, pools)


def checked(shown: View, tmp_path: Path, version: binaries.Binary = "haproxy") -> str:
    """Render the view, check the files with HAProxy, and return the text of the configuration."""
    bundle = TARGET.render(shown)
    write_bundle(bundle, str(tmp_path))
    command = TARGET.check_command(str(binaries.require(version)), str(tmp_path), str(tmp_path / bundle.main.name))
    process = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd="/")
    assert process.returncode == 0, process.stderr
    assert "[WARNING]" not in process.stderr, process.stderr
    return bundle.main.text


@dataclass
class Served:
    """A replica: the requests that it received, and its response (a status, or None to close the connection)."""

    name: str
    status: int | None = 200
    seen: list[dict[str, Any]] = field(default_factory=list)
    port: int = 0

    def replica(self, capacity: float = 1.0, **changes: Any) -> Replica:
        return Replica(self.name, Address("127.0.0.1", self.port), capacity, **changes)


@contextlib.contextmanager
def replicas(*names: str, context: ssl.SSLContext | None = None) -> Iterator[list[Served]]:
    served = [Served(name) for name in names]
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _handler(item)) for item in served]
    for item, server in zip(served, servers, strict=True):
        item.port = server.server_address[1]
        if context:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield served
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def _handler(served: Served) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            served.seen.append({"method": self.command, "path": self.path, "headers": headers, "body": body})
            if served.status is None:
                self.close_connection = True
                return
            content = served.name.encode()
            self.send_response(served.status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_PUT = do_GET  # noqa: N815 -- the server's own names

        def log_message(self, *args: object) -> None:
            pass

    return Handler


@dataclass(frozen=True)
class Answer:
    status: int
    body: str
    headers: dict[str, str]


@dataclass
class Running:
    port: int
    output: Path
    pid: int

    def send(self, path: str = "/", method: str = "GET", body: str | None = None, **headers: str) -> Answer:
        """Send one request on its own connection; `_` in header names becomes `-`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
            response = connection.getresponse()
            return Answer(response.status, response.read().decode(), {k.lower(): v for k, v in response.getheaders()})
        finally:
            connection.close()
            pass_millisecond()

    def log(self, lines: int = 1) -> list[dict[str, Any]]:
        """Return the access log once it has at least `lines` lines, in the order of the requests' start times.

        The threads write the lines in another order.
        """
        until = time.monotonic() + 30
        while True:
            rows = [json.loads(item) for item in self.output.read_text().splitlines() if item.startswith("{")]
            if len(rows) >= lines or time.monotonic() > until:
                return sorted(rows, key=lambda line: str(line["ts"]))
            time.sleep(0.02)


@contextlib.contextmanager
def running(shown: View, tmp_path: Path, port: int, version: binaries.Binary = "haproxy") -> Iterator[Running]:
    checked(shown, tmp_path, version)
    output = tmp_path / "stdout"
    command = [str(binaries.require(version)), "-db", "-f", str(tmp_path / "haproxy.cfg")]
    with output.open("wb") as out, (tmp_path / "stderr").open("wb") as errors:
        process = subprocess.Popen(command, stdout=out, stderr=errors, cwd="/")
        try:
            _wait(port, process, tmp_path)
            yield Running(port, output, process.pid)
        finally:
            process.terminate()
            process.wait(60)


def _wait(port: int, process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        assert process.poll() is None, (tmp_path / "stderr").read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)
    raise AssertionError("HAProxy does not listen")
