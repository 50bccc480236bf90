"""Rejects clients by address, which trusted peers may report (`set-src`)."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.ir.listeners import Listener
from lbctl.ir.routes import Access, Route, access
from lbctl.targets import client_identity
from lbctl.targets.haproxy import quote
from lbctl.targets.haproxy.match import Acls
from lbctl.targets.haproxy.quote import line
from lbctl.targets.token import Token

_REFUSED = quote.error(client_identity.REFUSED_ADDRESS_MESSAGE, client_identity.REFUSED_ADDRESS_KIND)
_TRANSLATED = ("2002::/16", "::/96")
"""6to4 and IPv4-compatible addresses, which contain an IPv4 address but are not IPv4 addresses."""


def lines(route: Route, listener: Listener, acls: Acls) -> Iterator[Token]:
    """Yield the lines that reject clients on a route."""
    condition, path = f"if route_{quote.name(route.name).text}", ("routes", route.name)
    return _lines(access(listener).of(route), condition, acls, path)


def unrouted(listener: Listener, acls: Acls) -> Iterator[Token]:
    """Yield the lines that reject clients whose request does not match a route."""
    return _lines(access(listener), "if !routed", acls, ("listeners", listener.name))


def _lines(lists: Access, condition: str, acls: Acls, path: tuple[str, ...]) -> Iterator[Token]:
    refuse = f"http-request return status 403 {_REFUSED} {condition}"
    if lists.deny:
        four, six = _within(lists.deny, acls)
        own_four = f"{four} !{_translated(acls)}" if four else ""
        for within in filter(None, (own_four, six)):
            yield line(refuse, within, source=(*path, "deny_from"))
    if lists.allow is not None:
        four, six = _within(lists.allow, acls)
        outside = " ".join(f"!{acl}" for acl in (four, six) if acl)
        yield line(refuse, outside, source=(*path, "allow_from"))
        if four:
            yield line(refuse, _translated(acls), f"!{six}" if six else "", source=(*path, "allow_from"))


def _within(networks: tuple[str, ...], acls: Acls) -> tuple[str, str]:
    """Return the ACLs for clients in the IPv4 and IPv6 networks; empty if there are none."""
    alike = list(client_identity.unmapped_networks(networks))
    families = ([item for item in alike if ":" not in item], [item for item in alike if ":" in item])
    four, six = (acls.name("src", "ip", family) if family else "" for family in families)
    return four, six


def _translated(acls: Acls) -> str:
    """Return the ACL for IPv6 clients whose addresses HAProxy only partly compares with IPv4 networks."""
    return acls.name("src", "ip", _TRANSLATED)
