"""What a change takes away, and whether that is more than is allowed at once."""

from __future__ import annotations

import pytest

from lbctl.control.shrink import shrinks
from lbctl.ir.address import Address
from lbctl.ir.pools import DnsDiscovery, Pool, Replica
from lbctl.ir.topology import Topology

pytestmark = pytest.mark.slow


def fleet(dns: tuple[str, ...] = (), **pools: int) -> Topology:
    """Pools with so many replicas; those in `dns` ask for them."""
    discovery = DnsDiscovery("embedder.test", 80)
    return Topology(
        (),
        (),
        tuple(Pool(name, _replicas(count), discovery if name in dns else None) for name, count in pools.items()),
    )


def _replicas(count: int) -> tuple[Replica, ...]:
    return tuple(Replica(f"r{index}", Address("10.0.0.1", 8000 + index)) for index in range(count))


def found(before: Topology, after: Topology, most: float = 50.0) -> list[str]:
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
def test_a_pool_may_lose_as_much_as_is_written_and_not_more(
    before: int, after: int, most: float, refused: bool
) -> None:
    assert found(fleet(a=before, big=90_000), fleet(a=after, big=90_000), most) == (["pools.a"] if refused else [])


def test_the_message_names_the_pool_the_replicas_before_and_after_and_the_way_on() -> None:
    told = str(shrinks(fleet(a=10, b=10), fleet(a=4, b=10), 50.0)[0])
    assert told == (
        "error LB930 pools.a: the pool a would go from 10 to 4 replicas (-60%), which is more than max_shrink (50%) "
        "(`lbctl reload --allow-shrink` confirms it)"
    )


def test_with_zero_nothing_may_go() -> None:
    assert found(fleet(a=10), fleet(a=9), 0.0) == ["pools.a", "pools"]
    assert found(fleet(a=10, b=9), fleet(a=10, b=9), 0.0) == []


def test_the_whole_fleet_is_judged_too_with_pools_that_have_gone() -> None:
    assert found(fleet(a=4, b=6), fleet(a=4)) == ["pools"]
    assert found(fleet(a=6, b=4), fleet(a=6)) == []


def test_a_pool_under_another_name_is_no_loss() -> None:
    assert found(fleet(a=10), fleet(b=10)) == []


def test_several_small_losses_are_one_of_the_fleet_when_together_they_are_too_many() -> None:
    before = fleet(**{f"p{index}": 2 for index in range(10)})
    assert found(before, fleet(**{f"p{index}": 1 for index in range(9)})) == ["pools"]


def test_a_pool_that_has_no_answer_from_the_dns_yet_is_not_judged() -> None:
    before = fleet(dns=("a",), a=10, b=2)
    assert found(before, fleet(dns=("a",), a=0, b=2)) == []
    assert found(fleet(a=10, b=2), fleet(dns=("a",), a=0, b=2)) == []
    assert found(before, fleet(dns=("a",), a=3, b=2)) == ["pools.a", "pools"]


def test_an_empty_fleet_loses_nothing() -> None:
    assert found(fleet(), fleet()) == []
    assert found(fleet(), fleet(a=1)) == []
