"""Rules about Envoy's admin interface, which asks for no credentials."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.ir.written_credentials import of_topology
from lbctl.lint.fleet_view import FleetView
from lbctl.lint.rule import RuleFinding, rule


@rule("LB538")
def credentials_at_admin_port(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB538: credentials that local users can read at an admin port."""
    if not of_topology(fleet.topology):
        return
    for proxy in fleet.topology.proxies:
        if proxy.admin is not None and not proxy.admin.path:
            message = f"each user of the machine can read the fleet's credentials at {proxy.admin}"
            yield RuleFinding(("proxies", proxy.name, "admin"), message, '"unix:/run/envoy/admin.sock"')
