"""Every request carries an id: the client's where it is trusted, else a new one; to the replica and back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import fleet_of, running
from tests.support.processes.replicas import replicas

_GIVEN = "client-chosen.id_42"
_LISTENERS: list[dict[str, Any]] = [{}, {"request_id": "X-Correlation-Id"}]
_BOTH_NAMES = pytest.mark.parametrize("listener", _LISTENERS, ids=["x-request-id", "another name"])


def _name(listener: dict[str, Any]) -> str:
    return str(listener.get("request_id", "x-request-id"))


@_BOTH_NAMES
def test_request_id_is_created_forwarded_and_returned(kind: Kind, listener: dict[str, Any]) -> None:
    name = _name(listener)
    with replicas("a") as (a,), running(kind, fleet_of([a], listener=listener)) as gateway:
        answers = [gateway.post() for _ in range(3)]
    ids = [answer.header(name) or "" for answer in answers]
    assert [seen.header(name) for seen in a.seen] == ids
    assert len(set(ids)) == 3
    assert min(map(len, ids)) >= 16


@_BOTH_NAMES
def test_client_request_id_is_kept(kind: Kind, listener: dict[str, Any]) -> None:
    name = _name(listener)
    with replicas("a") as (a,), running(kind, fleet_of([a], listener=listener)) as gateway:
        answer = gateway.post(headers={name: _GIVEN})
    assert answer.header_list(name) == [_GIVEN]
    assert [value for key, value in a.seen[-1].headers if key.lower() == name.lower()] == [_GIVEN]


@_BOTH_NAMES
def test_request_id_is_kept_only_from_trusted_peers(kind: Kind, listener: dict[str, Any]) -> None:
    name = _name(listener)
    kept = {}
    for network in ("127.0.0.0/8", "10.0.0.0/8"):
        trusting = {**listener, "client_address": {"trusted": [network]}}
        with replicas("a") as (a,), running(kind, fleet_of([a], listener=trusting)) as gateway:
            answer = gateway.post(headers={name: _GIVEN})
        assert answer.header(name) == a.seen[-1].header(name)
        kept[network] = answer.header(name) == _GIVEN
    assert kept == {"127.0.0.0/8": True, "10.0.0.0/8": False}


def test_empty_request_id_is_replaced(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, fleet_of([a])) as gateway:
        answer = gateway.post(headers={"x-request-id": ""})
    assert len(answer.header("x-request-id") or "") >= 16
    assert a.seen[-1].header("x-request-id") == answer.header("x-request-id")


def test_replica_cannot_change_the_request_id(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, fleet_of([a])) as gateway:
        a.behave(headers=(("x-request-id", "the replica's"),))
        answer = gateway.post(headers={"x-request-id": _GIVEN})
    assert answer.header_list("x-request-id") == [_GIVEN]


def test_answers_of_the_proxy_have_the_request_id(kind: Kind) -> None:
    route = {"match": {"path_prefix": "/v1/"}}
    gone = {"match": {"path": "/gone"}, "respond": {"status": 410, "body": "gone"}}
    with replicas("a") as (a,), running(kind, fleet_of([a], route=route, routes={"gone": gone})) as gateway:
        a.refuse()
        answers = [gateway.get(path, {"x-request-id": _GIVEN}) for path in ("/nowhere", "/gone", "/v1/x")]
    assert [answer.status for answer in answers] == [404, 410, 503]
    assert [answer.header("x-request-id") for answer in answers] == [_GIVEN] * 3
