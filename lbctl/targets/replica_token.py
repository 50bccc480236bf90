"""What a client is told instead of a replica's name or address: the same for every proxy, and of no use elsewhere."""

from __future__ import annotations

import hashlib

from lbctl.ir.snapshot import View


def word(pool: str, replica: str) -> str:
    """16 hexadecimal digits."""
    return hashlib.sha256(f"{pool}/{replica}".encode()).hexdigest()[:16]


def for_https_alone(pool: str, view: View) -> bool:
    """Whether clients reach this pool by TLS only, so that its cookie may be marked Secure."""
    return pool in https_alone(view)


def https_alone(view: View) -> frozenset[str]:
    """All pools of which that is so."""
    secured: set[str] = set()
    open_: set[str] = set()
    for item in view.listeners:
        reached = {pool for rule in item.rules for pool in _pools(view, rule.route)}
        (secured if item.tls else open_).update(reached)
    return frozenset(secured - open_)


def _pools(view: View, route: str) -> tuple[str, ...]:
    return getattr(view.routes[route].action, "pools", ())
