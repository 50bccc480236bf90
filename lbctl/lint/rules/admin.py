"""Rules about Envoy's admin interface, which asks for no credentials."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.ir.written_credentials import of_topology
from lbctl.lint.fleet_view import FleetView
from lbctl.lint.rule import RuleFinding, rule
from lbctl.lint.sample import sample

_PINNED = """\
chat:
  match: {path_prefix: /v1/chat}
  pool: llama
  pin: [{header: x-api-key, equals: the-key-of-one-customer, pool: llama}]
"""


@rule(
    "LB538",
    "warning",
    "credentials in the fleet, and an admin port",
    what="`proxies.*.admin` is a port, and the fleet contains a credential: in `match.headers`, in a `pin` on a header "
    "such as `x-api-key` or on the cookie of a session, or in a request header that a route sets.",
    why="Envoy's `config_dump` shows the values of headers, and every user of the machine can ask a port on loopback. "
    "Only the owner can connect to the Unix socket. API keys of `auth` are not shown.",
    before=sample(routes=_PINNED, more='proxies: {edge: {kind: envoy, admin: "127.0.0.1:9901"}}\n'),
    after=sample(routes=_PINNED, more='proxies: {edge: {kind: envoy, admin: "unix:/run/envoy/admin.sock"}}\n'),
    ignore="All users of the machine are operators of the proxy.",
)
def credentials_at_admin_port(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB538: credentials that local users can read at an admin port."""
    if not of_topology(fleet.topology):
        return
    for proxy in fleet.topology.proxies:
        if proxy.admin is not None and not proxy.admin.path:
            message = f"each user of the machine can read the fleet's credentials at {proxy.admin}"
            yield RuleFinding(("proxies", proxy.name, "admin"), message, '"unix:/run/envoy/admin.sock"')
