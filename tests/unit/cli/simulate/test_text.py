"""Sentences about the results of `lbctl simulate`: the best row and the reason, the load, and drained replicas."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from lbctl.cli.simulate.text import (
    QUEUE_HEAD,
    WIDE,
    best_answer,
    busy_sentence,
    drained_sentence,
    load_sentence,
    recommendation,
)
from lbctl.simulate.results import Latency, Summary
from tests.support.paths import ROOT

FAST, SLOW = Latency(0.1, 0.5, 1.0), Latency(0.1, 2.0, 3.0)
ITEM = Summary(
    "nginx:random", 100, 0.0, 0.0, FAST, FAST, FAST, 1.0, {"r": 0.5, "s": 0.6}, 0.1, {"r": 0.5, "s": 0.5}, None, 0
)
OTHER = replace(ITEM, policy="envoy:random", ttft=SLOW)


def recommendation_text(*items: Summary, **loads: float) -> str:
    text = recommendation(items, {"": 0.5, **loads})
    assert text.endswith(".")
    return text


def test_lowest_percentile_wins_in_any_order() -> None:
    text = recommendation_text(OTHER, ITEM)
    assert text == recommendation_text(ITEM, OTHER)
    assert "nginx:random has the lowest 99th percentile" in text
    assert "1 s; envoy:random has 3 s (3.00 ×)" in text


@pytest.mark.parametrize(
    ("best", "worst", "reason"),
    [
        ({"cache_hits": 0.4}, {"cache_hits": 0.2}, "It finds 40.0% of prompt tokens in prefix caches, the other 20.0%"),
        (
            {},
            {"spread": 0.5, "utilisation": {"r": 0.2, "s": 0.7}},
            "busy for 50–60% of the time; the other keeps them busy less evenly: 20–70%",
        ),
        ({}, {"preempted": 900}, "It preempted 0 sequences because the cache was full, the other 900"),
        (
            {"share": {"r": 0.3, "s": 0.7}},
            {},
            "It sends 30.0% of the requests to r, the other 50.0%, and engines are busy 50–60% of the time",
        ),
        (
            {"share": {"r": 1.0, "s": 0.0}, "utilisation": {"r": 0.9, "s": 0.0}, "spread": 0.9},
            {},
            "the other 50.0%; engines are busy 0–90% of the time with it, and 50–60% with the other.",
        ),
        ({"share": {"t": 1.0}}, {}, "It sends 100.0% of the requests to t, the other 0%, and engines"),
        (
            {"utilisation": {"r": 0.4, "s": 0.6}, "spread": 0.2},
            {},
            "Both send about the same number of requests to every replica; engines are busy 40–60% of the time",
        ),
        (
            {},
            {"share": {"r": 0.504, "s": 0.496}},
            "engines are busy 50–60% of the time with both; only the arrival times at the replicas differ.",
        ),
    ],
)
def test_reason_names_the_difference(best: dict[str, object], worst: dict[str, object], reason: str) -> None:
    text = recommendation_text(replace(ITEM, **best), replace(OTHER, **worst))  # type: ignore[arg-type]
    assert reason in text


def test_failed_requests_take_precedence_over_latency() -> None:
    text = recommendation_text(replace(ITEM, shed=0.05, failed=0.01), OTHER)
    assert "envoy:random leaves the fewest requests unanswered: 0%; nginx:random leaves 6.0%" in text


def test_equal_rows_are_not_ranked() -> None:
    assert recommendation_text(ITEM, replace(ITEM, policy="envoy:random")).startswith(
        "Use any row: they differ by at most"
    )


def test_single_row_has_a_sentence() -> None:
    assert recommendation_text(ITEM).startswith("nginx:random is the only row: its 99th percentile is 1 s")


def test_overloaded_fleet_is_not_recommended() -> None:
    weak, strong = replace(ITEM, fleet="weak"), replace(OTHER, fleet="strong")
    text = recommendation_text(weak, strong, weak=1.2, strong=0.6)
    assert text.startswith("strong/envoy:random is the only row that is not overloaded")
    none = recommendation([weak, strong], {"weak": 3.0, "strong": 2.04})
    assert none.startswith("The fleet is overloaded with every algorithm. 2.9 times as many replicas")


def test_load_sentence_depends_on_the_utilisation() -> None:
    assert load_sentence(0.5, "the engines") == "The load is 50 % of the capacity of the engines (Σλ < Σμ)."
    assert "queues are long at 80 % and above" in load_sentence(0.85, "the engines")
    assert "(Σλ ≥ Σμ): queues grow without bound" in load_sentence(1.0, "the engines")


def test_busy_is_explained_if_it_exceeds_the_load() -> None:
    assert busy_sentence([ITEM], {"": 0.5}) == ""
    assert busy_sentence([ITEM], {"": 0.2}).startswith("BUSY is the share of time")


def test_best_answer_is_the_cheapest_fewest_or_highest() -> None:
    costs = [("a", 4.0, 40.0), ("b", 6.0, 30.0), ("c", None, None)]
    assert best_answer(costs, most=False) == "b costs least: 6 replicas for 30.00 per hour."
    assert best_answer([("a", 1.0, None), ("b", 6.0, 30.0)], most=False) == "a: the fewest replicas, 1."
    assert best_answer([("a", 4.0, 1.0), ("b", 6.0, 2.0)], most=True) == "b: the highest rate, 6/s."
    assert best_answer([("a", 4.0, None)], most=False) == ""


def test_drained_replicas_are_listed_with_their_fleet() -> None:
    one, other = replace(ITEM, drained=("a", "b")), replace(OTHER, drained=("a", "b"))
    assert drained_sentence([one, other]).endswith("BUSY: a, b.")
    assert drained_sentence([replace(one, fleet="old"), replace(ITEM, fleet="new")]).endswith("BUSY: old/a, old/b.")
    many = replace(ITEM, drained=tuple(f"r{number}" for number in range(11)))
    assert drained_sentence([many]).endswith("r6, r7 and 3 more.")
    assert drained_sentence([ITEM]) == ""


@pytest.mark.parametrize(("section", "head"), [("Columns", WIDE), ("Queue", QUEUE_HEAD)])
def test_documentation_explains_every_column(section: str, head: tuple[str, ...]) -> None:
    page = (ROOT / "docs" / "reference" / "simulate.md").read_text(encoding="utf-8")
    text = page.split(f"\n## {section}\n")[1].split("\n## ")[0]
    columns = {re.sub(r" ?P\d\d$", "", name) for name in head[1:]} - {""}
    assert set(re.findall(r"^\| ([A-Z/ ]+) \|", text, re.MULTILINE)) == columns
