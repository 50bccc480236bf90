"""Request lengths of the demo: like a public trace, with the requested means."""

from __future__ import annotations

import csv
from random import Random

import pytest

from lbctl.simulate.load import conversation, lognormal
from tests.support.paths import DATA

TRACE = DATA / "traces" / "azure-2023-conversation.csv"


@pytest.mark.parametrize("lengths", [conversation(300.0, 80.0), lognormal(300.0, 80.0, 0.8)])
def test_lengths_have_the_requested_means(lengths) -> None:  # type: ignore[no-untyped-def]
    chance = Random("lengths")
    drawn = [lengths(chance) for _ in range(20_000)]
    assert sum(prompt for prompt, _ in drawn) / len(drawn) == pytest.approx(300, rel=0.04)
    assert sum(answer for _, answer in drawn) / len(drawn) == pytest.approx(80, rel=0.04)
    assert min(answer for _, answer in drawn) >= 2


@pytest.mark.parametrize("mean", [1.0, 1.5, 3.0, 20.0])
def test_short_lengths_have_the_requested_means(mean: float) -> None:
    chance, lengths = Random("lengths"), conversation(mean, mean)
    drawn = [lengths(chance) for _ in range(20_000)]
    for values in zip(*drawn, strict=True):
        assert sum(values) / len(drawn) == pytest.approx(mean, rel=0.04)
        assert min(values) == 1


@pytest.mark.skipif(not TRACE.exists(), reason=f"no trace of Azure's LLM inference at {TRACE} (LBCTL_REAL_DATA)")
def test_conversation_lengths_match_a_public_trace() -> None:
    with TRACE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    chance = Random("lengths")
    prompts, answers = zip(*(conversation(1154.7, 211.1)(chance) for _ in rows), strict=True)
    for column, drawn in (("ContextTokens", prompts), ("GeneratedTokens", answers)):
        real = sorted(int(row[column]) for row in rows)
        for share in (0.1, 0.25, 0.5, 0.75, 0.9, 0.99):
            place = int(share * len(rows))
            assert sorted(drawn)[place] == pytest.approx(real[place], rel=0.1), (column, share)
