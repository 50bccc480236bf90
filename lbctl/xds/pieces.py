"""Resources and what each was made from, so that nothing is made twice: not for two proxies, not for two editions."""

from __future__ import annotations

from collections.abc import Callable, Container
from threading import Lock
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import Message

from lbctl.base.diagnostics import Diagnostic, Path
from lbctl.ir.pools import Pool
from lbctl.targets.envoy import ads
from lbctl.targets.envoy.endpoints import Layout
from lbctl.xds import sound
from lbctl.xds.resource import EDS, Resource
from lbctl.xds.rules import Reference

Inputs = tuple[object, ...]
"""Values that are compared with ==: equal ones make the same message. What tells most apart stands first."""
_Slot = tuple[str, str]
_Value = TypeVar("_Value")


class Piece(NamedTuple):
    inputs: Inputs
    resource: Resource
    needs: frozenset[Reference]
    good: bool = True


class Pieces:
    """Those of one edition. What it does not find among its own it takes from the edition before, while it has one.

    `problems` grows with each message that would be refused; such a one is never kept.
    """

    def __init__(self, before: Pieces | None) -> None:
        self._before = before
        self._made: dict[_Slot, list[Piece]] = {}
        self._layouts: dict[str, list[tuple[Inputs, Layout]]] = {}
        self._values: dict[str, list[Any]] = {}
        self._routed: dict[str, tuple[Pool, Pool]] = {}
        self._lock: Lock = before._lock if before else Lock()
        """Layouts are written over, and two editions share them."""
        self.problems: list[Diagnostic] = []

    @classmethod
    def all_but(cls, names: Container[str], before: Pieces) -> Pieces:
        """Those of before, without what stands for the endpoints of these clusters."""
        found = cls(before)
        found._made = {slot: made for slot, made in before._made.items() if slot[0] != EDS or slot[1] not in names}
        found._layouts = {name: made for name, made in before._layouts.items() if name not in names}
        found._values, found._routed = before._values, before._routed
        return found

    def take_problems(self) -> list[Diagnostic]:
        """Those since it was last asked."""
        found, self.problems = self.problems, []
        return found

    def forget_before(self) -> None:
        self._before = None

    def same(self, what: str, value: _Value) -> _Value:
        """Something large that many pieces are made from, or an equal one from before: once found the same, it is seen
        to be."""
        mine, before = self._values.setdefault(what, []), self._before
        older = before._values.get(what, []) if before else []
        kept: _Value = next((known for known in (*mine, *older) if known == value), value)
        if all(kept is not known for known in mine):
            mine.append(kept)
        return kept

    def routed(self, pool: Pool) -> Pool:
        """What tables of routes are made of."""
        known = self._routed.get(pool.name) or (self._before and self._before._routed.get(pool.name))
        if not known or known[0] is not pool:
            known = pool, ads.routed(pool)
        self._routed[pool.name] = known
        return known[1]

    def take(self, type_url: str, name: str, inputs: Inputs, make: Callable[[], Message], path: Path) -> Piece:
        """The resource of that name made from `inputs`; newly made only where there is none from equal ones."""
        slot = (type_url, name)
        mine, before = self._made.setdefault(slot, []), self._before
        for piece in mine:
            if piece.inputs == inputs:
                return piece
        older = before._made.get(slot, []) if before else []
        found = next((piece for piece in older if piece.inputs == inputs), None)
        kept = Piece(inputs, *found[1:]) if found else self._make(slot, (*mine, *older), inputs, make, path)
        if kept.good:
            mine.append(kept)
        return kept

    def layout(self, name: str, inputs: Inputs, make: Callable[[], Layout], path: Path) -> Layout:
        """The layout of the cluster of that name, likewise."""
        mine, before = self._layouts.setdefault(name, []), self._before
        for known, layout in mine:
            if known == inputs:
                return layout
        older = before._layouts.get(name, []) if before else []
        found = next((layout for known, layout in older if known == inputs), None)
        if found is None:
            found = make()
            problems = sound.examine_places(found.unweighed, path)
            self.problems.extend(problems)
            if problems:
                return found
        mine.append((inputs, found))
        return found

    def _make(
        self, slot: _Slot, known: tuple[Piece, ...], inputs: Inputs, make: Callable[[], Message], path: Path
    ) -> Piece:
        """Other inputs may well make the same bytes: then it is the same resource."""
        with self._lock:
            message = make()
            body = message.SerializeToString(deterministic=True)
            for piece in known:
                if piece.resource.body == body:
                    return Piece(inputs, *piece[1:])
            found = sound.examine(slot[0], message, path)
        self.problems.extend(found.problems)
        return Piece(inputs, Resource(*slot, body, path), found.needs, not found.problems)
