"""Caches built resources by their inputs, so that proxies and snapshots share resources rather than rebuilding them."""

from __future__ import annotations

from collections.abc import Callable, Container
from threading import Lock
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import Message

from lbctl.base.diagnostics import Diagnostic, Path
from lbctl.ir.pools import Pool
from lbctl.targets.envoy import ads
from lbctl.targets.envoy.endpoints import EndpointLayout
from lbctl.xds.build import validate
from lbctl.xds.build.field_rules import Reference
from lbctl.xds.resource import EDS, Resource

Inputs = tuple[object, ...]
"""Values compared with `==`: equal inputs produce equal messages. The most distinctive value comes first, so that
comparisons are fast."""
_Slot = tuple[str, str]
_Value = TypeVar("_Value")


class BuiltResource(NamedTuple):
    """A built resource, its inputs, the resources it refers to, and whether it is valid."""

    inputs: Inputs
    resource: Resource
    needs: frozenset[Reference]
    """The resources that the resource refers to."""
    valid: bool = True
    """Whether Envoy accepts the resource."""


class BuildCache:
    """The resources built for one snapshot; missing resources are taken from the cache of the previous snapshot.

    `problems` collects a diagnostic for each message that an Envoy would reject. A rejected message is never cached.
    """

    def __init__(self, previous: BuildCache | None) -> None:
        self._previous = previous
        self._built: dict[_Slot, list[BuiltResource]] = {}
        self._layouts: dict[str, list[tuple[Inputs, EndpointLayout]]] = {}
        self._values: dict[str, list[Any]] = {}
        self._routed: dict[str, tuple[Pool, Pool]] = {}
        self._lock: Lock = previous._lock if previous else Lock()
        """Protects layouts, which two snapshots share and which are modified in place during rendering."""
        self.problems: list[Diagnostic] = []

    @classmethod
    def without_endpoints(cls, names: Container[str], previous: BuildCache) -> BuildCache:
        """Return a copy of the previous cache without the endpoints of the named clusters."""
        cache = cls(previous)
        cache._built = {
            slot: entries for slot, entries in previous._built.items() if slot[0] != EDS or slot[1] not in names
        }
        cache._layouts = {name: layouts for name, layouts in previous._layouts.items() if name not in names}
        cache._values, cache._routed = previous._values, previous._routed
        return cache

    def take_problems(self) -> list[Diagnostic]:
        """Return the problems collected since the last call, and clear them."""
        problems, self.problems = self.problems, []
        return problems

    def release_previous(self) -> None:
        """Drop the reference to the previous snapshot's cache, so that its memory can be released."""
        self._previous = None

    def intern(self, category: str, value: _Value) -> _Value:
        """Return the cached object that equals `value`, or cache and return `value` itself.

        A large input shared by many resources is then compared by identity after the first comparison.
        """
        own, previous = self._values.setdefault(category, []), self._previous
        previous_entries = previous._values.get(category, []) if previous else []
        entry: _Value = next((item for item in (*own, *previous_entries) if item == value), value)
        if all(entry is not item for item in own):
            own.append(entry)
        return entry

    def routed(self, pool: Pool) -> Pool:
        """Return the part of a pool that route tables depend on; it is derived once per pool object."""
        cached = self._routed.get(pool.name) or (self._previous and self._previous._routed.get(pool.name))
        if not cached or cached[0] is not pool:
            cached = pool, ads.routed(pool)
        self._routed[pool.name] = cached
        return cached[1]

    def get(
        self,
        type_url: str,
        name: str,
        inputs: Inputs,
        build: Callable[[], Message],
        path: Path,
        *,
        secret: bool = False,
        in_clear: Resource | None = None,
        parent: str = "",
    ) -> BuiltResource:
        """Return the named resource; call `build` only if no resource with equal `inputs` is cached.

        `secret`: whether the resource contains a credential. `in_clear` and `parent` have the same meaning as in
        `Resource`. The inputs determine all three values.
        """
        slot = (type_url, name)
        own, previous = self._built.setdefault(slot, []), self._previous
        for built in own:
            if built.inputs == inputs:
                return built
        previous_entries = previous._built.get(slot, []) if previous else []
        reused = next((built for built in previous_entries if built.inputs == inputs), None)
        entry = (
            BuiltResource(inputs, *reused[1:])
            if reused
            else self._build(
                slot, (*own, *previous_entries), inputs, build, path, secret=secret, in_clear=in_clear, parent=parent
            )
        )
        if entry.valid:
            own.append(entry)
        return entry

    def layout(self, name: str, inputs: Inputs, build: Callable[[], EndpointLayout], path: Path) -> EndpointLayout:
        """Return the endpoint layout of the named cluster; call `build` only if none with equal inputs is cached."""
        own, previous = self._layouts.setdefault(name, []), self._previous
        for cached, layout in own:
            if cached == inputs:
                return layout
        previous_entries = previous._layouts.get(name, []) if previous else []
        result = next((layout for cached, layout in previous_entries if cached == inputs), None)
        if result is None:
            result = build()
            problems = validate.examine_addresses(result.unweighed, path)
            self.problems.extend(problems)
            if problems:
                return result
        own.append((inputs, result))
        return result

    def _build(
        self,
        slot: _Slot,
        candidates: tuple[BuiltResource, ...],
        inputs: Inputs,
        build: Callable[[], Message],
        path: Path,
        *,
        secret: bool,
        in_clear: Resource | None,
        parent: str,
    ) -> BuiltResource:
        """Build a resource.

        If different inputs produce the same bytes as a cached resource, that resource is reused.
        """
        with self._lock:
            message = build()
            body = message.SerializeToString(deterministic=True)
            for built in candidates:
                cached = built.resource
                if cached.body == body and (cached.secret, cached.parent) == (secret, parent):
                    return BuiltResource(inputs, *built[1:])
            findings = validate.examine(slot[0], message, path)
        self.problems.extend(findings.problems)
        resource = Resource(*slot, body, path, secret=secret, in_clear=in_clear, parent=parent)
        return BuiltResource(inputs, resource, findings.needs, not findings.problems)
