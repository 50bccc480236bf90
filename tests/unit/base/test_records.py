"""Dataclasses with lazily compiled methods behave like dataclasses of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from functools import partial
from typing import Any, ClassVar

import pytest

from lbctl.base.records import dataclass

MAKERS = [dataclass, dataclasses.dataclass]


def point_class(maker: Callable[..., Any], **options: bool) -> Any:
    @maker(slots=True, **options)
    class Point:
        """A point."""

        SCALE: ClassVar[int] = 3
        x: int
        secret: str = field(default="s", repr=False)
        note: list[int] = field(default_factory=list, compare=False)
        tags: list[str] = field(default_factory=list, hash=False)
        total: int = field(init=False, compare=False, default=0)

        def __post_init__(self) -> None:
            object.__setattr__(self, "total", self.x * self.SCALE)

    return Point


def outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except (TypeError, AttributeError) as error:
        return type(error), str(error).rpartition(".")[2]


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize(
    "use",
    [
        lambda kind: repr(kind(4)),
        lambda kind: kind(4) == kind(4, "s", [1]),
        lambda kind: kind(4) != kind(5),
        lambda kind: kind(4) == kind(4, "t"),
        lambda kind: kind(4) == 4,
        lambda kind: kind(4).note is kind(4).note,
        lambda kind: kind(x=4, note=[2]).total,
        lambda kind: hash(kind(4)) == hash(kind(4, "s", [1], ["a"])),
        lambda kind: kind(4) == kind(4, "s", [1], ["a"]),
        lambda kind: dataclasses.asdict(kind(4)),
        lambda kind: repr(dataclasses.replace(kind(4), x=7)),
        lambda kind: [each.name for each in dataclasses.fields(kind)],
        lambda kind: (kind.__slots__, kind.__match_args__, kind.__doc__, kind.SCALE),
        lambda kind: repr(copy.deepcopy(kind(4, note=[1]))),
        lambda kind: kind(),
        lambda kind: kind(1, nonsense=2),
        lambda kind: setattr(kind(4), "x", 5),
        lambda kind: delattr(kind(4), "x"),
    ],
)
def test_a_record_behaves_like_a_dataclass(use: Callable[[Any], object], frozen: bool) -> None:
    kinds = [point_class(maker, frozen=frozen) for maker in MAKERS]
    late, standard = (outcome(partial(use, kind)) for kind in kinds)
    assert late == standard


def test_records_without_eq_compare_by_identity() -> None:
    kind = point_class(dataclass, eq=False)
    assert kind(1) != kind(1)
    assert len({kind(1), kind(1)}) == 2


def test_a_subclass_has_all_fields_and_its_own_methods() -> None:
    @dataclass(frozen=True, slots=True)
    class Base:
        a: int

    @dataclass(frozen=True, slots=True)
    class Derived(Base):
        b: int = 2

        def __repr__(self) -> str:
            return "derived"

    assert Base(1) != Derived(1)
    assert Derived(1) == Derived(1, 2)
    assert repr(Derived(1)) == "derived"
    assert (Derived(1).a, Derived(1).b) == (1, 2)
    with pytest.raises(FrozenInstanceError):
        Derived(1).a = 3  # type: ignore[misc]


@dataclass(frozen=True, slots=True)
class Pickled:
    """At the top of the module, where pickle finds it."""

    a: int
    self: int = 0


def test_a_frozen_record_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(Pickled(3))) == Pickled(3)
