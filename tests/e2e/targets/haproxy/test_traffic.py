from __future__ import annotations

import collections
import concurrent.futures
import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from lbctl.ir.address import Address
from lbctl.ir.listeners import AccessLog, ClientAddress, Listener, PathMatch, Rule
from lbctl.ir.pools import (
    ActiveCheck,
    Affinity,
    Balance,
    CircuitBreaker,
    HashKey,
    HttpCheck,
    LoadShedding,
    PassiveCheck,
    Pool,
    Replica,
)
from lbctl.ir.routes import (
    Forward,
    HeaderRules,
    Pin,
    RateLimit,
    Redirect,
    Respond,
    Retry,
    Rewrite,
    Route,
    Share,
    StickySplit,
)
from tests.support.haproxy import VERSIONS, everything, forward, make_view, replicas, running
from tests.support.processes.haproxy_queue import waiting
from tests.support.processes.ports import free_port
from tests.support.processes.waiting import eventually

DEAD = Replica("dead", Address("127.0.0.1", 1))


def listener(port: int, *rules: Rule, **changes: Any) -> Listener:
    return Listener("pub", Address("127.0.0.1", port), rules=rules or everything(), **changes)


@pytest.mark.parametrize("version", VERSIONS)
def test_first_matching_rule_decides(tmp_path: Path, version: Any) -> None:
    port = free_port()
    names = ("host", "wild", "exact", "regex", "header", "method", "prefix")
    routes = tuple(Route(name, Respond(200, name), ("pub",)) for name in names)
    rules = (
        Rule("host", host="a.example.com"),
        Rule("wild", host="*.example.com"),
        Rule("exact", path=PathMatch("exact", "/v1/x")),
        Rule("regex", path=PathMatch("regex", "/m/[a-z]+/go")),
        Rule("header", path=PathMatch("prefix", "/v1/"), headers=(("x-tier", "}"),)),
        Rule("method", path=PathMatch("prefix", "/v1/"), methods=("PUT", "POST")),
        Rule("prefix", path=PathMatch("prefix", "/v1/")),
    )
    with running(make_view((listener(port, *rules),), routes, ()), tmp_path, port, version) as proxy:
        answers = {
            "host": proxy.send("/", host="A.example.com:80").body,
            "wild": proxy.send("/", host="x.b.example.com").body,
            "apex": proxy.send("/", host="example.com").status,
            "exact": proxy.send("/v1/x?q=1").body,
            "encoded": proxy.send("/v1%2fx").body,
            "regex": proxy.send("/m/abc/go").body,
            "half a regex": proxy.send("/m/abc/gone").status,
            "header": proxy.send("/v1/y", x_tier="}").body,
            "other value": proxy.send("/v1/y", x_tier="]").body,
            "method": proxy.send("/v1/y", "POST", "b").body,
            "no slash": proxy.send("/v1").body,
            "not a segment": proxy.send("/v1x").status,
            "dots": proxy.send("/v1/%2e%2e/m").status,
        }
        nothing = proxy.send("/nowhere")
    assert answers == {
        "host": "host",
        "wild": "wild",
        "apex": 404,
        "exact": "exact",
        "encoded": "exact",
        "regex": "regex",
        "half a regex": 404,
        "header": "header",
        "other value": "prefix",
        "method": "method",
        "no slash": "prefix",
        "not a segment": 404,
        "dots": 400,
    }
    assert json.loads(nothing.body) == {
        "error": {"message": "no route", "type": "not_found", "param": None, "code": "not_found"}
    }
    assert nothing.headers["content-type"] == "application/json"


CORPUS = [
    "a; return 200 x",
    "a}",
    "{",
    "}",
    '"',
    "'",
    "\\",
    "a\\",
    "#",
    "$x",
    "${x",
    "$(id)",
    "%",
    "%[env(HOME)]",
    "%[lua.f]",
    "{{7*7}}",
    "{% include %}",
    "include /etc/passwd",
    "-f /etc/passwd",
    "-i",
    "if",
    "unless",
    "||",
    "x" * 5000,
    "../",
    "é",
    'it\'s "100%" of $HOME #1 \\n',
]


@pytest.mark.parametrize("version", VERSIONS)
def test_free_text_is_returned_unchanged(tmp_path: Path, version: Any) -> None:
    port = free_port()
    routes = tuple(
        Route(f"r{i}", Respond(200, text + "\nend"), ("pub",), response_headers=HeaderRules((("x-text", text),)))
        for i, text in enumerate(CORPUS)
    )
    rules = tuple(Rule(f"r{i}", headers=(("x-match", text),)) for i, text in enumerate(CORPUS))
    with running(make_view((listener(port, *rules),), routes, ()), tmp_path, port, version) as proxy:
        for text in CORPUS:
            raw = text.encode().decode("latin-1")
            answer = proxy.send("/", x_match=raw)
            assert (answer.status, answer.body) == (200, text + "\nend")
            assert answer.headers["x-text"] == raw


def test_quotes_in_regex_and_path_match_literally(tmp_path: Path) -> None:
    port = free_port()
    routes = (Route("quoted", Respond(200, "quoted"), ("pub",)), Route("odd", Respond(200, "odd"), ("pub",)))
    rules = (
        Rule("quoted", path=PathMatch("regex", '/it\'s(\\d+|"#")')),
        Rule("odd", path=PathMatch("exact", "/a'b\"c#d%e $f")),
    )
    with running(make_view((listener(port, *rules),), routes, ()), tmp_path, port) as proxy:
        assert proxy.send("/it's42").body == "quoted"
        assert proxy.send("/it's%22%23%22").body == "quoted"
        assert proxy.send("/it's42%0A").status == 404
        assert proxy.send("/a'b%22c%23d%25e%20$f").body == "odd"


@pytest.mark.parametrize("version", VERSIONS)
def test_shares_pins_and_weights_are_kept(tmp_path: Path, version: Any) -> None:
    port = free_port()
    with replicas("a1", "a2", "b1") as (a1, a2, b1):
        pools = (
            Pool("a", (a1.replica(3), a2.replica(1)), balance=Balance("round_robin")),
            Pool("b", (b1.replica(),)),
        )
        pins = (Pin("header", "x-version", "b'2", "b"), Pin("cookie", "beta", "1", "b"))
        route = Route("r", Forward((Share("a", 80), Share("b", 20)), pins), ("pub",))
        with running(make_view((listener(port),), (route,), pools), tmp_path, port, version) as proxy:
            answers = collections.Counter(proxy.send().body for _ in range(1600))
            assert {proxy.send(x_version="b'2").body for _ in range(10)} == {"b1"}
            assert {proxy.send(cookie="beta=1").body for _ in range(10)} == {"b1"}
    assert 0.15 < answers["b1"] / 1600 < 0.25, "five standard deviations"
    assert answers["a1"] / answers["a2"] == pytest.approx(3, rel=0.03)


def test_sticky_client_keeps_its_variant(tmp_path: Path) -> None:
    port = free_port()
    with replicas("a1", "b1") as (a1, b1):
        pools = (Pool("a", (a1.replica(),)), Pool("b", (b1.replica(),)))
        shares = (Share("a", 1), Share("b", 1))
        by_cookie = Route("c", Forward(shares, sticky=StickySplit("cookie", "variant")), ("pub",))
        by_header = Route("h", Forward(shares, sticky=StickySplit("header", "x-user")), ("pub",))
        rules = (Rule("c", path=PathMatch("prefix", "/c")), Rule("h"))
        with running(make_view((listener(port, *rules),), (by_cookie, by_header), pools), tmp_path, port) as proxy:
            first = proxy.send("/c")
            cookie = first.headers["set-cookie"]
            again = [proxy.send("/c", cookie=cookie.split(";")[0]) for _ in range(12)]
            users = {user: {proxy.send("/h", x_user=user).body for _ in range(6)} for user in map(str, range(12))}
    assert cookie.startswith(f"variant={first.body[0]}; ")
    assert "Max-Age=3600" in cookie
    assert {item.body for item in again} == {first.body}
    assert not any("set-cookie" in item.headers for item in again)
    assert all(len(seen) == 1 for seen in users.values())
    assert {next(iter(seen)) for seen in users.values()} == {"a1", "b1"}


@pytest.mark.parametrize("algorithm", ["round_robin", "least_request"])
def test_only_refused_connections_are_retried(tmp_path: Path, algorithm: Any) -> None:
    port = free_port()
    with replicas("good", "bad") as (good, bad):
        refused = Pool(
            "p", (DEAD, Replica("gone", Address("127.0.0.1", 2)), good.replica()), balance=Balance(algorithm)
        )
        broken = Pool("q", (bad.replica(), good.replica(0.01)), balance=Balance("round_robin"), passive=None)
        routes = (forward("p"), Route("q", Forward((Share("q", 1),)), ("pub",)))
        rules = (Rule("q", path=PathMatch("prefix", "/q")), Rule("r"))
        with running(make_view((listener(port, *rules),), routes, (refused, broken)), tmp_path, port) as proxy:
            assert [proxy.send("/", "POST", "x").status for _ in range(6)] == [200] * 6
            before = len(good.seen)
            bad.status = 503
            assert proxy.send("/q", "POST", "x").status == 503
            bad.status = None
            assert proxy.send("/q", "POST", "x").status == 502
            assert len(good.seen) == before
            assert len(bad.seen) == 2


def test_reset_is_retried_only_on_idempotent_routes(tmp_path: Path) -> None:
    port = free_port()
    with replicas("good", "bad") as (good, bad):
        bad.status = None
        pool = Pool("p", (bad.replica(), good.replica()), balance=Balance("round_robin"), passive=None)
        routes = (forward("p", retry=Retry(idempotent=True)), Route("s", Forward((Share("p", 1),)), ("pub",)))
        rules = (Rule("s", path=PathMatch("prefix", "/s")), Rule("r"))
        with running(make_view((listener(port, *rules),), routes, (pool,)), tmp_path, port) as proxy:
            unsafe = [proxy.send("/s", "POST", "x").status for _ in range(6)]
            safe = [proxy.send("/", "POST", "x").status for _ in range(6)]
    assert unsafe.count(502) == 3
    assert safe == [200] * 6


def test_pool_without_replica_answers_503_with_json(tmp_path: Path) -> None:
    port = free_port()
    with replicas("a1") as (a1,):
        pools = (Pool("empty"), Pool("drained", (a1.replica(drain=True),)), Pool("dead", (DEAD,)))
        routes = tuple(Route(pool.name, Forward((Share(pool.name, 1),)), ("pub",)) for pool in pools)
        rules = tuple(Rule(pool.name, path=PathMatch("prefix", f"/{pool.name}")) for pool in pools)
        with running(make_view((listener(port, *rules),), routes, pools), tmp_path, port) as proxy:
            answers = [proxy.send(f"/{pool.name}") for pool in pools]
    assert [item.status for item in answers] == [503] * 3
    assert {item.body for item in answers} == {
        '{"error":{"message":"no replica available","type":"unavailable","param":null,"code":"unavailable"}}'
    }
    assert {item.headers["content-type"] for item in answers} == {"application/json"}
    assert not a1.seen


def test_lower_priority_then_fallback_get_requests(tmp_path: Path) -> None:
    port = free_port()
    check = ActiveCheck(HttpCheck("/h"), interval=50, unhealthy_threshold=1, healthy_threshold=1)
    with replicas("a0", "a1", "spare") as (a0, a1, spare):
        pools = (
            Pool("a", (a0.replica(), a1.replica(priority=1)), active=check),
            Pool("spare", (spare.replica(),)),
        )
        route = Route("r", Forward((Share("a", 1),), fallback="spare"), ("pub",))
        with running(make_view((listener(port),), (route,), pools), tmp_path, port) as proxy:
            for replica, status, expected in ((a0, 200, "a0"), (a0, 500, "a1"), (a1, 500, "spare"), (a0, 200, "a0")):
                replica.status = status
                eventually(lambda name=expected: {proxy.send().body for _ in range(6)} == {name})  # type: ignore[misc]


def test_replica_with_errors_is_ejected_for_a_while(tmp_path: Path) -> None:
    port = free_port()
    with replicas("a1", "a2") as (a1, a2):
        passive = PassiveCheck(consecutive_5xx=3, ejection_time=5000, is_5xx_written=True)
        pool = Pool("p", (a1.replica(), a2.replica()), balance=Balance("round_robin"), passive=passive)
        with running(make_view((listener(port),), (forward("p"),), (pool,)), tmp_path, port) as proxy:
            a1.status = 500
            statuses = [proxy.send("/", "POST", "x").status for _ in range(30)]
            a1.status = 200
            eventually(lambda: {proxy.send().body for _ in range(4)} == {"a1", "a2"}, pause=0.2)
    assert statuses.count(500) == 3
    assert statuses[-20:] == [200] * 20


FIELDS = [
    "ts",
    "request_id",
    "client",
    "tenant",
    "listener",
    "method",
    "path",
    "route",
    "pool",
    "variant",
    "replica",
    "model",
    "status",
    "bytes_in",
    "bytes_out",
    "t_queue",
    "t_connect",
    "t_first_byte",
    "t_total",
    "retries",
    "flags",
]


def _one(lines: list[dict[str, Any]], **wanted: object) -> dict[str, Any]:
    matches = [line for line in lines if wanted.items() <= line.items()]
    assert len(matches) == 1, (wanted, lines)
    return matches[0]


@pytest.mark.parametrize("version", VERSIONS)
def test_each_request_has_a_json_line_in_the_log(tmp_path: Path, version: Any) -> None:
    port = free_port()
    with replicas("a1") as (a1,):
        pools = (Pool("a", (DEAD, a1.replica()), balance=Balance("round_robin"), passive=None), Pool("b"))
        route = Route("r", Forward((Share("a", 1), Share("b", 0))), ("pub",))
        rules = (Rule("r", path=PathMatch("prefix", "/v1")),)
        trusting = listener(port, *rules, client_address=ClientAddress(("127.0.0.0/8",)))
        with running(make_view((trusting,), (route,), pools), tmp_path, port, version) as proxy:
            kept = proxy.send('/v1/a%22"b?secret=1', "POST", "body", x_request_id="i'd")
            assert kept.headers["x-request-id"] == "i'd"
            new_id = proxy.send("/v1").headers["x-request-id"]
            assert proxy.send("/nowhere").status == 404
            with socket.create_connection(("127.0.0.1", port), 60) as raw:
                raw.sendall(b"GET / HTTP/1.1\r\nbad header\r\n\r\n")
                assert raw.recv(100).startswith(b"HTTP/1.1 400")
            lines = [line for line in proxy.log(4) if line["route"] or line["path"] != "/"]
    assert all(sorted(line) == sorted(FIELDS) for line in lines)
    # the threads of HAProxy write their lines in any order
    broken, first = (_one(lines, status=400), _one(lines, request_id="i'd"))
    second, lost = (_one(lines, request_id=new_id), _one(lines, status=404))
    assert (broken["path"], broken["t_total"]) == (None, None)
    assert first["ts"][10] == "T"
    assert len(first["ts"]) == 24
    assert (first["request_id"], first["path"], first["method"]) == ("i'd", '/v1/a%22"b', "POST")
    assert (first["route"], first["pool"], first["variant"], first["replica"]) == ("r", "a", "a", "a1")
    assert 1 in {line["retries"] for line in (first, second)} <= {0, 1}
    assert second["request_id"] == new_id
    assert all(isinstance(first[name], int) for name in FIELDS if name.startswith(("t_", "bytes_")) or name == "status")
    assert (lost["status"], lost["route"], lost["replica"], lost["t_connect"]) == (404, None, None, None)
    assert a1.seen[0]["headers"]["x-request-id"] == "i'd"


def test_access_log_as_text_and_none(tmp_path: Path) -> None:
    for kind, lines in (("text", 1), ("none", 0)):
        port = free_port()
        route = Route("r", Respond(200, "x"), ("pub",))
        view = make_view((listener(port, access_log=AccessLog(format=kind)),), (route,), ())  # type: ignore[arg-type]
        with running(view, tmp_path, port) as proxy:
            proxy.send("/abc")
            eventually(lambda wanted=lines: proxy.output.read_text().count("/abc") >= wanted)  # type: ignore[misc]
            time.sleep(0.1)
            assert proxy.output.read_text().count('GET" "/abc" 200 route=r') == lines


def test_forwarded_headers_are_accepted_from_trusted_peers(tmp_path: Path) -> None:
    with replicas("a1") as (a1,):
        pools = (Pool("p", (a1.replica(),)),)
        for settings in (None, ClientAddress(("127.0.0.0/8", "10.0.0.0/8")), ClientAddress(("10.0.0.0/8",))):
            port = free_port()
            view = make_view((listener(port, client_address=settings),), (forward("p"),), pools)
            with running(view, tmp_path, port) as proxy:
                proxy.send("/", x_forwarded_for="9.9.9.9, 10.1.1.1", x_forwarded_proto="https", x_request_id="mine")
                a1.seen[-1]["client"] = proxy.log()[0]["client"]
    wanted = ("x-forwarded-for", "x-forwarded-proto", "x-request-id")
    plain, trusted, stranger = [{**{k: item["headers"][k] for k in wanted}, "c": item["client"]} for item in a1.seen]
    believed = "9.9.9.9, 10.1.1.1, 127.0.0.1"
    assert trusted == {
        "x-forwarded-for": believed,
        "x-forwarded-proto": "https",
        "x-request-id": "mine",
        "c": "9.9.9.9",
    }
    for untrusted in (plain, stranger):
        assert untrusted.pop("x-request-id") != "mine"
        assert untrusted == {"x-forwarded-for": "127.0.0.1", "x-forwarded-proto": "http", "c": "127.0.0.1"}


def test_rejected_requests_do_not_count_for_the_rate(tmp_path: Path) -> None:
    port = free_port()
    # The window is 5 s. If rejected requests counted, the later ones would never pass.
    limit = RateLimit("header", "x-who", requests=1, per=1000, burst=5)
    with replicas("a1") as (a1,):
        route = forward("p", rate_limits=(limit,))
        with running(make_view((listener(port),), (route,), (Pool("p", (a1.replica(),)),)), tmp_path, port) as proxy:
            first = [proxy.send(x_who="a") for _ in range(12)]
            other = proxy.send(x_who="b").status
            eventually(lambda: proxy.send(x_who="a").status == 200, pause=0.2)
    assert [item.status for item in first] == [200] * 5 + [429] * 7
    assert first[-1].headers["retry-after"] == "5"
    assert other == 200


def test_paths_hosts_and_headers_are_rewritten(tmp_path: Path) -> None:
    port = free_port()
    rules = HeaderRules((("x-set", "it's 100%"),), ("x-drop",))
    with replicas("a1") as (a1,):
        route = forward("p", rewrite=Rewrite("/new%1/", "in.example"), request_headers=rules)
        https = Route("s", Redirect(), ("pub",))
        table = (Rule("r", path=PathMatch("prefix", "/old/")), Rule("s"))
        view = make_view((listener(port, *table),), (route, https), (Pool("p", (a1.replica(),)),))
        with running(view, tmp_path, port) as proxy:
            proxy.send("/old/a?b=c", x_drop="1")
            proxy.send("/old")
            moved = proxy.send("/x?y=1", host="h.example:80")
            kept = proxy.send("/x", "POST", "b", host="h.example")
    assert [item["path"] for item in a1.seen] == ["/new%1/a?b=c", "/new%1"]
    assert a1.seen[0]["headers"]["host"] == "in.example"
    assert a1.seen[0]["headers"]["x-set"] == "it's 100%"
    assert "x-drop" not in a1.seen[0]["headers"]
    assert (moved.status, moved.headers["location"]) == (301, "https://h.example/x?y=1")
    assert kept.status == 308


def test_long_bodies_need_a_content_length(tmp_path: Path) -> None:
    port = free_port()

    def chunked(*parts: bytes, end: bytes = b"0\r\n\r\n") -> int:
        body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
        with socket.create_connection(("127.0.0.1", port), 60) as raw:
            raw.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + body + end)
            return int(raw.recv(100).split()[1])

    with replicas("a1") as (a1,):
        view = make_view((listener(port, max_body=6000),), (forward("p"),), (Pool("p", (a1.replica(),)),))
        with running(view, tmp_path, port) as proxy:
            plain = [proxy.send("/", "POST", "x" * size).status for size in (6000, 6001)]
            complete = [chunked(b"x"), chunked(*[b"x"] * 6000), chunked(b"x" * 5000, b"x" * 1000)]
            long = [chunked(*[b"x"] * 6001), chunked(b"x" * 3000, b"y" * 3001), chunked(b"x" * 6001, end=b"")]
            empty = proxy.send("/").status
        assert len(a1.seen) == 5
        view = make_view((listener(port, max_body=1_000_000),), (forward("p"),), (Pool("p", (a1.replica(),)),))
        with running(view, tmp_path, port):
            uncountable = [chunked(*[b"x" * 2000] * 150), chunked(*[b"x" * 2000] * 150, end=b"")]
        assert len(a1.seen) == 5
    assert (plain, complete, long, empty) == ([200, 413], [200] * 3, [413] * 3, 200)
    assert uncountable == [411] * 2


def test_body_that_falls_silent_is_answered_408(tmp_path: Path) -> None:
    port = free_port()
    with replicas("a1") as (a1,):
        entry, route = listener(port, max_body=6000), forward("p", idle_timeout=1000)
        with (
            running(make_view((entry,), (route,), (Pool("p", (a1.replica(),)),)), tmp_path, port),
            socket.create_connection(("127.0.0.1", port), 60) as raw,
        ):
            raw.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n")
            assert raw.recv(100).split()[1] == b"408"
    assert a1.seen == []


def test_model_in_the_body_chooses_the_route(tmp_path: Path) -> None:
    port = free_port()
    with replicas("a1", "b1") as (a1, b1):
        pools = (Pool("a", (a1.replica(),)), Pool("b", (b1.replica(),)))
        routes = (forward("a"), Route("s", Forward((Share("b", 1),)), ("pub",)))
        rules = (Rule("r", models=("llama", "m-*")), Rule("s"))
        view = make_view((listener(port, *rules, inspect=20_000),), routes, pools)
        with running(view, tmp_path, port) as proxy:

            def ask(**fields: str) -> str:
                answer = proxy.send("/", "POST", json.dumps(fields), content_type="application/json")
                return answer.body if answer.status == 200 else str(answer.status)

            answers = [
                ask(model="llama"),
                ask(model="m-1"),
                ask(model="llama2"),
                ask(a="b"),
                ask(z="x" * 15_000, model="m-"),
            ]
            answers += [ask(z="x" * 400_000, model="m-1"), proxy.send("/", x_model="m-9").body]
            models = [line["model"] for line in proxy.log(7)]
    assert answers == ["a1", "a1", "b1", "b1", "a1", "413", "a1"]
    assert {"llama", "m-1", "llama2", "m-9", None} <= set(models)


def test_client_keeps_its_replica_until_it_is_drained(tmp_path: Path) -> None:
    port = free_port()
    with replicas("a1", "a2") as (a1, a2):
        pools = (Pool("p", (a1.replica(), a2.replica()), balance=Balance("round_robin"), affinity=Affinity("sid")),)
        with running(make_view((listener(port),), (forward("p"),), pools), tmp_path, port) as proxy:
            first = proxy.send()
            cookie = first.headers["set-cookie"].split(";")[0]
            assert {proxy.send(cookie=cookie).body for _ in range(6)} == {first.body}
        drained = tuple(item.replica(drain=item.name == first.body) for item in (a1, a2))
        pools = (Pool("p", drained, balance=Balance("round_robin"), affinity=Affinity("sid")),)
        with running(make_view((listener(port),), (forward("p"),), pools), tmp_path, port) as proxy:
            assert first.body not in {proxy.send(cookie=cookie).body for _ in range(6)}


def test_hash_key_keeps_its_replica_when_another_leaves(tmp_path: Path) -> None:
    port = free_port()
    balance = Balance("hash", HashKey("header", "x-key"))
    with replicas("a1", "a2", "a3") as served:
        seen = []
        for count in (3, 2):
            pools = (Pool("p", tuple(item.replica() for item in served[:count]), balance=balance),)
            with running(make_view((listener(port),), (forward("p"),), pools), tmp_path, port) as proxy:
                seen.append({key: proxy.send(x_key=key).body for key in map(str, range(40))})
    kept = [key for key, replica in seen[0].items() if replica != "a3"]
    assert set(seen[0].values()) == {"a1", "a2", "a3"}
    assert all(seen[1][key] == seen[0][key] for key in kept)


def test_full_pool_answers_503_after_the_queue_timeout(tmp_path: Path) -> None:
    port = free_port()
    breaker = CircuitBreaker(100, 2, 100, 3, replica_max_requests=1)
    with replicas("a1") as (a1,), socket.create_server(("127.0.0.1", 0)) as silent:
        slow = Replica("slow", Address("127.0.0.1", silent.getsockname()[1]))
        pool = Pool("p", (slow,), circuit_breaker=breaker, queue_timeout=3000, passive=None)
        runtime = str(tmp_path / "admin.sock")
        view = make_view((listener(port),), (forward("p", idle_timeout=10_000),), (pool,), runtime_api=runtime)
        with running(view, tmp_path, port) as proxy, concurrent.futures.ThreadPoolExecutor(4) as threads:

            def timed() -> tuple[int, float, float]:
                """Return the status, the seconds that it took, and the time of the answer."""
                start = time.monotonic()
                status, end = proxy.send().status, time.monotonic()
                return status, end - start, end

            sent = [threads.submit(timed)]
            silent.settimeout(60)
            with silent.accept()[0]:
                sent += [threads.submit(timed) for _ in range(2)]
                eventually(lambda: waiting(runtime) == 2)
                sent.append(threads.submit(timed))
                answers = [each.result(60) for each in sent]
    assert not a1.seen
    assert [status for status, _, _ in answers] == [504, 503, 503, 503]
    first, second, third, last = answers
    assert first[1] > 9.9
    assert min(second[1], third[1]) > 2.9, "after the queue timeout"
    assert last[2] < min(second[2], third[2]), "without waiting in the queue"
    assert max(second[2], third[2]) < first[2], "before a place is free"


def test_pool_with_few_healthy_replicas_answers_503(tmp_path: Path) -> None:
    port = free_port()
    check = ActiveCheck(HttpCheck("/h"), interval=50, unhealthy_threshold=1, healthy_threshold=1)
    with replicas("a1", "a2", "a3") as served:
        pool = Pool("p", tuple(s.replica() for s in served), active=check, load_shedding=LoadShedding(60.0, 7000))
        with running(make_view((listener(port),), (forward("p"),), (pool,)), tmp_path, port) as proxy:
            served[0].status = 500
            eventually(lambda: {proxy.send().body for _ in range(6)} == {"a2", "a3"})
            served[1].status = 500
            eventually(lambda: proxy.send().status == 503)
            answer = proxy.send()
    assert (answer.status, answer.headers["retry-after"]) == (503, "7")


def test_route_with_region_never_leaves_it(tmp_path: Path) -> None:
    port = free_port()
    with replicas("us", "eu", "lost", "spare") as (us, eu, lost, spare):
        pools = (
            Pool(
                "p", (us.replica(region="us"), eu.replica(region="eu"), lost.replica()), balance=Balance("round_robin")
            ),
            Pool("spare", (spare.replica(region="eu"),)),
        )
        bound = Route("b", Forward((Share("p", 1),), fallback="spare"), ("pub",), regions=("eu",))
        elsewhere = Route("e", Forward((Share("p", 1),)), ("pub",), regions=("asia",))
        rules = (Rule("b", path=PathMatch("prefix", "/b")), Rule("e", path=PathMatch("prefix", "/e")), Rule("r"))
        with running(
            make_view((listener(port, *rules),), (bound, elsewhere, forward("p")), pools), tmp_path, port
        ) as proxy:
            assert {proxy.send("/b").body for _ in range(9)} == {"eu"}
            assert proxy.send("/e").status == 503
            assert {proxy.send("/").body for _ in range(9)} == {"us", "eu", "lost"}
            assert {(line["route"], line["pool"]) for line in proxy.log(19)} == {("b", "p"), ("e", "p"), ("r", "p")}


def test_prompt_prefix_and_model_choose_the_replica(tmp_path: Path) -> None:
    port = free_port()
    balance = Balance("hash", HashKey("prompt_prefix", bytes=16))
    with replicas("a1", "a2", "a3") as served:
        pool = Pool("p", tuple(item.replica() for item in served), balance=balance)
        with running(make_view((listener(port, inspect=20_000),), (forward("p"),), (pool,)), tmp_path, port) as proxy:

            def ask(**body: Any) -> str:
                answer = proxy.send("/", "POST", json.dumps(body))
                return answer.body if answer.status == 200 else str(answer.status)

            def chat(system: str, user: str) -> list[dict[str, str]]:
                return [{"role": "system", "content": system}, {"role": "user", "content": user}]

            prompts = {f"{i:016}": {ask(model="m", prompt=f"{i:016}{tail}") for tail in "abcdef"} for i in range(12)}
            chats = {i: {ask(messages=chat(f"{i:08}", f"{i:08}{tail}")) for tail in "abcdef"} for i in range(12)}
            models = {ask(model=f"m{i}", prompt="the same") for i in range(12)}
            unseen = ask(filler="x" * 600_000, prompt="a")
    assert all(len(answers) == 1 for answers in (*prompts.values(), *chats.values()))
    assert set.union(*prompts.values()) == set.union(*chats.values()) == models == {"a1", "a2", "a3"}
    assert unseen == "413"
