"""The picker's service: answers from its tables over the life of requests."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from random import Random

import pytest

from lbctl.ir.pools import PickPolicy, SessionKey
from lbctl.pick.books import Count
from lbctl.pick.explain import document
from lbctl.pick.table import Candidate, PoolTable
from lbctl.picker import wire
from lbctl.picker.child_link import explanation_line
from lbctl.picker.messages import Caller, PickerQuestion, ResponseStart
from lbctl.picker.service import PickService

POLICY = PickPolicy((SessionKey(header="x-session-id"),))


class _Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def _table(*candidates: Candidate, pool: str = "chat") -> PoolTable:
    return PoolTable(pool, POLICY, candidates, stalled_after=15.0)


def _candidate(name: str, number: int, **keys: object) -> Candidate:
    return Candidate(name, f"10.0.0.{number}:80", **keys)  # type: ignore[arg-type]


A, B, C = (_candidate(name, number) for number, name in enumerate("abc", 1))


def _service(*tables: PoolTable) -> tuple[PickService, _Clock]:
    clock = _Clock()
    service = PickService(clock, Random(1))
    for table in tables:
        service.set_table(table.pool, table)
    return service, clock


def _question(pool: str | None = "chat", session: str = "", subset: frozenset[str] | None = None) -> PickerQuestion:
    headers = {"x-session-id": [session]} if session else {}
    body = json.dumps({"model": "m", "prompt": f"{session}: " + "word " * 2000}).encode()
    return PickerQuestion(Caller(pool), headers, body, len(body), subset)


def test_requests_are_spread_by_load() -> None:
    service, _ = _service(_table(A, B, C))
    picks = [service.pick(_question(session=f"s{number}")) for number in range(9)]
    assert Counter(item.names[0] for item in picks) == {"a": 3, "b": 3, "c": 3}
    assert service.open_picks == 9
    for item in picks:
        service.finished(item.id)
        service.finished(item.id)
    assert service.open_picks == 0


def test_session_moves_once_when_its_replica_leaves() -> None:
    service, _ = _service(_table(A, B, C))
    home = service.pick(_question(session="s")).names[0]
    rest = tuple(item for item in (A, B, C) if item.name != home)
    service.set_table("chat", _table(*rest))
    moved = {service.pick(_question(session="s")).names[0] for _ in range(3)}
    assert len(moved) == 1
    assert home not in moved


def test_unreachable_replica_is_avoided_for_a_moment() -> None:
    service, clock = _service(_table(A, B))
    first = service.pick(_question(session="s"))
    service.answered(first.id, ResponseStart("", by_replica=False))
    assert all(service.pick(_question(session=f"s{number}")).names[0] != first.names[0] for number in range(5))
    clock.now += 0.6
    assert first.names[0] in {service.pick(_question(session=f"t{number}")).names[0] for number in range(5)}


def test_removed_replica_is_forgotten_as_unreachable() -> None:
    service, clock = _service(_table(A))
    service.answered(service.pick(_question()).id, ResponseStart("", by_replica=False))
    service.set_table("chat", _table(B))
    service.sweep()
    assert len(service.suspects) == 1
    clock.now += 60
    service.sweep()
    assert len(service.suspects) == 0


def test_replica_that_answers_503_itself_is_still_picked() -> None:
    service, _ = _service(_table(A))
    first = service.pick(_question())
    service.answered(first.id, ResponseStart(first.addresses[0]))
    assert service.pick(_question()).names == ("a",)


def test_no_pick_without_a_table_or_a_fit_replica() -> None:
    service, _ = _service(_table(_candidate("a", 1, fit=False, reason="drained")))
    assert service.pick(_question()).names == ()
    assert service.pick(_question("other")).names == ()
    service.set_table("chat", None)
    assert service.pick(_question()).names == ()


def test_replicas_at_their_limit_are_reported_as_full() -> None:
    service, _ = _service(_table(_candidate("a", 1, limit=1)))
    first = service.pick(_question())
    assert first.names == ("a",)
    assert service.pick(_question()).full
    service.finished(first.id)
    assert service.pick(_question()).names == ("a",)


def test_gateway_without_a_pool_uses_the_pool_of_its_subset() -> None:
    other = _candidate("z", 9)
    service, _ = _service(_table(A, B), _table(other, pool="other"))
    assert service.pick(_question(None, subset=frozenset({B.address}))).names == ("b",)
    assert service.pick(_question(None, subset=frozenset({other.address}))).names == ("z",)
    assert service.pick(_question(None, subset=frozenset())).names == ()


def test_pick_without_an_end_expires() -> None:
    service, clock = _service(_table(A))
    service.pick(_question())
    clock.now += 100.0
    service.sweep()
    assert service.open_picks == 1
    clock.now += 3600.0
    service.sweep()
    assert service.open_picks == 0


def test_explanation_records_no_pick() -> None:
    service, _ = _service(_table(A, _candidate("b", 2, fit=False, reason="drained")))
    question = {
        "number": 7,
        "pool": "chat",
        "headers": {"x-session-id": ["s"]},
        "body": '{"prompt": "hi"}',
        "length": 16,
        "place": [None, None],
    }
    values = wire.parse(explanation_line(service, question))
    assert (values["kind"], values["number"], values["explanation"]["choices"]) == ("explained", 7, ["a"])
    eligible = {item["name"]: item["eligible"] for item in values["explanation"]["candidates"]}
    assert eligible == {"a": True, "b": False}
    assert service.open_picks == 0
    assert wire.parse(explanation_line(service, {**question, "pool": "gone"}))["explanation"] is None


def test_error_is_logged_once_a_minute_and_the_proxy_chooses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service, clock = _service(_table(_candidate("a", 1, weight="broken")))
    with caplog.at_level(logging.ERROR, "lbctl.serve"):
        assert [service.pick(_question()).names for _ in range(3)] == [()] * 3
        assert len(caplog.records) == 1
        clock.now += 61.0
        service.pick(_question())
    assert len(caplog.records) == 2
    assert service.statistics.reasons["chat", "error"] == 4


def _stop(service: PickService, clock: _Clock, replica: str) -> None:
    """Report that this replica of a and b makes no progress for three seconds, after ten seconds with progress."""
    for second in range(13):
        clock.now += 1.0
        for name in "ab":
            progress = min(second, 9) if name == replica else second
            service.sampled(wire.EngineSample("chat", name, 1.0, 0.0, min(second, 1), False, progress=progress))


def test_replica_with_a_stopped_engine_is_not_picked() -> None:
    service, clock = _service(_table(A, B))
    stopped = service.pick(_question(session="s")).names[0]
    service.pick(_question(session="t"))
    _stop(service, clock, stopped)
    picks = [service.pick(_question(session="s")).names[0] for _ in range(5)]
    assert stopped not in picks
    explanation = service.explain(_question(session="s"))
    assert explanation is not None
    assert {row.name: row.reason for row in explanation.candidates}[stopped] == (
        "probably stalled: its engine has requests but makes no progress"
    )
    service.sampled(wire.EngineSample("chat", stopped, 1.0, 0.0, 1.0, False, progress=100.0))
    assert stopped in {service.pick(_question(session=f"u{number}")).names[0] for number in range(9)}


def test_replica_on_trial_gets_one_request_and_is_reported() -> None:
    """Its only client gives up after three seconds, and the engine has made no progress since."""
    service, clock = _service(_table(A, B))
    first = service.pick(_question(session="s"))
    service.pick(_question(session="t"))
    stopped = first.names[0]
    _stop(service, clock, stopped)
    service.finished(first.id)
    for second in range(20):
        clock.now += 1.0
        for name in "ab":
            requests, progress = (0.0, 9.0) if name == stopped else (1.0, 100.0 + second)
            service.sampled(wire.EngineSample("chat", name, requests, 0.0, 1.0, False, progress=progress))
    assert service.stalled == {"chat": [stopped]}
    picks = [service.pick(_question(session=f"u{number}")).names[0] for number in range(9)]
    assert picks.count(stopped) == 1
    service.sampled(wire.EngineSample("chat", stopped, 1.0, 0.0, 1.0, False, progress=10.0))
    assert not service.stalled
    assert stopped in {service.pick(_question(session=f"v{number}")).names[0] for number in range(9)}


def test_ids_of_picks_are_unpredictable() -> None:
    service, _ = _service(_table(A))
    ids = [service.pick(_question()).id for _ in range(20)]
    assert all(re.fullmatch("[0-9a-f]{16,40}", item) for item in ids)
    assert len({item[:8] for item in ids}) == len(ids)


def test_counts_of_other_pickers_apply_only_to_known_replicas() -> None:
    service, _ = _service(_table(A, B))
    service.merge("other", {"chat": {"a": Count(50, 9000), "gone": Count(1, 1)}, "gone": {"a": Count(1, 1)}})
    assert service.pick(_question()).names[0] == "b"
    assert not any("gone" in (pool, *loads) for pool, loads in service._decider.books._loads.items())


def test_cached_tokens_of_a_session_are_expected() -> None:
    service, _ = _service(_table(A, B))
    first, again = (service.pick(_question(session="s")) for _ in range(2))
    assert first.names[0] == again.names[0]
    tokens = service.explain(_question(session="s")).features.prompt_tokens  # type: ignore[union-attr]
    assert service.expected_cached() == {"chat": {first.names[0]: round(tokens)}}


def _learned(service: PickService, clock: _Clock, **counted: float) -> None:
    """Let each replica answer 40 prompts, and its engine count `counted` tokens for each of them."""
    for number in range(41):
        for name, count in counted.items():
            service.sampled(
                wire.EngineSample("chat", name, 0.0, 0.0, float(number), False, prompt_tokens=count * number)
            )
        clock.now += 1
        for name in counted:
            pick = service.pick(_question(subset=frozenset({f"10.0.0.{'abc'.index(name) + 1}:80"})))
            service.finished(pick.id)


def test_prompt_lengths_follow_the_counters_of_engines() -> None:
    service, clock = _service(_table(A, B))
    assert service.lengths == {}
    before = service.explain(_question())
    _learned(service, clock, a=2500.0, b=2500.0)
    after = service.explain(_question())
    assert before is not None
    assert after is not None
    assert before.features.prompt_tokens == pytest.approx(1940, rel=0.01)
    assert after.features.prompt_tokens == pytest.approx(2500, rel=0.03)
    assert document(after)["request"]["length_factor"] == pytest.approx(2500 / 1940, rel=0.03)  # type: ignore[index]
    assert service.lengths["chat"].ascii == pytest.approx(2500 / 1940, rel=0.03)


def test_departed_pool_starts_to_learn_again() -> None:
    service, clock = _service(_table(A))
    _learned(service, clock, a=2500.0)
    service.set_table("chat", None)
    service.sweep()
    assert service.lengths == {}


def test_unknown_pools_get_no_counters() -> None:
    service, _ = _service(_table(A))
    for number in range(50):
        service.pick(_question(f"unknown-{number}"))
    service.pick(_question())
    assert service.statistics.reasons == {("", "no table"): 50, ("chat", "load"): 1}
    service.set_table("chat", None)
    assert service.statistics.times.keys() == {""}


def test_samples_contain_no_request_content() -> None:
    service, _ = _service(_table(A))
    service.pick(_question(session="a-secret-session"))
    (sample,) = service.statistics.samples_after(0)
    assert (sample.pool, sample.replica, sample.session) == ("chat", "a", True)
    assert "secret" not in repr(sample)
    assert "word" not in repr(sample)
