"""Requests wait at the real picker while all replicas are full, with each kind of proxy."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest
import requests

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.client import Client
from tests.support.processes.control import ControlPlane
from tests.support.processes.fleet import entry, fleet_of, running
from tests.support.processes.http1 import Response
from tests.support.processes.lbctl_process import PICKER_MAY_HANG, short_pauses
from tests.support.processes.picker import EDGE, KINDS, frozen, key_of, open_picks, picked, pid_of
from tests.support.processes.ports import HOST, free_pair
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.scripted_picker import scripted_picker
from tests.support.processes.waiting import eventually

_QUEUES: Mapping[str, Mapping[str, Any]] = {
    "one": {"max_wait": "100s", "max_requests": 1},
    "two": {"max_wait": "100s", "max_requests": 2},
    "short": {"max_wait": "300ms", "max_requests": 9},
    "hung": {"max_wait": "3s", "max_requests": 1},
    "many": {"max_wait": "100s", "max_requests": 300},
}
"""Pool → its queue. Each pool has one replica, for one request at a time, and a route of the same name."""
_PRIORITIES = ("high", "low")
"""The routes to the pool `two` in addition to its own, and their priorities."""
_TIMEOUT = "5s"
_MUST_WAIT, _QUEUE_FULL = 401, 403
"""Responses of the picker to a query that does not wait: the pool's replica is full, and its queue is full too."""


def _pool(replica: Replica, queue: Mapping[str, Any]) -> Fleet:
    return {
        "replicas": [entry(replica)],
        "balance": {"algorithm": "pick", "pick": {"timeout": _TIMEOUT}},
        "circuit_breaker": {"per_replica": {"max_requests": 1}},
        "queue": dict(queue),
        "timeouts": {"queue": "100s"},
    }


@dataclass(frozen=True, slots=True)
class _Site:
    kind: str
    control: ControlPlane
    client: Client
    members: Mapping[str, Replica]
    """Maps a pool to its replica."""
    picker: str
    """URL of the picker."""

    def send(self, path: str) -> Future[Response]:
        return self.client.send("GET", path, timeout=100)

    def ask(self, pool: str) -> int:
        """Return the status of the picker's response to a query with low priority that does not wait."""
        headers = {"x-lbctl-proxy": EDGE, **key_of(self.control)}
        return requests.get(f"{self.picker}/pick/{pool}?priority=low", headers=headers, timeout=30).status_code

    def open_picks(self) -> float:
        """Return how many requests the picker counts as in flight."""
        return open_picks(int(self.picker.rpartition(":")[2]) - 1)

    @contextmanager
    def busy(self, pool: str) -> Iterator[Future[Response]]:
        """Keep the pool's replica busy with a request within the block, which the picker knows."""
        replica = self.members[pool]
        replica.forget()
        replica.held = True
        try:
            first = self.send(f"/{pool}/first")
            eventually(lambda: replica.in_flight == 1)
            assert self.ask(pool) == _MUST_WAIT, "the proxy did not query the picker for the first request"
            yield first
        finally:
            replica.held = False

    def await_picks(self) -> None:
        """Wait until the proxy queries the picker."""

        def decisions() -> float:
            lines = requests.get(f"{self.picker}/metrics", timeout=30).text.splitlines()
            return sum(float(line.split()[-1]) for line in lines if line.startswith("lbctl_pick_decisions_total"))

        def is_queried() -> bool:
            with suppress(requests.RequestException):  # the picker may have been killed
                before = decisions()
                return self.client.get("/one/").ok and decisions() > before
            return False

        eventually(is_queried)


@pytest.fixture(scope="module", params=KINDS)
def shared_site(request: pytest.FixtureRequest) -> Iterator[_Site]:
    """Run a control plane, its picker and one proxy for all tests of this kind of proxy."""
    with ExitStack() as stack:
        stack.enter_context(short_pauses(PICKER_MAY_HANG))
        members = dict(zip(_QUEUES, stack.enter_context(replicas(*_QUEUES)), strict=True))
        pools = {name: _pool(members[name], queue) for name, queue in _QUEUES.items()}
        routes: Fleet = {name: {"match": {"path_prefix": f"/{name}"}, "pool": name} for name in pools}
        for name in _PRIORITIES:
            routes[name] = {"match": {"path_prefix": f"/{name}"}, "pool": "two", "queue_priority": name}
        control, client = stack.enter_context(picked(request.param, pools["one"], pools=pools, routes=routes))
        port = int(control.status["picker"]["listens"].rpartition(":")[2]) + 1
        yield _Site(request.param, control, client, members, f"http://{HOST}:{port}")


@pytest.fixture
def site(shared_site: _Site) -> _Site:
    shared_site.await_picks()
    return shared_site


def test_request_waits_for_a_replica_unless_the_queue_is_full(site: _Site) -> None:
    with site.busy("one") as first:
        second = site.send("/one/second")
        eventually(lambda: site.ask("one") == _QUEUE_FULL)
        refused = site.client.get("/one/third")
        assert not second.done()
    assert [each.result(100).status for each in (first, second)] == [200, 200]
    assert site.members["one"].max_in_flight == 1
    assert (refused.status, refused.json["error"]["type"]) == (429, "overloaded")
    assert refused.header("content-type") == "application/json"
    assert len(refused.header_list("retry-after")) == 1
    assert 1 <= int(refused.header("retry-after") or 0) <= 60
    assert refused.header("x-lbctl-refused") is None


def test_request_that_waits_too_long_gets_429(site: _Site) -> None:
    with site.busy("short") as first:
        late = site.client.get("/short/late", timeout=100)
    assert (late.status, late.json["error"]["type"]) == (429, "overloaded")
    assert late.header("retry-after")
    assert late.seconds >= 0.3
    assert first.result(100).ok
    assert [seen.path for seen in site.members["short"].seen] == ["/short/first"]


def test_client_that_leaves_frees_its_place(site: _Site) -> None:
    with site.busy("one") as first:
        leaving = site.send("/one/leaving")
        eventually(lambda: site.ask("one") == _QUEUE_FULL)
        leaving.cancel()
        eventually(lambda: site.ask("one") == _MUST_WAIT)
        second = site.send("/one/second")
        eventually(lambda: site.ask("one") == _QUEUE_FULL)
    assert [each.result(100).status for each in (first, second)] == [200, 200]
    assert [seen.path for seen in site.members["one"].seen] == ["/one/first", "/one/second"]


def test_many_clients_wait_and_leave_at_once(site: _Site) -> None:
    with site.busy("many") as first:
        *leaving, last = [first, *(site.send("/many/second") for _ in range(300))]
        eventually(lambda: site.ask("many") == _QUEUE_FULL)
        for request in leaving:
            request.cancel()
        eventually(lambda: site.ask("many") == _MUST_WAIT)
    assert last.result(100).ok
    eventually(lambda: site.open_picks() == 0)


def test_request_of_a_route_with_high_priority_goes_first(site: _Site) -> None:
    with site.busy("two") as first:
        low = site.send("/low/second")
        high = site.send("/high/second")
        eventually(lambda: site.ask("two") == _QUEUE_FULL)
    assert [each.result(100).status for each in (first, low, high)] == [200] * 3
    assert [seen.path for seen in site.members["two"].seen] == ["/two/first", "/high/second", "/low/second"]


def test_waiting_request_gets_an_answer_if_the_picker_is_killed(site: _Site) -> None:
    with site.busy("one") as first:
        waiting = site.send("/one/waiting")
        eventually(lambda: site.ask("one") == _QUEUE_FULL)
        os.kill(pid_of(site.control), signal.SIGKILL)
    assert first.result(100).ok
    assert waiting.result(100).status in (200, 503)


def test_waiting_request_gets_an_answer_if_the_picker_hangs(site: _Site) -> None:
    """HAProxy does not wait for `max_wait`, because its check of the picker fails before."""
    pool = "one" if site.kind == "haproxy" else "hung"
    with site.busy(pool) as first:
        waiting = site.send(f"/{pool}/waiting")
        eventually(lambda: site.ask(pool) == _QUEUE_FULL)
        with frozen(pid_of(site.control)):
            site.members[pool].held = False
            assert first.result(60).ok
            later = site.send(f"/{pool}/later")
            assert {each.result(60).status for each in (waiting, later)} <= {200, 429, 503}


@pytest.mark.parametrize("shared_site", ["envoy", "nginx"], indirect=True, scope="module")
def test_hung_picker_delays_a_new_request_only_by_its_timeout(site: _Site) -> None:
    with frozen(pid_of(site.control)):
        new = site.client.get("/one/new", timeout=100)
    assert new.ok
    assert new.seconds < 30, "a request that has to wait may wait for 100 seconds"


@pytest.mark.parametrize(
    ("kind", "refusal", "others"),
    [
        ("envoy", b"429 Too Many Requests\r\nretry-after: 7", [b"429 Too Many Requests\r\nretry-after: 7"]),
        ("nginx", b"403 Forbidden", [b"403 Forbidden", b"401 Unauthorized"]),
    ],
)
def test_only_rejections_by_the_picker_itself_reach_clients(kind: Kind, refusal: bytes, others: list[bytes]) -> None:
    port = free_pair()
    with replicas("a", "auth") as (a, auth), scripted_picker(port, lambda _: "a", {"a": a.address}) as picker:
        route = {"auth": {"external": {"url": f"http://{auth.address}/check"}}}
        fleet = fleet_of(_pool(a, {}), route=route, control={"picker": {"bind": f"{HOST}:{port}"}})
        with running(kind, fleet) as gateway:
            eventually(lambda: gateway.get().ok and bool(picker.asked))
            for more, error in ((b"", "rate_limited"), (b"x-lbctl-full: 1\r\n", "overloaded")):
                picker.raw = b"HTTP/1.1 %s\r\nx-lbctl-refused: 7\r\n%scontent-length: 0\r\n\r\n" % (refusal, more)
                refused = gateway.get()
                assert (refused.status, refused.header_list("retry-after")) == (429, ["7"])
                assert refused.json["error"]["type"] == error
                assert refused.header("x-lbctl-full") is None
            for other in others:
                picker.raw = b"HTTP/1.1 %s\r\ncontent-length: 0\r\n\r\n" % other
                assert gateway.get().replica == "a", other


def test_nginx_queries_again_only_if_a_request_must_wait() -> None:
    port = free_pair()
    with replicas("a") as (a,), scripted_picker(port, lambda _: "a") as picker:
        fleet = fleet_of(_pool(a, {}), control={"picker": {"bind": f"{HOST}:{port}"}})
        with running("nginx", fleet) as gateway:
            assert gateway.get().replica == "a"
            assert [asked.target for asked in picker.asked] == ["/pick/pool"]
            picker.raw = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n"
            assert gateway.get().replica == "a"
            assert [asked.target for asked in picker.asked][1:] == ["/pick/pool", "/pick/pool?wait=1"]


def test_envoy_queries_again_only_if_a_request_must_wait() -> None:
    port = free_pair()
    with replicas("a", "b") as (a, b), scripted_picker(port, lambda _: "b", {"b": b.address}) as picker:
        pool = {**_pool(a, {}), "replicas": [entry(a), entry(b)]}
        with running("envoy", fleet_of(pool, control={"picker": {"bind": f"{HOST}:{port}"}})) as gateway:
            eventually(lambda: gateway.get().ok and bool(picker.asked))
            picker.asked.clear()
            assert gateway.get("/now").replica == "b"
            assert [asked.target for asked in picker.asked] == ["/envoy?path=/now"]
            picker.must_wait = True
            body = b'{"prompt": "' + b"x" * 300_000 + b'"}'
            replies = [gateway.post("/later", body) for _ in range(8)]
            assert {(reply.replica, len(reply.json["body"])) for reply in replies} == {("b", len(body))}
            first, second = picker.asked[1:3]
            assert [first.target, second.target] == ["/envoy?path=/later", "/envoy/wait?path=/later"]
            assert (second.headers["x-lbctl-pick-id"], second.body) == ("waits", b"")


def test_403_of_own_lines_stays_403_in_a_pool_with_queue() -> None:
    port = free_pair()
    with replicas("a") as (a,), scripted_picker(port, lambda _: "a") as picker:
        edge = {"kind": "nginx", "include": {"location": {"everything": ["own.conf"]}}}
        control = {"picker": {"bind": f"{HOST}:{port}"}}
        fleet = fleet_of(_pool(a, {}), control=control, proxies={"edge": edge})
        with running(
            "nginx", fleet, files={"own.conf": "if ($http_x_bad) { return 403; } deny 127.0.0.2;\n"}
        ) as gateway:
            assert gateway.get().replica == "a"
            picker.raw = b"HTTP/1.1 403 Forbidden\r\nx-lbctl-refused: 7\r\ncontent-length: 0\r\n\r\n"
            rejected, forbidden = gateway.get(), gateway.get(headers={"x-bad": "1"})
            denied = Client(gateway.port, source="127.0.0.2").get()
    assert [each.status for each in (rejected, forbidden, denied)] == [429, 403, 403]
    assert rejected.header_list("retry-after") == ["7"]


def test_haproxy_logs_the_wait_at_the_picker() -> None:
    port = free_pair()
    with replicas("a") as (a,), scripted_picker(port, lambda _: "a") as picker:
        fleet = fleet_of(_pool(a, {}), control={"picker": {"bind": f"{HOST}:{port}"}})
        with running("haproxy", fleet) as gateway:
            picker.delay = 1.0
            response = gateway.get()
            leaving = gateway.send("GET", "/")
            eventually(lambda: len(picker.asked) == 2)
            leaving.cancel()
            line, left = gateway.access_log(2)
    assert response.ok
    assert (left["status"], left["replica"]) == (499, None)
    assert 900 <= line["t_queue"] <= response.seconds * 1000 + 1


def test_nginx_logs_the_wait_at_the_picker() -> None:
    port = free_pair()
    with replicas("a") as (a,), scripted_picker(port, lambda _: "a") as picker:
        fleet = fleet_of(_pool(a, {}), control={"picker": {"bind": f"{HOST}:{port}"}})
        with running("nginx", fleet) as gateway:
            picker.raw = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n"
            picker.delay = 1.0
            response = gateway.get()
            (line,) = gateway.access_log(1)
    assert response.ok
    assert [asked.target for asked in picker.asked] == ["/pick/pool", "/pick/pool?wait=1"]
    assert 900 <= line["t_queue"] <= response.seconds * 1000 - 900, "the second query is the wait"


@pytest.mark.parametrize("kind", ["envoy", "haproxy"])
def test_idle_timeout_begins_after_the_wait_at_the_picker(kind: Kind) -> None:
    port = free_pair()
    with replicas("a") as (a,), scripted_picker(port, lambda _: "a", {"a": a.address}) as picker:
        sections = {"route": {"timeouts": {"idle": "1s"}}, "control": {"picker": {"bind": f"{HOST}:{port}"}}}
        with running(kind, fleet_of(_pool(a, {}), **sections)) as gateway:
            eventually(lambda: gateway.get().ok and bool(picker.asked))
            picker.delay = 3.0
            assert gateway.get().ok
            picker.delay = 0.0
            assert len(gateway.get("/sse?n=4&gap=0.5").events()) == 4
            a.held = True
            silent = gateway.get()
            a.held = False
    assert silent.status == 504
    assert silent.seconds < 5, "the replica may be silent for `idle`, without the wait at the picker"
