"""The throughput of replicas with one GPU type, estimated by fitting a line to their measured step times.

A step with n sequences and q prompt tokens takes a + b·n + p·q. All three parameters depend on the model and the GPU.
GPUs with a different balance of memory and compute also have different ratios, so they cannot be compared on a common
curve. Each type has a separate line, fitted to its samples by least squares. With a given number of prompt tokens per
sequence, a full engine generates n ÷ (a + b·n + p·q) tokens per second. An engine is full if its cache is full, or if
it has 256 sequences (vLLM's `max_num_seqs`, or `--max-running-requests` in other engines).

The number of prompt tokens per generated token counts all tokens in the samples. It must not be an average over
samples, because steps with long prompts take longer, so a sample with many of them has fewer steps and tokens.

If proxies choose the replicas, all types get the same mix of requests, and each type's own number is used. The picker,
in contrast, sends long prompts to fast GPUs. With their own numbers, fast types would look too slow for their capacity,
so the types in a picked pool are compared using the mix across the whole pool.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lbctl.signals.derive import Evidence, TokenEvidence

_WINDOW = 300.0
"""Seconds after which a sample's weight has decayed to 1/e."""
_MAX_SEQUENCES = 256.0
_MIN_SAMPLES = 40.0
"""Minimum number of samples for fitting a line with three parameters."""
_WHOLE_SAMPLE = 5.0
"""Number of seconds since the previous sample after which a sample counts fully. Samples in quick succession describe
the same requests, so they are given less weight."""


class Sums(NamedTuple):
    """Decayed sums over a replica's samples."""

    samples: float = 0.0
    """Number of samples, each of which counts at most 1."""
    n: float = 0.0
    """Sum of n, the number of sequences in a step."""
    q: float = 0.0
    """Sum of q, the number of prompt tokens in a step."""
    y: float = 0.0
    """Sum of y, the duration of a step in seconds."""
    nn: float = 0.0
    """Sum of n²."""
    nq: float = 0.0
    """Sum of n·q."""
    qq: float = 0.0
    """Sum of q²."""
    ny: float = 0.0
    """Sum of n·y."""
    qy: float = 0.0
    """Sum of q·y."""
    yy: float = 0.0
    """Sum of y²."""
    un: float = 0.0
    """Sum of u·n, where u is the used fraction of the KV cache."""
    uu: float = 0.0
    """Sum of u²."""
    prompts: float = 0.0
    """Number of prompt tokens in all steps of the samples."""
    tokens: float = 0.0
    """Number of generated tokens in these steps."""


class Throughput(NamedTuple):
    """A full engine's throughput."""

    rate: float
    """Tokens or responses per second."""
    error: float
    """The standard error of the throughput's natural logarithm."""


def with_sample(sums: Sums, evidence: Evidence, cache: float | None, gap: float) -> Sums:
    """Return the sums after adding a sample.

    `cache` is the used fraction of the cache, and `gap` is the time since the last sample, in seconds.
    """
    if isinstance(evidence, TokenEvidence):
        n, q, count, seconds = evidence.decode_tokens, evidence.prefill_tokens, evidence.itl_count, evidence.itl_seconds
    else:
        n, q, count, seconds = evidence.items, 0.0, evidence.compute_count, evidence.compute_seconds
    keep, weight = math.exp(-gap / _WINDOW), min(1.0, gap / _WHOLE_SAMPLE)
    y, u = seconds / count, cache or 0.0
    of_n, of_q, of_y = n * weight, q * weight, y * weight
    sample = (
        weight, of_n, of_q, of_y, n * of_n, n * of_q, q * of_q, n * of_y, q * of_y, y * of_y, u * of_n, u * u * weight,
        q / n * count if n else 0.0, count,
    )  # fmt: skip
    return Sums(*(old * keep + new for old, new in zip(sums, sample, strict=True)))


def total(parts: Iterable[Sums]) -> Sums:
    """Return the sums over all samples of several replicas."""
    return Sums(*map(sum, zip(*parts, strict=True)))


def prompt_share(parts: Iterable[Sums]) -> float:
    """Return the number of prompt tokens per generated token across several types."""
    parts = tuple(parts)
    tokens = sum(part.tokens for part in parts)
    return sum(part.prompts for part in parts) / tokens if tokens else 0.0


def throughput(sums: Sums, share: float | None = None) -> Throughput | None:
    """Return a full engine's throughput according to the line, or None if the line is unknown or too short.

    `share` is the number of prompt tokens per generated token. If it is None, the number in the samples is used.
    """
    if sums.samples < _MIN_SAMPLES or not sums.n:
        return None
    scale = (1.0, sums.n / sums.samples, max(sums.q, sums.n) / sums.samples)
    raw = ((sums.samples, sums.n, sums.q), (sums.n, sums.nn, sums.nq), (sums.q, sums.nq, sums.qq))
    matrix = [[value / scale[row] / scale[column] for column, value in enumerate(line)] for row, line in enumerate(raw)]
    for place in (1, 2):
        matrix[place][place] += 1e-6 * sums.samples
    inverse = _inverse(matrix)
    if inverse is None:
        return None
    right = [value / scale[row] for row, value in enumerate((sums.y, sums.ny, sums.qy))]
    line = [sum(value * other for value, other in zip(row, right, strict=True)) for row in inverse]
    squares = max(0.0, sums.yy - sum(value * other for value, other in zip(line, right, strict=True)))
    full = min(_MAX_SEQUENCES, _full(sums))
    at = (1.0, full / scale[1], full * (prompt_share([sums]) if share is None else share) / scale[2])
    seconds = sum(value * other for value, other in zip(line, at, strict=True))
    if seconds <= 0:
        return None
    spread = sum(at[row] * inverse[row][column] * at[column] for row in range(3) for column in range(3))
    variance = squares / max(1.0, sums.samples - 3.0) * max(0.0, spread)
    return Throughput(full / seconds, math.sqrt(variance) / seconds)


def _full(sums: Sums) -> float:
    """Return the number of sequences that fill the cache, from a line through the origin (sequences against usage)."""
    return sums.un / sums.uu if sums.uu > 1e-9 else _MAX_SEQUENCES


def _inverse(matrix: Sequence[Sequence[float]]) -> list[list[float]] | None:
    (a, b, c), (d, e, f), (g, h, i) = matrix
    determinant = a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)
    if determinant <= 1e-12 * a * e * i:
        return None
    return [
        [(e * i - f * h) / determinant, (c * h - b * i) / determinant, (b * f - c * e) / determinant],
        [(f * g - d * i) / determinant, (a * i - c * g) / determinant, (c * d - a * f) / determinant],
        [(d * h - e * g) / determinant, (b * g - a * h) / determinant, (a * e - b * d) / determinant],
    ]
