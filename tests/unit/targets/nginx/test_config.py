"""What is written for which version, and that the real nginx accepts it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from lbctl.apply.placeholders import stand_in
from lbctl.base import resources
from lbctl.ir.address import Address
from lbctl.ir.listeners import AccessLog, Certificate, ClientAddress, Listener, ListenerTls, PathMatch, Rule
from lbctl.ir.pools import (
    Affinity,
    Balance,
    CircuitBreaker,
    Connections,
    DnsDiscovery,
    HashKey,
    Locality,
    PassiveCheck,
    Pool,
    PoolTls,
    Replica,
)
from lbctl.ir.proxies import Proxy
from lbctl.ir.routes import Forward, HeaderRules, Pin, Retry, Route, Share, StickySplit
from lbctl.ir.snapshot import View
from lbctl.targets import replica_token
from lbctl.targets.features import FEATURES
from lbctl.targets.nginx import TARGET
from lbctl.targets.target import Bundle
from tests.support.nginx import a_view, at, refused

EVERYWHERE = Rule("r")


def a_replica(name: str, port: int = 8000, **more: object) -> Replica:
    return Replica(name, Address("127.0.0.1", port), **more)  # type: ignore[arg-type]


def to(pool: str) -> Forward:
    return Forward((Share(pool, 1),))


def text_of(pool: Pool, version: tuple[int, ...] = (1, 22), **route: object) -> str:
    return TARGET.render(view_of(pool, version, **route)).main.text


def view_of(pool: Pool, version: tuple[int, ...] = (1, 22), **route: object) -> View:
    listener = Listener("public", Address("127.0.0.1", 8080), rules=(EVERYWHERE,))
    return a_view(listener, (Route("r", to(pool.name), **route),), (pool,), version)  # type: ignore[arg-type]


def test_a_breaker_above_what_nginx_can_count_is_the_most_that_it_can(tmp_path: Path) -> None:
    breaker = CircuitBreaker(500_000, 500_000, 500_000, 3)
    bundle = TARGET.render(view_of(Pool("big", (a_replica("a"),), circuit_breaker=breaker)))
    assert "limit_conn lb_pool_big 65535;" in bundle.main.text
    assert refused(bundle, tmp_path) == ""


def everything(version: tuple[int, ...]) -> View:
    two = (a_replica("a"), a_replica("b", 8001, capacity=2.5, priority=1, zone="z", region="y"))
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
    routes = (Route("a-split", split, websocket=True), *(Route(pool.name, to(pool.name)) for pool in pools))
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
    view = a_view(listener, routes, pools, version, zone="z", region="y")
    return replace(view, listeners=(listener, cleartext))


@pytest.mark.e2e
def test_nginx_accepts_everything_at_once(tmp_path: Path) -> None:
    view = stand_in(everything((1, 22)), tmp_path, lambda path: None)
    assert refused(TARGET.render(view), tmp_path) == ""


@pytest.mark.parametrize("version", TARGET.versions)
def test_the_same_view_gives_the_same_bytes(version: tuple[int, ...]) -> None:
    assert TARGET.render(everything(version)) == TARGET.render(everything(version))


def test_every_feature_has_its_capability() -> None:
    assert set(TARGET.capabilities) == {feature.id for feature in FEATURES}


@pytest.mark.parametrize(
    ("version", "has", "has_not"),
    [
        ((1, 22), ["listen 0.0.0.0:443 ssl http2 proxy_protocol", "least_conn"], ["http2 on", "proxy_http_version 2;"]),
        ((1, 25, 1), ["listen 0.0.0.0:443 ssl proxy_protocol", "http2 on;"], [" resolve", "ssl http2"]),
        ((1, 27, 3), ["resolver 127.0.0.1:53 valid=10s;", " resolve;"], ["proxy_http_version 2;"]),
        ((1, 29, 4), ["proxy_http_version 2;"], ["sticky"]),
        ((1, 29, 6), ["sticky cookie lb expires=1800s path=/ httponly samesite=lax;"], ["least_time"]),
        ((1, 31), ["least_time header;"], []),
    ],
)
def test_a_version_is_given_what_it_understands(version: tuple[int, ...], has: list[str], has_not: list[str]) -> None:
    text = TARGET.render(everything(version)).main.text
    assert [word for word in has if word not in text] == []
    assert [word for word in has_not if word in text] == []


def test_a_sticky_cookie_says_nothing_of_a_replicas_address() -> None:
    """nginx takes the cookie's value from `route=`; the replicas that serve once more as backups have the same."""
    pool = Pool("p", (a_replica("a"), a_replica("b", 8001)), affinity=Affinity("lb"), passive=PassiveCheck())
    lines = r"server 127\.0\.0\.1:(\d+) .*route=([0-9a-f]{16})( backup)?;"
    servers = re.findall(lines, text_of(pool, (1, 29, 6)))
    words = {"8000": replica_token.word("p", "a"), "8001": replica_token.word("p", "b")}
    assert servers == [(port, words[port], backup) for backup in ("", " backup") for port in ("8000", "8001")]
    assert re.findall(lines, text_of(pool, (1, 29, 5))) == []


def test_a_sticky_cookie_is_secure_where_clients_come_by_tls_alone() -> None:
    view = view_of(Pool("p", (a_replica("a"),), affinity=Affinity("lb")), (1, 29, 6))
    (plain,) = view.listeners
    tls = replace(plain, name="tls", tls=ListenerTls((Certificate("a.crt", "a.key"),)))
    secure = [
        " samesite=lax secure;" in TARGET.render(replace(view, listeners=listeners)).main.text
        for listeners in ((tls,), (plain,), (plain, tls))
    ]
    assert secure == [True, False, False]


@pytest.mark.e2e
def test_a_refused_line_is_shown_at_its_place_in_the_yaml(tmp_path: Path) -> None:
    pool = Pool("p", (Replica("lost", Address("replica.invalid", 1)),))
    bundle = TARGET.render(view_of(pool))
    said = refused(bundle, tmp_path)
    (complaint,) = TARGET.complaints(said, bundle)
    assert "host not found" in complaint.message
    assert complaint.file == "nginx.conf"
    assert bundle.main.sources[complaint.line or 0] == ("pools", "p", "replicas", "lost")


def test_an_installed_proxy_keeps_the_directories_of_its_distribution() -> None:
    view = view_of(Pool("p", (a_replica("a"),)))
    assert "proxy_temp_path" in TARGET.render(view).main.text
    installed = replace(view, proxy=Proxy("edge", "nginx", (1, 22), config="/etc/nginx/nginx.conf"))
    assert "temp_path" not in TARGET.render(installed).main.text


def test_weights_are_whole_and_a_large_error_is_told() -> None:
    pool = Pool("p", (a_replica("a", capacity=10_000), a_replica("b", capacity=3.5), a_replica("c", drain=True)))
    bundle = TARGET.render(view_of(pool))
    assert "weight=1000 " in bundle.main.text
    assert [(item.code, item.path) for item in bundle.diagnostics] == [("LB206", ("pools", "p", "replicas", "b"))]


def test_idle_connections_to_replicas_are_kept_for_milliseconds() -> None:
    text = text_of(Pool("p", (a_replica("a"),), connections=Connections(800, 50)))
    assert "keepalive_timeout 800ms; keepalive_requests 50;" in text


def test_what_a_fleet_does_not_use_is_not_rendered() -> None:
    text = text_of(Pool("p", (a_replica("a"),)))
    unused = ("418", "grpc", "429", "401", "413", "upgrade", "$lb_tenant", "$lb_variant", "lb_dollar", "server_name")
    assert [word for word in (*unused, "map_hash", "recursive_error_pages") if word in text] == []
    assert text.count("location ") == 4


def test_a_map_with_long_keys_or_many_entries_gets_larger_tables() -> None:
    long = Pool("p", (Replica("a", Address("a" * 60, 80)), *(a_replica(f"r{i}", 8000 + i) for i in range(70))))
    assert "map_hash_max_size 2048; map_hash_bucket_size " in text_of(long)


def test_a_dollar_sign_of_the_user_s_has_its_variable_and_every_line_its_place() -> None:
    def rendered(value: str) -> Bundle:
        headers = HeaderRules(set=(("x-a", value),))
        route = Route("r", to("p"), request_headers=headers)
        return TARGET.render(
            a_view(
                Listener("l", Address("127.0.0.1", 8080), rules=(Rule("r"),)), (route,), (Pool("p", (a_replica("a"),)),)
            )
        )

    with_dollar, without = rendered("a $ sign"), rendered("no sign")
    assert 'geo $lb_dollar { default "$"; }' in with_dollar.main.text
    for bundle in (with_dollar, without):
        lines = bundle.main.text.split("\n")
        assert {path[:2] for number, path in bundle.main.sources.items() if "server 127" in lines[number - 1]} == {
            ("pools", "p")
        }


def test_a_second_route_makes_requests_look_for_their_own() -> None:
    listener = Listener(
        "public", Address("127.0.0.1", 8080), rules=(Rule("r", path=PathMatch("exact", "/x")), Rule("s"))
    )
    view = a_view(listener, (Route("r", to("p")), Route("s", to("p"))), (Pool("p", (a_replica("a"),)),))
    assert "error_page 418 = @$lb_l0_target;" in TARGET.render(view).main.text


def test_all_replicas_may_be_out_and_then_all_serve_again() -> None:
    check = PassiveCheck(consecutive_connect_failures=2, ejection_time=2500)
    members = tuple(a_replica(name, port) for port, name in enumerate("abc", 8000))
    assert failures_of(Pool("p", members, passive=check)) == ["2 fail_timeout=3s"] * 3 + ["0 backup"] * 3
    assert failures_of(Pool("p", members, passive=replace(check, max_ejection=0))) == ["0", "0", "0"]
    by_hash = Balance("hash", HashKey("header", "x-s"))
    assert failures_of(Pool("p", members, passive=check, balance=by_hash)) == ["2 fail_timeout=3s", "0", "0"]
    assert failures_of(Pool("p", members, passive=replace(check, max_ejection=100))) == ["2 fail_timeout=3s"] * 3
    assert failures_of(Pool("p", members[:1], passive=check)) == ["0"]
    assert failures_of(Pool("p", members, passive=None)) == ["0", "0", "0"]


def test_all_replicas_before_backups_may_be_out() -> None:
    members = (a_replica("a"), a_replica("b", 8001), a_replica("c", 8002, priority=1))
    assert failures_of(Pool("p", members)) == ["3 fail_timeout=30s", "3 fail_timeout=30s", "0 backup"]


def failures_of(pool: Pool) -> list[str]:
    lines = text_of(pool).splitlines()
    return [line.split("max_fails=")[1].rstrip(";") for line in lines if "max_fails=" in line]


def test_the_log_of_an_installed_nginx_is_where_its_package_has_it() -> None:
    """systemd gives a service a socket as its standard output, and a daemon has none: nginx could not open that."""
    pool = Pool("p", (a_replica("a"),))
    installed = replace(view_of(pool), proxy=Proxy("edge", "nginx", (1, 22), config="/etc/nginx/nginx.conf"))
    bundle = TARGET.render(installed)
    assert "access_log /var/log/nginx/access.log lb_log0;" in bundle.main.text
    assert bundle.diagnostics == ()
    assert "access_log /dev/stdout lb_log0;" in text_of(pool)


def test_standard_output_as_the_log_of_an_installed_nginx_is_a_warning() -> None:
    view = view_of(Pool("p", (a_replica("a"),)))
    listener = replace(view.listeners[0], access_log=AccessLog("/dev/stdout"))
    proxy = Proxy("edge", "nginx", (1, 22), config="/etc/nginx/nginx.conf")
    bundle = TARGET.render(replace(view, proxy=proxy, listeners=(listener,)))
    assert "access_log /dev/stdout lb_log0;" in bundle.main.text
    assert [item.code for item in bundle.diagnostics] == ["LB412"]


def test_what_is_no_connect_failure_is_not_tried_again_unless_that_is_harmless() -> None:
    pool = Pool("p", (a_replica("a"),))
    assert "proxy_next_upstream " not in text_of(pool), "error timeout is nginx's default"
    assert "proxy_next_upstream_tries 3; proxy_next_upstream_timeout 7000ms;" in text_of(pool)
    assert "proxy_next_upstream off;" in text_of(pool, retry=Retry(0))
    assert "proxy_next_upstream off;" in text_of(pool, retry=Retry(2, ("refused_stream",)))
    assert "proxy_next_upstream error timeout non_idempotent;" in text_of(pool, retry=Retry(1, idempotent=True))


def test_the_idle_timeout_is_no_longer_than_a_total_one() -> None:
    pool = Pool("p", (a_replica("a"),))
    assert "proxy_read_timeout 30000ms;" in text_of(pool, request_timeout=30_000)
    assert "proxy_read_timeout 300000ms;" in text_of(pool)
    assert "proxy_read_timeout 2073600000ms;" in text_of(pool, idle_timeout=None)


def test_a_lower_priority_beside_a_hash_gets_nothing_and_that_is_told() -> None:
    pool = Pool(
        "p", (a_replica("a"), a_replica("b", 8001, priority=1)), balance=Balance("hash", HashKey("header", "x-s"))
    )
    bundle = TARGET.render(view_of(pool))
    assert "server 127.0.0.1:8001 weight=1 max_fails=0 down;" in bundle.main.text
    assert [item.code for item in bundle.diagnostics] == ["LB464"]


def test_replicas_elsewhere_stand_by_where_a_zone_is_preferred() -> None:
    members = (a_replica("near", 1, zone="a", region="r"), a_replica("far", 2, zone="b", region="r"))
    view = view_of(Pool("p", members, locality=Locality("zone")))
    text = TARGET.render(replace(view, proxy=replace(view.proxy, zone="a", region="r"))).main.text
    assert "server 127.0.0.1:1 weight=100 max_fails=3 fail_timeout=30s;" in text
    assert "server 127.0.0.1:2 weight=100 max_fails=0 backup;" in text


def test_replicas_whose_names_cannot_all_be_verified_get_nothing() -> None:
    members = (a_replica("a"), Replica("b", Address("other.example", 1)))
    bundle = TARGET.render(view_of(Pool("p", members, tls=PoolTls("ca.crt"))))
    assert "proxy_pass" not in bundle.main.text
    assert [item.code for item in bundle.diagnostics] == ["LB489"]


@pytest.mark.e2e
def test_nothing_of_the_user_stands_in_a_comment_and_no_name_meets_a_word_of_nginx(tmp_path: Path) -> None:
    names = ("server", "default", "include", "lb_404", "0", "a.b-c")
    pools = tuple(Pool(name, (a_replica("x"),)) for name in names)
    routes = tuple(Route(name, Forward(tuple(Share(other, 1) for other in names))) for name in names)
    rules = tuple(Rule(name, "", PathMatch("exact", f"/{index}")) for index, name in enumerate(names))
    view = a_view(Listener("listen", at(tmp_path), rules=rules), routes, pools)
    bundle = TARGET.render(view)
    assert refused(bundle, tmp_path) == ""
    comments = [line for line in bundle.main.text.splitlines() if line.lstrip().startswith("#")]
    texts = [item.read_text() for item in (resources.templates() / "nginx").iterdir()]
    assert set(comments) <= {line for text in texts for line in text.splitlines()}


def test_a_grpc_call_waits_for_its_client_as_long_as_the_route_says() -> None:
    """The client of a dialogue sends nothing while it waits for the answer: nginx's own 60 s would end the call."""
    text = TARGET.render(view_of(Pool("p", (a_replica("a"),), protocol="grpc"), (1, 25, 1))).main.text
    assert re.findall("client_body_timeout ([^;]+);", text) == [f"{Route('r', Forward(())).idle_timeout}ms"]
    assert "client_body_timeout" not in TARGET.render(view_of(Pool("p", (a_replica("a"),)), (1, 25, 1))).main.text


@pytest.mark.parametrize(("version", "codes"), [((1, 22), ["LB405"]), ((1, 25, 1), [])])
def test_grpc_without_tls_is_told_where_no_grpc_client_could_connect(
    version: tuple[int, ...], codes: list[str]
) -> None:
    bundle = TARGET.render(view_of(Pool("p", (a_replica("a"),), protocol="grpc"), version))
    assert [item.code for item in bundle.diagnostics] == codes


@pytest.mark.e2e
@pytest.mark.parametrize("algorithm", ["least_time", "hash"])
def test_a_refused_algorithm_is_shown_at_the_pool_that_asked_for_it(algorithm: str, tmp_path: Path) -> None:
    """nginx 1.22 knows neither `least_time` nor the `route` of a server, and refuses what newer ones are given."""
    balance = Balance("hash", HashKey("source_ip")) if algorithm == "hash" else Balance("least_time")
    pools = (
        Pool("other", (a_replica("a", 8001),)),
        Pool("p", (a_replica("a"),), balance=balance, affinity=Affinity("lb")),
    )
    routes = (Route("r", Forward((Share("other", 1), Share("p", 1)))),)
    bundle = TARGET.render(a_view(Listener("public", at(tmp_path), rules=(EVERYWHERE,)), routes, pools, (1, 31)))
    http11 = replace(bundle.files[0], text=bundle.main.text.replace("http2 on;", ""))
    (complaint,) = TARGET.complaints(refused(replace(bundle, files=(http11,)), tmp_path), bundle)
    path = {"least_time": ("balance", "algorithm"), "hash": ("replicas", "a")}[algorithm]
    assert bundle.main.sources[complaint.line or 0] == ("pools", "p", *path)


@pytest.mark.parametrize(
    ("config", "path"),
    [
        (None, "lbctl-proxy"),
        ("/etc/nginx/nginx.conf", None),
        ("/usr/local/nginx/conf/nginx.conf", None),
        ("/srv/edge/nginx.conf", "/srv/edge/lbctl-proxy"),
    ],
)
def test_an_nginx_that_is_not_the_machine_s_own_has_its_temporary_files_beside_its_configuration(
    config: str | None, path: str | None
) -> None:
    view = view_of(Pool("p", (a_replica("a"),)))
    text = TARGET.render(replace(view, proxy=replace(view.proxy, config=config))).main.text
    assert ([part.split()[1] for part in text.split(";") if "proxy_temp_path" in part] or [None]) == [path]
