"""An explanation agrees with the decision, and gives a reason for every replica that is not eligible."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbctl.ir.address import Address
from lbctl.ir.pools import PickPolicy, QueuePolicy
from lbctl.ir.routes import ApiKeys, Auth, External, Forward, Jwt, Route, Share
from lbctl.pick.affinity import AffinityMemory
from lbctl.pick.books import Books
from lbctl.pick.decide import pick
from lbctl.pick.explain import explain, explain_wait, tenant_routes
from lbctl.pick.features import Features
from lbctl.pick.table import Candidate, PoolTable
from lbctl.pick.waiting import Position

MEMBERS = st.lists(st.tuples(st.booleans(), st.sampled_from([0.0, 1.0, 4.0]), st.integers(0, 1)), max_size=6)


@given(MEMBERS, st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3000)), max_size=15))
def test_the_explanation_agrees_with_the_pick(
    members: list[tuple[bool, float, int]], requests: list[tuple[int, int]]
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
    for number, (session, tokens) in enumerate(requests):
        features = Features("p", session=str(session), prompt_tokens=tokens)
        explained = explain(features, table, books, memory, 0.0)
        result = pick(features, table, books, memory, 0.0, random)
        assert explained.reason == result.reason
        assert {item.name for item in result.ordered[:1]} <= set(explained.choices)
        assert sorted(row.name for row in explained.candidates) == [item.name for item in candidates]
        assert all(row.eligible or row.reason for row in explained.candidates)
        assert explained.sentence.endswith(".")
        if result.ordered:
            books.started(str(number), "p", result.ordered[0].name, result.tokens, 0.0)
            memory.remember(features, result.ordered[0].name, 0.0)


@given(st.floats(1.0, 50.0), st.integers(0, 5000))
def test_a_deciding_adapter_is_named(weight: float, tokens: int) -> None:
    table = PoolTable("p", PickPolicy(()), tuple(Candidate(name, f"{name}:1", weight=weight) for name in "abc"))
    features, memory = Features("p", prompt_tokens=float(tokens), adapter="sql"), AffinityMemory()
    memory.remember(features, "b", 0.0)
    explained = explain(features, table, Books(), memory, 0.0)
    assert explained.choices == ("b",)
    assert "The adapter sql made the difference" in explained.sentence


def sentence_for(
    weights: dict[str, float], seen: tuple[str, ...], busy: tuple[str, ...] = (), session: str = ""
) -> str:
    """Return the sentence about a request of 4,000 tokens. The replicas `seen` have its prompt, the last of them has
    its session, and the replicas `busy` have work of 900,000 tokens."""
    table = PoolTable(
        "p", PickPolicy(()), tuple(Candidate(name, f"{name}:1", weight=weights[name]) for name in weights)
    )
    features = Features("p", session=session or None, prefix=(1, 2, 3, 4), prompt_tokens=4000.0)
    books, memory = Books(), AffinityMemory()
    for name in seen:
        memory.remember(features, name, 0.0)
    for name in busy:
        books.started(name, "p", name, 900_000.0, 0.0)
    return explain(features, table, books, memory, 0.0).sentence


def test_the_sentence_agrees_with_the_replicas_it_names() -> None:
    three = {"a": 1.0, "b": 1.0, "c": 1.0}
    assert sentence_for(three, ("a", "b")) == (
        "Any of a or b gets the request, at random: they have seen the longest prefix of this prompt, and their "
        "load is within the bound."
    )
    assert sentence_for(three, ("a",)).startswith("a gets the request: it has seen the longest prefix")
    assert sentence_for(three, ("b", "a"), session="s") == (
        "a gets the request: it has served this session before, and its load is within the bound."
    )
    assert sentence_for(three, ("a", "b"), busy=("a", "b")) == (
        "c gets the request: it has the shortest expected wait; a and b may have the longest prefix of this prompt in "
        "the cache, but the load there outweighs that."
    )
    assert sentence_for(three, ("a",), busy=("a",), session="s") == (
        "Any of b or c gets the request, at random: their expected waits are equal; a may have this session in the "
        "cache, but the load there outweighs that."
    )
    assert sentence_for({"b": 1.0, "c": 2.0}, ("a",), session="s") == (
        "c gets the request: it has the shortest expected wait; the session's replica cannot get requests."
    )


@pytest.mark.parametrize(
    ("position", "policy", "place"),
    [
        (Position(12, 3, 1.44), QueuePolicy(10_000), "behind 12 requests of 3 tenants, about 1.4 s"),
        (Position(1, 1, 0.01), QueuePolicy(10_000), "behind 1 request of 1 tenant, about 0.1 s"),
        (Position(0, 0, None), QueuePolicy(10_000), "at the head of the queue"),
        (Position(12, 3, None), QueuePolicy(10_000, by="client_ip"), "behind 12 requests of 3 clients"),
        (
            Position(12, 3, None),
            QueuePolicy(10_000, by="header", header="x-team"),
            "behind 12 requests with 3 values of x-team",
        ),
        (Position(12, 1, None), QueuePolicy(10_000, by="all"), "behind 12 requests"),
        (Position(12, 1, None), QueuePolicy(10_000, order="fifo"), "behind 12 requests"),
        (
            Position(12, 3, 3.0),
            QueuePolicy(2_500),
            "behind 12 requests of 3 tenants, about 3.0 s, and be rejected after 2.5 s",
        ),
    ],
)
def test_place_in_the_queue_is_explained(position: Position, policy: QueuePolicy, place: str) -> None:
    table = PoolTable("p", PickPolicy((), queue=policy), (Candidate("a", "a:1", limit=0),))
    explanation = explain(Features("p"), table, Books(), AffinityMemory(), 0.0)
    shown = explain_wait(explanation, position, policy)
    assert shown.sentence == f"No replica has room: the request would wait {place}."
    assert (shown.reason, shown.choices, shown.queue) == ("full", (), position)


def test_routes_whose_requests_have_a_tenant_are_found() -> None:
    def route(name: str, pool: str, auth: Auth | None) -> Route:
        return Route(name, Forward((Share(pool, 1),)), auth=auth)

    keys, external = Auth(ApiKeys("keys.txt")), External(Address("127.0.0.1", 80), "/", 1_000)
    routes = (
        route("open", "p", None),
        route("keys", "p", keys),
        route("other", "q", keys),
        route("token", "p", Auth(jwt=Jwt("issuer", "jwks.json"))),
        route("claim", "p", Auth(jwt=Jwt("issuer", "jwks.json", tenant_claim="sub"))),
        route("service", "p", Auth(external=external)),
        route("named", "p", Auth(external=replace(external, tenant_header="x-tenant"))),
    )
    assert tenant_routes(routes, "p") == ("keys", "claim", "named")
