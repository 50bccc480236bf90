"""What a HAProxy reports of its traffic, by answers with the columns of `show stat` that count."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from lbctl.apply.haproxy import running
from lbctl.apply.haproxy.runtime import Runtime
from lbctl.serve.traffic.haproxy import HaproxySource, report
from lbctl.serve.traffic.interface import TrafficReport
from lbctl.serve.traffic.ledger import Counts, ReplicaCondition, ReplicaKey

A, B, OTHER = ReplicaKey("llama", "a"), ReplicaKey("llama", "b"), ReplicaKey("other", "a")
_HEAD = "# pxname,svname,qcur,scur,stot,econ,eresp,wredis,hrsp_5xx,status,check_status,last_chk,"


def answer(*rows: str, pid: int = 7) -> str:
    """The answer to `show info;show stat`. A row: backend,server,scur,stot,econ,eresp,wredis,5xx,status,check,text."""
    cells = (row.split(",") for row in rows)
    lines = (",".join([*row[:2], "0", *row[2:], ""]) for row in cells)
    return f"Name: HAProxy\nPid: {pid}\n\n{_HEAD}\n" + "\n".join(lines) + "\n\n"


def differences(*answers: str) -> list[TrafficReport]:
    """The reports of these answers, one after the other."""
    parsed = [running.counters(text) for text in answers]
    return [report(now, before) for now, before in zip(parsed, [None, *parsed], strict=False)]


def test_the_first_answer_is_the_base_and_the_next_one_counts_what_came_since() -> None:
    first, second = differences(
        answer("pool_llama,a,3,70,0,0,0,1,UP,L7OK,ok", "pool_llama,b,0,9,0,0,0,0,no check,,"),
        answer("pool_llama,a,1,78,1,2,1,4,UP,L7OK,ok", "pool_llama,b,0,9,0,0,0,0,no check,,"),
    )
    assert first.counts == {}
    assert first.in_flight == {A: 3, B: 0}
    assert second.counts == {A: Counts(10, 7)}
    assert second.conditions == {A: ReplicaCondition("up"), B: ReplicaCondition("up")}


def test_the_backends_of_a_pool_are_summed_and_another_pools_replica_of_the_same_name_is_another() -> None:
    before = (
        "pool_llama,a,0,0,0,0,0,0,UP,,",
        "pool_llama.IN.0f0f0f0f,a,0,0,0,0,0,0,UP,,",
        "pool_other,a,0,0,0,0,0,0,UP,,",
    )
    after = (
        "pool_llama,a,2,5,0,0,0,0,UP,,",
        "pool_llama.IN.0f0f0f0f,a,1,3,0,0,0,0,UP,,",
        "pool_other,a,0,1,0,0,0,1,UP,,",
    )
    _, second = differences(answer(*before), answer(*after))
    assert second.counts == {A: Counts(5), OTHER: Counts(1, 1)}
    assert second.in_flight == {A: 3, OTHER: 0}


def test_a_new_worker_and_a_server_that_was_added_again_count_from_zero() -> None:
    old, new = "pool_llama,a,0,70,0,0,0,3,UP,,", "pool_llama,a,0,80,0,0,0,1,UP,,"
    _, reloaded = differences(answer(old, pid=7), answer(new, pid=8))
    assert reloaded.counts == {A: Counts(80, 1)}
    _, added_again = differences(answer(old), answer("pool_llama,a,0,4,0,0,0,0,UP,,"))
    assert added_again.counts == {A: Counts(4)}


def test_an_answer_of_500_that_has_not_ended_is_a_request_so_that_no_replica_has_more_errors_than_requests() -> None:
    _, second = differences(answer("pool_llama,a,0,9,0,0,0,0,UP,,"), answer("pool_llama,a,2,11,0,0,0,2,UP,,"))
    assert second.counts == {A: Counts(2, 2)}
    _, new_worker = differences(answer("pool_llama,a,0,9,0,0,0,0,UP,,"), answer("pool_llama,a,1,1,0,0,0,1,UP,,", pid=8))
    assert new_worker.counts == {A: Counts(1, 1)}


def test_each_state_of_a_server_has_its_condition() -> None:
    (found,) = differences(
        answer(
            "pool_p,up,0,0,0,0,0,0,UP 1/3,L4CON,Connection refused",
            "pool_p,down,0,0,0,0,0,0,DOWN,L4CON,Connection refused",
            "pool_p,rising,0,0,0,0,0,0,DOWN 1/2,* L7STS,HTTP status <500>",
            "pool_p,passive,0,0,0,0,0,0,DOWN,HANA,Health analyze",
            "pool_p,nameless,0,0,0,0,0,0,MAINT (resolution),,",
            "pool_p,drained,0,0,0,0,0,0,DRAIN,,",
            "pool_p,maintained,0,0,0,0,0,0,MAINT,,",
        )
    )
    assert {key.replica: item for key, item in found.conditions.items()} == {
        "up": ReplicaCondition("up"),
        "down": ReplicaCondition("down", "L4CON Connection refused"),
        "rising": ReplicaCondition("down", "L7STS HTTP status <500>"),
        "passive": ReplicaCondition("ejected", "HANA Health analyze"),
        "nameless": ReplicaCondition("down", "its name does not resolve"),
        "drained": ReplicaCondition("draining", "DRAIN"),
        "maintained": ReplicaCondition("draining", "MAINT"),
    }


def test_of_several_backends_the_one_with_the_check_gives_the_reason() -> None:
    tracking = "pool_p.IN.0f0f0f0f,a,0,0,0,0,0,0,DOWN (via pool_p/a),,"
    (found,) = differences(answer("pool_p,a,0,0,0,0,0,0,MAINT,,", tracking, "pool_p,a,0,0,0,0,0,0,DOWN,L4TOUT,"))
    assert found.conditions[ReplicaKey("p", "a")] == ReplicaCondition("down", "L4TOUT")


def test_what_a_replica_says_in_a_check_is_shown_short_and_harmless() -> None:
    (found,) = differences(answer(f"pool_p,a,0,0,0,0,0,0,DOWN,L7RSP,\x1b[2J{'x' * 500}"))
    reason = found.conditions[ReplicaKey("p", "a")].reason
    assert reason.isprintable()
    assert len(reason) < 200


@asynccontextmanager
async def _haproxy(path: Path, *answers: str) -> AsyncIterator[HaproxySource]:
    remaining = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readline() == f"{running.COUNTERS}\n".encode()
        writer.write(remaining.pop(0).encode())
        writer.close()

    async with await asyncio.start_unix_server(serve, path):
        yield HaproxySource(Runtime(str(path), 1.0))


def test_a_proxy_that_answers_nonsense_or_nothing_reports_nothing_and_goes_on_from_the_last_good_answer(
    tmp_path: Path,
) -> None:
    good = "pool_llama,a,0,{},0,0,0,0,UP,,"

    async def ask() -> None:
        texts = (answer(good.format(1)), "Unknown command.\n", answer(good.format(5)))
        async with _haproxy(tmp_path / "odd", *texts) as odd:
            assert await odd.poll() is not None
            assert await odd.poll() is None
            last = await odd.poll()
            assert last is not None
            assert last.counts == {A: Counts(4)}
        assert await HaproxySource(Runtime(str(tmp_path / "nobody"), 1.0)).poll() is None

    asyncio.run(ask())
