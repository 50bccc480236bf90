"""The part of the demo's fleet that contains its two canaries.

Each has a route, two versions and a rollout with analysis. One new version is bad.

The analysis has little time and traffic. Therefore, the bad version fails often, the first step is large, and an
evaluation needs only a few requests, so that each verdict takes about four seconds. Proxies count requests by pool, so
the canaries do not share a pool.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lbctl.demo.replica import HOST, PacedReplica
from lbctl.simulate.engine import CostModel

STEPS = (25.0, 50.0, 100.0)
"""The new version's shares, in percent. When it reaches the last share, it is promoted immediately."""
REQUEST_RATE = 50.0
"""Requests per second to a canary while its rollout is running."""
PROMPT, ANSWER = 50.0, 8.0
"""Mean lengths of a canary's prompts and responses, in tokens. They are short, so that they need little capacity."""
_HOLD = "3s"
_ANALYSIS = {"interval": "2s", "min_requests": 40, "max_error_rate": "5%", "failures": 2}
OLD, NEW = "v1", "v2"


@dataclass(frozen=True, slots=True)
class CanaryPlan:
    """A canary's properties and start time."""

    name: str
    """Name of the canary's route and listener."""
    key: str
    """Keyboard key that starts the canary's rollout."""
    error_rate: float
    """Share of requests, from 0 to 1, for which the new version returns an error."""
    start: float
    """Start time in the script, as a fraction of the duration."""


PLANS = (CanaryPlan("good", "g", 0.0, 0.05), CanaryPlan("bad", "b", 0.5, 0.15))


@dataclass(frozen=True, slots=True)
class CanarySite:
    """The port of a canary's listener, and the canary's replicas."""

    plan: CanaryPlan
    port: int
    versions: Mapping[str, PacedReplica]
    """Maps each version to its only replica."""


def new_canary(plan: CanaryPlan, port: int, curve: CostModel) -> CanarySite:
    """Return a canary whose replicas are not listening yet."""
    old, new = PacedReplica(OLD, 1.0, curve), PacedReplica(NEW, 1.0, curve)
    new.error_rate = plan.error_rate
    return CanarySite(plan, port, {OLD: old, NEW: new})


def route(site: CanarySite) -> dict[str, object]:
    """Return a canary's route with its rollout, in fleet-file format."""
    *held, last = ({"percent": f"{percent:g}%"} for percent in STEPS)
    steps = [*({**step, "hold": _HOLD} for step in held), last]
    rollout = {"to": _pool_name(site, NEW), "mode": "analysis", "steps": steps, "analysis": _ANALYSIS}
    return {"split": {_pool_name(site, OLD): 100, _pool_name(site, NEW): 0}, "rollout": rollout}


def pools(site: CanarySite, check: Mapping[str, object], gpu: str) -> dict[str, object]:
    """Return a canary's pools, in fleet-file format."""
    return {
        _pool_name(site, version): {
            "model": {"name": "simulated", "version": version},
            "replicas": [{"name": version, "address": f"{HOST}:{replica.port}", "gpu": gpu}],
            "health": {"active": check},
        }
        for version, replica in site.versions.items()
    }


def _pool_name(site: CanarySite, version: str) -> str:
    return f"{site.plan.name}-{version}"
