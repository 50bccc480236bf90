"""The access log has the documented fields on each proxy, is correct, and stays valid whatever clients send."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.events
import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import KINDS, Kind
from tests.support.processes.certs import Authority, client_context
from tests.support.processes.client import Client
from tests.support.processes.fleet import Gateway, fleet_of, pool_of, running, side_by_side
from tests.support.processes.http1 import Request, Response
from tests.support.processes.log_lines import FIELDS, Line, lines_of
from tests.support.processes.ports import HOST, has_read
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import at_rest, eventually


def _fleet(members: list[Replica], **more: Any) -> Fleet:
    return fleet_of(members, route={"match": {"path_prefix": "/v1/"}}, **more)


class _Site:
    """A proxy with a listener, a route and replicas for each test that uses the shared settings."""

    def __init__(self, gateway: Gateway, members: Mapping[str, list[Replica]]) -> None:
        self.gateway = gateway
        self.members = members

    def lines(self, listener: str, count: int) -> list[Line]:
        return lines_of(self.gateway.proxy, count, listener=listener)


@pytest.fixture(scope="module", params=KINDS)
def site(request: pytest.FixtureRequest) -> Iterator[_Site]:
    names = {
        "described": "a",
        "statuses": "a b.c-d",
        "own-answers": "a",
        "unreachable": "a",
        "variants": "a b",
        "retries": "a b",
        "times": "a",
        "stream": "a",
        "abandoned": "a",
        "left": "a",
    }
    with ExitStack() as stack:
        members = {case: stack.enter_context(replicas(*names[case].split())) for case in names}
        fleets = {case: fleet_of(members[case]) for case in names}
        gone = {"match": {"path": "/gone"}, "respond": {"status": 410, "body": "gone"}}
        fleets["own-answers"] = _fleet(members["own-answers"], routes={"gone": gone})
        one, two = members["variants"]
        fleets["variants"]["pools"] = {
            "one": pool_of([one], model={"name": "llama", "version": "v1.2"}),
            "two": pool_of([two]),
        }
        fleets["variants"]["routes"]["everything"] = {"match": {"path_prefix": "/v1/"}, "split": {"one": 50, "two": 50}}
        yield _Site(stack.enter_context(running(request.param, side_by_side(fleets))), members)


def test_line_describes_the_request(site: _Site) -> None:
    body = b'{"prompt": "hello"}' * 50
    before = datetime.now(UTC)
    answer = site.gateway.connect("described").post("/v1/chat%20x/completions?key=secret&q=%22", body)
    after = datetime.now(UTC)
    (line,) = site.lines("described", 1)
    written = datetime.fromisoformat(line.pop("ts"))
    assert before - timedelta(seconds=1) < written < after + timedelta(seconds=1)
    assert len(body) <= line.pop("bytes_in") < len(body) + 2000
    assert len(answer.body) <= line.pop("bytes_out") < len(answer.body) + 2000
    most = _milliseconds(answer) + 1000
    assert [name for name in line if name.startswith("t_") and (line[name] or 0) > most] == []
    assert (line.pop("t_total") is None, line.pop("t_first_byte") is None) == (False, False)
    assert line.pop("request_id") == answer.header("x-request-id")
    assert {name: value for name, value in line.items() if name not in ("flags", "t_queue", "t_connect")} == {
        "client": "127.0.0.1",
        "tenant": None,
        "listener": "described",
        "method": "POST",
        "path": "/v1/chat%20x/completions",
        "route": "described-everything",
        "pool": "described-pool",
        "variant": None,
        "replica": "a",
        "model": None,
        "status": 200,
        "retries": 0,
    }


def test_route_can_be_left_out_of_the_log(kind: Kind) -> None:
    routes: dict[str, Any] = {
        "health": {"match": {"path": "/health"}, "pool": "pool", "access_log": "off", "deny_from": ["127.0.0.4/32"]},
        "me.too-1": {"match": {"path": "/too"}, "respond": {"status": 200, "body": "here"}, "access_log": "off"},
    }
    with replicas("a") as (a,), running(kind, _fleet([a], routes=routes)) as gateway:
        statuses = [gateway.get(path).status for path in ("/health", "/too")]
        statuses.append(Client(gateway.port, source="127.0.0.4").get("/health").status)
        a.behave(status=503)
        statuses += [gateway.get(path).status for path in ("/health", "/v1/x", "/unknown", "/v1/../x")]
        lines = lines_of(gateway.proxy, 3)
    assert statuses == [200, 200, 403, 200, 503, 404, 400]
    assert [line["status"] for line in lines] == [503, 404, 400]


def test_line_has_the_status_and_name_of_the_replica(site: _Site) -> None:
    a, b = site.members["statuses"]
    a.behave(status=503)
    b.behave(status=429)
    answers = [site.gateway.connect("statuses").get("/v1/x") for _ in range(6)]
    logged = {line["request_id"]: (line["replica"], line["status"]) for line in site.lines("statuses", 6)}
    assert logged == {answer.header("x-request-id"): (answer.replica, answer.status) for answer in answers}
    assert {replica for replica, _ in logged.values()} == {"a", "b.c-d"}


def test_answer_of_the_proxy_has_no_replica(site: _Site) -> None:
    for path in ("/nowhere", "/gone"):
        site.gateway.connect("own-answers").get(path)
    lines = {line["path"]: line for line in site.lines("own-answers", 2)}
    logged = {path: [line[name] for name in ("route", "pool", "replica", "status")] for path, line in lines.items()}
    assert logged == {"/nowhere": [None, None, None, 404], "/gone": ["own-answers-gone", None, None, 410]}
    assert [lines["/nowhere"][name] for name in ("t_queue", "t_connect", "variant")] == [None] * 3
    assert [line["retries"] for line in lines.values()] == [0, 0]


def test_http2_method_cannot_inject_fields(kind: Kind, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    pair, trust = authority.issue("gw.test"), client_context(authority.ca)
    tls = {"certificates": [{"certificate": "tls/a.crt", "key": "tls/a.key"}]}
    files = {"tls/a.crt": pair.certificate.read_text(), "tls/a.key": pair.key.read_text()}
    methods = ['X","status":200,"tenant":"acme', 'A"\xff', "A\\", "GET X"]
    with (
        replicas("a") as (a,),
        running(kind, _fleet([a], listener={"tls": tls}), files=files, tls=trust, server_name="gw.test") as gateway,
    ):
        with ThreadPoolExecutor(len(methods)) as threads:
            context = client_context(authority.ca, alpn=["h2"])
            list(threads.map(lambda method: _ask_http2(gateway.port, context, method), methods))
        gateway.get("/v1/end")
        eventually(lambda: b'"everything"' in gateway.proxy.stdout.read_bytes())
        whole = gateway.proxy.stdout.read_bytes().rpartition(b"\n")[0]
        lines = [json.loads(raw, object_pairs_hook=list) for raw in whole.splitlines()]
    for line in lines:
        assert sorted(name for name, _ in line) == sorted(FIELDS)
        assert dict(line)["tenant"] is None
    assert a.requests == 1


def _ask_http2(port: int, context: ssl.SSLContext, method: str) -> None:
    """Send one request with any method, and wait until the proxy has responded or ended the connection."""
    config = h2.config.H2Configuration(header_encoding=False, validate_outbound_headers=False)
    client = h2.connection.H2Connection(config)
    client.initiate_connection()
    head = [
        (b":method", method.encode("latin-1")),
        (b":scheme", b"https"),
        (b":path", b"/v1/x"),
        (b":authority", b"gw.test"),
    ]
    client.send_headers(1, head, end_stream=True)
    with (
        socket.create_connection((HOST, port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="gw.test") as connection,
    ):
        connection.sendall(client.data_to_send())
        while data := connection.recv(65536):
            events = client.receive_data(data)
            if any(isinstance(event, (h2.events.StreamEnded, h2.events.StreamReset)) for event in events):
                return


def test_line_names_an_unreachable_pool(site: _Site) -> None:
    site.members["unreachable"][0].refuse()
    assert site.gateway.connect("unreachable").post("/v1/x").status == 503
    (line,) = site.lines("unreachable", 1)
    assert [line[name] for name in ("route", "pool", "status")] == ["unreachable-everything", "unreachable-pool", 503]


def test_variant_is_the_version_of_the_pool(site: _Site) -> None:
    site.gateway.connect("variants").load(40, 2, Request(path="/v1/chat")).assert_no_failure()
    assert {(line["pool"], line["variant"], line["replica"]) for line in site.lines("variants", 40)} == {
        ("variants-one", "v1.2", "a"),
        ("variants-two", "variants-two", "b"),
    }


def test_line_has_retries_and_the_last_replica(site: _Site) -> None:
    site.members["retries"][1].refuse()
    for _ in range(4):
        assert site.gateway.connect("retries").post("/v1/x").replica == "a"
    lines = site.lines("retries", 4)
    assert {line["replica"] for line in lines} == {"a"}
    assert {line["retries"] for line in lines} == {0, 1}


def test_times_are_milliseconds(site: _Site) -> None:
    (replica,), client = site.members["times"], site.gateway.connect("times")
    replica.behave(delay=1.2)
    slow_answer = client.get("/v1/slow")
    slow = site.lines("times", 1)[0]
    replica.behave(delay=0)
    fast_answer = client.get("/v1/fast")
    fast = site.lines("times", 2)[1]
    assert 1100 < slow["t_first_byte"] < _milliseconds(slow_answer) + 1000
    assert slow["t_first_byte"] <= slow["t_total"] + 1
    assert max(fast["t_first_byte"], fast["t_total"]) < _milliseconds(fast_answer) + 1000


def test_line_has_first_byte_and_end_of_a_stream(site: _Site) -> None:
    answer = site.gateway.connect("stream").get("/sse?n=2&gap=1.2&first=0.06")
    (line,) = site.lines("stream", 1)
    assert 50 <= line["t_first_byte"] <= (answer.headers_at - answer.started) * 1000 + 2
    assert 1200 <= line["t_total"] < _milliseconds(answer) + 1000


def test_request_of_a_client_that_leaves_is_logged(site: _Site) -> None:
    (replica,) = site.members["abandoned"]
    stream = site.gateway.connect("abandoned").send("GET", "/sse?n=600&gap=0.1")
    eventually(lambda: replica.in_flight == 1)
    stream.cancel()
    (line,) = site.lines("abandoned", 1)
    assert [line[name] for name in ("path", "pool", "replica")] == ["/sse", "abandoned-pool", "a"]


def test_client_that_leaves_before_the_answer_is_a_499(site: _Site) -> None:
    (replica,) = site.members["left"]
    replica.held = True
    client = site.gateway.connect("left")
    waiting = client.send("GET", "/v1/waiting")
    eventually(lambda: replica.in_flight == 1)
    waiting.cancel()
    with socket.create_connection((HOST, client.port), timeout=10) as connection:
        connection.sendall(b"POST /v1/uploading HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhello")
        own_port = connection.getsockname()[1]
        eventually(lambda: has_read(client.port, own_port))
        time.sleep(0.2)
    lines = site.lines("left", 2)
    replica.held = False
    assert {line["path"]: line["status"] for line in lines} == {"/v1/waiting": 499, "/v1/uploading": 499}


_HOSTILE = [
    b'GET /v1/"quoted" HTTP/1.1\r\nHost: a\r\n\r\n',
    b"GET /v1/back\\slash\\n\\u0041 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /v1/\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /v1/\xff\xfe\xc3 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /v1/\x01\x1f\x7f HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /v1/%22%5c%0a%00%c3%28 HTTP/1.1\r\nHost: a\r\n\r\n",
    b'GET /v1/","status":999,"x":" HTTP/1.1\r\nHost: a\r\n\r\n',
    b"GET /v1/%[env(HOME)]$request_uri%REQ(x)%${HOME}{{x}} HTTP/1.1\r\nHost: a\r\n\r\n",
    b'GET /v1/x HTTP/1.1\r\nHost: a\r\nX-Request-Id: a"b\\c\r\n\r\n',
    b"GET /v1/x HTTP/1.1\r\nHost: a\r\nX-Request-Id: \xc3\xa4\xff\r\n\r\n",
    b'GET /v1/x HTTP/1.1\r\nHost: a\r\nX-Request-Id: ","tenant":"root\r\n\r\n',
    b"GET /v1/x HTTP/1.1\r\nHost: a\r\nX-Request-Id: a\tb\r\n\r\n",
    b"GET /v1/x HTTP/1.1\r\nHost: a\r\nX-Request-Id: \r\n\r\n",
    b"GET /v1/x HTTP/1.1\r\nHost: a\r\nX-Request-Id: " + b"y" * 3000 + b"\r\n\r\n",
    b'GET /v1/x HTTP/1.1\r\nHost: a"b\\\r\n\r\n',
    b'GET /v1/x HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: "\\\xff\r\n\r\n',
    b'GET /v1/x HTTP/1.1\r\nHost: a\r\nUser-Agent: "\\\x80\r\nReferer: "\r\nX-Model: "\r\n\r\n',
    b"GET /v1/" + b"z" * 6000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    b"BREW /v1/x HTTP/1.1\r\nHost: a\r\n\r\n",
    b'A"B /v1/x HTTP/1.1\r\nHost: a\r\n\r\n',
    b"GET http://a/v1/x HTTP/1.1\r\nHost: a\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET  HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    b'{"not": "http"}\r\n\r\n',
]


def test_hostile_requests_keep_each_line_valid(kind: Kind) -> None:
    """`lines_of` parses all lines. The plain request afterwards shows that no request wrote into another line."""
    with replicas("a") as (a,), running(kind, _fleet([a])) as gateway:
        for request in _HOSTILE:
            _throw(gateway.port, request)
        assert gateway.get("/v1/last").ok
        eventually(lambda: b"/last" in gateway.proxy.stdout.read_bytes().replace(b"\\/", b"/"))
        count = at_rest(lambda: gateway.proxy.stdout.read_bytes().count(b"\n"))
        lines = lines_of(gateway.proxy, count)
    assert len(_HOSTILE) * 0.6 < count <= len(_HOSTILE) + 1
    assert lines[-1]["path"] == "/v1/last"
    assert {line["tenant"] for line in lines} == {None}
    assert 999 not in {line["status"] for line in lines}


def test_format_none_writes_nothing(kind: Kind) -> None:
    with replicas("a") as pool, running(kind, fleet_of(pool, listener={"access_log": {"format": "none"}})) as gateway:
        gateway.load(20, 2).assert_no_failure()
        time.sleep(0.3)
        assert gateway.proxy.stdout.read_text() == ""


def test_text_log_has_a_line_for_each_request(kind: Kind) -> None:
    with replicas("a") as pool, running(kind, fleet_of(pool, listener={"access_log": {"format": "text"}})) as gateway:
        answers = [gateway.post(f"/v1/request{number}?secret=1") for number in range(3)]
        eventually(lambda: gateway.proxy.stdout.read_text().count("\n") == 3)
        lines = gateway.proxy.stdout.read_text().splitlines()
    for number, (line, answer) in enumerate(zip(lines, answers, strict=True)):
        assert not line.startswith("{")
        for word in (f"/v1/request{number}", "POST", "200", "127.0.0.1", "gateway", answer.header("x-request-id")):
            assert word in line, f"{word} is not in {line}"


@pytest.mark.parametrize("kind", ["nginx", "envoy"])
def test_log_goes_to_the_configured_file(kind: Kind, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    listener = {"access_log": {"path": str(log)}}
    with replicas("a") as pool, running(kind, fleet_of(pool, listener=listener)) as gateway:
        gateway.get("/v1/x")
        eventually(lambda: log.exists() and '"/v1/x"' in log.read_text())
        assert gateway.proxy.stdout.read_text() == ""


def test_haproxy_reports_that_it_writes_no_file(tmp_path: Path) -> None:
    listener = {"access_log": {"path": str(tmp_path / "access.log")}}
    with replicas("a") as pool, running("haproxy", fleet_of(pool, listener=listener)) as gateway:
        gateway.get("/v1/x")
        assert "warning LB412" in gateway.messages
    assert not (tmp_path / "access.log").exists()


def test_line_has_the_name_of_its_listener(kind: Kind) -> None:
    with replicas("a") as pool:
        fleet = fleet_of(pool)
        fleet["listeners"]["inner"] = {**fleet_of(pool)["listeners"]["gateway"]}
        with running(kind, fleet) as gateway:
            gateway.get("/outer")
            gateway.connect("inner").get("/inner")
            logged = {line["path"]: line["listener"] for line in lines_of(gateway.proxy, 2)}
    assert logged == {"/outer": "gateway", "/inner": "inner"}


def _milliseconds(answer: Response) -> float:
    """Return how long the client waited for the whole response, in ms."""
    return answer.seconds * 1000


def _throw(port: int, request: bytes) -> None:
    """Send the bytes, and wait until the proxy responds or closes the connection."""
    with socket.create_connection((HOST, port), timeout=10) as client:
        try:
            client.sendall(request)
            client.recv(1)
        except (ConnectionError, TimeoutError):
            return
