"""What each proxy is told of a weight, by how it balances: three replicas, one of them not as the others."""

from __future__ import annotations

from typing import Any

import pytest

from lbctl.ir.address import Address
from lbctl.ir.pools import Balance, HashKey, Pool, Replica
from lbctl.ir.weight import Weight, from_capacity
from lbctl.targets import effective_weights
from lbctl.targets.envoy.endpoints import envoy_weights
from lbctl.targets.haproxy.servers import haproxy_weights
from lbctl.targets.nginx.pool import nginx_weights
from tests.support.fleet import pool_of

SLOW = Weight(rate=0.25, room=1.0, speed=0.25)
SMALL = from_capacity(0.25)
FLOOR = Weight(rate=0.05, room=1.0)
PROXIES: dict[str, Any] = {"envoy": envoy_weights, "haproxy": haproxy_weights, "nginx": nginx_weights}


def part(kind: str, algorithm: str, weight: Weight, **more: Any) -> float:
    """What the third replica has of what the first has."""
    key = HashKey("header", "x-user") if algorithm == "hash" else None
    members = tuple(Replica(name, Address("10.0.0.1", 80 + place)) for place, name in enumerate("abc"))
    pool = Pool("p", members, balance=Balance(algorithm, key), **more)  # type: ignore[arg-type]
    first, _, third = PROXIES[kind](pool, (from_capacity(1.0), from_capacity(1.0), weight))
    return float(third / first)


@pytest.mark.parametrize("kind", PROXIES)
@pytest.mark.parametrize("algorithm", ["round_robin", "random", "hash"])
def test_who_shares_out_arrivals_is_told_the_rate(kind: str, algorithm: str) -> None:
    assert part(kind, algorithm, SLOW) == pytest.approx(0.25)
    assert part(kind, algorithm, SMALL) == pytest.approx(0.25)
    assert part(kind, algorithm, FLOOR) == pytest.approx(0.05, rel=0.02)


@pytest.mark.parametrize("kind", ["haproxy", "nginx"])
@pytest.mark.parametrize("algorithm", ["least_request", "least_time"])
def test_who_shares_out_requests_in_flight_gives_a_slow_one_more_room_than_a_small_one(
    kind: str, algorithm: str
) -> None:
    assert part(kind, algorithm, SLOW) == pytest.approx(0.25**effective_weights.SPEED_IN_FLIGHT, rel=0.02)
    assert part(kind, algorithm, SMALL) == pytest.approx(0.25)
    assert part(kind, algorithm, FLOOR) == pytest.approx(0.05, rel=0.05)


def test_envoys_least_request_is_told_the_product_of_rate_and_room() -> None:
    assert part("envoy", "least_request", SLOW) == pytest.approx(0.25**effective_weights.SPEED_BY_DEADLINE, rel=0.02)
    assert part("envoy", "least_request", SMALL) == pytest.approx(0.25**2, rel=0.02)
    assert part("envoy", "least_request", SMALL, few_slots=True) == pytest.approx(0.25, rel=0.02)


@pytest.mark.parametrize("kind", ["haproxy", "nginx"])
def test_with_few_slots_the_small_one_has_nearly_as_many_in_flight(kind: str) -> None:
    told = part(kind, "least_request", SMALL, few_slots=True)
    assert told == pytest.approx(0.25**effective_weights.SLOTS_IN_FLIGHT, rel=0.02)
    assert told > 0.25


def test_with_few_slots_a_slow_one_is_told_as_with_many() -> None:
    many, few = part("envoy", "least_request", SLOW), part("envoy", "least_request", SLOW, few_slots=True)
    assert few == pytest.approx(many, rel=0.02)


@pytest.mark.parametrize("flying", [1, 5, 20])
def test_a_replica_at_the_floor_gets_about_that_part_from_envoys_least_request(flying: int) -> None:
    """`flying`: requests that its equals have at a time; it answers each as fast as they do."""
    weight = part("envoy", "least_request", FLOOR)
    wanted = weight * (flying + 1)
    rate = ((1 + 4 * flying * wanted) ** 0.5 - 1) / (2 * flying)
    assert 0.02 < rate < 0.1


@pytest.mark.parametrize("kind", PROXIES)
@pytest.mark.parametrize("speed", [0.7, 0.5, 0.25])
def test_no_proxy_takes_a_slow_replica_for_less_than_its_rate_squared(kind: str, speed: float) -> None:
    """A slow-down must not count twice: as a lower weight, and as requests that stay longer."""
    told = part(kind, "least_request", Weight(rate=speed, room=1.0, speed=speed))
    in_flight = 20.0
    slow, peers = speed, 1.0
    if kind == "envoy":
        rate = (told * slow / peers) ** 0.5 if in_flight else told
    else:
        rate = told * slow / peers
    assert speed**1.5 - 0.02 <= rate <= speed + 0.02


@pytest.mark.parametrize(("limit", "few"), [(None, False), (8, True), (64, True), (65, False), (256, False)])
def test_a_small_limit_of_a_replica_means_slots(limit: int | None, few: bool) -> None:
    breaker = f"circuit_breaker: {{per_replica: {{max_requests: {limit}}}}}, " if limit else ""
    pool = pool_of(f'{{{breaker}replicas: [{{address: "10.0.0.1:80"}}]}}')
    assert pool.few_slots is few
