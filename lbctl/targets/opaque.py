"""What a client is told instead of a replica's name or address: the same for every proxy, and of no use elsewhere."""

from __future__ import annotations

import hashlib

from lbctl.ir.snapshot import View


def word(pool: str, replica: str) -> str:
    """16 hexadecimal digits."""
    return hashlib.sha256(f"{pool}/{replica}".encode()).hexdigest()[:16]


def for_https_alone(pool: str, view: View) -> bool:
    """Whether clients reach this pool by TLS only, so that its cookie may be marked Secure."""
    listeners = [item for item in view.listeners if any(pool in _pools(view, rule.route) for rule in item.rules)]
    return bool(listeners) and all(item.tls is not None for item in listeners)


def _pools(view: View, route: str) -> tuple[str, ...]:
    return getattr(view.routes[route].action, "pools", ())
