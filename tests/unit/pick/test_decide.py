"""The pick decision: eligible replicas, the value of caches, and even spreading."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbctl.ir.locality import Place
from lbctl.ir.pools import Locality, PickPolicy, QueuePolicy, SlowStart
from lbctl.pick.affinity import AffinityMemory
from lbctl.pick.books import Books
from lbctl.pick.decide import ALTERNATIVES, PickResult, pick
from lbctl.pick.features import Features
from lbctl.pick.table import Candidate, PoolTable


def candidate(name: str, **changes: object) -> Candidate:
    return replace(Candidate(name, f"10.0.0.{ord(name[0])}:8000"), **changes)  # type: ignore[arg-type]


def table(*candidates: Candidate, bound: float = 1.25, **changes: object) -> PoolTable:
    return PoolTable("p", PickPolicy((), bound=bound), candidates, **changes)  # type: ignore[arg-type]


class World:
    """A table with books and memory; `ask` picks and records like the service, `look` only picks."""

    def __init__(self, table: PoolTable, seed: int = 1) -> None:
        self.table, self.books, self.memory, self.random = table, Books(), AffinityMemory(), Random(seed)
        self.now, self.number = 0.0, 0

    def look(self, **features: object) -> PickResult:
        request = Features("p", **{"prompt_tokens": 1000.0, **features})  # type: ignore[arg-type]
        return pick(request, self.table, self.books, self.memory, self.now, self.random)

    def ask(self, **features: object) -> PickResult:
        result = self.look(**features)
        self.number += 1
        if result.ordered:
            self.books.started(str(self.number), "p", result.ordered[0].name, result.tokens, self.now)
            request = Features("p", **{"prompt_tokens": 1000.0, **features})  # type: ignore[arg-type]
            self.memory.remember(request, result.ordered[0].name, self.now)
        return result


def names(result: PickResult) -> list[str]:
    return [item.name for item in result.ordered]


THREE = (candidate("a"), candidate("b"), candidate("c"))
UNREAD = 1300.0
"""Unread tokens from which requests wait for a replica that computes 10,000 tokens per second."""

# ── Eligible replicas ────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_picked_if_no_replica_is_fit() -> None:
    result = World(table(candidate("a", fit=False, reason="drained"), candidate("b", weight=0.0))).look()
    assert (result.ordered, result.reason) == ((), "none")


def test_a_session_leaves_a_drained_replica() -> None:
    world = World(table(*THREE))
    holder = names(world.ask(session="s"))[0]
    world.table = table(*(replace(item, fit=item.name != holder) for item in THREE))
    result = world.ask(session="s")
    assert holder not in names(result)
    assert result.reason == "session_gone"
    assert world.ask(session="s").reason == "session"


def test_a_replica_at_its_limit_gets_no_requests() -> None:
    world = World(table(candidate("a", limit=1), candidate("b", limit=1)))
    assert {names(world.ask())[0], names(world.ask())[0]} == {"a", "b"}
    assert world.look().reason == "none"
    world.books.finished("1")
    assert len(world.look().ordered) == 1


def queued(*candidates: Candidate, speed: float = 10_000.0) -> World:
    """Return a world whose pool has a queue, and whose replicas compute prompt tokens at this speed."""
    world = World(PoolTable("p", PickPolicy((), queue=QueuePolicy(10_000)), candidates))
    for item in candidates:
        world.books.load("p", item.name).reading(-1.0)
        world.books.started(item.name, "p", item.name, speed, -1.0)
        world.books.first_byte(item.name, 0.0)
        world.books.finished(item.name)
    return world


def test_request_waits_while_all_replicas_have_unread_prompts() -> None:
    world = queued(*(replace(item, limit=64) for item in THREE))
    assert {names(world.ask(prompt_tokens=3000.0))[0] for _ in THREE} == set("abc")
    assert world.look() == PickResult((), "full", (), 0.0)
    world.books.first_byte("2", 0.01)
    assert len(names(world.look())) == 1
    world.now = 0.2
    assert len(names(world.look())) == 3, "the engines have computed the prompts by now"


def test_short_prompts_wait_only_if_they_are_many() -> None:
    world = queued(candidate("a", limit=64))
    count = 0
    while world.ask(prompt_tokens=50.0).ordered:
        count += 1
    assert count == pytest.approx(UNREAD / 50, abs=1)


def test_unread_prompts_delay_nothing_without_a_queue() -> None:
    world = queued(candidate("a", limit=64))
    world.table = table(candidate("a", limit=64))
    assert [names(world.ask(prompt_tokens=5000.0)) for _ in range(3)] == [["a"]] * 3


def test_session_stays_at_a_replica_with_unread_prompts() -> None:
    world = queued(*(replace(item, limit=64) for item in THREE))
    home = names(world.ask(session="s", prompt_tokens=3000.0))[0]
    assert home not in names(world.look())
    assert names(world.look(session="s", prompt_tokens=3100.0))[0] == home


def test_faster_replica_may_have_more_unread_prompts() -> None:
    fast, slow = candidate("a", limit=64, weight=3.0), candidate("b", limit=64, weight=1.0)
    world = queued(fast, slow)
    for name in "ab":
        world.books.started(f"0{name}", "p", name, 1400.0, 0.0)
    assert names(world.look()) == ["a"]


@pytest.mark.parametrize(("speed", "unread"), [(1_000.0, 1000.0), (50_000.0, 6500.0)])
def test_threshold_grows_with_the_measured_speed(speed: float, unread: float) -> None:
    world = queued(candidate("a", limit=64), speed=speed)
    world.books.started("reads", "p", "a", unread - 10.0, 0.0)
    assert world.ask(prompt_tokens=20.0).ordered
    assert world.look().reason == "full"


@pytest.mark.parametrize(("limit", "places"), [(7, 7), (8, 7), (63, 62), (64, 62)])
def test_reserve_is_one_place_in_32(limit: int, places: int) -> None:
    world = World(PoolTable("p", PickPolicy((), queue=QueuePolicy(10_000)), (candidate("a", limit=limit),)))
    request = Features("p", prompt_tokens=10.0)

    def has_place() -> bool:
        arguments = request, world.table, world.books, world.memory, world.now, world.random
        return bool(pick(*arguments, leaves_reserve=True).ordered)

    while has_place():
        world.ask(prompt_tokens=10.0)
    assert world.number == places
    while world.ask(prompt_tokens=10.0).ordered:
        pass
    assert world.number == limit + 1


def test_reserve_of_an_engine_is_one_place_in_32() -> None:
    world = World(PoolTable("p", PickPolicy((), queue=QueuePolicy(10_000)), (candidate("a"),)))
    world.books.load("p", "a").engine_limit = 32
    for _ in range(31):
        world.ask(prompt_tokens=10.0)
    request = Features("p", prompt_tokens=10.0)
    arguments = request, world.table, world.books, world.memory, world.now, world.random
    assert not pick(*arguments, leaves_reserve=True).ordered
    assert pick(*arguments).ordered


def test_regions_and_subsets_limit_the_choice() -> None:
    world = World(table(candidate("a", region="eu"), candidate("b", region="us"), candidate("c")))
    assert names(world.look(regions=frozenset({"eu"}))) == ["a"]
    assert names(world.look(subset=frozenset({THREE[2].address}))) == ["c"]
    assert world.look(subset=frozenset()).reason == "none"
    assert world.look(regions=frozenset({"mars"})).reason == "none"


def test_standbys_help_if_too_few_first_replicas_are_fit() -> None:
    standby = candidate("z", priority=1)
    assert names(World(table(*THREE, standby)).look()) in [[*order] for order in _orders("abc")]
    lost = [replace(item, fit=item.name == "a") for item in THREE]
    assert set(names(World(table(*lost, standby)).look())) == {"a", "z"}
    assert names(World(table(*(replace(item, fit=False) for item in THREE), standby)).look()) == ["z"]


def test_near_replicas_are_used_first_as_seen_from_the_proxy() -> None:
    zones = (candidate("a", region="eu", zone="eu-1"), candidate("b", region="eu", zone="eu-2"))
    world = World(table(*zones, locality=Locality("zone", 70)))
    assert names(world.look(place=Place("eu", "eu-1"))) == ["a"]
    assert names(world.look(place=Place("eu", "eu-2"))) == ["b"]
    assert set(names(world.look())) == {"a", "b"}


CANDIDATES = st.lists(
    st.tuples(st.booleans(), st.sampled_from([0.0, 0.5, 1.0, 5.0]), st.integers(0, 1), st.sampled_from(["eu", "us"])),
    min_size=1,
    max_size=8,
)


@given(CANDIDATES, st.lists(st.integers(0, 4), max_size=20), st.booleans())
def test_unfit_replicas_are_never_picked(
    drawn: list[tuple[bool, float, int, str]], sessions: list[int], residency: bool
) -> None:
    members = [
        candidate("abcdefgh"[index], fit=fit, weight=weight, priority=priority, region=region, limit=6)
        for index, (fit, weight, priority, region) in enumerate(drawn)
    ]
    world = World(table(*(replace(item, fit=True, weight=1.0) for item in members)))
    for number in sessions:
        world.ask(session=str(number))
    world.table = table(*members)
    regions = frozenset({"eu"}) if residency else frozenset()
    allowed = {item.name for item in members if item.fit and item.weight and (not residency or item.region == "eu")}
    for number in sessions or [0]:
        result = world.ask(session=str(number), regions=regions)
        assert set(names(result)) <= allowed
        for item in result.ordered[:1]:
            assert world.books.load("p", item.name).requests <= 6


def test_a_priority_without_fit_replicas_is_skipped() -> None:
    ranks = candidate("a", fit=False, reason="drained"), candidate("b", priority=1)
    assert names(World(table(*ranks, locality=Locality(spill_below=0))).look()) == ["b"]


# ── Load ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(1, 12), st.integers(1, 60), st.integers(0, 1000))
def test_equal_requests_are_spread_evenly_over_equal_replicas(replicas: int, requests: int, seed: int) -> None:
    world = World(table(*(candidate("abcdefghijkl"[index]) for index in range(replicas))), seed)
    for _ in range(requests):
        world.ask()
    counts = [world.books.load("p", item.name).requests for item in world.table.candidates]
    assert max(counts) - min(counts) <= 1


@given(st.lists(st.tuples(st.sampled_from([0.5, 1.0, 2.0]), st.integers(0, 3)), min_size=1), st.integers(0, 1000))
def test_replicas_are_ordered_by_wait_and_ties_are_random(drawn: list[tuple[float, int]], seed: int) -> None:
    world = World(table(*(Candidate(f"r{at:02}", f"10.0.0.{at}:80", weight) for at, (weight, _) in enumerate(drawn))))
    for at, (_, requests) in enumerate(drawn):
        for number in range(requests):
            world.books.started(f"{at}-{number}", "p", f"r{at:02}", 1000.0, 0.0)
    waits = {f"r{at:02}": (1030 * requests + 1030) / weight for at, (weight, requests) in enumerate(drawn)}
    world.random, random = Random(seed), Random(seed)
    expected: list[str] = []
    while rest := {name: wait for name, wait in waits.items() if name not in expected and len(expected) < ALTERNATIVES}:
        equal = [name for name, wait in rest.items() if wait == min(rest.values())]
        expected.append(equal[int(random.random() * len(equal))])
    result = world.look()
    assert (names(result), result.scores) == (expected, tuple(waits[name] for name in expected))


def test_idle_replicas_are_chosen_equally_often() -> None:
    world = World(table(*THREE))
    firsts = [names(world.look())[0] for _ in range(3000)]
    assert all(900 < firsts.count(name) < 1100 for name in "abc")


def test_work_counts_rather_than_requests() -> None:
    world = World(table(candidate("a"), candidate("b")))
    first = names(world.ask(prompt_tokens=10_000.0))[0]
    others = [names(world.ask(prompt_tokens=100.0))[0] for _ in range(20)]
    assert first not in others


def test_work_is_shared_by_weight_and_speed() -> None:
    world = World(table(candidate("a", weight=4.0), candidate("b", weight=1.0, speed=2.0), candidate("c")))
    for _ in range(700):
        world.ask()
    counts = [world.books.load("p", name).requests for name in "abc"]
    assert counts == pytest.approx([400, 200, 100], abs=2)


def test_a_new_replica_s_share_grows_in_its_slow_start() -> None:
    fresh = table(candidate("a"), candidate("b", started=0.0), slow_start=SlowStart(60_000, 10.0, 1.0))

    def share(now: float) -> float:
        world = World(fresh)
        world.now = now
        for _ in range(110):
            world.ask()
        return world.books.load("p", "b").requests / 110

    assert share(0) == pytest.approx(0.1 / 1.1, abs=0.02)
    assert share(30) == pytest.approx(0.5 / 1.5, abs=0.02)
    assert share(60) == pytest.approx(0.5, abs=0.02)


def test_slow_start_leaves_half_of_the_capacity_in_use() -> None:
    """In a rolling restart, the last old replica would otherwise get up to ten times as much as each new one."""
    rules = SlowStart(60_000, 10.0, 1.0)

    def shares(*candidates: Candidate) -> list[float]:
        world = World(table(*candidates, slow_start=rules))
        world.now = 12.0
        for _ in range(300):
            world.ask()
        return [world.books.load("p", item.name).requests / 300 for item in candidates]

    new, gone = candidate("b", started=0.0), candidate("c", fit=False)
    assert shares(candidate("a"), new) == pytest.approx([1 / 1.2, 0.2 / 1.2], abs=0.02)
    assert shares(candidate("a"), new, gone) == pytest.approx([2 / 3, 1 / 3, 0.0], abs=0.02)
    assert shares(candidate("a"), new, candidate("c", started=12.0)) == pytest.approx([0.67, 0.20, 0.13], abs=0.02)


def test_slow_start_may_begin_with_no_weight() -> None:
    world = World(table(candidate("a"), candidate("b", started=0.0), slow_start=SlowStart(60_000, 0.0, 1.0)))
    world.now = 0.0
    assert {world.ask().ordered[0].name for _ in range(20)} <= {"a", "b"}


def test_slow_start_does_not_matter_among_idle_replicas() -> None:
    world = World(table(*THREE, candidate("d", started=0.0), slow_start=SlowStart(60_000, 10.0, 1.0)))
    counts = dict.fromkeys("abcd", 0)
    for _ in range(400):
        counts[names(world.ask())[0]] += 1
        world.books.finished(str(world.number))
    assert [counts[name] for name in "abcd"] == pytest.approx([100] * 4, abs=35)


# ── Caches ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_session_stays_although_other_replicas_have_less_work() -> None:
    world = World(table(*THREE))
    holder = names(world.ask(session="s"))[0]
    results = [world.ask(session="s") for _ in range(3)]
    assert [(names(item)[0], item.reason) for item in results] == [(holder, "session")] * 3
    assert results[0].tokens == 0, "its prompt is in the cache"


def test_prompts_with_a_common_prefix_go_to_one_replica() -> None:
    world = World(table(*THREE))
    holder = names(world.ask(prefix=(1, 2, 3, 4)))[0]
    world.books.finished("1")
    result = world.ask(prefix=(1, 2, 3, 5))
    assert (names(result)[0], result.reason, result.tokens) == (holder, "prefix", 250)


def test_a_short_common_prefix_does_not_attract_all_requests() -> None:
    """All requests share a system prompt of one block."""
    world = World(table(*THREE))
    for number in range(60):
        world.ask(prefix=(1, *(number * 100 + block for block in range(30))), prompt_tokens=2000.0)
    counts = [world.books.load("p", item.name).requests for item in THREE]
    assert max(counts) - min(counts) <= 3


def test_a_session_leaves_a_queueing_replica_for_an_idle_one() -> None:
    world = World(table(*THREE))
    holder = names(world.ask(session="s"))[0]
    world.table = table(*(replace(item, queue=3.0 if item.name == holder else 0.0) for item in THREE))
    result = world.ask(session="s")
    assert names(result)[0] != holder
    assert result.reason == "session_busy"


def test_session_stays_if_only_the_newest_requests_wait() -> None:
    """An engine reports requests that arrive during a step as waiting."""
    world = World(table(*THREE))
    world.now = 9.9
    holder = names(world.ask(session="s"))[0]
    world.table = table(*(replace(item, queue=1.0 if item.name == holder else 0.0) for item in THREE))
    world.books.reconcile("p", holder, 0.0, 1.0, None, 10.0)
    assert world.look(session="s").reason == "session"
    world.books.reconcile("p", holder, 0.0, 1.0, None, 11.0)
    assert world.look(session="s").reason == "session_busy"


def test_prefix_stays_if_only_the_newest_requests_wait() -> None:
    world = World(table(*THREE))
    world.now = 9.9
    holder = names(world.ask(prefix=(1, 2, 3, 4)))[0]
    world.books.first_token("1")
    world.table = table(*(replace(item, queue=1.0 if item.name == holder else 0.0) for item in THREE))
    world.books.reconcile("p", holder, 0.0, 1.0, None, 10.0)
    assert names(world.look(prefix=(1, 2, 3, 5)))[0] == holder


def test_a_session_leaves_a_replica_with_a_full_kv_cache() -> None:
    world = World(table(*THREE))
    holder = names(world.ask(session="s"))[0]
    full = {item.name: replace(item, queue=0.0, kv=0.97 if item.name == holder else 0.5) for item in THREE}
    world.table = table(*full.values())
    assert world.look(session="s").reason == "session_busy"
    world.table = table(*(replace(item, kv=0.97) for item in full.values()))
    assert names(world.look(session="s"))[0] == holder, "nobody has room"


def _in_flight(world: World) -> list[int]:
    return [world.books.load("p", item.name).requests for item in world.table.candidates]


@given(st.integers(2, 8), st.floats(1.05, 3.0), st.lists(st.integers(1, 8000), min_size=1, max_size=120))
def test_requests_of_one_session_are_spread_within_the_bound(replicas: int, bound: float, prompts: list[int]) -> None:
    """One session sends many requests whose prompts are cached, so they add hardly any work."""
    world = World(table(*(candidate("abcdefgh"[index]) for index in range(replicas)), bound=bound))
    for number, tokens in enumerate(prompts, 1):
        world.ask(session="shared", prompt_tokens=float(tokens))
        world.books.first_token(str(world.number))
        assert max(_in_flight(world)) <= bound * number / replicas + 10


def test_a_busy_session_is_spread_over_all_replicas() -> None:
    world = World(table(*THREE, candidate("d")))
    for _ in range(300):
        world.ask(session="one user", prompt_tokens=4000.0)
    assert max(_in_flight(world)) <= 1.25 * 75 + 10
    assert min(_in_flight(world)) >= 40


def test_requests_with_a_long_prefix_use_all_replicas() -> None:
    """2,000 of 2,200 tokens are common to all requests, so a replica that has them has nearly the whole prompt."""
    world = World(table(*THREE, candidate("d")))
    for number in range(40):
        world.ask(prefix=(*range(20), 1000 + 2 * number, 1001 + 2 * number), prompt_tokens=2200.0)
        world.books.first_token(str(world.number))
    assert max(_in_flight(world)) <= 1.25 * 10 + 10


@pytest.mark.parametrize(
    ("shared", "in_flight"), [(500.0, 12), (500.0, 32), (2000.0, 12), (2000.0, 60), (8000.0, 20), (8000.0, 32)]
)
def test_no_replica_idles_while_a_common_prefix_loads_others(shared: float, in_flight: int) -> None:
    world = World(table(*THREE))
    for number in range(10 * in_flight):
        world.ask(prefix=(*range(20), 1000 + number), prompt_tokens=shared + 60)
        world.books.first_token(str(world.number))
        world.books.finished(str(world.number - in_flight + 1))
    assert min(_in_flight(world)) >= 0.75 * in_flight / 3


def test_a_common_prefix_stays_on_one_replica_under_low_load() -> None:
    world = World(table(*THREE))
    homes = []
    for number in range(20):
        homes.append(names(world.ask(prefix=(*range(20), 1000 + number), prompt_tokens=2200.0))[0])
        world.books.first_token(str(world.number))
        world.books.finished(str(world.number - 1))
    assert len(set(homes)) == 1


def test_the_faster_of_two_replicas_with_the_prefix_is_picked() -> None:
    world = World(table(candidate("a", weight=5.0), candidate("b", weight=1.0)))
    request = Features("p", prefix=(1, 2, 3, 4), prompt_tokens=1000.0)
    for name in "ab":
        world.memory.remember(request, name, 0.0)
    assert names(world.look(prefix=(1, 2, 3, 4))) == ["a", "b"]


def test_sessions_return_gradually_during_slow_start() -> None:
    """200 sessions belonged to the replica. At 10 % of its weight it may get a thirty-first of the requests."""
    world = World(table(*THREE, candidate("d", started=0.0), slow_start=SlowStart(60_000, 10.0, 1.0)))
    for number in range(200):
        world.memory.remember(Features("p", session=str(number), prompt_tokens=1000.0), "d", 0.0)
    for number in range(200):
        world.ask(session=str(number))
        world.books.first_token(str(world.number))
    assert _in_flight(world)[3] <= 1.25 * 200 * 0.1 / 3.1 + 10


def test_a_lost_session_moves_to_a_replica_with_its_prefix() -> None:
    world = World(table(*THREE))
    prompt = (1, 2, 3, 4)
    world.memory.remember(Features("p", session="s", prefix=prompt, prompt_tokens=1000.0), "b", 0.0)
    world.memory.remember(Features("p", session="s", prefix=prompt, prompt_tokens=1000.0), "a", 0.0)
    world.table = table(candidate("a", fit=False), *THREE[1:])
    result = world.look(session="s", prefix=prompt)
    assert (names(result)[0], result.reason, result.tokens) == ("b", "prefix", 0)


def test_requests_go_where_their_adapter_is_loaded() -> None:
    world = World(table(candidate("a"), candidate("b")))
    home = names(world.ask(adapter="sql", prompt_tokens=500.0))[0]
    assert [names(world.ask(adapter="sql", prompt_tokens=500.0))[0] for _ in range(3)] == [home] * 3
    others = [names(world.ask(adapter="sql", prompt_tokens=500.0))[0] for _ in range(6)]
    assert home not in others[:4], "the other replica loads the adapter too"
    assert set(others[4:]) == {"a", "b"}


def test_adapters_use_separate_replicas_until_a_restart() -> None:
    world = World(table(candidate("a"), candidate("b")))
    home = names(world.ask(adapter="sql"))[0]
    assert names(world.ask(adapter="chat"))[0] != home
    for request in ("1", "2"):
        world.books.finished(request)
    assert names(world.look(adapter="sql"))[0] == home
    world.memory.forget("p", home)
    assert {names(world.look(adapter="sql"))[0] for _ in range(30)} == {"a", "b"}


@pytest.mark.slow
@pytest.mark.parametrize(("unread", "in_flight"), [(16, 60), (100, 200)])
def test_only_sessions_of_added_and_removed_replicas_move(unread: int, in_flight: int) -> None:
    """10,000 sessions of different length on 8 replicas; one replica is added, then one is removed."""
    rng, sessions = Random(3), 10_000
    eight = [candidate(name) for name in "abcdefgh"]
    world = World(table(*eight))
    sizes = [min(40_000.0, rng.lognormvariate(6, 1.2)) for _ in range(sessions)]

    def homes_after_one_round() -> list[str]:
        homes_by_session = []
        for number in rng.sample(range(sessions), sessions):
            homes_by_session.append((number, names(world.ask(session=str(number), prompt_tokens=sizes[number]))[0]))
            world.books.first_token(str(world.number - unread))
            world.books.finished(str(world.number - in_flight))
        return [name for _, name in sorted(homes_by_session)]

    def assert_within_the_bound(homes: list[str]) -> None:
        load = dict.fromkeys(homes, 0.0)
        for name, size in zip(homes, sizes, strict=True):
            load[name] += size
        assert max(load.values()) <= world.table.policy.bound * sum(sizes) / len(world.table.candidates)

    assert_within_the_bound(homes_after_one_round())
    settled = homes_after_one_round()
    assert_within_the_bound(settled)
    world.table = table(*eight, candidate("i"))
    added = homes_after_one_round()
    assert_within_the_bound(added)
    assert _moved(settled, added) <= 1.5 * sessions / 9, "at most the share of the new replica"
    world.table = table(*eight[1:], candidate("i"))
    removed = homes_after_one_round()
    assert_within_the_bound(removed)
    assert "a" not in removed
    assert _moved(added, removed) <= 1.5 * added.count("a"), "hardly any session of another replica"


def _moved(before: list[str], after: list[str]) -> int:
    return sum(one != other for one, other in zip(before, after, strict=True))


def _orders(letters: str) -> list[str]:
    return ["".join(order) for order in permutations(letters)]
