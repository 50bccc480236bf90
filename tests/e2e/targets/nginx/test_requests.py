"""Requests through the real nginx: quoting, headers, retries, limits, the access log."""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lbctl.ir.address import Address
from lbctl.ir.listeners import AccessLog, ClientAddress, Listener, PathMatch, Rule
from lbctl.ir.pools import Balance, CircuitBreaker, HashKey, Model, Pool, Replica
from lbctl.ir.routes import (
    ApiKeys,
    Auth,
    Forward,
    HeaderRules,
    Mirror,
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
from lbctl.ir.secrets import ApiKey
from lbctl.targets.nginx import TARGET
from tests.support.nginx import SOCKET, forward_to, nginx_view, running, send_raw, send_request, socket_in
from tests.support.processes.ports import HOST, free_port
from tests.support.processes.waiting import eventually

FREE_TEXTS = [
    "$x", "${x", "$(id)", "a; return 200 x", "a}", "{", '"', "'", "\\", "x\\", "#", "%", "{{7*7}}", "\\n", "\\$x", "$",
    "}}\\nssl_engine x;", "include /etc/passwd", '";}', "ünïcode", "a b", "~^.*$", "default", "\\Q\\E(",
]  # fmt: skip


class EchoServers:
    """HTTP servers that answer with their name and keep the requests that they receive."""

    def __init__(self, count: int) -> None:
        self.received: list[list[tuple[str, str, dict[str, str], bytes]]] = [[] for _ in range(count)]
        self._servers = [ThreadingHTTPServer(("127.0.0.1", 0), self._handler(i)) for i in range(count)]
        for server in self._servers:
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def replica(self, index: int, **more: object) -> Replica:
        return Replica(f"r{index}", Address("127.0.0.1", self._servers[index].server_address[1]), **more)  # type: ignore[arg-type]

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def _handler(self, index: int) -> type[BaseHTTPRequestHandler]:
        requests = self.received[index]

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                requests.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                if self.path == "/break-off":
                    self.close_connection = True
                    return
                self.send_response(200)
                self.send_header("X-Request-Id", "of the replica")
                self.send_header("X-Secret", "s")
                self.send_header("X-Accel-Redirect", "/other")
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(f"r{index}".encode())

            do_POST = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@pytest.fixture
def replicas() -> Iterator[EchoServers]:
    servers = EchoServers(3)
    yield servers
    servers.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path


def closed_address() -> Address:
    return Address(HOST, free_port())


def listener_with_log(directory: Path, *rules: Rule, **more: object) -> Listener:
    log = AccessLog(str(directory / "access.log"))
    return Listener("public", socket_in(directory), rules=rules, access_log=log, **more)  # type: ignore[arg-type]


def test_free_text_is_returned_unchanged(directory: Path, replicas: EchoServers) -> None:
    routes, rules = [], []
    for index, text in enumerate(FREE_TEXTS):
        routes.append(Route(f"says-{index}", Respond(200, text + "\n\t" + text)))
        rules.append(Rule(f"says-{index}", "", PathMatch("exact", f"/says/{index}")))
        if not text.isascii():
            continue
        sets = HeaderRules((("x-gateway", text),), ())
        pin = (Pin("header", "x-pin", text, "pinned"), Pin("cookie", "pin.ned", text, "pinned"))
        action = Forward((Share("usual", 1),), pin)
        routes.append(
            Route(f"to-{index}", action, rewrite=Rewrite(host=None), request_headers=sets, response_headers=sets)
        )
        rules.append(Rule(f"to-{index}", "", PathMatch("exact", f"/to/{index}"), (), (("x-match", text),)))
    pools = (Pool("usual", (replicas.replica(0),)), Pool("pinned", (replicas.replica(1),)))
    with running(nginx_view(listener_with_log(directory, *rules), tuple(routes), pools), directory):
        for index, text in enumerate(FREE_TEXTS):
            assert send_request(directory, f"/says/{index}")[1] == text + "\n\t" + text
            if not text.isascii():
                continue
            assert send_request(directory, f"/to/{index}")[0] == 404
            status, body, response_headers = send_request(directory, f"/to/{index}", headers={"x-match": text})
            assert (status, body, response_headers["x-gateway"]) == (200, "r0", text)
            assert replicas.received[0][-1][2]["x-gateway"] == text
            assert send_request(directory, f"/to/{index}", headers={"x-match": text, "x-pin": text})[1] == "r1"
            if ";" not in text:
                assert (
                    send_request(directory, f"/to/{index}", headers={"x-match": text, "Cookie": f"pin.ned={text}"})[1]
                    == "r1"
                )


def test_long_response_is_complete(directory: Path) -> None:
    text = '$"\\{}' * 3000
    view = nginx_view(listener_with_log(directory, Rule("r")), (Route("r", Respond(410, text, "text/x$y")),))
    with running(view, directory):
        status, body, headers = send_request(directory, "/x.html")
        assert (status, body, headers["content-type"]) == (410, text, "text/x$y")


def test_empty_response_is_empty(directory: Path) -> None:
    with running(nginx_view(listener_with_log(directory, Rule("r")), (Route("r", Respond(404, "")),)), directory):
        assert send_request(directory, "/")[:2] == (404, "")


def test_log_lines_are_json_for_any_request(directory: Path, replicas: EchoServers) -> None:
    pool = Pool("p", (Replica("gone", closed_address()), replicas.replica(1)), model=Model("m", 'v"1'))
    other = Pool("q", (replicas.replica(2),))
    forward = Forward((Share("p", 1), Share("q", 0)))
    view = nginx_view(
        listener_with_log(directory, Rule("r", "", PathMatch("prefix", "/v1"))), (Route("r", forward),), (pool, other)
    )
    requests = [
        b'GET /v1/"\\\xff?q HTTP/1.1\r\nHost: a\r\nX-Request-Id: "\\\xff\r\nConnection: close\r\n\r\n',
        b'GET /"\\ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n',
        b'G"T / HTTP/1.1\r\n\r\n', b'\x16\x03\x01"\\\r\n\r\n', b"GET /%0a HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
        (b"POST /v1/%22x?secret=1 HTTP/1.1\r\nHost: a\r\nX-Request-Id: mine-1\r\nContent-Length: 2\r\n"
        b"Connection: close\r\n\r\nab"),
    ]  # fmt: skip
    with running(view, directory):
        for request in requests:
            send_raw(directory, request)
    lines = [json.loads(line) for line in (directory / "access.log").read_bytes().splitlines()]
    assert len(lines) == len(requests)
    fields = (
        "ts request_id client tenant listener method path route pool variant replica model status bytes_in bytes_out "
        "t_queue t_connect t_first_byte t_total retries flags"
    )
    assert all(list(line) == fields.split() for line in lines)
    by_path = {line["path"]: line for line in lines}
    assert set(by_path) == {"/v1/", "/", "/%0a", None, "/v1/%22x"}
    assert all(by_path["/"][name] is None for name in ("route", "pool", "variant", "replica"))
    assert (by_path[None]["method"], by_path[None]["status"]) == ("GET", 400)
    last = by_path["/v1/%22x"]
    assert all(len(line["request_id"]) == 32 for line in lines)
    assert (last["route"], last["pool"], last["variant"], last["replica"]) == ("r", "p", 'v"1', "r1")
    assert (last["status"], last["bytes_out"]) == (200, 2)
    assert isinstance(last["t_total"], int)
    assert isinstance(last["t_connect"], int)
    assert sum(line["retries"] for line in lines) >= 1


def test_log_identifies_replicas_of_one_host_by_port(directory: Path, replicas: EchoServers) -> None:
    by_name = [replicas.replica(n) for n in range(2)]
    by_name = [replace(item, address=replace(item.address, host="localhost")) for item in by_name]
    twin = replace(by_name[0], name="twin", drain=True)
    pools = (Pool("p", tuple(by_name)), Pool("q", (by_name[0], twin)))
    rules = (Rule("q", "", PathMatch("prefix", "/q")), Rule("p"))
    with running(
        nginx_view(
            listener_with_log(directory, *rules), (Route("p", forward_to("p")), Route("q", forward_to("q"))), pools
        ),
        directory,
    ):
        for path in ("/a", "/b", "/c", "/d", "/q"):
            send_request(directory, path, headers={"x-request-id": path})
    lines = [json.loads(line) for line in (directory / "access.log").read_text().splitlines()]
    received = {path: f"r{index}" for index in range(2) for _, path, _, _ in replicas.received[index]}
    assert {line["path"]: line["replica"] for line in lines} == received | {"/q": None}


def test_only_refused_connections_are_retried(directory: Path, replicas: EchoServers) -> None:
    pools = (
        Pool("p", (Replica("gone", closed_address()), replicas.replica(0)), passive=None),
        Pool("q", (replicas.replica(1), replicas.replica(2)), balance=Balance("round_robin")),
    )
    rules = (Rule("p", "", PathMatch("exact", "/p")), Rule("q"))
    view = nginx_view(
        listener_with_log(directory, *rules), (Route("p", forward_to("p")), Route("q", forward_to("q"))), pools
    )
    with running(view, directory):
        assert all(send_request(directory, "/p", "POST", body=b"x")[:2] == (200, "r0") for _ in range(10))
        status, body, headers = send_request(directory, "/break-off", "POST", body=b"x")
    assert status == 502
    assert json.loads(body)["error"]["type"] == "bad_gateway"
    assert headers["content-type"] == "application/json"
    assert headers["x-request-id"]
    assert len(replicas.received[1]) + len(replicas.received[2]) == 1


def test_unreachable_pool_answers_503(directory: Path) -> None:
    pools = (
        Pool("dead", (Replica("gone", closed_address()),)),
        Pool("drained", (Replica("gone", closed_address(), drain=True),)),
        Pool("empty"),
    )
    rules = tuple(Rule(pool.name, "", PathMatch("exact", f"/{pool.name}")) for pool in pools)
    view = nginx_view(
        listener_with_log(directory, *rules), tuple(Route(p.name, forward_to(p.name)) for p in pools), pools
    )
    with running(view, directory):
        for pool in pools:
            status, body, headers = send_request(directory, f"/{pool.name}", "POST", body=b"x")
            assert (status, headers["content-type"]) == (503, "application/json")
            assert (
                body
                == '{"error":{"message":"no replica available","type":"unavailable","param":null,"code":"unavailable"}}'
            )


def test_fallback_gets_requests_that_reached_no_replica(directory: Path, replicas: EchoServers) -> None:
    dead = tuple(Replica(f"gone{n}", closed_address()) for n in range(4))
    pools = (
        Pool("dead", dead),
        Pool("forward_to-left", (*dead, replicas.replica(1)), passive=None),
        Pool("none"),
        Pool("spare", (replicas.replica(0),)),
    )
    names = ("dead", "forward_to-left", "none")
    rules = tuple(Rule(name, "", PathMatch("prefix", f"/{name}")) for name in names)
    routes = tuple(Route(name, Forward((Share(name, 1),), fallback="spare"), rewrite=Rewrite("/")) for name in names)
    with running(nginx_view(listener_with_log(directory, *rules), routes, pools), directory):
        assert send_request(directory, "/dead/x", "POST", body=b"x")[1] == "r0"
        assert send_request(directory, "/none/x", "POST", body=b"x")[1] == "r0"
        assert all(send_request(directory, "/forward_to-left/x", "POST", body=b"x")[1] == "r1" for _ in range(10))
        before = len(replicas.received[0])
        assert send_request(directory, "/forward_to-left/break-off", "POST", body=b"x")[0] == 502
        assert len(replicas.received[0]) == before


def test_headers_are_set_removed_and_not_forged(directory: Path, replicas: EchoServers) -> None:
    route = Route(
        "r", forward_to("p"),
        request_headers=HeaderRules((("x-gateway", "lbctl"),), ("x-debug",)),
        response_headers=HeaderRules((("x-served-by", "us"),), ("x-secret",)),
    )  # fmt: skip
    listener = listener_with_log(directory, Rule("r"), client_address=ClientAddress(("10.0.0.0/8",)))
    sent = {
        "x-debug": "1", "x-request-id": "forged", "x-forwarded-for": "6.6.6.6", "x-forwarded-proto": "https",
        "x-forwarded-host": "evil", "forwarded": "for=evil", "Host": "gateway.test:8443",
    }  # fmt: skip
    with running(nginx_view(listener, (route,), (Pool("p", (replicas.replica(0),)),)), directory):
        _, _, response_headers = send_request(directory, "/", headers=sent)
    received = replicas.received[0][0][2]
    assert received["x-gateway"] == "lbctl"
    assert received["host"] == "gateway.test:8443"
    assert not {"x-debug", "x-forwarded-host", "forwarded"} & set(received)
    assert "6.6.6.6" not in received["x-forwarded-for"]
    assert received["x-forwarded-proto"] == "http"
    assert received["x-request-id"] not in ("forged", "")
    assert response_headers["x-request-id"] == received["x-request-id"]
    assert response_headers["x-served-by"] == "us"
    assert "x-secret" not in response_headers


def test_path_and_query_reach_the_replica_unchanged(directory: Path, replicas: EchoServers) -> None:
    rules = (Rule("new", "", PathMatch("prefix", "/v1/chat/")), Rule("r"))
    routes = (Route("r", forward_to("p")), Route("new", forward_to("p"), rewrite=Rewrite("/$m/", "models.internal")))
    with running(
        nginx_view(listener_with_log(directory, *rules), routes, (Pool("p", (replicas.replica(0),)),)), directory
    ):
        for path in ("/a%2Fb/c?x=%41&y//..", "/%7E", "/v1/chat/a%20b?c=%2F", "/v1/chat?c", "/v1/chat"):
            assert send_request(directory, path, "POST", body=b"12345")[0] == 200
        assert send_request(directory, "/v1%2Fchat/x")[0] == 400
    assert [path for _, path, _, _ in replicas.received[0]] == [
        "/a%2Fb/c?x=%41&y//..", "/%7E", "/$m/a%20b?c=%2F", "/$m?c", "/$m",
    ]  # fmt: skip
    assert [headers["host"] for _, _, headers, _ in replicas.received[0]][1:3] == ["gateway.test", "models.internal"]
    assert all(body == b"12345" for _, _, _, body in replicas.received[0])


def test_redirect_keeps_path_and_query(directory: Path) -> None:
    with running(nginx_view(listener_with_log(directory, Rule("r")), (Route("r", Redirect()),)), directory):
        status, _, headers = send_request(directory, "/x?y")
        assert (status, headers["location"]) == (301, "https://gateway.test/x?y")
        assert send_request(directory, "/x?y", "POST")[0] == 308


def test_split_has_its_shares_and_sticky_variants(directory: Path, replicas: EchoServers) -> None:
    pools = tuple(Pool(f"p{n}", (replicas.replica(n),)) for n in range(3))
    shares = (Share("p0", 3), Share("p1", 1), Share("p2", 0))
    rules = (Rule("kept", "", PathMatch("exact", "/kept")), Rule("by", "", PathMatch("exact", "/by")), Rule("drawn"))
    routes = (
        Route("drawn", Forward(shares)),
        Route("kept", Forward(shares, (Pin("header", "x-pin", "2", "p2"),), StickySplit("cookie", "lb-variant"))),
        Route("by", Forward(shares, (), StickySplit("header", "x-user"))),
    )
    with running(nginx_view(listener_with_log(directory, *rules), routes, pools), directory):
        drawn = [send_request(directory, "/", headers={"x-request-id": "always-the-same"})[1] for _ in range(400)]
        assert set(drawn) == {"r0", "r1"}
        assert 240 <= drawn.count("r0") <= 360
        _, first, headers = send_request(directory, "/kept")
        cookie = headers["set-cookie"]
        assert cookie.startswith("lb-variant=p")
        assert "HttpOnly" in cookie
        assert "SameSite=Lax" in cookie
        mine = {"Cookie": "a=b; " + cookie.split(";")[0]}
        again = [send_request(directory, "/kept", headers=mine) for _ in range(20)]
        assert {body for _, body, _ in again} == {first}
        assert all("set-cookie" not in headers for _, _, headers in again)
        assert send_request(directory, "/kept", headers=mine | {"x-pin": "2"})[1] == "r2"
        assert send_request(directory, "/kept", headers={"Cookie": "lb-variant=p2"})[1] in ("r0", "r1")
        assert len({send_request(directory, "/by", headers={"x-user": "me"})[1] for _ in range(10)}) == 1
        assert len({send_request(directory, "/by", headers={"x-user": f"u{n}"})[1] for n in range(40)}) == 2


def test_rate_limits_answer_429_with_retry_after(directory: Path, replicas: EchoServers) -> None:
    rules = (Rule("all", "", PathMatch("exact", "/all")), Rule("by", "", PathMatch("exact", "/by")))
    routes = (
        Route("all", forward_to("p"), rate_limits=(RateLimit("all", requests=1, per=60_000, burst=3),)),
        Route("by", forward_to("p"), rate_limits=(RateLimit("header", "x-user", requests=1, per=60_000, burst=2),)),
    )
    with running(
        nginx_view(listener_with_log(directory, *rules), routes, (Pool("p", (replicas.replica(0),)),)), directory
    ):
        answers = [send_request(directory, "/all") for _ in range(5)]
        assert [status for status, _, _ in answers] == [200, 200, 200, 429, 429]
        assert answers[-1][2]["retry-after"] == "60"
        assert json.loads(answers[-1][1])["error"]["type"] == "rate_limited"
        assert [send_request(directory, "/by", headers={"x-user": "a"})[0] for _ in range(3)] == [200, 200, 429]
        assert send_request(directory, "/by", headers={"x-user": "b"})[0] == 200
        assert [send_request(directory, "/by")[0] for _ in range(3)] == [200, 200, 429]


def test_too_large_body_answers_413_with_json(directory: Path, replicas: EchoServers) -> None:
    view = nginx_view(
        listener_with_log(directory, Rule("r"), max_body=1000),
        (Route("r", forward_to("p")),),
        (Pool("p", (replicas.replica(0),)),),
    )
    with running(view, directory):
        assert send_request(directory, "/", "POST", body=b"x" * 1000)[0] == 200
        status, body, _ = send_request(directory, "/", "POST", body=b"x" * 1001)
        assert status == 413
        assert json.loads(body)["error"]["type"] == "too_large"
        chunked = (
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" + b"x" * 2000 + b"\r\n0\r\n\r\n"
        )
        assert send_raw(directory, chunked).startswith(b"HTTP/1.1 413")
    assert len(replicas.received[0]) == 1


def test_hash_key_chooses_a_replica_and_no_key_spreads(directory: Path, replicas: EchoServers) -> None:
    members = tuple(replicas.replica(n) for n in range(3))
    keys = {"h": HashKey("header", "x-session"), "c": HashKey("cookie", "my-sid"), "q": HashKey("query", "my.id")}
    pools = tuple(Pool(name, members, balance=Balance("hash", key)) for name, key in keys.items())
    rules = tuple(Rule(name, "", PathMatch("exact", f"/{name}")) for name in keys)
    view = nginx_view(
        listener_with_log(directory, *rules), tuple(Route(name, forward_to(name)) for name in keys), pools
    )
    with running(view, directory):
        for path, headers in (
            ("/h", lambda n: {"x-session": f"s{n}"}), ("/c", lambda n: {"Cookie": f"a=1; my-sid=s{n}; b=2"}),
            ("/q?my.id=s{}", lambda n: {}),
        ):  # fmt: skip
            seen = {send_request(directory, path.format(n), headers=headers(n))[1] for n in range(30)}
            assert seen == {"r0", "r1", "r2"}
            assert len({send_request(directory, path.format(7), headers=headers(7))[1] for _ in range(8)}) == 1
            assert len({send_request(directory, path.split("?")[0])[1] for _ in range(30)}) == 3


def test_request_stays_in_the_regions_of_its_route(directory: Path, replicas: EchoServers) -> None:
    members = (replicas.replica(0, region="eu"), replicas.replica(1, region="us"), replicas.replica(2))
    dead = Pool("q", (Replica("gone", closed_address(), region="eu"), replicas.replica(1, region="us")))
    rules = (Rule("eu", "", PathMatch("exact", "/eu")), Rule("eu-dead", "", PathMatch("exact", "/dead")), Rule("any"))
    routes = (
        Route("any", forward_to("p")),
        Route("eu", forward_to("p"), regions=("eu",)),
        Route("eu-dead", forward_to("q"), regions=("eu",)),
    )
    with running(nginx_view(listener_with_log(directory, *rules), routes, (Pool("p", members), dead)), directory):
        assert {send_request(directory, "/")[1] for _ in range(20)} == {"r0", "r1", "r2"}
        assert {send_request(directory, "/eu")[1] for _ in range(20)} == {"r0"}
        assert send_request(directory, "/dead")[0] == 503


def test_drained_and_standby_replicas_get_no_requests(directory: Path, replicas: EchoServers) -> None:
    pools = (
        Pool("p", (replicas.replica(0), replicas.replica(1, drain=True), replicas.replica(2, priority=1))),
        Pool("q", (Replica("gone", closed_address()), replicas.replica(2, priority=1))),
    )
    rules = (Rule("q", "", PathMatch("exact", "/q")), Rule("p"))
    view = nginx_view(
        listener_with_log(directory, *rules), (Route("p", forward_to("p")), Route("q", forward_to("q"))), pools
    )
    with running(view, directory):
        assert {send_request(directory, "/")[1] for _ in range(20)} == {"r0"}
        assert {send_request(directory, "/q", "POST", body=b"x")[1] for _ in range(5)} == {"r2"}


def test_mirror_gets_a_copy_of_each_request(directory: Path, replicas: EchoServers) -> None:
    action = Forward((Share("p", 1),), mirror=Mirror("m", 100.0))
    pools = (Pool("p", (replicas.replica(0),)), Pool("m", (replicas.replica(1),)))
    view = nginx_view(listener_with_log(directory, Rule("r")), (Route("r", action, retry=Retry(0)),), pools)
    with running(view, directory):
        for _ in range(5):
            assert send_request(directory, "/x?y", "POST", body=b"abc")[:2] == (200, "r0")
        assert send_request(directory, "/.lbctl/mirror/0")[0] == 404
        eventually(lambda: len(replicas.received[1]) >= 5)
    assert [(method, path, body) for method, path, _, body in replicas.received[1]] == [("POST", "/x?y", b"abc")] * 5


def test_full_pool_answers_503_at_once(directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held, socket.socket(socket.AF_UNIX) as waiting:
        slow = Replica("slow", Address("127.0.0.1", held.getsockname()[1]))
        pool = Pool("p", (slow,), circuit_breaker=CircuitBreaker(1, 1, 1, 1))
        with running(
            nginx_view(listener_with_log(directory, Rule("r")), (Route("r", forward_to("p")),), (pool,)), directory
        ):
            waiting.connect(str(directory / SOCKET))
            waiting.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            with held.accept()[0]:
                status, body, _ = send_request(directory, "/")
    assert (status, json.loads(body)["error"]["type"]) == (503, "unavailable")


def test_api_keys_are_compared_as_a_whole(directory: Path, replicas: EchoServers) -> None:
    end = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJ"
    odd = (
        "sk-Case",
        "SK-CASE",
        f"a{end}",
        f"b{end}",
        end,
        f"{'x' * 200}{end}",
        "$lb_x$lb_dollar",
        "default",
        "~^.",
        "Bearer",
    )
    odd += ("include", "{;}#", "\\", '"', "'", "/", "[a]", "hostnames", "volatile", "$1", "k" * 256)
    keys = tuple(ApiKey(f"t{number}", key=key) for number, key in enumerate(odd))
    route = Route("r", forward_to("p"), auth=Auth(ApiKeys("keys.yaml"), forward_tenant="x-tenant"))
    view = nginx_view(listener_with_log(directory, Rule("r")), (route,), (Pool("p", (replicas.replica(0),)),))
    wrong = (
        "sk-case",
        end.lower(),
        end[1:],
        f"c{end}",
        f"{'y' * 200}{end}",
        "k" * 255,
        "k" * 257,
        "sk-Case t1",
        f"a{end}x",
    )
    with running(replace(view, api_keys={"r": keys}), directory):
        for sent in (item for key in odd for item in (key, f"bearer  {key}")):
            assert send_request(directory, "/", headers={"Authorization": sent})[0] == 200, sent
        for sent in wrong:
            assert send_request(directory, "/", headers={"Authorization": sent})[0] == 401, sent
    tenants = [headers.get("x-tenant") for _, _, headers, _ in replicas.received[0]]
    assert tenants == [item.tenant for item in keys for _ in range(2)]


def test_api_key_sets_the_tenant_and_is_required(directory: Path, replicas: EchoServers) -> None:
    keys = (ApiKey("acme", key='sk-"$\\Abc'), ApiKey("hashed", sha256="0" * 64), ApiKey("other", key="k2"))
    limit = (RateLimit("tenant", requests=1, per=60_000, burst=2),)
    route = Route("r", forward_to("p"), auth=Auth(ApiKeys("keys.yaml"), forward_tenant="x-tenant"), rate_limits=limit)
    open_route = Route("open", forward_to("p"))
    rules = (Rule("open", "", PathMatch("exact", "/open")), Rule("r"))
    view = replace(
        nginx_view(listener_with_log(directory, *rules), (route, open_route), (Pool("p", (replicas.replica(0),)),)),
        api_keys={"r": keys},
    )
    bundle = TARGET.render(view)
    assert [(file.name, file.secret) for file in bundle.files[1:]] == [("nginx-api-keys-r.map", True)]
    assert "sk-" not in bundle.main.text
    assert [item.code for item in bundle.diagnostics] == ["LB443"]
    with running(view, directory):
        for wrong in ({}, {"Authorization": 'sk-"$\\abc'}, {"Authorization": "Bearer "}, {"Authorization": "0" * 64}):
            status, body, headers = send_request(directory, "/", headers=wrong | {"x-tenant": "acme"})
            assert (status, headers["www-authenticate"]) == (401, "Bearer")
            assert json.loads(body)["error"]["type"] == "unauthorized"
        assert not replicas.received[0]
        sent = {"Authorization": 'bearer sk-"$\\Abc', "x-tenant": "other"}
        assert [send_request(directory, "/", headers=sent)[0] for _ in range(3)] == [200, 200, 429]
        assert send_request(directory, "/", headers={"Authorization": "k2"})[0] == 200
        assert send_request(directory, "/open", headers={"x-tenant": "acme"})[0] == 200
    seen = [headers for _, _, headers, _ in replicas.received[0]]
    assert [headers.get("x-tenant") for headers in seen] == ["acme", "acme", "other", None]
    assert not any("authorization" in headers for headers in seen)
    lines = (directory / "access.log").read_text().splitlines()  # in any order: each worker writes its own
    assert Counter(json.loads(line)["tenant"] for line in lines) == {None: 5, "acme": 3, "other": 1}
