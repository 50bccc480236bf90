"""Rules about access to the store that several control planes share."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.base.hosts import is_loopback
from lbctl.ir.store_url import STORES, parse_store_url
from lbctl.lint.fleet_view import FleetView
from lbctl.lint.rule import RuleFinding, rule


@rule("LB536")
def unsigned_store(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB536: a shared store without a key file."""
    store = fleet.topology.control.store
    if store is not None and store.key_file is None:
        message = "any client that can write to the store can change the published fleet"
        yield RuleFinding(("control", "store"), message, "key_file: FILE; a key: openssl rand -hex 32")


@rule("LB537")
def open_store(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB537: a store on another machine without TLS, or without a password."""
    store = fleet.topology.control.store
    if store is None:
        return
    url = parse_store_url(store.url)
    if all(is_loopback(host) for host, _ in url.hosts):
        return
    missing, hints = [], []
    if not url.secure:
        missing.append("without TLS")
        hints.append(f"{STORES[url.kind].tls}://")
    if store.password_file is None and store.certificate is None:
        missing.append("without a password or a client certificate")
        hints.append("password: {file: FILE}")
    if missing:
        yield RuleFinding(
            ("control", "store", "url"), f"{url.places} is used {' and '.join(missing)}", ", ".join(hints)
        )
