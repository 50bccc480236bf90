"""What the proxies that are driven cannot say of the fleet, but for what the control plane does in their place.

`made_up_for` says what that is, also to who writes a file for such a proxy."""

from __future__ import annotations

from collections.abc import Iterable

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot, view
from lbctl.targets import target
from lbctl.targets.assess import assess
from lbctl.targets.features import FEATURES
from lbctl.targets.load import Loaded

_DONE_HERE = frozenset({"control", "pool.drain_deadline", "pool.telemetry", "pool.weighting", "pool.health.deep"})
"""Feature ids of what is done in the place of every kind of proxy."""


def losses(loaded: Loaded, snapshot: Snapshot, proxies: Iterable[Proxy]) -> tuple[Diagnostic, ...]:
    """Warnings at their places, each once; among them every route that answers 503 because it cannot be protected."""
    found: dict[Diagnostic, None] = {}
    for proxy in proxies:
        done = made_up_for(proxy.kind)
        told = assess(target(proxy.kind), proxy.version, view(snapshot, proxy), loaded.compiled.sources)
        found |= dict.fromkeys(item for item in told.diagnostics if item.code not in done)
    return tuple(found)


def made_up_for(kind: str) -> dict[str, str]:
    """Code → title of what is done in the place of a proxy of this kind, while the control plane drives it."""
    here = _DONE_HERE | target(kind).done_by_control_plane
    return {item.code: item.title for item in FEATURES if item.id in here}
