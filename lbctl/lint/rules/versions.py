"""Rules about the versions of proxies."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.compile.proxies import version_text
from lbctl.ir.snapshot import Snapshot, view
from lbctl.lint.fleet_view import FleetView
from lbctl.lint.rule import RuleFinding, rule
from lbctl.targets.advisories import described, known_faults


@rule("LB535")
def proxy_with_known_faults(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB535: versions of proxies with published faults that the rendered text can reach."""
    snapshot = Snapshot(fleet.topology)
    for proxy in fleet.topology.proxies:
        path = ("proxies", proxy.name, "version")
        if fleet.written(path) is None:
            continue
        faults = list(known_faults(proxy.kind, proxy.version, view(snapshot, proxy)))
        if faults:
            finding, hint = described(faults, proxy.version)
            yield RuleFinding(path, f"{proxy.kind} {version_text(proxy.version)} has {finding}", hint)
