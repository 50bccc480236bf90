from __future__ import annotations

import http.client
import re
import socket
import ssl
import subprocess
from dataclasses import replace
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
from lbctl.ir.routes import Forward, HeaderRules, RateLimit, Retry, Route, Share
from lbctl.ir.snapshot import View
from lbctl.targets.features import FEATURES
from lbctl.targets.haproxy import TARGET, quote
from lbctl.targets.token import UnquotedError
from tests.support.haproxy import VERSIONS, checked, everything, forward, make_view, replicas, running
from tests.support.processes import binaries
from tests.support.processes.certs import Authority
from tests.support.processes.ports import free_port


def one(name: str, **changes: Any) -> Pool:
    return Pool(name, (Replica("r1", Address("127.0.0.1", 9001)), Replica("r2", Address("127.0.0.1", 9002))), **changes)


def rich() -> View:
    """Something of everything."""
    pools = (
        one("round", balance=Balance("round_robin"), active=ActiveCheck(HttpCheck(body_contains="it's %ok"), port=81)),
        one("least", affinity=Affinity("sid"), slow_start=SlowStart(), load_shedding=LoadShedding()),
        one("time", balance=Balance("least_time"), active=ActiveCheck(TcpCheck())),
        one("random", balance=Balance("random"), passive=None),
        one("header", balance=Balance("hash", HashKey("header", "x-k'%#"), 1.25)),
        one("cookie", balance=Balance("hash", HashKey("cookie", "c"))),
        one("query", balance=Balance("hash", HashKey("query", "q"))),
        one("source", balance=Balance("hash", HashKey("source_ip"))),
        one("prompt", balance=Balance("hash", HashKey("prompt_prefix", bytes=64), 1.5)),
        one("body", balance=Balance("hash", HashKey("json_body", "$.user"))),
        one("grpc", protocol="grpc", active=ActiveCheck(GrpcCheck("x.Y")), connections=Connections(800, 10)),
        one("http2", protocol="http2", active=ActiveCheck(HttpCheck(), port=80), tls=PoolTls(None, "a.example")),
        one("limits", circuit_breaker=CircuitBreaker(9, 8, 7, 6, 5, 4)),
        Pool("dns", discovery=DnsDiscovery("p.example", 80, resolvers=(Address("10.0.0.1", 53),))),
        Pool("empty"),
        Pool("named", (Replica("n", Address("localhost", 9001)), Replica("u", Address(path="/run/a b.sock")))),
    )
    routes = tuple(Route(pool.name, Forward((Share(pool.name, 1),)), ("pub",)) for pool in pools)
    rules = tuple(Rule(route.name, path=PathMatch("prefix", f"/{route.name}")) for route in routes)
    return make_view((Listener("pub", Address("::1", free_port()), rules=rules, max_connections=50),), routes, pools)


@pytest.mark.e2e
@pytest.mark.parametrize("version", VERSIONS)
def test_every_kind_of_pool_passes_the_checker(tmp_path: Path, version: Any) -> None:
    text = checked(rich(), tmp_path, version)
    assert "\x00" not in text
    assert text.endswith("\n")


def test_the_same_view_gives_the_same_bytes() -> None:
    view = rich()
    assert TARGET.render(view) == TARGET.render(view)


def test_every_feature_has_a_capability() -> None:
    assert set(TARGET.capabilities) == {feature.id for feature in FEATURES}


def test_lines_know_the_value_that_they_come_from() -> None:
    main = TARGET.render(rich()).main
    lines = main.text.split("\n")
    found = {path: lines[number - 1].strip() for number, path in main.sources.items()}
    assert found["pools", "limits", "replicas", "r2"].startswith("server r2 '127.0.0.1:9002'")
    assert found["listeners", "pub", "max_connections"] == "maxconn 50"


@pytest.mark.e2e
def test_a_name_that_nobody_resolves_and_a_broken_line_are_traced_to_the_model(tmp_path: Path) -> None:
    view = rich()
    bundle = TARGET.render(view)
    server = next(n for n, path in bundle.main.sources.items() if path == ("pools", "limits", "replicas", "r1"))
    lines = bundle.main.text.split("\n")
    lines[server - 1] = lines[server - 1].replace("weight", "wait")
    path = tmp_path / "haproxy.cfg"
    path.write_text("\n".join(lines))
    command = TARGET.check_command(str(binaries.require("haproxy")), str(tmp_path), str(path))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    found = list(TARGET.complaints(done.stderr, bundle))
    assert done.returncode == 1
    assert [(item.line, item.path) for item in found] == [(server, ("pools", "limits", "replicas", "r1"))]
    assert "wait" in found[0].message


def test_complaints_without_a_line_still_name_the_replica() -> None:
    bundle = TARGET.render(rich())
    said = (
        "[ALERT]    (12) : config : Proxy 'pool_limits', server 'r1' [x:3] verify is enabled but no CA file specified."
    )
    (found,) = TARGET.complaints(said, bundle)
    assert found.path == ("pools", "limits", "replicas", "r1")


def test_a_rounded_weight_is_reported() -> None:
    pool = Pool("p", (Replica("big", Address("h", 1), 1000), Replica("small", Address("h", 2), 1.7)))
    shown = make_view((Listener("pub", Address("127.0.0.1", 1), rules=everything()),), (forward("p"),), (pool,))
    found = TARGET.render(shown).diagnostics
    assert {(item.code, item.path, item.severity) for item in found} == {
        ("LB206", ("pools", "p", "replicas", "small"), "warning")
    }


def test_weights_keep_their_ratio_and_drain_is_weight_0() -> None:
    members = (
        Replica("a", Address("h", 1), 5),
        Replica("b", Address("h", 2), 2),
        Replica("c", Address("h", 3), 2, drain=True),
    )
    pool = Pool("p", members)
    shown = make_view((Listener("pub", Address("127.0.0.1", 1), rules=everything()),), (forward("p"),), (pool,))
    text = TARGET.render(shown).main.text
    assert [line.split()[3:5] for line in text.splitlines() if line.startswith("    server ")] == [
        ["weight", "100"],
        ["weight", "40"],
        ["weight", "0"],
    ]


def test_routes_that_disagree_on_retries_get_the_smallest_number_and_a_warning() -> None:
    routes = (forward("p"), Route("s", Forward((Share("p", 1),)), ("pub",), retry=Retry(attempts=0)))
    listener = Listener("pub", Address("127.0.0.1", 1), rules=everything("r", "s"))
    bundle = TARGET.render(make_view((listener,), routes, (one("p"),)))
    assert "\n    retries 0\n" in bundle.main.text
    assert [(item.code, item.path) for item in bundle.diagnostics] == [("LB437", ("routes", "r", "retry"))]


@pytest.mark.parametrize(
    ("protocol", "keys", "code"),
    [
        ("grpc", {"max_body": 1000}, "LB409"),
        ("grpc", {"rules": (*everything(), Rule("r", models=("m",)))}, "LB410"),
        ("grpc", {}, None),
        ("http2", {"max_body": 1000}, None),
    ],
)
def test_streams_of_grpc_clients_that_would_end_are_told(protocol: Any, keys: dict[str, Any], code: str | None) -> None:
    listener = Listener("pub", Address("127.0.0.1", 1), **{"rules": everything(), **keys})
    listener = replace(listener, request_headers_timeout=10_000)
    bundle = TARGET.render(make_view((listener,), (forward("p"),), (one("p", protocol=protocol),)))
    assert [item.code for item in bundle.diagnostics] == ([code] if code else [])
    assert all("for longer than 10 s" in item.message for item in bundle.diagnostics)


@pytest.mark.parametrize(("protocol", "codes"), [("grpc", ["LB438"]), ("http1", [])])
def test_a_stream_that_would_be_held_to_be_repeated_is_told(protocol: Any, codes: list[str]) -> None:
    listener = Listener("pub", Address("127.0.0.1", 1), rules=everything())
    route = forward("p", retry=Retry(idempotent=True))
    bundle = TARGET.render(make_view((listener,), (route,), (one("p", protocol=protocol),)))
    assert [item.code for item in bundle.diagnostics] == codes


def test_busy_replicas_are_left_by_routes_that_agree_and_the_others_repeat_nothing() -> None:
    def lines(*retries: Retry) -> tuple[list[str], list[tuple[str, str]]]:
        to_p = Forward((Share("p", 1),))
        routes = tuple(Route(f"r{number}", to_p, ("pub",), retry=retry) for number, retry in enumerate(retries))
        listener = Listener("pub", Address("127.0.0.1", 1), rules=everything(*(route.name for route in routes)))
        bundle = TARGET.render(make_view((listener,), routes, (one("p"),)))
        about = re.compile(r" +(retry-on .*|.*(?:l7-retry|wait-for-body).*)")
        texts = [match[1] for match in map(about.fullmatch, bundle.main.text.splitlines()) if match]
        return texts, [(item.code, str(item.path[1])) for item in bundle.diagnostics]

    busy = Retry(when=("connect_failure", "replica_busy"), busy_statuses=(503,))
    twice = Retry(idempotent=True)
    both = replace(busy, idempotent=True)
    forever, route = "http-request wait-for-body time 2073600000ms if", "{ var(txn.route) -m str -- r0 }"
    assert lines(busy) == (["retry-on conn-failure 503", f"{forever} {route} !{{ req.hdr(upgrade) -m found }}"], [])
    assert lines(both) == (["retry-on conn-failure empty-response 503"], [])
    texts, warnings = lines(busy, twice, both, Retry())
    assert texts[0] == "retry-on conn-failure 503"
    assert [text.rpartition("-- ")[2] for text in texts if "l7-retry" in text] == ["r1 }", "r3 }"]
    assert warnings == [("LB438", "r1"), ("LB438", "r2")]
    assert lines(replace(busy, busy_statuses=(429,)))[1] == [("LB154", "r0")]
    assert lines(busy, replace(busy, when=("replica_busy",)))[1] == [("LB437", "r0")]


def test_the_route_and_the_pool_of_a_plain_listener_are_known_beforehand_and_noted_where_something_reads_them() -> None:
    def text(*routes: Route, rules: tuple[Rule, ...] = (Rule("r0"),), **pool: Any) -> str:
        return TARGET.render(
            make_view((Listener("l", Address("127.0.0.1", 1), rules=rules),), routes, (one("p", **pool),))
        ).main.text

    plain = text(replace(forward("p"), name="r0"))
    unused = ("set-var(txn.route)", "set-var(txn.pool)", "acl ", "use_backend", "txn.queued", "timeout queue", "tunnel")
    assert [word for word in (*unused, "global", "allbackups", "retry-on", "del-header upgrade") if word in plain] == []
    assert "default_backend pool_p\n" in plain
    shedding = text(replace(forward("p"), name="r0"), load_shedding=LoadShedding())
    assert "set-var(txn.route)" not in shedding, "only a route with a fallback is an exception"
    limited = text(replace(forward("p"), name="r0"), circuit_breaker=CircuitBreaker(9, 9, 9, 3, replica_max_requests=4))
    assert "timeout queue 10000ms" in limited
    assert "set-header retry-after 1 if { status 503 }" in limited
    headers = HeaderRules(set=(("x-pool", "{pool}"),))
    named = text(replace(forward("p"), name="r0", request_headers=headers))
    assert "http-request set-var(txn.pool) str(p)\n" in named
    two = (Rule("r0", path=PathMatch("exact", "/x")), Rule("r1"))
    chosen = text(replace(forward("p"), name="r0"), replace(forward("p"), name="r1"), rules=two)
    assert "use_backend pool_%[var(txn.pool)]" in chosen
    assert "default_backend" not in chosen


def test_a_route_with_more_limits_than_haproxy_counts_is_closed() -> None:
    limits = tuple(RateLimit("header", f"x-{i}", concurrent=5) for i in range(4))
    listener = Listener("pub", Address("127.0.0.1", 1), rules=everything())
    bundle = TARGET.render(make_view((listener,), (forward("p", rate_limits=limits),), (one("p"),)))
    assert [item.code for item in bundle.diagnostics] == ["LB441"]
    assert "http-request return status 503" in bundle.main.text
    assert "set-var(txn.pool)" not in bundle.main.text


def test_a_key_that_haproxy_would_not_find_is_an_error_with_its_place() -> None:
    tls = ListenerTls((Certificate("a.crt", "a.key"), Certificate("b.pem", "b.key"), Certificate("c.pem", "c.pem")))
    shown = make_view(
        (Listener("pub", Address("127.0.0.1", 1), tls, rules=everything()),), (forward("p"),), (one("p"),)
    )
    (found,) = TARGET.render(shown).diagnostics
    assert (found.code, found.severity) == ("LB402", "error")
    assert found.path == ("listeners", "pub", "tls", "certificates", 1, "key")
    assert "b.pem.key" in found.hint


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "a\x00b", "\x7f", ""])
def test_a_word_that_haproxy_cannot_hold_is_refused(text: str) -> None:
    with pytest.raises(UnquotedError):
        quote.word(text)


@pytest.mark.parametrize("text", ["a/b", "a b", "a#b", "-a", "a\n", "", "é"])
def test_a_name_outside_the_grammar_is_refused(text: str) -> None:
    with pytest.raises(UnquotedError):
        quote.name(text)


@pytest.mark.e2e
@pytest.mark.parametrize("version", VERSIONS)
def test_tls_chooses_by_name_and_asks_clients_for_certificates(tmp_path: Path, version: Any) -> None:
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
            shown = make_view((listener,), (forward("p"),), (Pool("p", (a1.replica(),)),))
            with running(shown, tmp_path, port, version):
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
def test_relative_files_are_those_beside_the_configuration_wherever_haproxy_is_started(
    tmp_path: Path, version: Any
) -> None:
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


def test_many_pools_render_in_time() -> None:
    members = tuple(Replica(f"r{i}", Address("10.0.0.1", 1000 + i)) for i in range(100))
    pools = tuple(Pool(f"p{i}", members) for i in range(100))
    routes = tuple(Route(pool.name, Forward((Share(pool.name, 1),)), ("pub",)) for pool in pools)
    rules = tuple(Rule(route.name, path=PathMatch("prefix", f"/{route.name}")) for route in routes)
    shown = make_view((Listener("pub", Address("127.0.0.1", 1), rules=rules),), routes, pools)
    assert TARGET.render(shown).main.text.count("    server ") == 10_000
