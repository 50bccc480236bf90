"""Runs the passes in order, to turn a fleet as written into the resolved Topology.

Each pass reports its diagnostics and continues, so that a single run shows every problem. A Topology is returned only
if there are no errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lbctl.base.diagnostics import Diagnostics
from lbctl.compile.context import Context, ProxyKind
from lbctl.compile.headers import check_headers
from lbctl.compile.listeners import listeners
from lbctl.compile.pick import check_picker, check_prompt_limits, token_limits
from lbctl.compile.pools import pools
from lbctl.compile.preflight import with_preflights
from lbctl.compile.proxies import check_companions, check_store, control, proxies
from lbctl.compile.replicas import entries
from lbctl.compile.routes import routes
from lbctl.compile.sources import SourceMap
from lbctl.compile.telemetry import check_telemetry
from lbctl.compile.unusable_pools import check_drained, check_residency
from lbctl.ir.listeners import Listener
from lbctl.ir.protected_models import guarded
from lbctl.ir.routes import Route
from lbctl.ir.topology import Topology
from lbctl.model.fleet import FleetSource
from lbctl.model.section import Section
from lbctl.model.section_cache import SectionCache


@dataclass(frozen=True, slots=True)
class Compiled:
    """The resolved fleet and the positions of its values in the YAML."""

    topology: Topology
    sources: SourceMap
    """Positions of the values in the YAML."""


def compile_fleet(
    source: FleetSource,
    kinds: Mapping[str, ProxyKind],
    diagnostics: Diagnostics,
    requires_own_lines: bool = True,
    cache: SectionCache | None = None,
) -> Compiled | None:
    """Resolve the fleet. Return None if errors were found, in its files or by this function.

    `kinds` maps each kind of proxy to its properties. A missing own-lines file is an error or, if `requires_own_lines`
    is false, a warning, for a fleet that is checked but not rendered. `cache` is the same object as for `parse`.
    """
    ctx = Context(source, kinds, diagnostics, requires_own_lines, cache or SectionCache())
    tables, resolved_routes = with_preflights(listeners(ctx), routes(ctx))
    topology = Topology(
        listeners=_guarded(tables, resolved_routes),
        routes=resolved_routes,
        pools=pools(ctx, token_limits(resolved_routes)),
        proxies=proxies(ctx),
        control=control(source.fleet.control),
    )
    check_headers(ctx)
    check_residency(ctx, topology.routes, topology.pools)
    check_drained(ctx, topology.routes, topology.pools)
    check_telemetry(ctx)
    check_picker(ctx)
    check_prompt_limits(ctx)
    check_store(ctx)
    check_companions(ctx, topology.proxies, topology.pools)
    if diagnostics.failed:
        return None
    sections: dict[str, Mapping[str, Section]] = {"pools": source.fleet.pools, "routes": source.fleet.routes}
    sources = SourceMap(source.root, _replica_indexes(ctx), _limit_indexes(ctx), sections, ctx.cache)
    return Compiled(topology, sources)


def _guarded(unguarded: Sequence[Listener], resolved: Sequence[Route]) -> tuple[Listener, ...]:
    by_name = {route.name: route for route in resolved}
    return tuple(replace(listener, rules=guarded(listener, by_name)) for listener in unguarded)


def _replica_indexes(ctx: Context) -> dict[str, dict[str, int]]:
    """Map each pool to a map from its replicas' names to the indexes of their entries in the file."""
    return {name: entries(pool) for name, pool in ctx.fleet.pools.items()}


def _limit_indexes(ctx: Context) -> dict[str, tuple[int, ...]]:
    """Map each route that has prompt-token limits to the indexes of its other limits in the file."""
    return {
        name: tuple(index for index, limit in enumerate(route.rate_limit) if limit.prompt_tokens is None)
        for name, route in ctx.fleet.routes.items()
        if any(limit.prompt_tokens is not None for limit in route.rate_limit)
    }
