"""Hosted APIs as pools: each attempt has only the host, the path and the key of its pool."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lbctl.base import system_ca
from tests.support.fleets import Fleet
from tests.support.processes import edges
from tests.support.processes.binaries import Kind
from tests.support.processes.certs import Authority, server_context
from tests.support.processes.checks import OFTEN
from tests.support.processes.client import Client
from tests.support.processes.control import ControlPlane, controlling, driven
from tests.support.processes.fleet import Gateway, entry, fleet_of, pool_of, put, running
from tests.support.processes.ports import HOST, free_port
from tests.support.processes.replicas import Replica, Seen, replicas
from tests.support.processes.waiting import eventually

_HOST = "api.example.com"
_CLIENT = {
    "authorization": "Bearer sk-of-client",
    "x-api-key": "x-of-client",
    "x_api_key": "u-of-client",
    "X_Goog-Api_Key": "u-of-client",
    "cookie": "session=c-of-client",
    "host": "gateway.example.net",
}
_CLIENTS = ("sk-of-client", "x-of-client", "u-of-client", "c-of-client", "acme", "127.0.0.1")
"""Values of a client that no hosted API may get."""
_KEYS = ("sk-of-provider$%1", "sk-of-dead")
_HEALTH = {"active": {**OFTEN, "tcp": {}}}
_APART = {
    "nginx": {"nginx-upstream-provider-authorization.map", "nginx-upstream-dead-x-dead-key.map"},
    "haproxy": {"haproxy-upstream-headers.map"},
    "envoy": {"envoy-upstream-provider-authorization.yaml", "envoy-upstream-dead-x-dead-key.yaml"},
}
_FILES = {"keys": "sk-of-client: acme\n", "provider-key": f"\n{_KEYS[0]}\n", "dead-key": _KEYS[1]}


@dataclass(frozen=True)
class _Site:
    """A local replica, and a hosted API with TLS. `names`: the server names that clients sent to the API."""

    local: Replica
    provider: Replica
    names: list[str | None]
    ca: bytes

    def fleet(self, **sections: Any) -> Fleet:
        """Return routes to the replica with the API as its fallback, to both, and to an API that does not answer."""
        authenticated = {"api_keys": {"file": "keys"}, "forward_tenant": "x-tenant", "forward_credentials": True}
        dead = {
            "replicas": [{"name": "dead", "address": f"{HOST}:{free_port()}"}],
            "upstream": {
                "host": "dead.example.com",
                "path_prefix": "/dead",
                "headers": {"x-dead-key": {"file": "dead-key"}},
            },
            "health": _HEALTH,
        }
        routes = {
            "both": {"split": {"pool": 50, "provider": 50}, "rewrite": {"path_prefix": "/v2/"}},
            "back": {"pool": "dead", "fallback": "pool"},
            "onward": {"pool": "dead", "fallback": "provider"},
        }
        matched = {name: {"match": {"path_prefix": f"/{name}/"}, **keys} for name, keys in routes.items()}
        return fleet_of(
            pool_of([self.local], health=_HEALTH),
            route={"fallback": "provider", "auth": authenticated},
            routes={name: {**route, "auth": authenticated} for name, route in matched.items()},
            pools={"provider": self._pool(), "dead": dead},
            **sections,
        )

    def _pool(self) -> dict[str, Any]:
        headers = {"Authorization": {"prefix": "Bearer ", "file": "provider-key"}, "x-org": "o'1\"$x%"}
        return {
            "replicas": [entry(self.provider)],
            "upstream": {"host": _HOST, "path_prefix": "/openai", "headers": headers},
            "tls": {"ca": "ca.crt"},
        }

    @property
    def files(self) -> dict[str, str | bytes]:
        return {**_FILES, "ca.crt": self.ca}


@contextmanager
def _site(directory: Path) -> Iterator[_Site]:
    authority, names = Authority(directory), []
    context = server_context(authority.issue(_HOST))
    context.sni_callback = lambda _, name, __: names.append(name)  # type: ignore[assignment]
    with replicas("a") as (local,), replicas("p", tls=context) as (provider,):
        yield _Site(local, provider, names, authority.ca.read_bytes())


def _assert_own(seen: Seen, path: str, key: str = _KEYS[0]) -> None:
    """Check that the request has the API's host, path and key, and nothing from the client."""
    values = [value for name, value in seen.headers if name.lower() != "x-request-id"]
    assert (seen.header("host"), seen.path) == (_HOST, path)
    assert [value for name, value in seen.headers if name.lower() == "authorization"] == [f"Bearer {key}"]
    assert seen.header("x-org") == "o'1\"$x%"
    assert seen.header("x-dead-key") is None
    assert [value for value in values if any(word in value for word in _CLIENTS)] == []


def _assert_clients(seen: Seen, path: str) -> None:
    """Check that the request has everything that the client sent and the route forwards, and no key of an API."""
    assert (seen.header("host"), seen.path) == (_CLIENT["host"], path)
    assert (seen.header("authorization"), seen.header("x-tenant")) == (_CLIENT["authorization"], "acme")
    assert (seen.header("x-api-key"), seen.header("cookie")) == (_CLIENT["x-api-key"], _CLIENT["cookie"])
    assert [value for _, value in seen.headers if any(key in value for key in (*_KEYS, "o'1"))] == []


def test_each_attempt_has_host_path_and_key_of_its_pool(kind: Kind, tmp_path: Path) -> None:
    with _site(tmp_path) as site, running(kind, site.fleet(), files=site.files, options=["--check"]) as gateway:
        assert gateway.get("/v1/chat?x=1", _CLIENT).replica == "a"
        _assert_clients(site.local.seen[-1], "/v1/chat?x=1")

        served_by = [gateway.get(f"/both/{number}?q", _CLIENT).replica for number in range(30)]
        assert set(served_by) == {"a", "p"}
        _assert_clients(site.local.seen[-1], f"/v2/{29 - served_by[::-1].index('a')}?q")
        for seen, number in zip(
            site.provider.seen, [n for n, name in enumerate(served_by) if name == "p"], strict=True
        ):
            _assert_own(seen, f"/openai/v2/{number}?q")

        eventually(lambda: gateway.get("/back/x", _CLIENT).replica == "a")
        _assert_clients(site.local.seen[-1], "/back/x")
        eventually(lambda: gateway.get("/onward/x", _CLIENT).replica == "p")
        _assert_own(site.provider.seen[-1], "/openai/onward/x")

        site.local.refuse()
        eventually(lambda: gateway.get("/v1/chat?x=1", _CLIENT).replica == "p")
        _assert_own(site.provider.seen[-1], "/openai/v1/chat?x=1")
        assert set(site.names) == {_HOST}
        site.provider.behave(status=500)
        failed = gateway.get("/v1/fails", _CLIENT)
        assert failed.status == 500
        assert [value for _, value in failed.headers if any(key in value for key in _KEYS)] == []
        site.provider.refuse()
        assert gateway.get("/v1/gone", _CLIENT).status in (502, 503)
        paths = {"/v1/chat", "/both/0", "/back/x", "/onward/x", "/v1/fails"}
        eventually(lambda: {line["path"] for line in gateway.access_log(36)} >= paths)
        _assert_in_files_of_their_owner(kind, gateway)


@pytest.mark.parametrize("kind", ["nginx", "envoy"])
def test_mirrored_request_has_the_key_of_its_api(kind: Kind, tmp_path: Path) -> None:
    with _site(tmp_path) as site:
        fleet = site.fleet()
        fleet["routes"]["everything"]["mirror"] = {"pool": "provider"}
        with running(kind, fleet, files=site.files) as gateway:
            assert gateway.get("/v1/chat?x=1", _CLIENT).replica == "a"
            eventually(lambda: len(site.provider.seen) == 1)
        _assert_clients(site.local.seen[-1], "/v1/chat?x=1")
        _assert_own(site.provider.seen[-1], "/openai/v1/chat?x=1")


def test_only_authorities_of_the_system_are_trusted(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CA of the test replaces the file of the system's CAs."""
    trusted, other = Authority(tmp_path / "trusted", "trusted"), Authority(tmp_path / "other", "other")
    monkeypatch.setattr(system_ca, "PLACES", (str(trusted.ca),))
    with ExitStack() as stack:
        pools, routes = {}, {}
        for name, authority in (("known", trusted), ("unknown", other)):
            context = server_context(authority.issue(_HOST))
            (replica,) = stack.enter_context(replicas(name, tls=context))
            pools[name] = {"replicas": [entry(replica)], "upstream": {"host": _HOST}, "tls": {"ca": "system"}}
            routes[name] = {"match": {"path_prefix": f"/{name}/"}, "pool": name}
        fleet = fleet_of(pools["known"], routes=routes, pools=pools)
        gateway = stack.enter_context(running(kind, fleet))
        assert gateway.get("/known/x").replica == "known"
        assert gateway.get("/unknown/x").status in (502, 503)


def _assert_in_files_of_their_owner(kind: Kind, gateway: Gateway) -> None:
    holding = {
        file.name: file.stat().st_mode & 0o777
        for file in gateway.proxy.directory.rglob("*")
        if file.is_file() and any(key[:11] in file.read_text(errors="replace") for key in _KEYS)
    }
    assert {name for name in holding if name not in _FILES} == _APART[kind]
    assert {holding[name] for name in _APART[kind]} == {0o600}
    assert not any(key in gateway.messages for key in _KEYS)


@contextmanager
def _driven(site: _Site) -> Iterator[tuple[ControlPlane, dict[str, Client]]]:
    """Run a HAProxy, an nginx and an Envoy in front of the API, driven by one `lbctl serve`."""
    with edges.haproxy(min_interval="100ms") as ha, edges.nginx(min_interval="100ms") as ng, ExitStack() as stack:
        fleet = site.fleet(**driven("edge"))
        del fleet["listeners"]["gateway"]
        everything = fleet["routes"]["everything"]
        fleet["routes"]["api"] = {**everything, "match": {"path_prefix": "/api/"}, "pool": "provider"}
        fleet["routes"]["api"].pop("fallback")
        for route in fleet["routes"].values():
            route["auth"] = {key: value for key, value in route["auth"].items() if key != "forward_tenant"}
        for edge in (ha, ng):
            for section, entries in edge.sections.items():
                fleet[section] = {**fleet[section], **entries}
            put(edge.config.parent, {"ca.crt": site.ca})
            stack.enter_context(edges.started_edge(edge, fleet))
        control = stack.enter_context(controlling(fleet, files=site.files))
        eventually(lambda: all(control.proxies[edge.name]["state"] == "SYNCED" for edge in (ha, ng)))
        envoy = stack.enter_context(control.envoy("edge", ["edge"], by_socket=True))
        yield control, {"haproxy": ha, "nginx": ng, "envoy": envoy.client()}


def test_serve_rotates_a_key_and_keeps_the_last_valid_one(tmp_path: Path) -> None:
    with _site(tmp_path) as site, _driven(site) as (control, clients):

        def keys() -> set[str | None]:
            site.provider.forget()
            statuses = {client.get("/api/x", _CLIENT).status for client in clients.values()}
            return {seen.header("authorization") for seen in site.provider.seen} if statuses == {200} else set()

        eventually(lambda: keys() == {f"Bearer {_KEYS[0]}"})
        control.write_text("sk-of-provider-2", "provider-key")
        eventually(lambda: keys() == {"Bearer sk-of-provider-2"}, pause=0.2)
        control.write_text("", "provider-key")
        eventually(lambda: "the key that it contained before stays in use" in str(control.status["fleet"]["refused"]))
        control.write_text("sk-of-\x07provider", "provider-key")
        eventually(lambda: "printable ASCII" in control.log)
        assert keys() == {"Bearer sk-of-provider-2"}
        assert "sk-of" not in control.log
        views = [
            json.dumps(control.get(view)) for view in ("status", "pools", "fleet", "proxies", "decisions", "audit")
        ]
        assert [view for view in views if "sk-of" in view] == []
        state = [file for file in control.state.rglob("*") if file.is_file()]
        assert [file.name for file in state if b"sk-of-provider" in file.read_bytes()] == []
