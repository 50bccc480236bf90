"""The names of a replica's states, and which of them allow a pool to respond.

This module imports only the standard library.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

StateName = Literal[
    "in", "ramping", "slow", "hot", "unknown", "starting", "down", "ejected", "asleep", "draining", "drained",
    "removed",
]  # fmt: skip
"""State of a replica, as decided by `replica_state.state_of`."""
FIT = frozenset({"in", "ramping", "slow", "hot"})
"""The states of a replica that is reachable and gets requests."""
UNKNOWN = "unknown"
"""The state of a replica that gets requests even though it is not known to be reachable."""


def lacks_fit_replica(states: Iterable[str]) -> bool:
    """Return whether no replica in a pool can respond, given the states of all its replicas.

    The result is also true for an empty pool.

    A replica in the `unknown` state may be able to respond.
    """
    return not any(state in FIT or state == UNKNOWN for state in states)
