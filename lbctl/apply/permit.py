"""Whether this process may change a proxy now. It is checked immediately before each change to a proxy.

A process that was suspended continues with its earlier decisions, although another member of the control plane may be
the leader by then.
"""

from __future__ import annotations

from collections.abc import Callable

Permit = Callable[[], bool]
NOT_PERMITTED = "not changed: this control plane is no longer the leader"
"""Reason why a change was not made."""


def always() -> bool:
    """Permit every change, because there is no other control plane."""
    return True
