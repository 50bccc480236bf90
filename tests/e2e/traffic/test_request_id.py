"""Each request has an id: a trusted client's id, otherwise a new one. The replica and the client get it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import KINDS
from tests.support.processes.fleet import Gateway, bind, fleet_of, running, side_by_side
from tests.support.processes.replicas import Replica, replicas

_GIVEN = "client-chosen.id_42"
_NAMES = {"default": "x-request-id", "renamed": "X-Correlation-Id"}
_NETWORKS = {"trusted": "127.0.0.0/8", "untrusted": "10.0.0.0/8"}


@pytest.fixture(scope="module", params=KINDS)
def site(request: pytest.FixtureRequest) -> Iterator[tuple[Gateway, Replica]]:
    """Run a proxy with the listeners `default` and `renamed`, each also as `-trusted` and `-untrusted`, and `own`."""
    with replicas("a") as (a,):
        fleets: dict[str, Fleet] = {}
        for name, header in _NAMES.items():
            listener: dict[str, Any] = {} if name == "default" else {"request_id": header}
            fleets[name] = fleet_of([a], listener=listener)
            for trust, network in _NETWORKS.items():
                keys = {**listener, "client_address": {"trusted": [network]}}
                fleets[f"{name}-{trust}"] = fleet_of([a], listener=keys)
        gone = {"match": {"path": "/gone"}, "respond": {"status": 410, "body": "gone"}}
        nobody = {"replicas": [{"name": "nobody", "address": bind()}]}
        trusted = {"client_address": {"trusted": [_NETWORKS["trusted"]]}}
        route = {"match": {"path_prefix": "/v1/"}}
        fleets["own"] = fleet_of(nobody, route=route, listener=trusted, routes={"gone": gone})
        with running(request.param, side_by_side(fleets)) as gateway:
            yield gateway, a


@pytest.fixture(autouse=True)
def _restored(site: tuple[Gateway, Replica]) -> None:
    site[1].behave(headers=())
    site[1].forget()


@pytest.mark.parametrize("name", _NAMES)
def test_request_id_is_created_forwarded_and_returned(site: tuple[Gateway, Replica], name: str) -> None:
    gateway, replica = site
    ids = [gateway.connect(name).post().header(_NAMES[name]) or "" for _ in range(3)]
    assert [seen.header(_NAMES[name]) for seen in replica.seen] == ids
    assert len(set(ids)) == 3
    assert min(map(len, ids)) >= 16


@pytest.mark.parametrize("name", _NAMES)
def test_request_id_is_kept_only_from_trusted_peers(site: tuple[Gateway, Replica], name: str) -> None:
    gateway, replica = site
    kept, header = {}, _NAMES[name]
    for listener in (f"{name}-trusted", f"{name}-untrusted", name):
        answer = gateway.connect(listener).post(headers={header: _GIVEN})
        given = [value for key, value in replica.seen[-1].headers if key.lower() == header.lower()]
        assert answer.header_list(header) == given
        kept[listener] = given == [_GIVEN]
    assert kept == {f"{name}-trusted": True, f"{name}-untrusted": False, name: False}


@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.parametrize("given", ["", "x" * 201, "a\x9b31mb"])
def test_unfit_request_id_is_replaced(site: tuple[Gateway, Replica], name: str, given: str) -> None:
    gateway, replica = site
    answer = gateway.connect(f"{name}-trusted").post(headers={_NAMES[name]: given})
    made = answer.header(_NAMES[name]) or ""
    assert 16 <= len(made) <= 64
    assert made.isascii()
    assert replica.seen[-1].header(_NAMES[name]) == made


def test_replica_cannot_change_the_request_id(site: tuple[Gateway, Replica]) -> None:
    gateway, replica = site
    replica.behave(headers=(("x-request-id", "the replica's"),))
    answer = gateway.connect("default-trusted").post(headers={"x-request-id": _GIVEN})
    assert answer.header_list("x-request-id") == [_GIVEN]


def test_answers_of_the_proxy_have_the_request_id(site: tuple[Gateway, Replica]) -> None:
    client = site[0].connect("own")
    answers = [client.get(path, {"x-request-id": _GIVEN}) for path in ("/nowhere", "/gone", "/v1/x")]
    assert [answer.status for answer in answers] == [404, 410, 503]
    assert [answer.header("x-request-id") for answer in answers] == [_GIVEN] * 3
