"""The names of the states of a replica, and which of them let a pool answer. It imports the standard library alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

StateName = Literal[
    "in", "ramping", "slow", "hot", "unknown", "starting", "down", "ejected", "draining", "drained", "removed",
]  # fmt: skip
"""The state of a replica; `replica_state.state_of` decides it."""
FIT = frozenset({"in", "ramping", "slow", "hot"})
"""The states of a replica that is reached and gets requests."""
UNKNOWN = "unknown"
"""The state of a replica that gets requests, and of which nothing shows whether it can be reached."""


def lacks_fit_replica(states: Iterable[str]) -> bool:
    """Return whether no replica of a pool can answer, by the states of all of them. An empty pool has none either.

    A replica in the state `unknown` may be able to.
    """
    return not any(state in FIT or state == UNKNOWN for state in states)
