"""Classes of replicas with equal weight."""

from __future__ import annotations

from lbctl.ir.address import Address
from lbctl.ir.pools import Replica
from lbctl.ir.weight import from_capacity
from lbctl.targets.manifests.classes import WeightClasses, limits, weight_classes


def classes_of(weights: dict[str, float], *drained: str, most: int = 16) -> WeightClasses:
    replicas = [(Replica(name, Address("10.0.0.1", 80)), from_capacity(weight)) for name, weight in weights.items()]
    return weight_classes(replicas, drained, most)


def shown(found: WeightClasses) -> list[tuple[int, list[str]]]:
    return [(item.weight, [replica.name for replica in item.replicas]) for item in found.classes]


def test_replicas_of_equal_weight_are_one_class() -> None:
    found = classes_of({"a": 5, "b": 2, "c": 1, "d": 1, "e": 2})
    assert shown(found) == [(100, ["a"]), (80, ["b", "e"]), (40, ["c", "d"])]
    assert found.error == 0


def test_drained_replicas_have_no_weight() -> None:
    assert shown(classes_of({"a": 5, "b": 1, "c": 1}, "b")) == [(100, ["a"]), (20, ["b", "c"])]
    assert shown(classes_of({"a": 5, "b": 1}, "b")) == [(100, ["a"]), (0, ["b"])]


def test_an_empty_pool_has_one_class() -> None:
    assert shown(classes_of({})) == [(0, [])]


def test_nearest_classes_are_joined() -> None:
    found = classes_of({"a": 100, "b": 98, "c": 50, "d": 10}, most=3)
    assert [[replica.name for replica in item.replicas] for item in found.classes] == [["a", "b"], ["c"], ["d"]]
    assert 0.009 < found.error < 0.011


def test_pools_with_most_classes_lose_classes_first() -> None:
    assert limits([17], 16) == [16]
    assert limits([3, 3], 16) == [3, 3]
    assert limits([20, 2, 1], 16) == [13, 2, 1]
    assert limits([1] * 16, 16) == [1] * 16
