"""Caches built resources by their inputs, so that nothing is built twice for two proxies or for two snapshots."""

from __future__ import annotations

from collections.abc import Callable, Container
from threading import Lock
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import Message

from lbctl.base.diagnostics import Diagnostic, Path
from lbctl.ir.pools import Pool
from lbctl.targets.envoy import ads
from lbctl.targets.envoy.endpoints import Layout
from lbctl.xds.build import validate
from lbctl.xds.build.field_rules import Reference
from lbctl.xds.resource import EDS, Resource

Inputs = tuple[object, ...]
"""Values compared with ==: equal inputs produce equal messages. The most distinctive value comes first, for speed."""
_Slot = tuple[str, str]
_Value = TypeVar("_Value")


class Piece(NamedTuple):
    """A built resource, the inputs it was built from, the resources it refers to, and whether it is valid."""

    inputs: Inputs
    resource: Resource
    needs: frozenset[Reference]
    good: bool = True


class BuildCache:
    """The resources built for one snapshot; a resource that is missing is taken from the previous snapshot's cache.

    `problems` collects a diagnostic for each message that Envoy would reject. A rejected message is never cached.
    """

    def __init__(self, before: BuildCache | None) -> None:
        self._before = before
        self._made: dict[_Slot, list[Piece]] = {}
        self._layouts: dict[str, list[tuple[Inputs, Layout]]] = {}
        self._values: dict[str, list[Any]] = {}
        self._routed: dict[str, tuple[Pool, Pool]] = {}
        self._lock: Lock = before._lock if before else Lock()
        """Layouts are modified in place while they are rendered, and two snapshots share them."""
        self.problems: list[Diagnostic] = []

    @classmethod
    def all_but(cls, names: Container[str], before: BuildCache) -> BuildCache:
        """Return a copy of the previous cache without the endpoints of the named clusters."""
        cache = cls(before)
        cache._made = {slot: pieces for slot, pieces in before._made.items() if slot[0] != EDS or slot[1] not in names}
        cache._layouts = {name: layouts for name, layouts in before._layouts.items() if name not in names}
        cache._values, cache._routed = before._values, before._routed
        return cache

    def take_problems(self) -> list[Diagnostic]:
        """Return the problems collected since the last call, and clear them."""
        problems, self.problems = self.problems, []
        return problems

    def forget_before(self) -> None:
        """Drop the reference to the previous snapshot's cache, so that its memory can be freed."""
        self._before = None

    def same(self, what: str, value: _Value) -> _Value:
        """Return the cached object that equals `value`, or cache and return `value` itself.

        A large input that many resources share is then compared by identity after the first comparison.
        """
        mine, before = self._values.setdefault(what, []), self._before
        older = before._values.get(what, []) if before else []
        kept: _Value = next((item for item in (*mine, *older) if item == value), value)
        if all(kept is not item for item in mine):
            mine.append(kept)
        return kept

    def routed(self, pool: Pool) -> Pool:
        """Return the part of a pool that route tables are built from, derived once for each pool object."""
        cached = self._routed.get(pool.name) or (self._before and self._before._routed.get(pool.name))
        if not cached or cached[0] is not pool:
            cached = pool, ads.routed(pool)
        self._routed[pool.name] = cached
        return cached[1]

    def take(
        self, type_url: str, name: str, inputs: Inputs, make: Callable[[], Message], path: Path, *, secret: bool = False
    ) -> Piece:
        """Return the named resource, built by `make` only if no resource was built from equal `inputs`.

        `secret` says whether the resource holds a credential; the inputs determine it.
        """
        slot = (type_url, name)
        mine, before = self._made.setdefault(slot, []), self._before
        for piece in mine:
            if piece.inputs == inputs:
                return piece
        older = before._made.get(slot, []) if before else []
        reused = next((piece for piece in older if piece.inputs == inputs), None)
        kept = (
            Piece(inputs, *reused[1:])
            if reused
            else self._make(slot, (*mine, *older), inputs, make, path, secret=secret)
        )
        if kept.good:
            mine.append(kept)
        return kept

    def layout(self, name: str, inputs: Inputs, make: Callable[[], Layout], path: Path) -> Layout:
        """Return the endpoint layout of the named cluster, built by `make` only if no equal inputs are cached."""
        mine, before = self._layouts.setdefault(name, []), self._before
        for cached, layout in mine:
            if cached == inputs:
                return layout
        older = before._layouts.get(name, []) if before else []
        result = next((layout for cached, layout in older if cached == inputs), None)
        if result is None:
            result = make()
            problems = validate.examine_places(result.unweighed, path)
            self.problems.extend(problems)
            if problems:
                return result
        mine.append((inputs, result))
        return result

    def _make(
        self,
        slot: _Slot,
        candidates: tuple[Piece, ...],
        inputs: Inputs,
        make: Callable[[], Message],
        path: Path,
        *,
        secret: bool,
    ) -> Piece:
        """Build a resource. If different inputs produce the bytes of a cached resource, that resource is reused."""
        with self._lock:
            message = make()
            body = message.SerializeToString(deterministic=True)
            for piece in candidates:
                if piece.resource.body == body and piece.resource.secret == secret:
                    return Piece(inputs, *piece[1:])
            findings = validate.examine(slot[0], message, path)
        self.problems.extend(findings.problems)
        return Piece(inputs, Resource(*slot, body, path, secret=secret), findings.needs, not findings.problems)
