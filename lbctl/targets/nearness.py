"""A pool that prefers what is near, before a proxy of which nobody says where it is."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.snapshot import View
from lbctl.targets.features import BY_ID


def placeless(view: View) -> Iterator[Diagnostic]:
    """Envoys that are told apart by their nodes say themselves where they are."""
    if view.proxy.region is not None or view.proxy.zone is not None or view.proxy.nodes:
        return
    for pool in view.pools.values():
        if pool.locality:
            yield Diagnostic(
                BY_ID["pool.locality"].code,
                "this proxy has no region and no zone: no replica is nearer than another",
                path=("pools", pool.name, "locality"),
                hint="proxies.NAME.region and proxies.NAME.zone",
                severity="warning",
            )
