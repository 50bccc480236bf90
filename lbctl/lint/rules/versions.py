"""Rules about the versions of proxies."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.compile.proxies import version_text
from lbctl.ir.snapshot import Snapshot, view
from lbctl.lint.fleet_view import FleetView
from lbctl.lint.rule import RuleFinding, rule
from lbctl.lint.sample import sample
from lbctl.targets.advisories import described, known_faults


def _of_version(version: str) -> str:
    return sample(more=f'proxies:\n  edge: {{kind: nginx, version: "{version}"}}\n')


@rule(
    "LB535",
    "note",
    "a proxy version with known faults",
    what="The `version` of a proxy has published faults, and its rendered configuration uses what is at fault.",
    why="A client can crash the proxy with such a fault, or do worse.",
    before=_of_version("1.30.5"),
    after=_of_version("1.31.9"),
    ignore="Your distribution has patched its package: Debian and Ubuntu fix faults without a new version number.",
)
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
