"""TLS of listeners and replicas, gRPC, WebSocket and the PROXY protocol through the real nginx."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import pytest

from lbctl.ir.address import Address
from lbctl.ir.listeners import AccessLog, Certificate, ClientAddress, Listener, ListenerTls, Rule
from lbctl.ir.pools import Pool, PoolTls, Replica
from lbctl.ir.routes import Forward, Respond, Route, Share
from lbctl.ir.snapshot import View
from tests.support.nginx import SOCKET, nginx_view, running, send_request, socket_in
from tests.support.processes.certs import Authority, client_context, server_context
from tests.support.processes.ports import free_port


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for place in (tmp_path, *tmp_path.parents[:2]):
        place.chmod(0o755)
    return tmp_path


def with_plain_listener(directory: Path, tls: Listener, route: Route, *pools: Pool) -> View:
    """Return a view with the listener under test, and one on the socket that shows that nginx runs."""
    plain = Listener("plain", socket_in(directory), rules=(Rule("r"),), access_log=AccessLog(format="none"))
    return replace(nginx_view(plain, (route,), pools), listeners=(plain, tls))


def tls_listener(directory: Path, authority: Authority, **more: object) -> Listener:
    pairs = [authority.issue(name, [name]) for name in ("gateway.test", "other.test")]
    first, second = ((str(pair.certificate), str(pair.key)) for pair in pairs)
    certificates = (Certificate(*first), Certificate(*second, ("other.test",)))
    return Listener(
        "secure", Address("127.0.0.1", free_port()), tls=ListenerTls(certificates, **more),  # type: ignore[arg-type]
        rules=(Rule("r"),), access_log=AccessLog(str(directory / "access.log")),
    )  # fmt: skip


def status_by_tls(listener: Listener, context: ssl.SSLContext, name: str) -> str:
    with (
        socket.create_connection(("127.0.0.1", listener.bind.port)) as raw,
        context.wrap_socket(raw, server_hostname=name) as secured,
    ):
        secured.sendall(b"GET / HTTP/1.1\r\nHost: " + name.encode() + b"\r\nConnection: close\r\n\r\n")
        response = secured.recv(65536)
        while part := secured.recv(65536):
            response += part
        return response.split(b" ", 2)[1].decode()


def test_sni_chooses_the_certificate(directory: Path) -> None:
    authority = Authority(directory)
    listener = tls_listener(directory, authority)
    view = with_plain_listener(directory, listener, Route("r", Respond(204)))
    with running(view, directory):
        context = client_context(authority.ca)
        assert status_by_tls(listener, context, "gateway.test") == "204"
        assert status_by_tls(listener, context, "other.test") == "204"
        with pytest.raises(ssl.SSLCertVerificationError):
            status_by_tls(listener, context, "unknown.test")


def test_client_without_certificate_is_rejected(directory: Path) -> None:
    authority = Authority(directory)
    client = authority.issue("client", ["client"])
    listener = tls_listener(directory, authority, client_ca=str(authority.ca), client_certificate="required")
    with running(with_plain_listener(directory, listener, Route("r", Respond(204))), directory):
        assert status_by_tls(listener, client_context(authority.ca), "gateway.test") == "400"
        known = client_context(authority.ca, client)
        assert status_by_tls(listener, known, "gateway.test") == "204"


class Hello(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.headers.get("Upgrade"):
            self.send_response(101)
            self.send_header("Upgrade", self.headers["Upgrade"])
            self.send_header("Connection", self.headers["Connection"])
            self.end_headers()
            self.wfile.write(self.rfile.read(4)[::-1])
            self.close_connection = True
            return
        forwarded = (self.headers.get("x-forwarded-for", "") + " " + self.headers.get("x-forwarded-proto", "")).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(forwarded)))
        self.end_headers()
        self.wfile.write(forwarded)

    def log_message(self, *_: object) -> None:
        pass


def hello_server(context: ssl.SSLContext | None = None) -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hello)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    return server


@pytest.fixture
def hello() -> Iterator[Replica]:
    server = hello_server()
    yield Replica("a", Address("127.0.0.1", server.server_address[1]))
    server.shutdown()
    server.server_close()


def test_replica_is_verified_and_gets_a_certificate(directory: Path) -> None:
    authority = Authority(directory)
    client, pair = authority.issue("client", ["client"]), authority.issue("replica", ["models.internal"])
    server = hello_server(server_context(pair, authority.ca))
    replica = Replica("a", Address("127.0.0.1", server.server_address[1]))
    good = PoolTls(str(authority.ca), "models.internal", str(client.certificate), str(client.key))
    cases = {"good": good, "name": replace(good, server_name="evil.internal"), "bare": replace(good, certificate=None)}
    pools = tuple(Pool(name, (replica,), tls=tls, passive=None) for name, tls in cases.items())
    routes = tuple(Route(name, Forward((Share(name, 1),))) for name in cases)
    rules = tuple(Rule(name, name) for name in cases)
    listener = Listener("plain", socket_in(directory), rules=rules, access_log=AccessLog(format="none"))
    with running(nginx_view(listener, routes, pools), directory):
        statuses = {name: send_request(directory, "/", headers={"Host": name})[0] for name in cases}
    server.shutdown()
    server.server_close()
    assert statuses["good"] == 200
    assert statuses["name"] in (502, 503)
    assert statuses["bare"] != 200


def test_grpc_reaches_a_replica_through_tls(directory: Path) -> None:
    authority = Authority(directory)

    def echo(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.set_trailing_metadata((("seen-host", "yes"),))
        return request[::-1]

    def count(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield from (bytes([n]) for n in range(3))

    handlers = {
        "Echo": grpc.unary_unary_rpc_method_handler(echo), "Count": grpc.unary_stream_rpc_method_handler(count),
    }  # fmt: skip
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    listener = tls_listener(directory, authority)
    pool = Pool("g", (Replica("a", Address("127.0.0.1", port)),), protocol="grpc")
    credentials = grpc.ssl_channel_credentials(authority.ca.read_bytes())
    with (
        running(with_plain_listener(directory, listener, Route("r", Forward((Share("g", 1),))), pool), directory),
        grpc.secure_channel(
            f"127.0.0.1:{listener.bind.port}", credentials, [("grpc.ssl_target_name_override", "gateway.test")]
        ) as channel,
    ):
        reply, call = channel.unary_unary("/t.T/Echo").with_call(b"abc", timeout=60)
        assert (reply, dict(call.trailing_metadata())["seen-host"]) == (b"cba", "yes")
        assert list(channel.unary_stream("/t.T/Count")(b"", timeout=60)) == [b"\0", b"\1", b"\2"]
        server.stop(0).wait()
        with pytest.raises(grpc.RpcError) as failed:
            channel.unary_unary("/t.T/Echo")(b"abc", timeout=60)
        assert failed.value.code() == grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("websocket", [True, False])
def test_only_websocket_routes_upgrade_connections(directory: Path, hello: Replica, websocket: bool) -> None:
    route = Route("r", Forward((Share("p", 1),)), websocket=websocket)
    listener = Listener("plain", socket_in(directory), rules=(Rule("r"),), access_log=AccessLog(format="none"))
    request = b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
    with (
        running(nginx_view(listener, (route,), (Pool("p", (hello,)),)), directory),
        socket.socket(socket.AF_UNIX) as client,
    ):
        client.connect(str(directory / SOCKET))
        client.settimeout(60)
        client.sendall(request)
        response = client.recv(65536)
        if not websocket:
            assert response.startswith(b"HTTP/1.1 400")
            return
        assert response.startswith(b"HTTP/1.1 101")
        client.sendall(b"abcd")
        assert client.recv(4) == b"dcba"


def test_proxy_protocol_sets_the_client_address(directory: Path, hello: Replica) -> None:
    inner = Listener("inner", Address("127.0.0.1", free_port()), proxy_protocol=True, rules=(Rule("r"),),
                     access_log=AccessLog(str(directory / "access.log")))  # fmt: skip
    view = with_plain_listener(directory, inner, Route("r", Forward((Share("p", 1),))), Pool("p", (hello,)))
    with running(view, directory), socket.create_connection(("127.0.0.1", inner.bind.port)) as client:
        client.sendall(b"PROXY TCP4 9.8.7.6 1.1.1.1 4321 80\r\nGET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        response = b""
        while part := client.recv(65536):
            response += part
    assert response.endswith(b"9.8.7.6 http")
    assert '"client":"9.8.7.6"' in (directory / "access.log").read_text()


def test_trusted_balancer_sets_the_client_address(directory: Path, hello: Replica) -> None:
    inner = Listener("inner", Address("127.0.0.1", free_port()), client_address=ClientAddress(("127.0.0.0/8",)),
                     rules=(Rule("r"),), access_log=AccessLog(str(directory / "access.log")))  # fmt: skip
    view = with_plain_listener(directory, inner, Route("r", Forward((Share("p", 1),))), Pool("p", (hello,)))
    with running(view, directory), socket.create_connection(("127.0.0.1", inner.bind.port)) as client:
        client.sendall(
            b"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 6.6.6.6, 9.8.7.6\r\nX-Forwarded-Proto: https\r\n"
            b"X-Request-Id: theirs\r\nConnection: close\r\n\r\n"
        )
        response = b""
        while part := client.recv(65536):
            response += part
    assert response.endswith(b"6.6.6.6, 9.8.7.6, 127.0.0.1 https")
    assert b"x-request-id: theirs" in response.lower()
    assert '"client":"9.8.7.6"' in (directory / "access.log").read_text()
