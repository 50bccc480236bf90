"""All proxies follow the picker, and fall back to `otherwise` if it does not answer correctly."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Binary
from tests.support.processes.fleet import Gateway, entry, fleet_of, running
from tests.support.processes.http1 import Request
from tests.support.processes.log_lines import lines_of
from tests.support.processes.ports import free_pair
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.scripted_picker import Asked, Pick, ScriptedPicker, scripted_picker
from tests.support.processes.waiting import eventually

TIMEOUT = 2.0
"""`pick.timeout` in seconds for the tests of a picker that does not respond. It is long enough to distinguish requests
that wait for it from others, even on a busy machine."""
PATIENT = "10s"
"""`pick.timeout` if every request needs the picker's response, even on a busy machine."""
PICK: dict[str, Any] = {"session": ["x-session-id"], "prefix": "off", "otherwise": "round_robin", "timeout": PATIENT}
JSON = ("content-type", "application/json")
TO_A = Request(headers=(("x-session-id", "a"),))
FAULTS: dict[str, Callable[[ScriptedPicker], None]] = {
    "dead": ScriptedPicker.kill,
    "hung": ScriptedPicker.hang,
    "slow": ScriptedPicker.slow,
}
NONSENSE = (
    b"\x00\xff nonsense\r\n\r\n",
    b"HTTP/1.1 999 What\r\n\r\n",
    b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nx-lbctl-pick: nobody\r\nx-lbctl-pick-id: 1\r\ncontent-length: 0\r\n\r\n",
    b'HTTP/1.1 200 OK\r\nx-lbctl-pick: a"b\\{};\r\nx-lbctl-pick-id: "\\\r\ncontent-length: 0\r\n\r\n',
    b"HTTP/1.1 200 OK\r\nx-filler: " + b"x" * 100_000 + b"\r\n\r\n",
    b"",
)


@pytest.fixture(params=("haproxy", pytest.param("haproxy-2.8", marks=pytest.mark.nightly), "nginx", "envoy"))
def edge(request: pytest.FixtureRequest) -> Binary:
    binary: Binary = request.param
    return binary


_EACH_VERSION = pytest.mark.parametrize("edge", ["haproxy", "haproxy-2.8", "nginx"])
"""For a test that runs on the newer HAProxy in each run, not only in the nightly one."""


@pytest.fixture(scope="module")
def four() -> Iterator[list[Replica]]:
    with replicas("a", "b", "drained", "elsewhere") as pool:
        yield pool


def scripted(port: int, pick: Pick, of: list[Replica]) -> AbstractContextManager[ScriptedPicker]:
    return scripted_picker(port, pick, {item.name: item.address for item in of})


def by_session(asked: Asked) -> str | None:
    return asked.headers.get("x-session-id")


def fleet_with_picker(of: list[Replica], port: int, **pick: Any) -> Fleet:
    a, b, drained, elsewhere = of
    members = [entry(each, region="eu") for each in (a, b)]
    members += [entry(drained, region="eu", drain=True), entry(elsewhere, region="us")]
    return fleet_of(
        {"replicas": members, "balance": {"algorithm": "pick", "pick": {**PICK, **pick}}},
        route={"regions": ["eu"]},
        control={"picker": {"bind": f"127.0.0.1:{port}"}},
    )


def shares_of(gateway: Gateway, session: str) -> dict[str, float]:
    """Return the shares of the replicas of 24 requests of a session."""
    return gateway.load(24, 4, request=Request(headers=(("x-session-id", session),))).shares()


@_EACH_VERSION
def test_requests_follow_the_picker_and_report_their_end(edge: Binary, four: list[Replica]) -> None:
    port = free_pair()
    with scripted(port, by_session, four) as picker, running(edge, fleet_with_picker(four, port)) as gateway:
        for name in ("a", "b"):
            assert shares_of(gateway, name) == {name: 1.0}
        targets, regions = {asked.target for asked in picker.asked}, {_regions(asked) for asked in picker.asked}
        assert (targets, regions) == ({"/envoy?path=/"} if edge == "envoy" else {"/pick/pool?regions=eu"}, {"eu"})
        eventually(lambda: len(picker.ended) == 48)
        assert len(set(picker.ended)) == 48


def _regions(asked: Asked) -> str:
    return asked.headers.get("x-lbctl-regions") or asked.target.partition("regions=")[2]


def test_end_of_an_unlogged_request_is_reported(edge: Binary, four: list[Replica]) -> None:
    port = free_pair()
    silent = fleet_with_picker(four, port)
    for route in silent["routes"].values():
        route["access_log"] = "off"
    with scripted(port, by_session, four) as picker, running(edge, silent) as gateway:
        assert shares_of(gateway, "a") == {"a": 1.0}
        eventually(lambda: len(set(picker.ended)) == 24)
        assert lines_of(gateway.proxy, 0) == []
        assert gateway.load(40, 4).shares() == pytest.approx({"a": 0.5, "b": 0.5}, abs=0.06)


def test_unavailable_replica_is_never_used(edge: Binary, four: list[Replica]) -> None:
    """An Envoy with files follows the picker even for a drained replica, which is never in the picker's tables."""
    port = free_pair()
    with scripted(port, by_session, four), running(edge, fleet_with_picker(four, port)) as gateway:
        for name in ("elsewhere", "nobody") if edge == "envoy" else ("drained", "elsewhere", "nobody"):
            assert shares_of(gateway, name) == pytest.approx({"a": 0.5, "b": 0.5}, abs=0.1)


def test_picked_replica_that_refuses_costs_no_request(edge: Binary, four: list[Replica]) -> None:
    port = free_pair()
    with scripted(port, by_session, four), running(edge, fleet_with_picker(four, port)) as gateway:
        four[0].refuse()
        try:
            load = gateway.load(20, 2, request=Request("POST", body=b"{}", headers=(("x-session-id", "a"),)))
        finally:
            four[0].accept()
        load.assert_no_failure()
        assert load.shares() == {"b": 1.0}


def test_request_that_takes_the_fallback_ends_both_picks(four: list[Replica]) -> None:
    port, (a, b, _, _) = free_pair(), four
    balance = {"algorithm": "pick", "pick": PICK}
    spare = {"spare": {"replicas": [entry(b)], "balance": balance}}
    both = fleet_of(
        {"replicas": [entry(a)], "balance": balance},
        route={"fallback": "spare"},
        pools=spare,
        control={"picker": {"bind": f"127.0.0.1:{port}"}},
    )

    def by_pool(asked: Asked) -> str | None:
        return {"/pick/pool": "a", "/pick/spare": "b" if "x-session-id" in asked.headers else None}[asked.target]

    a.refuse()
    try:
        with scripted_picker(port, by_pool) as picker, running("nginx", both) as gateway:
            for headers in ((("x-session-id", "s"),), ()):
                load = gateway.load(4, 2, request=Request("POST", body=b"{}", headers=headers))
                load.assert_no_failure()
                assert load.shares() == {"b": 1.0}
            eventually(lambda: len(picker.ended) == 12)
            assert len(set(picker.ended)) == 12
    finally:
        a.accept()


def test_picker_gets_the_beginning_of_a_json_body(edge: Binary, four: list[Replica]) -> None:
    port, body = free_pair(), b'{"prompt": "' + b"x" * 200_000 + b'"}'
    with (
        scripted(port, lambda _: "a", four) as picker,
        running(edge, fleet_with_picker(four, port, prefix={})) as gateway,
    ):
        assert gateway.post("/", body, headers=(JSON,)).replica == "a"
        assert gateway.post("/", body).replica == "a"
    as_json, untyped = picker.asked
    assert body.startswith(as_json.body)
    assert len(as_json.body) > 32_768
    assert as_json.headers["x-lbctl-body-length"] == str(len(body))
    assert untyped.body == (as_json.body if edge == "envoy" else b"")


def test_nginx_forwards_the_body_that_it_has_read(four: list[Replica]) -> None:
    port, a, max_body = free_pair(), four[0], 65_535
    with (
        scripted_picker(port, lambda _: "a") as picker,
        running("nginx", fleet_with_picker(four, port, prefix={})) as gateway,
    ):
        for size in (2, 250_000, 3 << 20):
            for method, chunked in (("POST", False), ("POST", True), ("PUT", False), ("PATCH", True)):
                body = b"{" + b" " * (size - 2) + b"}"
                got = gateway.request(method, "/v1/", [JSON], body, chunked=chunked)
                assert (got.replica, got.json["method"], len(got.json["body"])) == ("a", method, size)
                asked = picker.asked.pop()
                assert asked.body == (body[:max_body] if size <= 250_000 else b""), (method, chunked, size)
                assert asked.headers["x-lbctl-body-length"] == str(size)
        for method in ("GET", "HEAD", "DELETE", "OPTIONS"):
            assert gateway.request(method, "/v1/").replica == "a"
            assert picker.asked.pop().body == b""
        assert [item.path for item in list(a.seen)[-2:]] == ["/v1/", "/v1/"]
        assert "[error]" not in gateway.proxy.logs()


def test_body_is_read_after_limits_and_authentication(four: list[Replica]) -> None:
    """A rejected request does not use the picker, and the proxy does not wait for its body."""
    port = free_pair()
    closed = fleet_with_picker(four, port, prefix={})
    closed["listeners"]["gateway"]["max_body"] = "100KiB"
    for route in closed["routes"].values():
        route |= {"auth": {"api_keys": {"file": "keys"}}, "rate_limit": [{"by": "tenant", "rate": "1/m", "burst": 2}]}
    files, bearer = {"keys": "key: acme\n"}, ("authorization", "Bearer key")
    with scripted_picker(port, lambda _: "a") as picker, running("nginx", closed, files=files) as gateway:
        assert _status_without_body(gateway) == 401
        assert gateway.request("POST", "/", [JSON, bearer], b"x" * 200_000, chunked=True).status == 413
        assert picker.asked == []
        assert gateway.request("POST", "/", [JSON, bearer], b"{}").replica == "a"
        assert _status_without_body(gateway, "authorization: Bearer key") == 429
        assert len(picker.asked) == 1


def _status_without_body(gateway: Gateway, *headers: str) -> int:
    """Return the status of a request that announces a body and sends none."""
    head = ("POST / HTTP/1.1", "host: x", "content-type: application/json", "content-length: 10", *headers)
    with socket.create_connection(("127.0.0.1", gateway.port), 30) as connection:
        connection.sendall("\r\n".join((*head, "", "")).encode())
        return int(connection.recv(64).split()[1])


def test_internal_locations_are_not_reachable(four: list[Replica]) -> None:
    port = free_pair()
    with (
        scripted_picker(port, lambda _: "a") as picker,
        running("nginx", fleet_with_picker(four, port, prefix={})) as gateway,
    ):
        for path in ("/.lbctl/pick/0/pool", "/.lbctl/body"):
            for method in ("GET", "POST"):
                answer = gateway.request(method, path)
                assert (answer.status, answer.json["error"]["type"]) == (404, "not_found"), path
                assert [seen for seen in four[0].seen if seen.path == path] == [], path
        lines = [(line["path"], line["status"]) for line in lines_of(gateway.proxy, 4)]
        assert lines == [(path, 404) for path in ("/.lbctl/pick/0/pool", "/.lbctl/body") for _ in range(2)]
    assert picker.asked == []


def test_picker_gets_bodies_if_mirror_request_body_is_off(four: list[Replica]) -> None:
    port = free_pair()
    hosted = fleet_with_picker(four, port, prefix={})
    hosted["proxies"] = {"edge": {"kind": "nginx", "include": {"http": ["own/http"]}}}
    files = {"own/http": "mirror_request_body off;\n"}
    with scripted_picker(port, lambda _: "a") as picker, running("nginx", hosted, files=files) as gateway:
        assert gateway.post("/", b'{"prompt": 1}', [JSON]).json["body"] == '{"prompt": 1}'
    assert [asked.body for asked in picker.asked] == [b'{"prompt": 1}']


def test_own_limits_apply_if_the_body_is_read_first(four: list[Replica]) -> None:
    port = free_pair()
    limited = fleet_with_picker(four, port, prefix={})
    own = {"http": ["own/zone"], "location": {"everything": ["own/limit"]}}
    limited["proxies"] = {"edge": {"kind": "nginx", "include": own}}
    zone = "limit_req_zone $binary_remote_addr zone=own:1m rate=1r/m;\n"
    files = {"own/zone": zone, "own/limit": "add_header x-own 1;\nlimit_req\n  zone=own;\n"}
    with scripted_picker(port, lambda _: "a"), running("nginx", limited, files=files) as gateway:
        first, second = (gateway.post("/", b"{}", [JSON]) for _ in range(2))
    assert (first.status, first.header("x-own"), second.status) == (200, "1", 503)


def test_mirror_gets_the_body_and_websockets_pass(four: list[Replica]) -> None:
    port = free_pair()
    copied = fleet_with_picker(four, port, prefix={})
    with replicas("shadow") as (shadow,):
        copied["pools"]["shadow"] = {"replicas": [entry(shadow, region="eu")]}
        for route in copied["routes"].values():
            route |= {"mirror": {"pool": "shadow", "percent": "100%"}, "websocket": True}
        with scripted_picker(port, lambda _: "a") as picker, running("nginx", copied) as gateway:
            assert gateway.post("/", b'{"prompt": 1}', [JSON]).json["body"] == '{"prompt": 1}'
            eventually(lambda: [seen.body for seen in shadow.seen] == [b'{"prompt": 1}'])
            conversation = gateway.websocket("/ws", ["one"])
            assert (conversation.status, conversation.replica) == (101, "a")
            assert [asked.body for asked in picker.asked] == [b'{"prompt": 1}', b""]


@pytest.mark.parametrize("prefix", [{}, "off"])
def test_external_auth_runs_before_the_picker(four: list[Replica], prefix: Any) -> None:
    port, body = free_pair(), b'{"prompt": "x"}'
    with replicas("auth") as (auth,):
        external = {"url": f"http://{auth.address}/check", "accept": ["x-user"], "tenant_header": "x-user"}
        asking = fleet_with_picker(four, port, prefix=prefix)
        for route in asking["routes"].values():
            route |= {"auth": {"external": external}, "rate_limit": [{"by": "tenant", "rate": "1/m", "burst": 2}]}
        with scripted_picker(port, lambda _: "a") as picker, running("nginx", asking) as gateway:
            auth.behave(status=403)
            assert gateway.post("/v1/", body, [JSON]).status == 403
            assert picker.asked == []
            for user, statuses in (("eve", [200, 200, 429]), ("bob", [200])):
                auth.behave(status=200, headers=(("x-user", user),))
                got = [gateway.post("/v1/", body, [JSON]) for _ in statuses]
                assert [item.status for item in got] == statuses
                assert (got[0].replica, got[0].json["body"]) == ("a", body.decode())
            assert [asked.body for asked in picker.asked] == [b"" if prefix == "off" else body] * 3
            assert [asked.headers["x-lbctl-tenant"] for asked in picker.asked] == ["eve", "eve", "bob"]
            assert [line["tenant"] for line in gateway.access_log(5)] == [None, "eve", "eve", "eve", "bob"]


@pytest.mark.parametrize("prefix", ["off", {}])
@pytest.mark.parametrize("edge", ["haproxy", "nginx"])
def test_end_of_a_pick_is_reported_if_the_client_left(edge: Binary, four: list[Replica], prefix: Any) -> None:
    port = free_pair()
    with (
        scripted(port, by_session, four) as picker,
        running(edge, fleet_with_picker(four, port, prefix=prefix)) as gateway,
    ):
        picker.delay = 0.5
        for count in range(1, 6):
            with socket.create_connection(("127.0.0.1", gateway.port), 30) as client:
                client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nx-session-id: a\r\n\r\n")
                eventually(lambda wanted=count: len(picker.asked) == wanted)
        eventually(lambda: len(picker.ended) == 5)


@pytest.mark.parametrize("fault", [*FAULTS])
def test_nginx_sends_the_body_without_a_picker(four: list[Replica], fault: str) -> None:
    port, body = free_pair(), b'{"prompt": "x"}'
    faulty = fleet_with_picker(four, port, timeout=f"{TIMEOUT * 1000:.0f}ms", prefix={})
    with scripted_picker(port, lambda _: "a") as picker, running("nginx", faulty) as gateway:
        FAULTS[fault](picker)
        load = gateway.load(40, 4, request=Request("POST", "/", (JSON,), body))
        load.assert_no_failure()
        assert set(load.by_replica) == {"a", "b"}
        assert gateway.post("/", body, [JSON]).json["body"] == body.decode()


def test_pool_is_shared_without_a_picker(edge: Binary) -> None:
    """Each fault has its own proxy; all of them run at the same time, because the test mostly waits.

    An Envoy queries a picker that is slow and reports that it is ready.
    """
    faults = [fault for fault in FAULTS if (edge, fault) != ("envoy", "slow")]
    with ThreadPoolExecutor(len(faults)) as threads:
        for fault, result in [(fault, threads.submit(_share_without_picker, edge, fault)) for fault in faults]:
            shares, seconds = result.result()
            assert shares == pytest.approx({"a": 0.5, "b": 0.5}, abs=0.12), fault
            assert seconds < TIMEOUT, f"{fault}: requests still wait"


def _share_without_picker(edge: Binary, fault: str) -> tuple[dict[str, float], float]:
    """Return the shares of the replicas while the picker is faulty, and the 75th percentile of the requests' duration
    in seconds. The picker works before and after."""
    port = free_pair()
    with (
        replicas("a", "b", "drained", "elsewhere") as members,
        scripted(port, by_session, members) as picker,
        running(edge, fleet_with_picker(members, port, timeout=f"{TIMEOUT * 1000:.0f}ms")) as gateway,
    ):
        eventually(lambda: shares_of(gateway, "a") == {"a": 1.0}, pause=0.2)
        FAULTS[fault](picker)
        eventually(lambda: gateway.load(4, 4, request=TO_A).percentile(100) < TIMEOUT)
        with gateway.steady(25, TO_A) as steady:
            time.sleep(2)
        steady.load.assert_no_failure()
        picker.heal()
        eventually(lambda: shares_of(gateway, "a") == {"a": 1.0}, pause=0.2)
    return steady.load.shares(), steady.load.percentile(75)


def test_invalid_picks_are_ignored(edge: Binary, four: list[Replica]) -> None:
    port = free_pair()
    fleet = fleet_with_picker(four, port, timeout="1s")
    with scripted(port, by_session, four) as picker, running(edge, fleet) as gateway:
        for answer in NONSENSE:
            picker.raw = answer
            load = gateway.load(24, 4, request=TO_A)
            load.assert_no_failure()
            assert load.shares() == pytest.approx({"a": 0.5, "b": 0.5}, abs=0.1), answer[:60]
