"""The state that the API shows, and the table of the functions that answer its operations."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from lbctl.serve.api.replica_states import ReplicaStates
from lbctl.serve.api.view_parts import ViewParts

OPERATIONS: dict[str, Callable[..., Any]] = {}
"""Operation of the route table → the function that answers it."""
_F = TypeVar("_F", bound=Callable[..., Any])


class ProcessState:
    """When the process has started, and whether it ends."""

    def __init__(self) -> None:
        self.since = time.time()
        self.ending = False


@dataclass(frozen=True, slots=True)
class ServedState:
    """The state that the functions of the API read."""

    parts: ViewParts
    """The parts of the process."""
    replicas: ReplicaStates
    """The states of the replicas."""
    process: ProcessState
    """The life of the process."""


def operation(function: _F) -> _F:
    """Have the function answer the operation of its name.

    Its arguments are the state and, for an operation with a body, the body and the name of the operator.
    """
    OPERATIONS[function.__name__] = function
    return function
