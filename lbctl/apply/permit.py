"""Whether this process may change a proxy now. It is asked right before each change that a proxy sees.

A process that has been stopped for a while goes on where it was, with what it had decided before; meanwhile another
member of its control plane may lead.
"""

from __future__ import annotations

from collections.abc import Callable

Permit = Callable[[], bool]
NOT_PERMITTED = "not changed: this control plane is no longer the leader"
"""The reason why a change was not made."""


def always() -> bool:
    """Permit every change: there is no other control plane."""
    return True
