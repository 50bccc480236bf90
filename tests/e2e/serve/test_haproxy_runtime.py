"""HAProxy's servers are changed while it serves: through its Runtime API, without a reload and without a lost
request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.processes.binaries import Binary
from tests.support.processes.fleet import entry, fleet_of, pool_of
from tests.support.processes.haproxy_driven import VERSIONS, driven
from tests.support.processes.http1 import Request
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

ROUND_ROBIN: dict[str, Any] = {"balance": {"algorithm": "round_robin"}, "slow_start": {"window": "1s"}}
STREAM = Request(path="/sse?n=40&gap=0.1")
PATIENT: dict[str, Any] = {"http": {"path": "/health"}, "interval": "1s", "timeout": "1s", "unhealthy_threshold": 100}
"""Checks that find a replica healthy immediately, and unhealthy only after longer than a busy machine delays it."""


@pytest.fixture(params=(VERSIONS[0], *(pytest.param(newer, marks=pytest.mark.nightly) for newer in VERSIONS[1:])))
def version(request: pytest.FixtureRequest) -> Binary:
    """Return each HAProxy in turn; `test_haproxy_slots` runs on each in all runs."""
    binary: Binary = request.param
    return binary


@pytest.fixture
def three() -> Iterator[list[Replica]]:
    with replicas("a", "b", "c") as pool:
        yield pool


def test_weight_moves_the_share_without_reload_or_lost_request(version: Binary, three: list[Replica]) -> None:
    with driven(version, fleet_of(pool_of(three, (5, 5, 5), **ROUND_ROBIN))) as gateway:
        worker, text = gateway.worker, gateway.config.read_text()
        assert gateway.apply().sent == ()
        stream = gateway.send("GET", STREAM.path)
        with gateway.steady(100) as steady:
            applied = gateway.apply({"pool": {"a": 2.5}})
        assert applied.done
        assert applied.refused == ()
        load = gateway.load(1000, 8)
        assert gateway.worker == worker
        assert gateway.config.read_text() == text
        assert stream.result(60).ok
    steady.load.assert_no_failure()
    load.assert_no_failure()
    assert load.shares() == pytest.approx({"a": 0.2, "b": 0.4, "c": 0.4}, abs=0.02)


def test_only_what_differs_is_sent(version: Binary, three: list[Replica]) -> None:
    with driven(version, fleet_of(pool_of(three, (10, 10, 10), **ROUND_ROBIN))) as gateway:
        assert gateway.apply({"pool": {"a": 5.0}}).sent == ("set server pool_pool/a weight 50",)
        assert gateway.apply({"pool": {"a": 5.0}}).sent == ()


def test_drained_replica_finishes_its_streams_and_returns(version: Binary, three: list[Replica]) -> None:
    a = three[0]
    with driven(version, fleet_of(pool_of(three, **ROUND_ROBIN))) as gateway:
        worker = gateway.worker
        streams = [gateway.send("GET", STREAM.path) for _ in range(3)]
        eventually(lambda: a.in_flight == 1)
        assert gateway.apply(drained={"pool": ["a"]}).done
        before = a.requests
        gateway.load(60, 4).assert_no_failure()
        assert a.requests == before
        assert all(stream.result(60).ok for stream in streams)
        assert gateway.apply().done
        assert gateway.load(90, 3).shares()["a"] == pytest.approx(1 / 3, abs=0.05)
        assert gateway.worker == worker


def test_cookie_of_a_drained_replica_is_not_followed(version: Binary, three: list[Replica]) -> None:
    sticky = {**ROUND_ROBIN, "affinity": {"cookie": "lb"}}
    with driven(version, fleet_of(pool_of(three, **sticky))) as gateway:
        worker, first = gateway.worker, gateway.get()
        cookie = {"cookie": first.header_list("set-cookie")[0].partition(";")[0]}
        assert gateway.get(headers=cookie).replica == first.replica
        assert gateway.apply(drained={"pool": [first.replica or ""]}).done
        assert gateway.get(headers=cookie).replica != first.replica
        assert gateway.apply().done
        assert gateway.get(headers=cookie).replica == first.replica
        assert gateway.worker == worker


def test_added_replica_serves_and_removed_one_finishes(version: Binary, three: list[Replica]) -> None:
    a, b, c = three
    fleet = fleet_of(pool_of([a, b], **ROUND_ROBIN))
    with driven(version, fleet) as gateway:
        worker = gateway.worker
        a.paused = b.paused = True
        streams = [gateway.send("GET", STREAM.path, timeout=100) for _ in range(2)]
        eventually(lambda: a.in_flight == 1)
        with gateway.steady(100) as steady:
            gateway.change({**fleet, "pools": {"pool": pool_of([b, c], **ROUND_ROBIN)}})
            applied = gateway.apply()
        steady.load.assert_no_failure()
        assert applied.done
        assert applied.leaving == (("pool_pool", "a"),)
        half = pytest.approx({"b": 0.5, "c": 0.5}, abs=0.03)
        eventually(lambda: gateway.load(100, 4).shares() == half)
        a.paused = b.paused = False
        assert all(stream.result(60).ok for stream in streams)
        assert gateway.apply().retry_after is None
        assert gateway.server("pool_pool", "a") == {}
        assert gateway.worker == worker
        gateway.reload_outside()
        assert gateway.apply().sent == ()
        assert gateway.load(100, 4).shares() == pytest.approx({"b": 0.5, "c": 0.5}, abs=0.03)


def test_added_replica_gets_no_requests_before_its_checks_pass(version: Binary, three: list[Replica]) -> None:
    a, b, cold = three
    cold.behave(health=503)
    checked: dict[str, Any] = {
        "balance": {"algorithm": "round_robin"},
        "health": {"active": {**PATIENT, "healthy_threshold": 2}},
        "slow_start": {"window": "1s"},
    }
    fleet = fleet_of(pool_of([a, b], **checked))
    with driven(version, fleet) as gateway:
        gateway.change({**fleet, "pools": {"pool": pool_of([a, b, cold], **checked)}})
        with gateway.steady(100) as steady:
            assert gateway.apply().done
            eventually(lambda: cold.checks > 3)
            assert cold.requests == 0
            cold.behave(health=200)
            eventually(lambda: cold.requests > 20)
        steady.load.assert_no_failure()


def test_moved_replica_is_followed(version: Binary, three: list[Replica]) -> None:
    a, b, c = three
    fleet = fleet_of(pool_of([a, b], **ROUND_ROBIN))
    with driven(version, fleet) as gateway:
        worker = gateway.worker
        moved = {"replicas": [entry(a), {"name": "b", "address": c.address}], **ROUND_ROBIN}
        gateway.change({**fleet, "pools": {"pool": moved}})
        assert gateway.apply().done
        assert gateway.load(40, 2).shares() == pytest.approx({"a": 0.5, "c": 0.5}, abs=0.06)
        assert gateway.worker == worker


def test_weights_lost_by_an_outside_reload_are_sent_again(version: Binary, three: list[Replica]) -> None:
    with driven(version, fleet_of(pool_of(three, (10, 10, 10), **ROUND_ROBIN))) as gateway:
        live = {"pool": {"a": 5.0}}
        gateway.apply(live)
        gateway.reload_outside()
        assert gateway.server("pool_pool", "a")["srv_uweight"] == "100"
        applied = gateway.converge(live)
        assert applied.restarted
        assert applied.sent == ("set server pool_pool/a weight 50",)
        assert gateway.server("pool_pool", "a")["srv_uweight"] == "50"


def test_weight_applies_to_each_server_of_a_replica(version: Binary, three: list[Replica]) -> None:
    a, b, c = three
    zones = {
        "replicas": [entry(a, zone="z1", region="r"), entry(b, zone="z1", region="r"), entry(c, zone="z2", region="r")],
        "locality": {"prefer": "zone", "spill_below": "50%"},
        "balance": {"algorithm": "round_robin"},
        "health": {"active": PATIENT},
    }
    with driven(version, fleet_of(zones), zone="z1", region="r") as gateway:
        worker = gateway.worker
        assert gateway.apply({"pool": {"a": 0.25}}).done
        near, whole = (gateway.server(name, "a")["srv_uweight"] for name in ("pool_pool.NEAR.0", "pool_pool"))
        assert (near, whole) == ("25", "25")
        assert gateway.load(200, 4).shares() == pytest.approx({"a": 0.2, "b": 0.8}, abs=0.03)
        assert gateway.apply(drained={"pool": ["a", "b"]}).done
        eventually(lambda: gateway.load(20, 2).shares() == {"c": 1.0})
        assert gateway.apply().done
        eventually(lambda: set(gateway.load(20, 2).shares()) == {"a", "b"})
        assert gateway.worker == worker


def test_drain_deadline_cuts_streams_of_that_replica_alone(version: Binary, three: list[Replica]) -> None:
    a, b = three[:2]
    fleet = fleet_of(pool_of([a, b], **ROUND_ROBIN))
    with driven(version, fleet) as gateway:
        a.paused = b.paused = True
        streams = [gateway.send("GET", "/sse?n=60&gap=0.1", timeout=100) for _ in range(2)]
        eventually(lambda: a.in_flight == b.in_flight == 1)
        gateway.apply(drained={"pool": ["a"]})
        assert not gateway.apply(drained={"pool": ["a"]}, cut=[("pool", "b")]).sent
        gateway.change({**fleet, "pools": {"pool": pool_of([b], **ROUND_ROBIN)}})
        gateway.apply(cut=[("pool", "a")])
        eventually(lambda: a.in_flight == 0 and a.abandoned == 1)
        b.paused = False
        assert sum(stream.result(60).ok for stream in streams) == 1


def test_limit_of_a_pool_grows_with_its_replicas(version: Binary, three: list[Replica]) -> None:
    fleet = fleet_of(pool_of(three[:1]))
    with driven(version, fleet) as gateway:
        worker = gateway.worker
        variable = next(row.split()[1] for row in gateway.config.read_text().splitlines() if "set-var proc." in row)
        assert "<512>" in gateway.ask(f"get var {variable}")
        gateway.change({**fleet, "pools": {"pool": pool_of(three)}})
        assert gateway.apply().done
        assert "<2048>" in gateway.ask(f"get var {variable}")
        assert gateway.worker == worker


def test_dead_socket_is_reported_and_the_file_is_written(three: list[Replica]) -> None:
    a, b, c = three
    fleet = fleet_of(pool_of([a, b], **ROUND_ROBIN))
    with driven("haproxy", fleet) as gateway:
        gateway.change({**fleet, "pools": {"pool": pool_of([a, c], **ROUND_ROBIN)}})
        gateway.socket.rename(gateway.directory / "elsewhere.sock")
        applied = gateway.apply()
        assert not applied.done
        assert "admin.sock" in applied.failure
        assert applied.retry_after is not None
        assert f"server c '{c.address}'" in gateway.config.read_text()


def test_refused_command_is_reported_with_its_message(three: list[Replica]) -> None:
    with driven("haproxy", fleet_of(pool_of(three, (10, 10, 10), **ROUND_ROBIN))) as gateway:
        static = gateway.config.read_text().replace("balance roundrobin", "balance static-rr")
        gateway.config.write_text(static)
        gateway.reload_outside()
        applied = gateway.converge({"pool": {"a": 5.0}})
        assert not applied.done
        assert [item.command for item in applied.refused] == ["set server pool_pool/a weight 50"]
        assert "algorithm" in applied.refused[0].message
        assert any("weight 50" in why for why in applied.reload)
