"""The permission to change a proxy, which is checked immediately before each change.

After a suspension, a process continues with its earlier decisions, although another member of the control plane may
have become the leader.
"""

from __future__ import annotations

from collections.abc import Callable

Permit = Callable[[], bool]
NOT_PERMITTED = "not changed: this control plane is no longer the leader"
"""Reason why a change was not made."""


def always() -> bool:
    """Permit every change, because there is no other control plane."""
    return True
