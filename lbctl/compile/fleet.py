"""The passes in their order: a fleet as written in, the resolved Topology out.

Each pass reports what it finds and goes on, so that one run shows everything; a Topology is made only where nothing was
found wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lbctl.base.diagnostics import Diagnostics
from lbctl.compile.context import Context, Version
from lbctl.compile.drained import check_drained
from lbctl.compile.headers import check_headers
from lbctl.compile.listeners import listeners
from lbctl.compile.pools import default_name, pools
from lbctl.compile.proxies import control, proxies
from lbctl.compile.residency import check_residency
from lbctl.compile.routes import routes
from lbctl.compile.sources import SourceMap
from lbctl.compile.telemetry import check_telemetry
from lbctl.ir.topology import Topology
from lbctl.model.fleet import Source


@dataclass(frozen=True, slots=True)
class Compiled:
    topology: Topology
    sources: SourceMap


def compile_fleet(source: Source, oldest: Mapping[str, Version], diagnostics: Diagnostics) -> Compiled | None:
    """None where the fleet has errors, in its files or here.

    `oldest`: kind of proxy → the oldest version that lbctl renders for."""
    ctx = Context(source, oldest, diagnostics)
    topology = Topology(
        listeners=listeners(ctx),
        routes=routes(ctx),
        pools=pools(ctx),
        proxies=proxies(ctx),
        control=control(source.fleet.control),
    )
    check_headers(ctx)
    check_residency(ctx, topology.routes, topology.pools)
    check_drained(ctx, topology.routes, topology.pools)
    check_telemetry(ctx)
    return None if diagnostics.failed else Compiled(topology, SourceMap(source.root, _places(source)))


def _places(source: Source) -> dict[str, dict[str, int]]:
    return {
        name: {item.name or default_name(item): index for index, item in enumerate(pool.replicas)}
        for name, pool in source.fleet.pools.items()
    }
