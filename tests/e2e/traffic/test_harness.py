"""The harness itself: its results are correct, checked with handwritten configurations."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes import background
from tests.support.processes.binaries import Binary, Kind, require
from tests.support.processes.certs import Authority, client_context, server_context
from tests.support.processes.client import Client
from tests.support.processes.fleet import serving
from tests.support.processes.grpc_replica import grpc_replicas
from tests.support.processes.http1 import Request
from tests.support.processes.ports import HOST, free_port
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import at_rest, eventually


def _nginx(port: int, pool: list[Replica]) -> str:
    servers = " ".join(f"server {replica.address};" for replica in pool)
    temporary = " ".join(f"{what}_temp_path {what};" for what in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    return f"""error_log stderr notice; events {{}} http {{ {temporary} access_log /dev/stdout;
    upstream pool {{ zone pool 64k; {servers} }}
    proxy_buffering off; proxy_http_version 1.1; proxy_set_header Connection "";
    server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://pool; }} }} }}"""


def _haproxy(port: int, pool: list[Replica]) -> str:
    servers = "\n".join(f"  server {replica.name} {replica.address}" for replica in pool)
    return f"""defaults
  mode http
  option http-no-delay
  timeout connect 2s
  timeout client 1m
  timeout server 1m
frontend gateway
  bind 127.0.0.1:{port}
  default_backend pool
backend pool
  balance roundrobin
{servers}
"""


def _envoy(port: int, pool: list[Replica]) -> str:
    at = "{{address: {{socket_address: {{address: 127.0.0.1, port_value: {}}}}}}}"
    hosts = ", ".join(f"{{endpoint: {at.format(replica.port)}}}" for replica in pool)
    manager = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
    router = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
    return f"""static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": {manager}
          stat_prefix: gateway
          http_filters: [{{name: router, typed_config: {{"@type": {router}}}}}]
          route_config: {{virtual_hosts: [{{name: all, domains: ["*"], routes: [
            {{match: {{prefix: /}}, route: {{cluster: pool}}}}]}}]}}
  clusters:
  - name: pool
    load_assignment: {{cluster_name: pool, endpoints: [{{lb_endpoints: [{hosts}]}}]}}
"""


_WRITTEN: dict[Binary, Callable[[int, list[Replica]], str]] = {
    "nginx": _nginx,
    "haproxy": _haproxy,
    "haproxy-2.8": _haproxy,
    "envoy": _envoy,
}


@pytest.mark.parametrize("name", _WRITTEN)
def test_proxy_runs_and_balances(name: Binary) -> None:
    port = free_port()
    with replicas("a", "b") as pool, serving(name, _WRITTEN[name](port, pool), port) as gateway:
        load = gateway.load(600, concurrency=50)
    load.assert_no_failure()
    assert load.shares() == pytest.approx({"a": 0.5, "b": 0.5}, abs=0.03)
    assert sum(replica.requests for replica in pool) == 600


def test_reload_changes_replicas_without_failures(kind: Kind) -> None:
    port = free_port()
    written = _WRITTEN[kind]
    with replicas("a", "b") as (a, b), serving(kind, written(port, [a]), port) as gateway:
        long = gateway.send("GET", "/sse?n=3&gap=0.6")
        load = gateway.send_load(150, concurrency=4, keep_alive=False, gap=0.02)
        gateway.proxy.config.write_text(written(port, [b]))
        gateway.proxy.reload()
        served = at_rest(lambda: a.requests)
        after = gateway.load(20)
        load.result(20).assert_no_failure()
        assert len(long.result(20).events()) == 3
    assert after.by_replica == {"b": 20}
    assert a.requests == served


def test_dead_proxy_fails_the_test_with_its_logs(kind: Kind) -> None:
    with pytest.raises(AssertionError) as failed, serving(kind, "nonsense", free_port()):
        pass
    assert "nonsense" in str(failed.value).lower() or "ended by itself" in str(failed.value)


def test_missing_proxy_skips_locally_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LBCTL_NGINX", raising=False)
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no nginx here: apt-get install"):
        require("nginx")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no nginx here"):
        require("nginx")


def test_failures_of_a_replica_are_distinguished() -> None:
    with replicas("a") as (a,):
        client = Client(a.port)
        a.behave(status=503)
        assert [(answer := client.post()).status, answer.error, answer.ok] == [503, "", False]
        a.behave(status=200, fault="reset")
        assert client.post(body=b"x" * 100_000).error == "reset"
        assert (a.seen[-1].body, a.requests) == (b"x" * 100_000, 2)
        a.behave(fault="close")
        assert client.post().error == "closed"
        a.behave(fault="truncate")
        short = client.get()
        assert (short.status, short.error) == (200, "short")
        assert 0 < len(short.body) < int(short.header("content-length") or 0)
        a.behave(fault="", delay=5)
        assert client.get(timeout=0.2).error == "timeout"
        a.behave(delay=0)
        load = client.load(10, concurrency=2)
        assert (load.by_replica, load.connections) == ({"a": 10}, 2)


def test_replica_refuses_and_returns_on_its_port() -> None:
    with replicas("a") as (a,):
        client, port = Client(a.port), a.port
        a.refuse()
        assert client.get().error == "refused"
        a.accept()
        assert (client.get().replica, a.port) == ("a", port)


def test_stopping_replica_closes_a_new_connection() -> None:
    """Objects that the garbage collector finds open would fail whichever test runs at that time."""

    async def connect_and_stop(replica: Replica) -> socket.socket:
        connection = socket.create_connection((HOST, replica.port))  # the event loop accepts it in its next turn
        stopped = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(lambda: stopped.set_result(asyncio.ensure_future(replica._stop())))
        await (await stopped)
        return connection

    with replicas("a") as (a,), background.wait(connect_and_stop(a)) as connection:
        connection.settimeout(60)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""


def test_health_checks_are_configured_and_counted_apart() -> None:
    with replicas("a") as (a,):
        a.behave(health=503)
        client = Client(a.port)
        assert [client.get("/health").status, client.get("/").status] == [503, 200]
        assert (a.checks, a.requests) == (1, 1)


def test_echo_contains_the_request() -> None:
    with replicas("a") as (a,):
        answer = Client(a.port).post("/x%2Fy/../z?q=%41", b"\xff\x00", {"X-Twice": "ä"}, chunked=True).json
    assert (answer["replica"], answer["method"], answer["path"]) == ("a", "POST", "/x%2Fy/../z?q=%41")
    assert (answer["body"], ["X-Twice", "ä"] in answer["headers"]) == ("\xff\x00", True)


def test_events_have_both_times() -> None:
    with replicas("a") as (a,):
        events = Client(a.port).get("/sse?n=3&gap=0.3").events()
    assert [event.number for event in events] == [0, 1, 2]
    assert all(event.lag >= 0 for event in events)
    sent = [event.at - event.lag for event in events]
    assert min(sent[1] - sent[0], sent[2] - sent[1]) > 0.29


def test_replica_counts_running_and_abandoned_requests() -> None:
    with replicas("a") as (a,):
        a.held = True
        load = Client(a.port).send_load(6, concurrency=3)
        eventually(lambda: a.in_flight == 3)
        a.held = False
        load.result(60)
        assert (a.max_in_flight, a.in_flight, a.connections) == (3, 0, 3)
        a.held = True
        given_up = Client(a.port).send("GET", "/")
        eventually(lambda: a.in_flight == 1)
        given_up.cancel()
        eventually(lambda: a.abandoned == 1 and a.in_flight == 0)


def test_replica_closes_idle_connections() -> None:
    with replicas("a") as (a,), replicas("b", keep_alive=0.3) as (b,):
        held = Client(a.port).load(3, gap=0.05)
        closed = Client(b.port).load(3, gap=0.8)
    held.assert_no_failure()
    closed.assert_no_failure()
    assert (held.connections, closed.connections) == (1, 3)


def test_load_sends_each_request() -> None:
    with replicas("a") as (a,):
        Client(a.port).load(5, 2, lambda number: Request("POST", f"/{number}", {"x-user": f"u{number}"}, b"{}"))
    assert {(seen.path, seen.header("X-User")) for seen in a.seen} == {(f"/{n}", f"u{n}") for n in range(5)}


def test_steady_load_keeps_its_rate_and_counts_failures() -> None:
    with replicas("a") as (a,):
        a.behave(delay=0.3)  # slower than the rate: no request waits for another
        with Client(a.port).steady(100) as load:
            time.sleep(1)
            a.behave(delay=0.0)
            moment = time.monotonic()
            time.sleep(0.5)
            healthy = load.since(moment + 0.1).failures
            a.behave(fault="truncate")
            eventually(lambda: load.load.errors["short"] >= 15)
            a.behave(fault="", status=503)
            eventually(lambda: load.load.statuses[503] >= 15)
            seconds = load.load.seconds
            eventually(lambda: len(load.load.responses) >= 85 * seconds)
        assert healthy == []
        assert len(load.load.responses) <= 100 * load.load.seconds + 1
        assert len(load.load.responses) == a.requests
        assert load.load.connections >= 25
        assert len(load.load.failures) == load.load.errors["short"] + load.load.statuses[503]


def test_tls_client_verifies_the_certificate(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path / "ours"), Authority(tmp_path / "other")
    pair = authority.issue("a.example.com", ["a.example.com", "127.0.0.1"])
    with replicas("a", tls=server_context(pair, authority.ca)) as (a,):
        known = client_context(authority.ca, authority.issue("client"))
        answer = Client(a.port, known, "a.example.com").get()
        assert (answer.replica, answer.peer and answer.peer.names) == ("a", ("a.example.com", "127.0.0.1"))
        assert Client(a.port, client_context(stranger.ca), "a.example.com").get().error == "tls"
        assert Client(a.port, known, "b.example.com").get().error == "tls"
        assert not Client(a.port, client_context(authority.ca), "a.example.com").get().ok


def test_websockets_echo() -> None:
    with replicas("a") as (a,):
        echo = Client(a.port).websocket("/ws", ["one", "two"])
        refused = Client(a.port).websocket("/elsewhere", ["one"])
    assert (echo.status, echo.replies, echo.replica) == (101, ("one", "two"), "a")
    assert (refused.status, refused.replies) == (200, ())


def test_grpc_replica_echoes_streams_and_reports_health() -> None:
    with grpc_replicas("a") as (a,):
        client = Client(a.port)
        assert client.grpc("/any.Service/Echo", b"\x00x").messages == (b"\x00x",)
        stream = client.grpc("/any.Service/EchoStream", b"x", count="3", gap="0.5")
        assert (stream.messages, stream.replica, stream.at[2] - stream.at[0] > 0.15) == ((b"x",) * 3, "a", True)
        a.behave(serving=False)
        assert client.grpc("/grpc.health.v1.Health/Check").messages == (b"\x08\x02",)
        a.behave(code="RESOURCE_EXHAUSTED")
        assert client.grpc("/any.Service/Echo").code == "RESOURCE_EXHAUSTED"
        a.refuse()
        assert client.grpc("/any.Service/Echo").code == "UNAVAILABLE"
        a.accept()
        a.behave(code="OK")
        assert {reply.replica for reply in client.grpc_load("/any.Service/Echo", 20, 4)} == {"a"}
        assert (a.requests, a.checks, a.in_flight) == (23, 1, 0)
