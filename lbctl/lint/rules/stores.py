"""Rules about access to the store that several control planes share."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.base.hosts import is_loopback
from lbctl.ir.store_url import STORES, parse_store_url
from lbctl.lint.fleet_view import FleetView
from lbctl.lint.rule import RuleFinding, rule
from lbctl.lint.sample import sample

_KEYED = "    key_file: secrets/store-keys\n"


def _store(url: str, *lines: str) -> str:
    return sample(more=f'control:\n  store:\n    url: "{url}"\n{"".join(lines)}')


@rule(
    "LB536",
    "warning",
    "a shared store whose content is not signed",
    what="`control.store` has no `key_file`.",
    why="The store's server has other clients and administrators. Without a key, any of them can decide which replicas "
    "get the prompts, because members cannot distinguish such records from their own.",
    before=_store("redis://127.0.0.1:6379/0"),
    after=_store("redis://127.0.0.1:6379/0", _KEYED),
    ignore="No other program and no other person may write to the store.",
)
def unsigned_store(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB536: a shared store without a key file."""
    store = fleet.topology.control.store
    if store is not None and store.key_file is None:
        message = "any client that can write to the store can change the published fleet"
        yield RuleFinding(("control", "store"), message, "key_file: FILE; a key: openssl rand -hex 32")


@rule(
    "LB537",
    "warning",
    "a store beyond loopback without TLS or without a password",
    what="`control.store.url` names a server on another machine, and its scheme is not one with TLS, or the store has "
    "neither `password` nor a client certificate.",
    why="Without TLS, the network between the machines can read the fleet and the password. Without a password, any "
    "client that reaches the server can write to it and stop the control plane.",
    before=_store("redis://store.example:6379/0", _KEYED),
    after=_store("rediss://store.example:6379/0", _KEYED, "    password: {file: secrets/store-password}\n"),
    ignore="The network admits only the members, and encrypts their traffic.",
)
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
