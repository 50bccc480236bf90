"""The selection algorithm of each proxy: cases calculated by hand, and the resulting shares."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lbctl.ir.pools import Balance
from lbctl.simulate import balancing
from lbctl.simulate.engine import CostModel
from lbctl.simulate.policies import POLICIES
from lbctl.simulate.setup import SpeedChange
from lbctl.simulate.state import ProxyColumns, Requests, RunSettings
from lbctl.simulate.trace import Trace
from tests.support.simulate import EASY, drained, load, pool, replayed, shares

pytestmark = pytest.mark.no_cover  # many similar cases, which tracing would slow down

EXPECTED_SHARES = [5 / 8, 2 / 8, 1 / 8]


def columns(weights: list[float], active: list[int] | None = None, turn: list[int] | None = None) -> ProxyColumns:
    size = len(weights)
    zeros = [0.0] * size
    empty = ProxyColumns(*([*zeros] for _ in ProxyColumns._fields))
    return empty._replace(active=active or [0] * size, weight=weights, turn=turn or [0] * size, now=[0.0])


def settings_for(size: int, **more: float) -> RunSettings:
    none = RunSettings(*(0 for _ in RunSettings._fields))  # type: ignore[arg-type]
    return none._replace(replicas=size, **more)


def test_smooth_round_robin_matches_nginx() -> None:
    proxies = columns([5.0, 1.0, 1.0])
    assert [balancing.smooth(proxies, settings_for(3), 0, -1.0) for _ in range(7)] == [0, 0, 1, 0, 2, 0, 0]


def test_nginx_picks_the_fewest_connections_per_weight() -> None:
    assert balancing.least_conn(columns([4.0, 2.0, 1.0], [4, 1, 1]), settings_for(3), 0) == 1
    ties = columns([2.0, 1.0], [2, 1])
    assert [balancing.least_conn(ties, settings_for(2), 0) for _ in range(3)] == [0, 1, 0]


def test_haproxy_picks_an_idle_server_of_any_weight() -> None:
    assert balancing.leastconn(columns([256.0, 1.0], [1, 0]), settings_for(2), 0) == 1
    assert balancing.leastconn(columns([4.0, 1.0], [5, 1]), settings_for(2), 0) == 0
    assert balancing.leastconn(columns([1.0, 1.0], turn=[9, 3]), settings_for(2), 0) == 1


def test_envoy_picks_the_earliest_deadline() -> None:
    proxies = columns([2.0, 1.0])
    proxies.due[:] = [0.5, 1.0]
    assert [balancing.earliest(proxies, settings_for(2), 0, False) for _ in range(6)] == [0, 0, 1, 0, 0, 1]
    busy = columns([2.0, 1.0], [5, 0])
    busy.due[:] = [0.5, 1.0]
    assert [balancing.earliest(busy, settings_for(2), 0, True) for _ in range(3)] == [0, 1, 1]


def request_with(first: float, second: float, key: int = 0) -> Requests:
    """Return one request with these random numbers, from 0 to 1."""
    none = Requests(*([0] for _ in Requests._fields))
    return none._replace(draw=[int(first * 2**32)], second_draw=[int(second * 2**32)], key=[key])


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [(0.1, 0.4, 1), (0.4, 0.1, 1), (0.1, 0.9, 3), (0.6, 0.9, 3), (0.6, 0.6, 2), (0.4, 0.9, 1)],
)
def test_envoy_picks_the_less_busy_of_two(first: float, second: float, expected: int) -> None:
    equal = columns([1.0, 1.0, 1.0, 1.0], [4, 0, 3, 0])
    assert balancing.least_request(equal, request_with(first, second), settings_for(4), 0, 0) == expected


def test_envoy_draws_only_replicas_with_a_weight() -> None:
    rest = columns([1.0, 0.0, -1.0, 1.0], [9, 0, 0, 1])
    assert balancing.least_request(rest, request_with(0.1, 0.6), settings_for(4), 0, 0) == 3
    assert balancing.least_request(rest, request_with(0.1, 0.1), settings_for(4), 0, 0) == 0


def ring(weights: list[float], active: list[int] | None = None) -> ProxyColumns:
    """Return a ring with points at 100, 200 and 300 for the replicas 0, 1 and 2."""
    return columns(weights, active)._replace(ring_point=[100, 200, 300], ring_replica=[0, 1, 2])


@pytest.mark.parametrize(("key", "expected"), [(0, 0), (100, 0), (101, 1), (200, 1), (300, 2), (301, 0)])
def test_a_ring_maps_a_key_to_the_next_point(key: int, expected: int) -> None:
    assert balancing.ring(ring([1.0] * 3), request_with(0, 0, key), settings_for(3, bound=0.0), 0, 0) == expected


def test_a_ring_skips_replicas_without_weight() -> None:
    assert balancing.ring(ring([1.0, 0.0, -1.0]), request_with(0, 0, 150), settings_for(3, bound=0.0), 0, 0) == 0
    assert balancing.ring(ring([0.0] * 3), request_with(0, 0, 150), settings_for(3, bound=0.0), 0, 0) == balancing.NONE


def test_bounded_load_moves_on_to_the_next_point_with_room() -> None:
    """There are 8 requests with the new one. At a bound of 1.25 each of three replicas may have 3⅓, and one of twice
    the weight 5."""
    bounded = settings_for(3, bound=1.25)
    assert balancing.ring(ring([1.0] * 3, [3, 2, 2]), request_with(0, 0, 50), bounded, 0, 0) == 1
    assert balancing.ring(ring([1.0] * 3, [2, 3, 2]), request_with(0, 0, 50), bounded, 0, 0) == 0
    assert balancing.ring(ring([1.0] * 3, [3, 3, 1]), request_with(0, 0, 50), bounded, 0, 0) == 2
    assert balancing.ring(ring([2.0, 1.0, 1.0], [4, 2, 1]), request_with(0, 0, 50), bounded, 0, 0) == 0
    assert balancing.ring(ring([2.0, 1.0, 1.0], [5, 1, 1]), request_with(0, 0, 50), bounded, 0, 0) == 1


def test_envoy_rounds_its_bound_up() -> None:
    """8 × 1.25 are 10 slots: 4 for each of three replicas. Envoy counts without the new request."""
    bounded = settings_for(3, bound=1.25, jumps=True)
    assert balancing.ring(ring([1.0] * 3, [4, 2, 1]), request_with(0, 0, 50), bounded, 0, 0) == 0
    assert balancing.ring(ring([1.0] * 3, [5, 1, 1]), request_with(0, 0, 50), bounded, 0, 0) != 0


def test_envoy_overflow_ignores_weights() -> None:
    bounded = settings_for(3, bound=1.25, jumps=True)
    books_of_three = ring([1.0, 9.0, 1.0], [9, 0, 0])
    second = [balancing.ring(books_of_three, request_with(0, 0, key), bounded, 0, 0) for key in range(100)]
    assert set(second) == {1, 2}
    assert second.count(2) == pytest.approx(50, abs=15)
    assert second == [balancing.ring(books_of_three, request_with(0, 0, key), bounded, 0, 0) for key in range(100)]


def test_envoy_picks_the_least_overloaded_if_all_are_full() -> None:
    full = settings_for(3, bound=0.1, jumps=True)
    assert balancing.ring(ring([1.0] * 3, [4, 3, 2]), request_with(0, 0, 50), full, 0, 0) == 2


@pytest.mark.parametrize("policy", [name for name in POLICIES if name.endswith((":round_robin", ":random"))])
def test_shares_of_arrivals_match_capacities(policy: str) -> None:
    result = replayed(pool(5.0, 2.0, 1.0), load(4000, 100.0, 10, 2), policy, cost=EASY, proxies=2)
    assert shares(result) == pytest.approx(EXPECTED_SHARES, abs=0.03)


@pytest.mark.parametrize("policy", [name for name in POLICIES if name.endswith((":least_request", ":pick"))])
def test_a_busy_fleet_is_shared_by_capacity(policy: str) -> None:
    """The strongest replica gets slightly more: it answers sooner, so it has fewer requests in flight."""
    result = replayed(pool(5.0, 2.0, 1.0), load(1500, 9.0, 800, 150), policy, cost=None)
    assert shares(result) == pytest.approx(EXPECTED_SHARES, abs=0.12)


@pytest.mark.parametrize("policy", ["envoy:hash", "haproxy:hash", "nginx:hash"])
def test_a_hash_keeps_keys_on_replicas_and_shares(policy: str) -> None:
    trace = load(3000, 100.0, 10, 2)
    keys = [(index % 1000) * 4_294_967 for index in range(3000)]
    result = replayed(pool(5.0, 2.0, 1.0), replace(trace, keys=keys), policy, cost=EASY)
    placed = list(result.requests.replica)
    assert placed[:1000] == placed[1000:2000] == placed[2000:]
    assert shares(result) == pytest.approx(EXPECTED_SHARES, abs=0.06)


def test_bounded_load_relieves_a_hot_replica_except_in_nginx() -> None:
    trace = Trace([0.001 * index for index in range(300)], [10] * 300, [100] * 300, [7] * 300)
    bounded = replace(pool(1.0, 1.0, 1.0), balance=Balance("hash", bounded_load=1.25))
    for policy, largest in {"envoy:hash": 0.5, "haproxy:hash": 0.5, "nginx:hash": 1.0}.items():
        assert max(shares(replayed(bounded, trace, policy, cost=EASY))) == pytest.approx(largest, abs=0.1)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_drained_replica_gets_no_requests(policy: str) -> None:
    result = replayed(drained(pool(2.0, 2.0, 1.0), "r1"), load(200, 20.0, 100, 20), policy)
    assert shares(result)[1] == 0
    assert sum(shares(result)) == pytest.approx(1)


@pytest.mark.parametrize("policy", POLICIES)
def test_requests_fail_without_a_fit_replica(policy: str) -> None:
    result = replayed(drained(pool(1.0), "r0"), load(20, 20.0), policy)
    assert shares(result) == [0]
    assert set(result.requests.first) == {-1.0}


def test_requests_avoid_a_wedged_replica() -> None:
    wedged = SpeedChange(10.0, "r1", 0.0)
    for policy, most in {"nginx:round_robin": 0.36, "nginx:least_request": 0.3, "envoy:least_request": 0.3}.items():
        result = replayed(pool(1.0, 1.0, 1.0), load(600, 8.0), policy, wedged, cost=CostModel())
        assert shares(result)[1] < most, policy
