"""Ownership of pools by members."""

from __future__ import annotations

from collections import Counter

from lbctl.serve.ha.sharing import owner_of

POOLS = [f"pool-{number}" for number in range(300)]


def owners(*members: str) -> dict[str, str]:
    return {pool: owner_of(pool, members) for pool in POOLS}


def test_members_own_about_the_same_number_of_pools() -> None:
    assert all(80 <= count <= 120 for count in Counter(owners("cp-1", "cp-2", "cp-3").values()).values())


def test_leaving_member_moves_only_its_own_pools() -> None:
    before, after = owners("cp-1", "cp-2", "cp-3"), owners("cp-1", "cp-3")
    assert {before[pool] for pool in POOLS if before[pool] != after[pool]} == {"cp-2"}


def test_order_of_the_members_does_not_matter() -> None:
    assert owners("cp-1", "cp-2") == owners("cp-2", "cp-1")
    assert set(owners().values()) == {""}
