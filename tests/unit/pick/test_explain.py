"""An explanation agrees with the decision, and names the reason for every replica that is not considered."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from lbctl.ir.pools import PickPolicy
from lbctl.pick.affinity import AffinityMemory
from lbctl.pick.books import Books
from lbctl.pick.decide import pick
from lbctl.pick.explain import explain
from lbctl.pick.features import Features
from lbctl.pick.table import Candidate, PoolTable

MEMBERS = st.lists(st.tuples(st.booleans(), st.sampled_from([0.0, 1.0, 4.0]), st.integers(0, 1)), max_size=6)


@given(MEMBERS, st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3000)), max_size=15))
def test_the_explanation_names_what_would_be_picked(
    members: list[tuple[bool, float, int]], asked: list[tuple[int, int]]
) -> None:
    candidates = [
        Candidate("abcdef"[place], f"10.0.0.{place}:1", weight=weight, fit=fit, priority=priority, limit=5)
        for place, (fit, weight, priority) in enumerate(members)
    ]
    table, books, memory, random = (
        PoolTable("p", PickPolicy(()), tuple(candidates)),
        Books(),
        AffinityMemory(),
        Random(1),
    )
    for number, (session, tokens) in enumerate(asked):
        features = Features("p", session=str(session), prompt_tokens=tokens)
        explained = explain(features, table, books, memory, 0.0)
        found = pick(features, table, books, memory, 0.0, random)
        assert explained.reason == found.reason
        assert {item.name for item in found.ordered[:1]} <= set(explained.choices)
        assert sorted(row.name for row in explained.candidates) == [item.name for item in candidates]
        assert all(row.eligible or row.reason for row in explained.candidates)
        assert explained.sentence.endswith(".")
        if found.ordered:
            books.started(str(number), "p", found.ordered[0].name, found.tokens, 0.0)
            memory.remember(features, found.ordered[0].name, 0.0)


@given(st.floats(1.0, 50.0), st.integers(0, 5000))
def test_an_adapter_that_decides_between_equal_replicas_is_named(weight: float, tokens: int) -> None:
    table = PoolTable("p", PickPolicy(()), tuple(Candidate(name, f"{name}:1", weight=weight) for name in "abc"))
    features, memory = Features("p", prompt_tokens=float(tokens), adapter="sql"), AffinityMemory()
    memory.remember(features, "b", 0.0)
    explained = explain(features, table, Books(), memory, 0.0)
    assert explained.choices == ("b",)
    assert "The adapter sql decided" in explained.sentence
