"""The limit on the share of replicas that one change may remove."""

from __future__ import annotations

from functools import cache

import pytest

from lbctl.control.shrink import shrinks
from lbctl.ir.address import Address
from lbctl.ir.pools import DnsDiscovery, Pool, Replica
from lbctl.ir.topology import Topology


def topology_of(dns: tuple[str, ...] = (), **pools: int) -> Topology:
    """Return a topology with these pools and replica counts; the pools in `dns` discover their replicas by DNS."""
    discovery = DnsDiscovery("embedder.test", 80)
    return Topology(
        (),
        (),
        tuple(Pool(name, _replicas(count), discovery if name in dns else None) for name, count in pools.items()),
    )


@cache
def _replicas(count: int) -> tuple[Replica, ...]:
    return tuple(Replica(f"r{index}", Address("10.0.0.1", 8000 + index)) for index in range(count))


def shrunk_paths(before: Topology, after: Topology, most: float = 50.0) -> list[str]:
    return [".".join(map(str, item.path)) for item in shrinks(before, after, most)]


@pytest.mark.parametrize(
    ("before", "after", "most", "refused"),
    [
        (10, 5, 50.0, False),
        (10, 4, 50.0, True),
        (10, 10, 0.0, False),
        (10, 0, 100.0, False),
        (1, 0, 99.0, True),
        (2, 1, 50.0, False),
        (0, 5, 0.0, False),
        (5, 9, 0.0, False),
        (3, 2, 33.3, True),
        (1000, 667, 33.3, False),
    ],
)
def test_a_pool_may_lose_at_most_max_shrink(before: int, after: int, most: float, refused: bool) -> None:
    assert shrunk_paths(topology_of(a=before, other=1_000), topology_of(a=after, other=1_000), most) == (
        ["pools.a"] if refused else []
    )


def test_the_message_names_pool_counts_and_the_confirming_flag() -> None:
    message = str(shrinks(topology_of(a=10, b=10), topology_of(a=4, b=10), 50.0)[0])
    assert message == (
        "error LB930 pools.a: the pool a would go from 10 to 4 replicas (-60%), which is more than max_shrink (50%) "
        "(to confirm the removal, run `lbctl reload --allow-shrink`)"
    )


def test_max_shrink_zero_forbids_any_loss() -> None:
    assert shrunk_paths(topology_of(a=10), topology_of(a=9), 0.0) == ["pools.a", "pools"]
    assert shrunk_paths(topology_of(a=10, b=9), topology_of(a=10, b=9), 0.0) == []


def test_removed_pools_count_for_the_whole_fleet() -> None:
    assert shrunk_paths(topology_of(a=4, b=6), topology_of(a=4)) == ["pools"]
    assert shrunk_paths(topology_of(a=6, b=4), topology_of(a=6)) == []


def test_a_renamed_pool_is_not_a_loss() -> None:
    assert shrunk_paths(topology_of(a=10), topology_of(b=10)) == []


def test_many_small_losses_add_up_for_the_fleet() -> None:
    before = topology_of(**{f"p{index}": 2 for index in range(10)})
    assert shrunk_paths(before, topology_of(**{f"p{index}": 1 for index in range(9)})) == ["pools"]


def test_a_pool_without_a_dns_answer_is_not_judged() -> None:
    before = topology_of(dns=("a",), a=10, b=2)
    assert shrunk_paths(before, topology_of(dns=("a",), a=0, b=2)) == []
    assert shrunk_paths(topology_of(a=10, b=2), topology_of(dns=("a",), a=0, b=2)) == []
    assert shrunk_paths(before, topology_of(dns=("a",), a=3, b=2)) == ["pools.a", "pools"]


def test_an_empty_fleet_loses_nothing() -> None:
    assert shrunk_paths(topology_of(), topology_of()) == []
    assert shrunk_paths(topology_of(), topology_of(a=1)) == []
