"""`credentials`: replicas that require a key get it with requests, checks and scrapes, and it is shown nowhere else."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

from tests.support.fleets import Fleet
from tests.support.processes import edges
from tests.support.processes.binaries import Kind
from tests.support.processes.checks import OFTEN
from tests.support.processes.control import controlling, driven
from tests.support.processes.fleet import Gateway, entry, fleet_of, running
from tests.support.processes.grpc_replica import GrpcReplica, grpc_replicas
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_KEY = "Bearer sk-of-replicas$%1\"'"
_CLIENT = {"authorization": "Bearer sk-of-client", "x-api-key": "x-of-client"}
_FILES = {"replica-key": f"\n{_KEY}\n", "keys": "sk-of-client: acme\n"}
_HTTP = {"active": {**OFTEN, "http": {"path": "/health"}}, "passive": {"ejection_time": "1s"}}
_APART = {
    "nginx": {"nginx-upstream-keyed-authorization.map", "nginx-upstream-calls-x-api-key.map"},
    "haproxy": {"haproxy-upstream-headers.map"},
    "envoy": {
        "envoy-upstream-keyed-authorization.yaml",
        "envoy-upstream-calls-x-api-key.yaml",
        "envoy-clusters.yaml",
    },
}


def _fleet(keyed: Replica, spare: Replica, calls: GrpcReplica) -> Fleet:
    """Return a fleet with routes to the replica with a key and to another one, each the fallback of the other, and with
    a gRPC route."""
    auth = {"api_keys": {"file": "keys"}, "forward_credentials": True}
    pools: dict[str, Any] = {
        "keyed": {
            "replicas": [entry(keyed)],
            "credentials": {"header": "Authorization", "file": "replica-key"},
            "health": _HTTP,
        },
        "spare": {"replicas": [entry(spare)], "health": _HTTP},
        "calls": {
            "replicas": [entry(calls)],
            "protocol": "grpc",
            "credentials": {"header": "x-api-key", "file": "replica-key"},
            "health": {"active": {**OFTEN, "grpc": {}}},
        },
    }
    routes: dict[str, Any] = {
        "forward": {"match": {"path_prefix": "/forward/"}, "pool": "keyed", "fallback": "spare", "auth": auth},
        "back": {"match": {"path_prefix": "/back/"}, "pool": "spare", "fallback": "keyed"},
        "calls": {"match": {"path_prefix": "/s.S/"}, "pool": "calls"},
        "copied": {"match": {"path_prefix": "/copied/"}, "pool": "spare", "mirror": {"pool": "keyed"}},
    }
    return {**fleet_of([spare]), "routes": routes, "pools": pools}


def _assert_keyed(seen: Any, path: str) -> None:
    """Check that the request has the key in place of the client's, and everything else that the client sent."""
    assert [value for name, value in seen.headers if name.lower() == "authorization"] == [_KEY]
    assert (seen.path, seen.header("x-api-key")) == (path, "x-of-client")


def _assert_clients(seen: Any, path: str) -> None:
    assert (seen.path, seen.header("authorization")) == (path, _CLIENT["authorization"])
    assert not any("sk-of-replicas" in value for _, value in seen.headers)


def test_requests_and_checks_of_a_pool_have_its_key(kind: Kind) -> None:
    with replicas("keyed", "spare") as (keyed, spare), grpc_replicas("calls") as (calls,):
        fleet = _fleet(keyed, spare, calls)
        with running(kind, fleet, files=_FILES, options=["--check"]) as gateway:
            eventually(lambda: gateway.get("/forward/x?q", _CLIENT).replica == "keyed")
            _assert_keyed(keyed.seen[-1], "/forward/x?q")
            eventually(lambda: gateway.get("/back/x", _CLIENT).replica == "spare")
            _assert_clients(spare.seen[-1], "/back/x")
            if kind != "haproxy":  # it does not mirror
                assert gateway.get("/copied/x", _CLIENT).replica == "spare"
                _assert_clients(spare.seen[-1], "/copied/x")
                eventually(lambda: keyed.seen[-1].path == "/copied/x")
                _assert_keyed(keyed.seen[-1], "/copied/x")
            if kind != "nginx":  # its gRPC clients need TLS, and it has no active checks
                eventually(lambda: keyed.checks and spare.checks and calls.checks and gateway.grpc("/s.S/Echo").ok)
                assert dict(calls.seen[-1].metadata)["x-api-key"] == _KEY
                assert {dict(item).get("x-api-key") for item in calls.check_metadata} == {_KEY}
                assert {seen.header("authorization") for seen in keyed.checked} == {_KEY}
                assert {seen.header("authorization") for seen in spare.checked} == {None}
            spare.refuse()
            eventually(lambda: gateway.get("/back/y", _CLIENT).replica == "keyed")
            _assert_keyed(keyed.seen[-1], "/back/y")
            spare.accept()
            keyed.refuse()
            eventually(lambda: gateway.get("/forward/y", _CLIENT).replica == "spare")
            _assert_clients(spare.seen[-1], "/forward/y")
            _assert_in_files_of_their_owner(kind, gateway)


def _assert_in_files_of_their_owner(kind: Kind, gateway: Gateway) -> None:
    holding = {
        file.name: file.stat().st_mode & 0o777
        for file in gateway.proxy.directory.rglob("*")
        if file.is_file() and "sk-of-replicas" in file.read_text(errors="replace")
    }
    assert {name for name in holding if name not in _FILES} == _APART[kind]
    assert {holding[name] for name in _APART[kind]} == {0o600}
    assert "sk-of-replicas" not in gateway.messages


def test_serve_sends_the_key_and_shows_it_nowhere() -> None:
    """This covers requests and checks of Envoy, requests of nginx, and checks and scrapes of serve.

    A new key needs no restart.
    """
    with replicas("a", "other") as (a, other), edges.nginx(min_interval="100ms") as nginx, ExitStack() as stack:
        sources = [
            {"kind": "vllm", "url": "http://{address}/metrics"},
            {"kind": "dcgm", "url": f"http://{other.address}/metrics"},
        ]
        keyed = {
            "replicas": [entry(a)],
            "credentials": {"header": "authorization", "file": "replica-key"},
            "health": _HTTP,
            "telemetry": {"sources": sources, "interval": "1s"},
        }
        fleet = fleet_of(keyed, **driven("edge"))
        del fleet["listeners"]["gateway"]
        for section, entries in nginx.sections.items():
            fleet[section] = {**fleet[section], **entries}
        stack.enter_context(edges.started_edge(nginx, fleet))
        control = stack.enter_context(controlling(fleet, files=_FILES))
        eventually(lambda: control.proxies[nginx.name]["state"] == "SYNCED")
        envoy = stack.enter_context(control.envoy("edge", ["edge"], by_socket=True))
        clients = {"nginx": nginx, "envoy": envoy.client()}

        def keys() -> set[str | None]:
            a.forget()
            a.checked.clear()
            if {client.get("/v1/x", _CLIENT).status for client in clients.values()} != {200}:
                return set()  # a check was late, and the replica is ejected
            eventually(lambda: len({seen.header("user-agent") for seen in a.checked}) == 2, pause=0.2)
            eventually(lambda: any(seen.path == "/metrics" for seen in a.seen), pause=0.2)
            return {seen.header("authorization") for seen in (*a.seen, *a.checked)}

        eventually(lambda: keys() == {_KEY}, pause=0.2)
        control.write_text("Bearer sk-of-replicas-2", "replica-key")
        eventually(lambda: keys() == {"Bearer sk-of-replicas-2"}, pause=0.2)
        assert {seen.header("authorization") for seen in other.seen} == {None}
        assert "sk-of-replicas" not in control.log
        views = [
            json.dumps(control.get(view)) for view in ("status", "pools", "fleet", "proxies", "decisions", "audit")
        ]
        assert [view for view in views if "sk-of-replicas" in view] == []
        state = [file for file in control.state.rglob("*") if file.is_file()]
        assert [file.name for file in state if b"sk-of-replicas" in file.read_bytes()] == []
