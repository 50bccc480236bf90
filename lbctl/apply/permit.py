"""The permission to change a proxy, checked immediately before each change.

A process that was suspended continues with its earlier decisions, even though another member of the control plane may
have become the leader in the meantime.
"""

from __future__ import annotations

from collections.abc import Callable

Permit = Callable[[], bool]
NOT_PERMITTED = "not changed: this control plane is no longer the leader"
"""Reason why a change was not made."""


def always() -> bool:
    """Permit every change, because no other control plane exists."""
    return True
