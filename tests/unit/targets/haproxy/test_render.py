from __future__ import annotations

import http.client
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lbctl.ir.address import Address
from lbctl.ir.listeners import Certificate, Listener, ListenerTls, PathMatch, Rule
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
from lbctl.ir.routes import Forward, Route, Share
from lbctl.ir.snapshot import View
from lbctl.targets.features import FEATURES
from lbctl.targets.haproxy import TARGET, quote
from lbctl.targets.token import UnquotedError
from tests.support.haproxy import VERSIONS, checked, everything, forward, make_view, replicas, running
from tests.support.processes import binaries
from tests.support.processes.certs import Authority
from tests.support.processes.ports import free_port


def two_replicas(name: str, **changes: Any) -> Pool:
    return Pool(name, (Replica("r1", Address("127.0.0.1", 9001)), Replica("r2", Address("127.0.0.1", 9002))), **changes)


def view_of_everything() -> View:
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


@pytest.mark.e2e
@pytest.mark.parametrize("version", VERSIONS)
def test_checker_accepts_each_kind_of_pool(tmp_path: Path, version: Any) -> None:
    text = checked(view_of_everything(), tmp_path, version)
    assert "\x00" not in text
    assert text.endswith("\n")


def test_same_view_gives_the_same_bytes() -> None:
    view = view_of_everything()
    assert TARGET.render(view) == TARGET.render(view)


def test_each_feature_has_a_capability() -> None:
    assert set(TARGET.capabilities) == {feature.id for feature in FEATURES}


def test_lines_have_the_path_of_their_value() -> None:
    main = TARGET.render(view_of_everything()).main
    lines = main.text.split("\n")
    line_of = {path: lines[number - 1].strip() for number, path in main.sources.items()}
    assert line_of["pools", "limits", "replicas", "r2"].startswith("server r2 '127.0.0.1:9002'")
    assert line_of["listeners", "pub", "max_connections"] == "maxconn 50"


@pytest.mark.e2e
def test_rejected_line_is_reported_at_its_replica(tmp_path: Path) -> None:
    view = view_of_everything()
    bundle = TARGET.render(view)
    server = next(n for n, path in bundle.main.sources.items() if path == ("pools", "limits", "replicas", "r1"))
    lines = bundle.main.text.split("\n")
    lines[server - 1] = lines[server - 1].replace("weight", "wait")
    path = tmp_path / "haproxy.cfg"
    path.write_text("\n".join(lines))
    command = TARGET.check_command(str(binaries.require("haproxy")), str(tmp_path), str(path))
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    complaints = list(TARGET.complaints(process.stderr, bundle))
    assert process.returncode == 1
    assert [(item.line, item.path) for item in complaints] == [(server, ("pools", "limits", "replicas", "r1"))]
    assert "wait" in complaints[0].message


def test_error_without_line_is_reported_at_its_replica() -> None:
    bundle = TARGET.render(view_of_everything())
    output = (
        "[ALERT]    (12) : config : Proxy 'pool_limits', server 'r1' [x:3] verify is enabled but no CA file specified."
    )
    (complaint,) = TARGET.complaints(output, bundle)
    assert complaint.path == ("pools", "limits", "replicas", "r1")


def test_key_file_with_another_name_is_an_error() -> None:
    tls = ListenerTls((Certificate("a.crt", "a.key"), Certificate("b.pem", "b.key"), Certificate("c.pem", "c.pem")))
    view = make_view(
        (Listener("pub", Address("127.0.0.1", 1), tls, rules=everything()),), (forward("p"),), (two_replicas("p"),)
    )
    (error,) = TARGET.render(view).diagnostics
    assert (error.code, error.severity) == ("LB402", "error")
    assert error.path == ("listeners", "pub", "tls", "certificates", 1, "key")
    assert "b.pem.key" in error.hint


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "a\x00b", "\x7f", ""])
def test_word_with_control_character_is_refused(text: str) -> None:
    with pytest.raises(UnquotedError):
        quote.word(text)


@pytest.mark.parametrize("text", ["a/b", "a b", "a#b", "-a", "a\n", "", "é"])
def test_name_outside_the_grammar_is_refused(text: str) -> None:
    with pytest.raises(UnquotedError):
        quote.name(text)


@pytest.mark.e2e
@pytest.mark.parametrize("version", VERSIONS)
def test_sni_chooses_certificate_and_clients_are_verified(tmp_path: Path, version: Any) -> None:
    authority = Authority(tmp_path / "pki")
    first, second, client = (authority.issue(name) for name in ("a.example", "b.example", "client"))
    port = free_port()
    for required in ("optional", "required"):
        tls = ListenerTls(
            (
                Certificate(str(first.certificate), str(first.key)),
                Certificate(str(second.certificate), str(second.key), ("b.example",)),
            ),
            client_ca=str(authority.ca),
            client_certificate=required,
        )
        with replicas("a1") as (a1,):
            listener = Listener("pub", Address("127.0.0.1", port), tls, rules=everything())
            view = make_view((listener,), (forward("p"),), (Pool("p", (a1.replica(),)),))
            with running(view, tmp_path, port, version):
                for name in ("a.example", "b.example"):
                    assert _get(port, authority, name, (client.certificate, client.key)) == 200
                if required == "optional":
                    assert _get(port, authority, "a.example") == 200
                else:
                    with pytest.raises((ssl.SSLError, OSError)):
                        _get(port, authority, "a.example")
            assert {item["headers"]["x-forwarded-proto"] for item in a1.seen} == {"https"}


@pytest.mark.e2e
@pytest.mark.parametrize("version", VERSIONS)
def test_relative_files_are_next_to_the_configuration(tmp_path: Path, version: Any) -> None:
    authority = Authority(tmp_path / "pki")
    server = authority.issue("a.example")
    pair = Certificate(f"pki/{server.certificate.name}", f"pki/{server.key.name}")
    listener = Listener(
        "pub", Address("127.0.0.1", free_port()), ListenerTls((pair,), client_ca=f"pki/{authority.ca.name}")
    )
    checked(make_view((listener,), (), ()), tmp_path, version)


def _get(port: int, authority: Authority, name: str, pair: tuple[Path, Path] | None = None) -> int:
    context = ssl.create_default_context(cafile=str(authority.ca))
    context.set_alpn_protocols(["http/1.1"])
    if pair:
        context.load_cert_chain(*pair)
    raw = socket.create_connection(("127.0.0.1", port), 5)
    connection = http.client.HTTPSConnection(name, context=context)
    connection.sock = context.wrap_socket(raw, server_hostname=name)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.e2e
def test_replicas_are_verified_by_their_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    server, client = authority.issue("replica.example"), authority.issue("client")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.certificate, server.key)
    context.load_verify_locations(authority.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    statuses = []
    for name in ("replica.example", "other.example"):
        port = free_port()
        with replicas("a1", context=context) as (a1,):
            tls = PoolTls(str(authority.ca), name, str(client.certificate), str(client.key))
            pool = Pool("p", (a1.replica(),), tls=tls, passive=None)
            listener = Listener("pub", Address("127.0.0.1", port), rules=everything())
            with running(make_view((listener,), (forward("p"),), (pool,)), tmp_path, port) as proxy:
                statuses.append(proxy.send().status)
    assert statuses == [200, 503]


def test_ten_thousand_replicas_are_rendered() -> None:
    members = tuple(Replica(f"r{i}", Address("10.0.0.1", 1000 + i)) for i in range(100))
    pools = tuple(Pool(f"p{i}", members) for i in range(100))
    routes = tuple(Route(pool.name, Forward((Share(pool.name, 1),)), ("pub",)) for pool in pools)
    rules = tuple(Rule(route.name, path=PathMatch("prefix", f"/{route.name}")) for route in routes)
    view = make_view((Listener("pub", Address("127.0.0.1", 1), rules=rules),), routes, pools)
    assert TARGET.render(view).main.text.count("    server ") == 10_000
