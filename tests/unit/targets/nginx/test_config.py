"""One nginx configuration with all features, the sources of its lines, and the places of its errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lbctl.apply.placeholders import stand_in
from lbctl.ir.address import Address
from lbctl.ir.listeners import AccessLog, Certificate, ClientAddress, Listener, ListenerTls, PathMatch, Rule
from lbctl.ir.pools import (
    Affinity,
    Balance,
    DnsDiscovery,
    HashKey,
    Locality,
    Pool,
    PoolTls,
    Replica,
)
from lbctl.ir.routes import Forward, HeaderRules, Pin, Route, Share, StickySplit
from lbctl.ir.snapshot import View
from lbctl.targets.features import FEATURES
from lbctl.targets.nginx import TARGET
from tests.support.nginx import checker_errors, nginx_view, socket_in


def replica_at(name: str, port: int = 8000, **more: object) -> Replica:
    return Replica(name, Address("127.0.0.1", port), **more)  # type: ignore[arg-type]


def forward_to(pool: str) -> Forward:
    return Forward((Share(pool, 1),))


def view_of(pool: Pool, version: tuple[int, ...] = (1, 22), **route: object) -> View:
    listener = Listener("public", Address("127.0.0.1", 8080), rules=(Rule("r"),))
    return nginx_view(listener, (Route("r", forward_to(pool.name), **route),), (pool,), version)  # type: ignore[arg-type]


def view_of_everything(version: tuple[int, ...]) -> View:
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


@pytest.mark.e2e
def test_nginx_accepts_all_features_at_once(tmp_path: Path) -> None:
    view = stand_in(view_of_everything((1, 22)), tmp_path, lambda path: None)
    assert checker_errors(TARGET.render(view), tmp_path) == ""


@pytest.mark.parametrize("version", TARGET.versions)
def test_same_view_gives_the_same_bytes(version: tuple[int, ...]) -> None:
    assert TARGET.render(view_of_everything(version)) == TARGET.render(view_of_everything(version))


def test_each_feature_has_a_capability() -> None:
    assert set(TARGET.capabilities) == {feature.id for feature in FEATURES}


@pytest.mark.e2e
def test_rejected_line_is_reported_at_its_replica(tmp_path: Path) -> None:
    pool = Pool("p", (Replica("lost", Address("replica.invalid", 1)),))
    bundle = TARGET.render(view_of(pool))
    (complaint,) = TARGET.complaints(checker_errors(bundle, tmp_path), bundle)
    assert "host not found" in complaint.message
    assert complaint.file == "nginx.conf"
    assert bundle.main.sources[complaint.line or 0] == ("pools", "p", "replicas", "lost")


@pytest.mark.parametrize("value", ["a $ sign", "no sign"])
def test_each_server_line_belongs_to_its_pool(value: str) -> None:
    """A dollar sign adds a line with a variable above them."""
    main = TARGET.render(
        view_of(Pool("p", (replica_at("a"),)), request_headers=HeaderRules(set=(("x-a", value),)))
    ).main
    lines = main.text.split("\n")
    assert {path[:2] for number, path in main.sources.items() if "server 127" in lines[number - 1]} == {("pools", "p")}


def test_route_without_idle_timeout_gets_the_longest_one() -> None:
    text = TARGET.render(view_of(Pool("p", (replica_at("a"),)), idle_timeout=None)).main.text
    assert "proxy_read_timeout 2073600000ms;" in text


@pytest.mark.e2e
@pytest.mark.parametrize("algorithm", ["least_time", "hash"])
def test_rejected_algorithm_is_reported_at_its_pool(algorithm: str, tmp_path: Path) -> None:
    """nginx 1.22 rejects `least_time` and the parameter `route` of a server, which newer versions accept."""
    balance = Balance("hash", HashKey("source_ip")) if algorithm == "hash" else Balance("least_time")
    pools = (
        Pool("other", (replica_at("a", 8001),)),
        Pool("p", (replica_at("a"),), balance=balance, affinity=Affinity("lb")),
    )
    routes = (Route("r", Forward((Share("other", 1), Share("p", 1)))),)
    bundle = TARGET.render(
        nginx_view(Listener("public", socket_in(tmp_path), rules=(Rule("r"),)), routes, pools, (1, 31))
    )
    http11 = replace(bundle.files[0], text=bundle.main.text.replace("http2 on;", ""))
    (complaint,) = TARGET.complaints(checker_errors(replace(bundle, files=(http11,)), tmp_path), bundle)
    path = {"least_time": ("balance", "algorithm"), "hash": ("replicas", "a")}[algorithm]
    assert bundle.main.sources[complaint.line or 0] == ("pools", "p", *path)
