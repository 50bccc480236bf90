"""Weights for tests, written as plain numbers like capacities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lbctl.ir.weight import Weight, from_capacity


def pool_of_plain(weights: Mapping[str, float]) -> dict[str, Weight]:
    return {name: from_capacity(value) for name, value in weights.items()}


def plain_weights(pools: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, Weight]]:
    return {pool: pool_of_plain(weights) for pool, weights in pools.items()}


def row_of_plain(weights: Iterable[float]) -> tuple[Weight, ...]:
    return tuple(map(from_capacity, weights))
