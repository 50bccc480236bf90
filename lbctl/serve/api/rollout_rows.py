"""Rollouts as the rows of the API. The functions are pure; times are seconds since the epoch."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.control import rollouts
from lbctl.control.rollouts import Rollouts, RolloutState
from lbctl.control.splits import shares_of
from lbctl.ir.routes import Rollout, Route
from lbctl.ir.topology import Topology
from lbctl.serve.api import schema
from lbctl.serve.api.status_rows import when


def rows(states: Rollouts, files: Topology, served: Topology) -> Iterator[schema.Rollout]:
    """Yield a row for each rollout of the files. `served` has the splits that the proxies get."""
    current = {route.name: route for route in served.routes}
    by_route = {state.route: state for state in states}
    for route in files.routes:
        if route.rollout is not None and route.name in by_route:
            yield _row(by_route[route.name], route.rollout, current.get(route.name, route))


def _row(state: RolloutState, rollout: Rollout, served: Route) -> schema.Rollout:
    return schema.Rollout(
        route=state.route,
        to=rollout.to,
        mode=rollout.mode,
        phase=state.phase,
        step=state.step + 1,
        steps=tuple(
            schema.RolloutStep(step.percent, None if step.hold is None else step.hold / 1000) for step in rollout.steps
        ),
        percent=state.percent if state.moves else None,
        split=dict(shares_of(served)),
        since=when(state.since),
        next_at=when(rollouts.next_step(state, rollout)),
        reason=state.reason or None,
    )
