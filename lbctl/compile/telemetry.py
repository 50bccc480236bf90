"""Resolves telemetry and weighting: the signal sources, their completeness, and how weights follow the signals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lbctl.base.diagnostics import Path
from lbctl.compile.context import Context
from lbctl.compile.convert import pairs
from lbctl.ir import pools as ir
from lbctl.model import pool as model
from lbctl.model.telemetry import Source, Telemetry, Weighting
from lbctl.signals import KINDS, table

_NEEDS = {"custom": ("signal", "metric"), "prometheus": ("signal", "query")}
"""Maps each kind of source to its required keys."""
_EXAMPLES = {
    "custom": "{kind: custom, url: …, metric: my_queue_depth, signal: queue, unit: requests}",
    "prometheus": "{kind: prometheus, url: …, query: …, signal: queue}",
}


_INTERVAL_OF_PICKED = 1_000
"""Default interval for pools that use the picker, in milliseconds. Between scrapes, the picker counts computed prompts
as waiting."""


_AGENT = ir.MetricsSource("agent", "http://{host}:{agent_port}/metrics")
"""Source for a pool with agents, using the port of each replica's agent."""


def telemetry(section: Telemetry | None, pool: model.Pool) -> ir.Telemetry | None:
    """Resolve the sources for the pool or for one of its replicas.

    The agent comes after the sources defined in the files. If the files define a source of the same kind, that source
    replaces it.
    """
    listed = section is not None and any(source.kind == "agent" for source in section.sources)
    of_agent = (_AGENT,) if pool.health.agent is not None and not listed else ()
    if section is None:
        if not of_agent:
            return None
        section = Telemetry()
    is_default = pool.balance.algorithm == "pick" and "interval" not in section.model_fields_set
    interval = _INTERVAL_OF_PICKED if is_default else int(section.interval)
    sources = tuple(
        ir.MetricsSource(
            source.kind, source.url, source.signal, source.metric, source.query, source.unit, pairs(source.match_labels)
        )
        for source in section.sources
    )
    return ir.Telemetry(interval, int(section.timeout), int(section.stale_after), (*sources, *of_agent))


def weighting(pool: model.Pool) -> ir.Weighting:
    """Resolve the weighting of a pool."""
    section = pool.weighting or Weighting()
    return ir.Weighting(
        strategy=section.strategy or _default_strategy(pool),
        smoothing=int(section.adaptive.smoothing),
        act_above=float(section.adaptive.act_above),
        release_below=float(section.adaptive.release_below),
        across_types=float(section.adaptive.across_types),
        composite=tuple(sorted(section.composite.items())),
        max_step_down=float(section.max_step.down),
        max_step_up=float(section.max_step.up),
        deadband=float(section.deadband),
        floor=float(section.floor),
        ceiling=float(section.ceiling),
    )


def check_telemetry(ctx: Context) -> None:
    """Check the sources and the weighting.

    Reports LB601 for a source without a required key, LB602 for a unit that does not match its signal, LB603 (a
    warning) for `adaptive` without a source of evidence.
    """
    for name, pool in sorted(ctx.fleet.pools.items()):
        for section, path in _sections(name, pool):
            for index, source in enumerate(section.sources):
                _check(ctx, source, (*path, "sources", index))
        if pool.weighting and pool.weighting.strategy == "adaptive" and not _has_evidence(pool):
            ctx.warn(
                "LB603",
                "no source of this pool provides evidence of speed, so its weights stay at its capacities",
                ("pools", name, "weighting", "strategy"),
                f"kinds that provide evidence: {', '.join(kind for kind in KINDS if table(kind).evidence)}",
            )


def _sections(name: str, pool: model.Pool) -> Iterator[tuple[Telemetry, Path]]:
    if pool.telemetry:
        yield pool.telemetry, ("pools", name, "telemetry")
    for index, replica in enumerate(pool.replicas):
        if replica.telemetry:
            yield replica.telemetry, ("pools", name, "replicas", index, "telemetry")


def _check(ctx: Context, source: Source, path: Path) -> None:
    needs = _NEEDS.get(source.kind, ())
    missing = [key for key in needs if getattr(source, key) is None]
    if missing:
        message = f"a {source.kind} source needs {' and '.join(missing)}"
        ctx.error("LB601", message, path, _EXAMPLES[source.kind])
    if needs and source.signal:
        _check_unit(ctx, source.signal, source.unit, path)


def _check_unit(ctx: Context, signal: str, unit: str | None, path: Path) -> None:
    from lbctl.signals.custom import unit_problem

    problem = unit_problem(signal, unit)
    if problem:
        ctx.error("LB602", problem, (*path, "unit"))


def _default_strategy(pool: model.Pool) -> str:
    return "adaptive" if _has_evidence(pool) and pool.balance.algorithm != "hash" else "static"


def _has_evidence(pool: model.Pool) -> bool:
    if pool.health.agent is not None:
        return True
    sections: Sequence[Telemetry] = [section for section, _ in _sections("", pool)]
    return any(
        source.kind in KINDS and table(source.kind).evidence for section in sections for source in section.sources
    )
