"""Rules about Kubernetes gateways: features that their class lacks."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.ir.snapshot import Snapshot
from lbctl.lint.fleet_view import FleetView
from lbctl.lint.rule import RuleFinding, rule
from lbctl.targets.gateway_api.classes import CLASSES
from lbctl.targets.gateway_api.target import TARGET
from lbctl.targets.prepare import prepare


@rule("LB251")
def class_lacks_feature(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report features of the fleet that the class of a Gateway is known to lack (LB251)."""
    snapshot = Snapshot(fleet.topology, secrets=fleet.loaded.secrets)
    for proxy in fleet.topology.proxies:
        name = proxy.kubernetes.gateway_class if proxy.kubernetes is not None else None
        implementation = CLASSES.get(name or "")
        if proxy.kind != TARGET.kind or implementation is None:
            continue
        view = TARGET.served(prepare(TARGET, fleet.loaded.compiled, proxy, snapshot).view)
        for gap in implementation.gaps:
            message = f"the class {name} ({implementation.title}) does not support {gap.text}"
            yield from (RuleFinding(path, message, gap.hint) for path in dict.fromkeys(gap.uses(view)))
