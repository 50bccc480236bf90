"""A browser's WebSocket carries its API key among the subprotocols; the replica gets only the other ones."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.support.processes.binaries import Kind
from tests.support.processes.client import Headers
from tests.support.processes.fleet import Gateway, fleet_of
from tests.support.processes.http1 import Response
from tests.support.processes.replicas import Replica
from tests.support.processes.shared import shared, shared_replicas

_ITEM = "openai-insecure-api-key"
_HANDSHAKE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": base64.b64encode(b"0" * 16).decode(),
}
_FILES = {"keys": "sk-abc: acme\nsk-!#$%&'*+.^_`|~9: odd\n"}


def _fleet(replica: Replica) -> dict[str, Any]:
    keys = {"file": "keys", "websocket_protocol": True}
    auth = {"api_keys": keys, "forward_tenant": "x-tenant"}
    own = {"api_keys": {**keys, "header": "x-own"}, "forward_credentials": True}
    routes = {
        "off": {"match": {"path_prefix": "/off"}, "websocket": True, "auth": {"api_keys": {"file": "keys"}}},
        "own": {"match": {"path_prefix": "/own"}, "websocket": True, "auth": own},
        "open": {"match": {"path_prefix": "/open"}, "websocket": True},
    }
    for route in routes.values():
        route["pool"] = "pool"
    return fleet_of([replica], route={"websocket": True, "auth": auth}, routes=routes)


def _asked(gateway: Gateway, protocols: str, path: str = "/", **headers: str) -> Response:
    """Request a WebSocket. The replica echoes the request like any other."""
    handshake: Headers = {**_HANDSHAKE, "sec-websocket-protocol": protocols, **headers}
    return gateway.get(path, handshake)


def test_key_among_the_subprotocols_is_accepted_and_removed(kind: Kind) -> None:
    with shared_replicas("a") as (a,), shared(kind, _fleet(a), files=_FILES) as gateway:
        accepted = {
            f"realtime, {_ITEM}.sk-abc": "realtime",
            f"realtime,{_ITEM}.sk-abc,openai-beta.realtime-v1": "realtime,openai-beta.realtime-v1",
            f"{_ITEM}.sk-abc, realtime, x": "realtime,x",
            f"{_ITEM}.sk-abc": None,
            f"a,\t{_ITEM}.sk-abc\t, b": "a,b",
            f"{_ITEM}.sk-abc,{_ITEM}.sk-abc": None,
            f"realtime, {_ITEM}.sk-!#$%&'*+.^_`|~9": "realtime",
            f"realtime, {_ITEM.upper()}.sk-abc": "realtime",
        }
        for protocols, left in accepted.items():
            a.forget()
            assert _asked(gateway, protocols).status == 200, protocols
            got = a.seen[-1].header("sec-websocket-protocol")
            assert (got.replace(", ", ",").replace(" ,", ",") if got else got) == left, protocols
            assert a.seen[-1].header("x-tenant") in {"acme", "odd"}
            assert not [value for _, value in a.seen[-1].headers if "sk-" in value], protocols


@pytest.mark.parametrize("kind", ["haproxy", "envoy"])
def test_key_in_any_line_of_subprotocols_is_accepted_and_removed(kind: Kind) -> None:
    with shared_replicas("a") as (a,), shared(kind, _fleet(a), files=_FILES) as gateway:
        for lines, left in (
            ((f"{_ITEM}.sk-abc", "realtime"), "realtime"),
            (("realtime", f"{_ITEM}.sk-abc"), "realtime"),
            (("realtime, x", f"{_ITEM}.sk-abc", "y"), "realtime,x,y"),
            ((f"{_ITEM}.sk-no", f"{_ITEM}.sk-abc"), None),
        ):
            a.forget()
            headers = [*_HANDSHAKE.items(), *(("sec-websocket-protocol", item) for item in lines)]
            assert gateway.get("/", headers).ok, lines
            got = [value for name, value in a.seen[-1].headers if name.lower() == "sec-websocket-protocol"]
            assert ",".join(got).replace(" ", "") == (left or ""), lines


def test_browser_converses_with_a_key_among_its_subprotocols(kind: Kind) -> None:
    with shared_replicas("a") as (a,), shared(kind, _fleet(a), files=_FILES) as gateway:
        echo = gateway.websocket("/ws", ["one", "two"], protocols=("realtime", f"{_ITEM}.sk-abc"))
        assert (echo.status, echo.replies) == (101, ("one", "two"))
        assert gateway.websocket("/ws", ["one"], protocols=("realtime", f"{_ITEM}.sk-no")).status == 401


def test_other_subprotocols_do_not_let_a_client_in(kind: Kind) -> None:
    with shared_replicas("a") as (a,), shared(kind, _fleet(a), files=_FILES) as gateway:
        for protocols in (
            "realtime", "sk-abc", f"{_ITEM}.", f"{_ITEM}.sk-ab", f"{_ITEM}.sk-abcd", f"{_ITEM}.SK-ABC",
            f"x{_ITEM}.sk-abc", f"x {_ITEM}.sk-abc", f"{_ITEM}sk-abc", f"{_ITEM}.x.sk-abc", f"{_ITEM}.sk-abc;x",
            f"{_ITEM}.sk-abc,{_ITEM}.no",
        ):  # fmt: skip
            assert _asked(gateway, protocols).status == 401, protocols
        key = f"realtime, {_ITEM}.sk-abc"
        assert _asked(gateway, key, authorization="Bearer sk-no").status == 401
        assert _asked(gateway, key, "/off").status == 401
        assert gateway.get("/", {"sec-websocket-protocol": key}).status == 401
        assert gateway.get("/", {"x-lbctl-internal-key": "sk-abc"}).status == 401
        assert a.requests == 0


def test_subprotocols_of_other_routes_stay_as_they_are(kind: Kind) -> None:
    with shared_replicas("a") as (a,), shared(kind, _fleet(a), files=_FILES) as gateway:
        key = f"realtime, {_ITEM}.sk-abc"
        for path in ("/open", "/own"):
            assert _asked(gateway, key, path).ok
            assert (a.seen[-1].header("sec-websocket-protocol") or "").replace(", ", ",") == key.replace(", ", ",")
        assert _asked(gateway, key, authorization="Bearer sk-abc").ok
        assert a.seen[-1].header("sec-websocket-protocol") == "realtime"
        assert _asked(gateway, "realtime, v2", authorization="Bearer sk-abc").ok
        assert a.seen[-1].header("sec-websocket-protocol") == "realtime, v2"
