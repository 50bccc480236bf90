"""Delta and state-of-the-world xDS lead to the same configuration after every change."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

from tests.support.fleets import Fleet
from tests.support.processes.certs import Authority
from tests.support.processes.control import XdsEnvoy, controlling, settled
from tests.support.processes.driving import change, synced
from tests.support.processes.fleet import bind, pool_of
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_PARTS = ("cds", "eds", "lds", "rds", "sds")


def _varied_fleet(a: Replica, b: Replica) -> Fleet:
    """Return a fleet with two listeners, one of them with TLS; a sticky split, retries, a mirror, a limit."""
    everything = {
        "match": {"path_prefix": "/"},
        "split": {"first": 9, "second": 1},
        "sticky_split": {"cookie": "v", "ttl": "1h"},
        "mirror": {"pool": "shadow", "percent": "1%"},
        "retry": {"attempts": 1},
    }
    return {
        "version": 1,
        "listeners": {
            "plain": {"bind": bind()},
            "secure": {"bind": bind(), "tls": {"certificates": [{"certificate": "tls/a.crt", "key": "tls/a.key"}]}},
        },
        "routes": {"everything": everything, "own": {"match": {"path_prefix": "/own"}, "pool": "own"}},
        "pools": {
            "first": pool_of([a, b], [1, 2]),
            "second": pool_of([b], circuit_breaker={"max_requests": 50}),
            "shadow": pool_of([a]),
            "own": pool_of([a, b], health={"active": {"tcp": {}, "interval": "1s"}}),
        },
    }


def _changes(fleet: Fleet, a: Replica, b: Replica) -> Iterator[Fleet]:
    """Yield fleets, each with one more change."""
    now = copy.deepcopy(fleet)
    now["pools"]["first"] = pool_of([a, b], [5, 1])
    yield copy.deepcopy(now)
    now["routes"]["everything"]["split"] = {"first": 1, "second": 9}
    yield copy.deepcopy(now)
    now["pools"]["fresh"] = pool_of([a, b])
    now["routes"]["fresh"] = {"match": {"path_prefix": "/fresh"}, "pool": "fresh"}
    yield copy.deepcopy(now)
    del now["pools"]["own"]
    now["routes"]["own"]["pool"] = "fresh"
    now["pools"]["second"]["circuit_breaker"] = {"max_requests": 60}
    yield copy.deepcopy(now)
    now["listeners"]["third"] = {"bind": bind()}
    del now["routes"]["everything"]["mirror"]
    del now["pools"]["shadow"]
    yield copy.deepcopy(now)
    del now["listeners"]["plain"]
    now["pools"]["first"]["replicas"][0]["drain"] = True
    yield copy.deepcopy(now)


def _assert_same_resources(one: XdsEnvoy, other: XdsEnvoy) -> None:
    settled(one)
    settled(other)
    left, right = one.resources(), other.resources()
    for part in _PARTS:
        assert left[part] == right[part], f"{part} differ"
    for pool in left["eds"]:
        assert one.weights(pool) == other.weights(pool)


def test_delta_and_sotw_envoys_hold_the_same(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair, later = authority.issue("a.example.com"), authority.issue("later", ["a.example.com"])
    files = {"tls/a.crt": pair.certificate.read_bytes(), "tls/a.key": pair.key.read_bytes()}
    with (
        replicas("a", "b") as (a, b),
        controlling(fleet := _varied_fleet(a, b), files=files) as control,
        control.envoy("edge-1", by_socket=True) as delta,
        control.envoy("edge-2", delta=False, by_socket=True) as sotw,
    ):
        synced(control)
        _assert_same_resources(delta, sotw)
        held = delta.resources()
        assert [len(held[part]) for part in _PARTS] == [4, 4, 2, 2, 1]
        for number, changed in enumerate(_changes(fleet, a, b)):
            if number == 3:  # and across a restart
                control.kill()
                control.start()
            change(control, changed)
            _assert_same_resources(delta, sotw)
        (control.files / "tls/a.crt").write_bytes(later.certificate.read_bytes())
        (control.files / "tls/a.key").write_bytes(later.key.read_bytes())
        eventually(lambda: delta.resources()["sds"] != held["sds"])  # otherwise `change` may wait only for this version
        change(control, {**changed, "listeners": {**changed["listeners"], "plain": {"bind": bind()}}})
        _assert_same_resources(delta, sotw)
        now = delta.resources()
        assert set(now["lds"]) == {"secure", "third", "plain"}
        assert set(now["cds"]) == set(now["eds"]) == {"first", "second", "fresh"}
        assert all(now[part] != held[part] for part in _PARTS)
        with control.envoy("edge-3", by_socket=True) as fresh:  # a new Envoy has the same
            synced(control)
            _assert_same_resources(delta, fresh)
