"""Input to lint rules: the fleet as written and as resolved, with shared queries."""

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

GENERATIVE_KINDS = frozenset(
    {"vllm", "sglang", "tgi", "trtllm", "lmdeploy", "nim", "llamacpp", "dynamo", "smg", "llm_d"}
)
"""Engines that generate tokens, and routers in front of them."""
_NOT_GENERATIVE = re.compile(
    r"embed|rerank|classif|score|pooling|moderation|\bbge\b|\bgte\b|\be5\b|clip|whisper|resnet|yolo|bert"
)
"""Patterns in paths and model names that indicate a single short response, regardless of the engine."""
_STREAMS = re.compile(r"/(chat|completions?|generate|generate_stream|responses|messages)(/|$)")


@dataclass(frozen=True, slots=True)
class StatedLoad:
    """Load that is specified on the command line."""

    rate: float
    """Requests per second."""
    mean_service: float
    """Mean time for which a request occupies a replica, in seconds."""


@dataclasses.dataclass(frozen=True)
class FleetView:
    """A fleet without errors."""

    loaded: Loaded
    load: StatedLoad | None = None
    """Load given by the user; None if none was given."""

    @property
    def topology(self) -> Topology:
        """The resolved fleet."""
        return self.loaded.compiled.topology

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The fleet's pools."""
        return self.topology.pools

    @cached_property
    def forwards(self) -> tuple[tuple[Route, Forward], ...]:
        """All routes that forward requests to pools, with their actions."""
        return tuple((route, route.action) for route in self.topology.routes if isinstance(route.action, Forward))

    @cached_property
    def kinds(self) -> frozenset[str]:
        """The kinds of proxies in the fleet."""
        return frozenset(proxy.kind for proxy in self.topology.proxies)

    def pool(self, name: str) -> Pool:
        """Return the pool with this name."""
        return self._by_name[name]

    def written(self, path: Path) -> Node | None:
        """Return the YAML node at `path` after defaults have been applied."""
        sources = self.loaded.compiled.sources
        return descend(sources.root, sources.written(path))

    def routes_to(self, pool: str) -> Iterator[Route]:
        """Yield the routes that send requests to the pool directly rather than as a fallback or mirror."""
        return (
            route
            for route, action in self.forwards
            if pool in {share.pool for share in action.shares} | {pin.pool for pin in action.pins}
        )

    def streams(self, route: Route) -> bool:
        """Return whether the route's paths, models or engines indicate that responses are generated token by token."""
        paths = self._paths.get(route.name, [])
        if any(_NOT_GENERATIVE.search(path) for path in paths):
            return False
        if any(_STREAMS.search(path) for path in paths):
            return True
        return isinstance(route.action, Forward) and any(self._generates(share.pool) for share in route.action.shares)

    def generates(self, pool: str) -> bool:
        """Return whether the pool serves a generative model."""
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
    """Yield the telemetry of the pool and of its replicas, each with its path."""
    if pool.telemetry is not None:
        yield ("pools", pool.name, "telemetry"), pool.telemetry
    for replica in pool.replicas:
        if replica.telemetry is not None:
            yield ("pools", pool.name, "replicas", replica.name, "telemetry"), replica.telemetry


def sources_of(pool: Pool) -> Iterator[MetricsSource]:
    """Yield all metrics sources of the pool and its replicas."""
    return (source for _, telemetry in telemetries(pool) for source in telemetry.sources)
