"""Names of Kubernetes objects: valid, distinct, and the same in each run."""

from __future__ import annotations

import random
import re

import pytest

from lbctl.targets.manifests.names import SERVICE, NameGrammar, Parts, names, object_name

ROUTE = object_name("HTTPRoute")
LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"


def one(grammar: NameGrammar, *parts: str) -> str:
    return names(grammar, [parts])[parts]


def test_a_valid_name_stays_readable() -> None:
    assert one(ROUTE, "edge", "public", "llm.example.com") == "edge-public-llm.example.com"
    assert one(SERVICE, "edge", "llama", "1") == "edge-llama-1"


@pytest.mark.parametrize(
    ("grammar", "parts", "head"),
    [
        (ROUTE, ("edge", "a_b"), "edge-a-b-"),
        (SERVICE, ("edge", "llama-3.1"), "edge-llama-3-1-"),
        (SERVICE, ("4th", "llama"), "x4th-llama-"),
        (ROUTE, ("edge", "*.example.com"), "edge.example.com-"),
        (ROUTE, ("edge", "us-east-1A"), "edge-us-east-1a-"),
        (SERVICE, ("edge", "m" * 63), "edge-mmm"),
    ],
)
def test_a_changed_name_ends_with_a_digest(grammar: NameGrammar, parts: Parts, head: str) -> None:
    name = one(grammar, *parts)
    assert name.startswith(head)
    assert re.search(r"-[0-9a-f]{8}\Z", name)
    assert name == one(grammar, *parts)


def test_equal_texts_of_different_parts_get_digests() -> None:
    made = names(ROUTE, [("edge", "a-b"), ("edge-a", "b"), ("edge", "c")])
    assert made["edge", "c"] == "edge-c"
    assert len(set(made.values())) == 3
    assert all(name.startswith("edge-a-b-") for parts, name in made.items() if parts != ("edge", "c"))


def test_names_are_valid_and_distinct() -> None:
    rng = random.Random(5)
    alphabet = "ab1._-A*"
    wanted = {
        tuple("".join(rng.choices(alphabet, k=rng.randint(1, 70))) for _ in range(rng.randint(1, 4)))
        for _ in range(3000)
    }
    for grammar, pattern in ((SERVICE, r"[a-z]([-a-z0-9]*[a-z0-9])?"), (ROUTE, rf"{LABEL}(\.{LABEL})*")):
        made = names(grammar, wanted)
        assert [name for name in made.values() if not re.fullmatch(pattern, name)] == []
        assert max(map(len, made.values())) <= grammar.max_length
        assert len(set(made.values())) == len(wanted)
