"""The token that clients see instead of a replica's name or address.

The token is the same on every proxy and useless elsewhere.
"""

from __future__ import annotations

import hashlib

from lbctl.ir.snapshot import View

DIGITS = 16
"""Number of hexadecimal digits in a token."""


def word(pool: str, replica: str) -> str:
    """Return the hexadecimal token of this replica."""
    return hashlib.sha256(f"{pool}/{replica}".encode()).hexdigest()[:DIGITS]


def for_https_alone(pool: str, view: View) -> bool:
    """Return whether clients can reach this pool only over TLS, so that its cookie may be marked Secure."""
    return pool in https_alone(view)


def https_alone(view: View) -> frozenset[str]:
    """Return the names of all pools that clients can reach only over TLS."""
    secured: set[str] = set()
    in_clear_text: set[str] = set()
    for item in view.listeners:
        pools = {pool for rule in item.rules for pool in _pools(view, rule.route)}
        (secured if item.tls else in_clear_text).update(pools)
    return frozenset(secured - in_clear_text)


def _pools(view: View, route: str) -> tuple[str, ...]:
    return getattr(view.routes[route].action, "pools", ())
