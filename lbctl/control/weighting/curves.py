"""How long a step of an engine takes as a function of what is in it. Only the shape matters: the unit cancels out
between replicas, and a replica is compared first with those that have its own GPU.

tokens: milliseconds for a step with n sequences and q prompt tokens, a + b·n + p·q. Fitted to the published profile of
Llama-2-70B on 8 H100 (Splitwise, `perf_model.csv`; median error 2 % in decode, 19 % in prefill). b twice as large costs
nothing, b or p half as large up to 10 % of the 99th percentile, no prefill term up to 80 % (docs/weighting.md).

batches: time of an execution with n requests, a + b·n: eight at once take about 2.2 times as long as one. Chosen, not
fitted: peers that are balanced have like batches, and then the curve cancels out altogether.
"""

from __future__ import annotations

from lbctl.control.inputs import Evidence

_A, _B, _P = 29.8, 0.202, 0.0715
_BATCH_A, _BATCH_B = 1.0, 0.2


def expected(evidence: Evidence) -> float:
    """What `evidence.seconds` would be on the reference engine, up to a common factor. `steps` > 0."""
    if evidence.kind == "tokens":
        return (_A + (_B * evidence.decode + _P * evidence.prefill) / evidence.steps) * evidence.count
    return (_BATCH_A + _BATCH_B * evidence.decode / evidence.steps) * evidence.count
