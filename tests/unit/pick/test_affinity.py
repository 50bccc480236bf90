"""The affinity memory: which replica served a session, a prompt prefix or an adapter, within a limit and a TTL."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lbctl.pick.affinity import AffinityChanges, AffinityMemory, stored_depths
from lbctl.pick.features import Features


def session(name: str, tokens: float = 100.0) -> Features:
    return Features("p", session=name, prompt_tokens=tokens)


def prompt(*blocks: int, tokens: float | None = None) -> Features:
    return Features("p", prefix=blocks, prompt_tokens=len(blocks) * 10.0 if tokens is None else tokens)


def holders(memory: AffinityMemory, features: Features, now: float = 0.0) -> dict[str, float]:
    home = memory.home(features, now)
    return {item.replica: item.tokens for item in ((home,) if home else memory.holders(features, now))}


def test_a_session_is_remembered_with_its_last_replica() -> None:
    memory = AffinityMemory()
    memory.remember(session("s", 300), "a", 0)
    assert holders(memory, session("s", 500)) == {"a": 300}
    memory.remember(session("s", 500), "b", 0)
    assert holders(memory, session("s", 400)) == {"b": 400}
    assert holders(memory, session("t")) == {}


def test_sessions_of_pools_are_separate() -> None:
    memory = AffinityMemory()
    memory.remember(session("s"), "a", 0)
    assert memory.home(Features("q", session="s"), 0) is None


def test_each_replica_counts_with_its_longest_known_prefix() -> None:
    memory = AffinityMemory()
    memory.remember(prompt(1, 2, 3, 4), "a", 0)
    memory.remember(prompt(1, 2, 9, 8), "b", 0)
    assert holders(memory, prompt(1, 2, 3, 4, 5)) == {"a": 40, "b": 20}
    assert holders(memory, prompt(71, 72, 73)) == {}


def test_a_new_session_starts_at_a_replica_with_its_prefix() -> None:
    memory = AffinityMemory()
    memory.remember(Features("p", session="s", prefix=(1, 2), prompt_tokens=20), "a", 0)
    assert holders(memory, Features("p", session="t", prefix=(1, 2, 3), prompt_tokens=30)) == {"a": 20}


def test_a_restarted_replica_is_forgotten_until_it_is_used_again() -> None:
    memory = AffinityMemory()
    memory.remember(session("s"), "a", 0)
    memory.remember(prompt(1, 2), "a", 0)
    memory.forget("p", "a")
    assert holders(memory, session("s")) == holders(memory, prompt(1, 2)) == {}
    memory.remember(prompt(1), "a", 0)
    assert holders(memory, prompt(1, 2)) == {"a": 10}


def test_an_adapter_counts_as_loaded_until_the_ttl_ends() -> None:
    memory, sql = AffinityMemory(ttl=100), Features("p", adapter="sql")
    memory.remember(sql, "a", 0)
    memory.remember(sql, "b", 50)
    assert memory.with_adapter(sql, 100) == {"a", "b"}
    assert memory.with_adapter(sql, 140) == {"b"}
    assert memory.with_adapter(Features("q", adapter="sql"), 50) == memory.with_adapter(Features("p"), 50) == set()
    memory.forget("p", "b")
    assert memory.with_adapter(sql, 60) == {"a"}


def test_unused_sessions_expire_after_the_ttl() -> None:
    memory = AffinityMemory(ttl=100)
    memory.remember(session("used"), "a", 0)
    memory.remember(session("left"), "a", 0)
    for now in range(0, 1000, 40):
        assert holders(memory, session("used"), now) == {"a": 100}
    assert holders(memory, session("left"), 1000) == {}
    assert len(memory) <= 2


@given(st.lists(st.integers(0, 300), max_size=300), st.integers(2, 40))
def test_the_memory_never_exceeds_its_limit(names: list[int], limit: int) -> None:
    memory = AffinityMemory(limit=limit)
    for name in names:
        memory.remember(session(str(name)), "a", 0)
        assert len(memory) <= limit + 1


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("session"), st.integers(0, 9), st.sampled_from("abc"), st.integers(1, 900)),
        st.tuples(st.just("prompt"), st.lists(st.integers(0, 9), min_size=1, max_size=6), st.sampled_from("abc")),
        st.tuples(st.just("forget"), st.sampled_from("abc")),
        st.tuples(st.just("wait"), st.integers(0, 60)),
        st.tuples(st.just("take")),
    ),
    max_size=60,
)


@given(_STEPS, st.integers(4, 60))
def test_a_restored_memory_knows_what_the_saved_one_knew(steps: list[tuple[Any, ...]], limit: int) -> None:
    memory, taken, now = AffinityMemory(limit, ttl=100, records_changes=True), _Taken(), 0.0
    for step, *values in steps:
        if step == "session":
            memory.remember(session(str(values[0]), values[2]), values[1], now)
        elif step == "prompt":
            memory.remember(prompt(*values[0]), values[1], now)
        elif step == "forget":
            memory.forget("p", values[0])
        elif step == "wait":
            now += values[0]
        else:
            taken.add(memory.take_changes())
    questions = [*map(session, map(str, range(10))), *map(prompt, range(10))]
    memory.home(session("none"), now)
    taken.add(memory.take_changes())
    restored = AffinityMemory(limit, ttl=100)
    restored.restore(taken.newest())
    for features in questions:
        known, found = holders(memory, features, now), holders(restored, features, now)
        assert known.keys() == found.keys(), features
        assert all(found[name] >= tokens / 1.25 for name, tokens in known.items())


class _Taken:
    """Changes by generation, as files keep them: the two newest generations."""

    def __init__(self) -> None:
        self._parts: dict[int, AffinityChanges] = {}

    def add(self, changes: list[AffinityChanges]) -> None:
        for part in changes:
            kept = self._parts.setdefault(part.generation, AffinityChanges(part.generation, part.began))
            kept.replicas.update(part.replicas)
            kept.entries += part.entries
            kept.forgotten += part.forgotten

    def newest(self) -> list[AffinityChanges]:
        return [self._parts[generation] for generation in sorted(self._parts)[-2:]]


def test_unsaved_memory_keeps_no_changes() -> None:
    memory = AffinityMemory(limit=10)
    for number in range(100):
        memory.remember(session(str(number)), f"r{number}", float(number))
        memory.forget("p", f"r{number}")
    assert memory.take_changes() == []


def test_stored_depths_are_few_and_include_the_last_block() -> None:
    assert list(stored_depths(0)) == []
    assert list(stored_depths(11)) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 11]
    assert len(stored_depths(128)) <= 25
    for shared in range(1, 129):
        assert max(depth for depth in stored_depths(128) if depth <= shared) >= 0.8 * shared


# ── Several pickers ──────────────────────────────────────────────────────────────────────────────────────────────────


def _pair(limit: int = 1000) -> tuple[AffinityMemory, AffinityMemory]:
    return AffinityMemory(limit, records_changes=True), AffinityMemory(limit, records_changes=True)


def _send(sender: AffinityMemory, *receivers: AffinityMemory, now: float = 0.0, yields: bool = True) -> int:
    """Send the changes of a memory to others. Return the number of entries."""
    batches = list(sender.batches(sender.take_changes()))
    for receiver in receivers:
        for batch in batches:
            receiver.merge(batch, now, yields=yields)
    return sum(len(batch.entries) // 3 for batch in batches)


def test_sessions_and_prompts_of_another_picker_are_known() -> None:
    first, second = _pair()
    second.remember(session("other"), "x", 0)
    first.remember(session("s", 300), "a", 0)
    first.remember(prompt(1, 2, 3), "b", 0)
    _send(first, second)
    assert holders(second, session("s", 400)) == {"a": 300}
    assert holders(second, prompt(1, 2, 3)) == {"b": 30}
    assert holders(second, session("other")) == {"x": 100}
    assert sum(len(part.entries) for part in second.take_changes()) == 3, "only the own entry is sent"


def test_replicas_that_have_seen_a_prompt_add_up_over_pickers() -> None:
    first, second = _pair()
    first.remember(prompt(1, 2), "a", 0)
    second.remember(prompt(1, 2), "b", 0)
    _send(first, second)
    _send(second, first)
    assert holders(first, prompt(1, 2)).keys() == holders(second, prompt(1, 2)).keys() == {"a", "b"}


def test_session_that_another_picker_has_moved_is_followed() -> None:
    first, second = _pair()
    first.remember(session("s"), "a", 0)
    _send(first, second)
    second.remember(session("s"), "b", 10)
    for _ in range(3):
        first.take_changes()
    _send(second, first, now=10, yields=False)
    assert holders(first, session("s"), 10) == holders(second, session("s"), 10) == {"b": 100}


def test_session_placed_by_two_pickers_stays_at_one_replica() -> None:
    first, second = _pair()
    first.remember(session("s"), "a", 0)
    second.remember(session("s"), "b", 0)
    batches = list(first.batches(first.take_changes()))
    _send(second, first, yields=False)
    for batch in batches:
        second.merge(batch, 0, yields=True)
    assert holders(first, session("s")) == holders(second, session("s")) == {"a": 100}


def test_late_messages_do_not_swap_a_session_for_ever() -> None:
    first, second = _pair()
    first.remember(session("s"), "a", 0)
    second.remember(session("s"), "b", 0)
    late = [list(memory.batches(memory.take_changes())) for memory in (first, second)]
    for memory in (first, second):
        memory.take_changes()
        memory.take_changes()
    for memory, batches, yields in ((first, late[1], False), (second, late[0], True)):
        for batch in batches:
            memory.merge(batch, 0, yields=yields)
    assert (holders(first, session("s")), holders(second, session("s"))) == ({"b": 100}, {"a": 100})
    first.remember(session("s"), "b", 1)
    _send(first, second, now=1)
    assert holders(first, session("s"), 1) == holders(second, session("s"), 1) == {"b": 100}


def test_new_picker_takes_all_entries_of_another() -> None:
    first, second = _pair()
    third = AffinityMemory(1000)
    first.remember(session("before"), "a", 0)
    first.remember(session("moved"), "a", 0)
    first.remember(prompt(1, 2, 3), "a", 0)
    first.home(session("none"), 2000)  # a new generation
    second.remember(session("moved"), "b", 2000)
    second.remember(prompt(1, 2, 3), "b", 2000)
    _send(second, first, now=2000)
    for batch in first.all_batches():
        third.merge(batch, 2000, yields=True)
    for features in (session("before"), session("moved"), prompt(1, 2, 3), prompt(1, 2)):
        assert holders(third, features, 2000) == holders(first, features, 2000) != {}


def test_entries_of_other_pickers_do_not_displace_own_entries() -> None:
    own, other = AffinityMemory(100, records_changes=True), AffinityMemory(10**6, records_changes=True)
    own.remember(session("s"), "a", 0)
    for number in range(1000):
        other.remember(session(str(number)), "b", 0)
    _send(other, own)
    assert holders(own, session("s")) == {"a": 100}
    assert len(own) <= 201


def test_prompts_in_both_generations_of_another_picker_are_known() -> None:
    first, second = AffinityMemory(records_changes=True), AffinityMemory(4)
    for blocks, replica in (((1, 2), "a"), ((3,), "b")):
        first.remember(prompt(*blocks), replica, 0)
        _send(first, second)
    assert (holders(second, prompt(1, 2)), holders(second, prompt(3, 4))) == ({"a": 20}, {"b": 10})


def test_session_that_only_another_picker_uses_stays_known() -> None:
    first, second = AffinityMemory(ttl=100, records_changes=True), AffinityMemory(ttl=100, records_changes=True)
    for now in range(0, 400, 10):
        assert holders(first, session("s"), now) in ({}, {"a": 100})
        first.remember(session("s"), "a", now)
        _send(first, second, now=now)
    assert holders(second, session("s"), 400) == {"a": 100}


def test_forgotten_replica_is_not_sent() -> None:
    first, second = _pair()
    first.remember(session("s"), "a", 0)
    first.forget("p", "a")
    first.remember(session("t"), "b", 0)
    _send(first, second)
    assert (holders(second, session("s")), holders(second, session("t"))) == ({}, {"b": 100})
