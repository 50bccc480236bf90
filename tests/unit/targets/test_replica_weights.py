"""The weight that each kind of proxy gets, by its algorithm: three replicas, and the third one differs."""

from __future__ import annotations

from typing import Any

import pytest

from lbctl.ir.address import Address
from lbctl.ir.pools import Balance, HashKey, Pool, Replica
from lbctl.ir.weight import Weight, from_capacity
from lbctl.targets import replica_weights
from lbctl.targets.envoy.endpoints import envoy_weights
from lbctl.targets.haproxy.servers import haproxy_weights
from lbctl.targets.nginx.pool import nginx_weights
from tests.support.fleet import pool_of

SLOW = Weight(rate=0.25, room=1.0, speed=0.25)
SMALL = from_capacity(0.25)
FLOOR = Weight(rate=0.05, room=1.0)
PROXIES: dict[str, Any] = {"envoy": envoy_weights, "haproxy": haproxy_weights, "nginx": nginx_weights}


def relative_weight(kind: str, algorithm: str, weight: Weight, **more: Any) -> float:
    """Return the weight of the third replica relative to the first one."""
    key = HashKey("header", "x-user") if algorithm == "hash" else None
    members = tuple(Replica(name, Address("10.0.0.1", 80 + place)) for place, name in enumerate("abc"))
    pool = Pool("p", members, balance=Balance(algorithm, key), **more)  # type: ignore[arg-type]
    first, _, third = PROXIES[kind](pool, (from_capacity(1.0), from_capacity(1.0), weight))
    return float(third / first)


@pytest.mark.parametrize("kind", PROXIES)
@pytest.mark.parametrize("algorithm", ["round_robin", "random", "hash"])
def test_algorithms_for_arrivals_get_the_rate(kind: str, algorithm: str) -> None:
    assert relative_weight(kind, algorithm, SLOW) == pytest.approx(0.25)
    assert relative_weight(kind, algorithm, SMALL) == pytest.approx(0.25)
    assert relative_weight(kind, algorithm, FLOOR) == pytest.approx(0.05, rel=0.02)


@pytest.mark.parametrize("kind", ["haproxy", "nginx"])
@pytest.mark.parametrize("algorithm", ["least_request", "least_time"])
def test_algorithms_for_requests_in_flight_get_the_speed(kind: str, algorithm: str) -> None:
    assert relative_weight(kind, algorithm, SLOW) == pytest.approx(0.25**replica_weights.SPEED_IN_FLIGHT, rel=0.02)
    assert relative_weight(kind, algorithm, SMALL) == pytest.approx(0.25)
    assert relative_weight(kind, algorithm, FLOOR) == pytest.approx(0.05, rel=0.05)


def test_envoys_least_request_gets_rate_times_room() -> None:
    assert relative_weight("envoy", "least_request", SLOW) == pytest.approx(
        0.25**replica_weights.SPEED_BY_DEADLINE, rel=0.02
    )
    assert relative_weight("envoy", "least_request", SMALL) == pytest.approx(0.25**2, rel=0.02)
    assert relative_weight("envoy", "least_request", SMALL, few_slots=True) == pytest.approx(0.25, rel=0.02)


@pytest.mark.parametrize("kind", ["haproxy", "nginx"])
def test_few_slots_raise_the_weight_of_a_small_replica(kind: str) -> None:
    weight = relative_weight(kind, "least_request", SMALL, few_slots=True)
    assert weight == pytest.approx(0.25**replica_weights.SLOTS_IN_FLIGHT, rel=0.02)
    assert weight > 0.25


def test_few_slots_do_not_change_the_weight_of_a_slow_one() -> None:
    many, few = (
        relative_weight("envoy", "least_request", SLOW),
        relative_weight("envoy", "least_request", SLOW, few_slots=True),
    )
    assert few == pytest.approx(many, rel=0.02)


@pytest.mark.parametrize("flying", [1, 5, 20])
def test_replica_at_the_floor_gets_about_five_percent(flying: int) -> None:
    """`flying` is the number of requests in flight of its equals. The replica is as fast as they are."""
    weight = relative_weight("envoy", "least_request", FLOOR)
    target = weight * (flying + 1)
    rate = ((1 + 4 * flying * target) ** 0.5 - 1) / (2 * flying)
    assert 0.02 < rate < 0.1


@pytest.mark.parametrize("kind", PROXIES)
@pytest.mark.parametrize("speed", [0.7, 0.5, 0.25])
def test_slow_replica_keeps_at_least_its_share(kind: str, speed: float) -> None:
    """A slow-down must not count twice: as a lower weight, and as requests that stay longer."""
    weight = relative_weight(kind, "least_request", Weight(rate=speed, room=1.0, speed=speed))
    rate = (weight * speed) ** 0.5 if kind == "envoy" else weight * speed
    assert speed**1.5 - 0.02 <= rate <= speed + 0.02


@pytest.mark.parametrize(("limit", "few"), [(None, False), (8, True), (64, True), (65, False), (256, False)])
def test_small_limit_of_a_replica_means_few_slots(limit: int | None, few: bool) -> None:
    breaker = f"circuit_breaker: {{per_replica: {{max_requests: {limit}}}}}, " if limit else ""
    pool = pool_of(f'{{{breaker}replicas: [{{address: "10.0.0.1:80"}}]}}')
    assert pool.few_slots is few
