"""The duration of an engine step as a function of its batch.

Only the shape matters, because the unit cancels out between replicas, and a replica is first compared with replicas
that have the same GPU.

tokens: the duration, in milliseconds, of a step with n sequences and q prompt tokens is a + b·n + p·q. The parameters
were fitted to the published profile of Llama-2-70B on 8 H100s (Splitwise, `perf_model.csv`; median error 2 % in decode,
19 % in prefill). In simulation, doubling b costs nothing, halving b or p costs up to 10 % of the 99th percentile, and
omitting the prefill term costs up to 80 %.

batches: the duration of an execution with n inputs is a + b·n, so that eight inputs at once take 2.2 times as long as
one. These numbers are assumed, not fitted, because balanced peers have similar batches, so the curve cancels out
completely.
"""

from __future__ import annotations

from lbctl.signals.derive import Evidence, TokenEvidence

_A, _B, _P = 29.8, 0.202, 0.0715
_BATCH_A, _BATCH_B = 1.0, 0.2


def reference_time(evidence: Evidence) -> tuple[float, float, float]:
    """Return (the time on the reference engine, the measured seconds, the number of tokens or responses).

    The first value has an unknown factor that is the same for all evidence of one kind.
    """
    if isinstance(evidence, TokenEvidence):
        each = _A + _B * evidence.decode_tokens + _P * evidence.prefill_tokens
        return each * evidence.itl_count, evidence.itl_seconds, evidence.itl_count
    each = _BATCH_A + _BATCH_B * evidence.items
    return each * evidence.compute_count, evidence.compute_seconds, evidence.compute_count
