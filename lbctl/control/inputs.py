"""What is known of a replica when a decision is taken. Absent is unknown, never 0.

Times are seconds on the clock of the events, which never goes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Reading:
    """`value` in the unit of `signals.signal`; `at`: when it was true."""

    value: float
    at: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """How fast a replica worked between two looks at its counters; differences, not totals. `at`: the later look.

    tokens: `steps` of the engine, in which `decode` tokens were made and `prefill` prompt tokens read; `count` tokens
    after the first came `seconds` (sum) after the one before. batches: `steps` executions of the model with `decode`
    requests in them took `seconds`; `count` is `steps`, `prefill` 0.
    """

    kind: Literal["tokens", "batches"]
    at: float
    steps: float
    decode: float
    prefill: float
    seconds: float
    count: float


@dataclass(frozen=True, slots=True)
class Seen:
    """One replica at one look. `at`: of its newest sample. `in_flight`: requests that the proxies have there, where
    they can tell. `reserves_memory`: free GPU memory means nothing for this engine."""

    at: float
    signals: Mapping[str, Reading] = field(default_factory=dict)
    evidence: Evidence | None = None
    in_flight: int | None = None
    reserves_memory: bool = False
