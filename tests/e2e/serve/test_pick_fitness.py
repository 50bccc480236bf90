"""Unavailable replicas are never picked, and no client chooses its replica: a real picker with each proxy."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web
from aiohttp.web import BaseRequest

from lbctl.cli import run
from tests.support.processes.client import Client
from tests.support.processes.control import ControlPlane
from tests.support.processes.fleet import entry
from tests.support.processes.http1 import Request
from tests.support.processes.picker import EDGE, KINDS, PICK, picked
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import at_rest, eventually

_CHECK = {
    "http": {"path": "/health"}, "interval": "5s", "timeout": "5s", "unhealthy_threshold": 1, "healthy_threshold": 1
}  # fmt: skip
"""A replica that a busy machine delays for a moment is not down, not even at its first check."""
FORGED = (
    ("x-lbctl-pick", "hidden"), ("x-lbctl-pick-id", "0"), ("x-lbctl-proxy", "forged"), ("x-lbctl-body-length", "9"),
    ("x-gateway-destination-endpoint-subset", "10.0.0.1:1"),
)  # fmt: skip


class _Gpus(Replica):
    """DCGM's page of each replica, by name; `codes` are its XIDs."""

    def __init__(self) -> None:
        super().__init__("gpus")
        self.codes: dict[str, int] = {}

    async def _handle(self, request: BaseRequest) -> web.StreamResponse:
        self.requests += 1
        code = self.codes.get(request.path.strip("/"), 0)
        return web.Response(text=f'DCGM_FI_DEV_XID_ERRORS{{gpu="0",UUID="GPU-1"}} {code}\n')


def _turn(number: int) -> Request:
    body = json.dumps({"model": "m", "prompt": f"{number} " * 300}).encode()
    return Request("POST", "/", (("content-type", "application/json"), ("x-session-id", f"s{number}")), body)


def _load(client: Client) -> set[str]:
    """Send three requests in each of twelve sessions, and return the replicas that answered."""
    load = client.load(36, 4, lambda number: _turn(number % 12), keep_alive=False)
    load.assert_no_failure()
    return set(load.by_replica)


def _reasons(control: ControlPlane) -> dict[str, str]:
    question = {"pool": "pool", "session": "new", "body": "{}"}
    return {item["name"]: item["reason"] for item in control.explain_pick(question)["candidates"]}


@pytest.mark.parametrize(
    "kind", ["nginx", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("envoy", "haproxy"))]
)
def test_replica_failing_checks_or_with_broken_gpu_is_not_picked(kind: str) -> None:
    with replicas("a", "b", "c", "d") as (a, b, c, d), _Gpus() as gpus:
        pool: dict[str, Any] = {
            "replicas": [entry(item) for item in (a, b, c, d)],
            "balance": PICK,
            "health": {"active": _CHECK, "passive": {"ejection_time": "10m"}, "deep": {}},
            "telemetry": {
                "interval": "1s",
                "sources": [{"kind": "dcgm", "url": f"http://{gpus.address}/{{name}}"}],
            },
        }
        with picked(kind, pool) as (control, client):
            eventually(lambda: _load(client) == {"a", "b", "c", "d"})
            eventually(lambda: gpus.requests >= 12)
            a.behave(health=503)
            gpus.codes["b"] = 79
            eventually(lambda: {name for name, reason in _reasons(control).items() if reason} == {"a", "b"})
            eventually(lambda: _load(client) == {"c", "d"})
            before = at_rest(lambda: a.requests + b.requests)
            assert _load(client) == {"c", "d"}
            assert a.requests + b.requests == before
            assert "79" in _reasons(control)["b"]


@pytest.mark.parametrize(
    "kind", ["haproxy", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("envoy", "nginx"))]
)
def test_client_headers_bypass_no_limits_and_versions(kind: str) -> None:
    with replicas("a", "b", "hidden", "outside") as (a, b, hidden, outside):
        pick: dict[str, Any] = {"balance": PICK}
        pool = {"replicas": [entry(a), entry(b)], "circuit_breaker": {"per_replica": {"max_requests": 1}}, **pick}
        other = {"replicas": [entry(hidden)], **pick}
        pins = [{"header": "x-version", "equals": name, "pool": name} for name in ("pool", "other")]
        route = {"match": {"path_prefix": "/"}, "split": {"pool": 1, "other": 1}, "pin": pins}
        with picked(kind, pool, pools={"other": other}, routes={"everything": route}) as (control, client):
            v1, v2 = ("x-version", "pool"), ("x-version", "other")
            eventually(lambda: client.post("/", headers=[v1]).ok and control.metric("lbctl_pick_decisions_total") > 0)
            forged = [*FORGED, *(("x-gateway-destination-endpoint", item.address) for item in (hidden, outside))]
            for number in range(12):
                assert client.post("/", b"{}", [v1, *forged, ("x-session-id", f"s{number}")]).replica in ("a", "b")
                assert client.post("/", b"{}", [v2, ("x-session-id", f"s{number}")]).replica == "hidden"
            assert outside.connections == 0
            assert {row["proxy"] for row in control.get("picks")["samples"]} <= {EDGE}
            _limit(client, v1, (a, b))


def _limit(client: Client, version: tuple[str, str], pool: tuple[Replica, Replica]) -> None:
    """Check that the request of a session whose replica is full goes to the other replica."""
    session = [version, ("x-session-id", "busy")]
    while True:
        for replica in pool:
            replica.behave(delay=2.0)
        waiting = client.send("POST", "/", session, b"{}")
        eventually(lambda: sum(replica.in_flight for replica in pool) == 1)
        home, other = sorted(pool, key=lambda replica: -replica.in_flight)
        other.behave(delay=0.0)
        second = client.post("/", b"{}", session)
        if not waiting.done():
            break
        # On a busy machine, the first request had ended before the second one arrived.
    assert second.replica == other.name
    assert waiting.result(60).replica == home.name


@pytest.mark.parametrize("kind", KINDS)
def test_request_is_unchanged_and_a_broken_one_moves_no_session(kind: str) -> None:
    with replicas("a", "b") as two:
        pool = {"replicas": [entry(item) for item in two], "balance": PICK}
        with picked(kind, pool) as (control, client):
            session = [("x-session-id", "s"), ("content-type", "application/json")]

            def home() -> str | None:
                return client.post("/", b'{"prompt": 1}', session).replica

            eventually(lambda: home() and control.metric("lbctl_pick_decisions_total") > 1)
            name = home()
            (replica,) = (item for item in two if item.name == name)
            names = {name.lower() for name, _ in replica.seen[-1].headers}
            assert "content-length" in names
            assert not any(name.startswith(("x-gateway", "x-lbctl")) for name in names)
            replica.behave(fault="reset")
            assert client.post("/", b'{"prompt": 1}', session).status == 502
            replica.behave(fault="")
            assert {home() for _ in range(4)} == {name}


@pytest.mark.parametrize(
    "kind", ["envoy", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("haproxy", "nginx"))]
)
def test_slow_start_follows_an_outage_and_not_a_drain(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    with replicas("a", "b", "c") as (a, b, c):
        pool: dict[str, Any] = {
            "replicas": [entry(item) for item in (a, b, c)],
            "balance": PICK,
            "health": {"active": _CHECK},
            "slow_start": {"window": "1h"},
        }
        with picked(kind, pool) as (control, client):

            def shares() -> dict[str, float]:
                """Return the shares of sequential requests without a session."""
                load = client.load(60, 1, lambda _: Request("POST", "/", (), b"{}"), keep_alive=False)
                load.assert_no_failure()
                return load.shares()

            def state() -> tuple[str, str]:
                (row,) = control.get("pools")["pools"]
                return next((item["state"], item["state_reason"]) for item in row["replicas"] if item["name"] == "a")

            def by_hand(command: str) -> None:
                assert run([command, "pool/a", "--wait", *_server(control), *_token(control)]) == 0

            eventually(lambda: set(shares()) == {"a", "b", "c"} and control.metric("lbctl_pick_decisions_total") > 60)
            by_hand("drain")
            eventually(lambda: set(shares()) == {"b", "c"})
            by_hand("undrain")
            eventually(lambda: shares().get("a", 0.0) > 0.15)
            assert state() == ("in", "")

            a.behave(health=503)
            eventually(lambda: "a" not in shares() and _reasons(control)["a"])
            a.behave(health=200)
            eventually(lambda: "a" in shares())
            eventually(lambda: state()[0] == "ramping")
            share = "the picker gives it 10% of its weight"
            assert share in state()[1]
            capsys.readouterr()
            assert run(["explain", "weight", "pool/a", *_server(control)]) == 0
            assert "slow start     the picker uses 10% of the weight so far" in capsys.readouterr().out
            assert run(["explain", "pick", "pool", *_server(control)]) == 0
            assert "slow start: it gets 10% of its weight" in capsys.readouterr().out


def _server(control: ControlPlane) -> list[str]:
    return ["--server", control.url]


def _token(control: ControlPlane) -> list[str]:
    return ["--token-file", str(control.state / "api-token")]
