"""The input of lint rules: the fleet as written and as resolved, and queries that many rules share."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from lbctl.base.diagnostics import Path
from lbctl.ir.pools import MetricsSource, Pool, Telemetry
from lbctl.ir.routes import Forward, Route
from lbctl.ir.topology import Topology
from lbctl.model.node import Node, descend
from lbctl.targets.load import Loaded

GENERATIVE_KINDS = frozenset({"vllm", "sglang", "tgi", "trtllm", "lmdeploy", "nim", "llamacpp"})
"""Engines that generate tokens."""
_NOT_GENERATIVE = re.compile(
    r"embed|rerank|classif|score|pooling|moderation|\bbge\b|\bgte\b|\be5\b|clip|whisper|resnet|yolo|bert"
)
"""Parts of paths and model names that are answered at once, whatever the engine."""
_STREAMS = re.compile(r"/(chat|completions?|generate|generate_stream|responses|messages)(/|$)")


@dataclass(frozen=True, slots=True)
class StatedLoad:
    """The load that the command line states."""

    rate: float
    """Requests per second."""
    mean_service: float
    """Seconds for which a request keeps a replica busy."""


@dataclasses.dataclass(frozen=True)
class FleetView:
    """A fleet without errors."""

    loaded: Loaded
    load: StatedLoad | None = None
    """The load that the user has stated; None: none."""

    @property
    def topology(self) -> Topology:
        """The resolved fleet."""
        return self.loaded.compiled.topology

    @property
    def pools(self) -> tuple[Pool, ...]:
        """Its pools."""
        return self.topology.pools

    @cached_property
    def forwards(self) -> tuple[tuple[Route, Forward], ...]:
        """Every route that leads to pools."""
        return tuple((route, route.action) for route in self.topology.routes if isinstance(route.action, Forward))

    @cached_property
    def kinds(self) -> frozenset[str]:
        """The kinds of the proxies that the fleet names."""
        return frozenset(proxy.kind for proxy in self.topology.proxies)

    def pool(self, name: str) -> Pool:
        """The pool of that name."""
        return self._by_name[name]

    def written(self, path: Path) -> Node | None:
        """The node of the YAML at `path`, defaults included."""
        sources = self.loaded.compiled.sources
        return descend(sources.root, sources.written(path))

    def routes_to(self, pool: str) -> Iterator[Route]:
        """The routes whose requests the pool serves first, not as a fallback or a mirror."""
        return (
            route
            for route, action in self.forwards
            if pool in {share.pool for share in action.shares} | {pin.pool for pin in action.pins}
        )

    def streams(self, route: Route) -> bool:
        """Whether the route's responses are generated token by token, as far as path, model or engine show."""
        paths = self._paths.get(route.name, [])
        if any(_NOT_GENERATIVE.search(path) for path in paths):
            return False
        if any(_STREAMS.search(path) for path in paths):
            return True
        return isinstance(route.action, Forward) and any(self._generates(share.pool) for share in route.action.shares)

    def generates(self, pool: str) -> bool:
        """Whether the pool serves a generative model."""
        return self._generates(pool) or any(self.streams(route) for route in self.routes_to(pool))

    def _generates(self, name: str) -> bool:
        pool = self.pool(name)
        if pool.model is not None:
            return not _NOT_GENERATIVE.search(pool.model.name.lower())
        return any(source.kind in GENERATIVE_KINDS for source in sources_of(pool))

    @cached_property
    def _by_name(self) -> dict[str, Pool]:
        return {pool.name: pool for pool in self.pools}

    @cached_property
    def _paths(self) -> dict[str, list[str]]:
        paths: dict[str, list[str]] = {}
        for listener in self.topology.listeners:
            for rule in listener.rules:
                paths.setdefault(rule.route, []).append(rule.path.value.lower())
        return paths


def telemetries(pool: Pool) -> Iterator[tuple[Path, Telemetry]]:
    """Yield the pool's telemetry, and that of its replicas, with their paths."""
    if pool.telemetry is not None:
        yield ("pools", pool.name, "telemetry"), pool.telemetry
    for replica in pool.replicas:
        if replica.telemetry is not None:
            yield ("pools", pool.name, "replicas", replica.name, "telemetry"), replica.telemetry


def sources_of(pool: Pool) -> Iterator[MetricsSource]:
    """Yield all metrics sources of the pool and its replicas."""
    return (source for _, telemetry in telemetries(pool) for source in telemetry.sources)
