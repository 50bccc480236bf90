"""Traffic that HAProxy reports in the columns of `show stat`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from lbctl.apply.haproxy import running
from lbctl.apply.haproxy.runtime import Runtime
from lbctl.control.replica_state import ReplicaCondition
from lbctl.serve.traffic.haproxy import HaproxySource, report
from lbctl.serve.traffic.interface import TrafficReport
from lbctl.serve.traffic.ledger import Counts, ReplicaKey

A, B, OTHER = ReplicaKey("llama", "a"), ReplicaKey("llama", "b"), ReplicaKey("other", "a")
_HEAD = (
    "# pxname,svname,qcur,scur,stot,econ,eresp,wretr,wredis,hrsp_5xx,status,check_status,last_chk,"
    "hrsp_1xx,hrsp_2xx,hrsp_3xx,hrsp_4xx,hrsp_other,cli_abrt,last_agt,"
)


def answer(*rows: str, pid: int = 7, agent: str = "") -> str:
    """Return the answer to `show info;show stat`. `agent`: the description of the agent checks.

    A row is: backend,server,scur,stot,econ,eresp,wretr,wredis,5xx,status,check,text, and optionally the answers of
    2xx; without that as many as were sent.
    """
    cells = (row.split(",") for row in rows)
    lines = (
        ",".join([*row[:2], "0", *row[2:12], "0", row[12] if len(row) > 12 else row[3], *["0"] * 4, agent, ""])
        for row in cells
    )
    return f"Name: HAProxy\nPid: {pid}\n\n{_HEAD}\n" + "\n".join(lines) + "\n\n"


def reports_of(*answers: str) -> list[TrafficReport]:
    """Return the reports of these successive answers."""
    parsed = [running.counters(text) for text in answers]
    reports: list[TrafficReport] = []
    for now, before in zip(parsed, [None, *parsed], strict=False):
        reports.append(report(now, before, reports[-1].conditions if reports else {}))
    return reports


def test_first_answer_is_the_baseline_for_counts() -> None:
    first, second = reports_of(
        answer("pool_llama,a,3,70,0,0,0,0,1,UP,L7OK,ok", "pool_llama,b,0,9,0,0,0,0,0,no check,,"),
        answer("pool_llama,a,1,78,1,2,0,1,4,UP,L7OK,ok", "pool_llama,b,0,9,0,0,0,0,0,no check,,"),
    )
    assert first.counts == {}
    assert first.in_flight == {A: 3, B: 0}
    assert second.counts == {A: Counts(10, 7)}
    assert second.conditions == {A: ReplicaCondition("up"), B: ReplicaCondition("up")}


def test_answer_counts_when_it_begins() -> None:
    first, second, third = reports_of(
        answer("pool_llama,a,1,7,0,0,0,0,0,no check,,,6", "pool_llama,b,1,1,0,0,0,0,0,no check,,,0"),
        answer("pool_llama,a,2,8,0,0,0,0,0,no check,,,7", "pool_llama,b,0,2,2,0,0,0,0,no check,,,0"),
        answer("pool_llama,a,0,8,0,0,0,0,0,no check,,,8", "pool_llama,b,0,2,2,0,0,0,0,no check,,,0"),
    )
    assert (first.answered, second.answered, third.answered) == (set(), {A}, {A})
    assert (second.counts, third.counts) == ({B: Counts(2, 2)}, {A: Counts(2)})


def test_backends_of_a_pool_are_summed_by_replica() -> None:
    before = (
        "pool_llama,a,0,0,0,0,0,0,0,UP,,",
        "pool_llama.IN.0f0f0f0f,a,0,0,0,0,0,0,0,UP,,",
        "pool_other,a,0,0,0,0,0,0,0,UP,,",
    )
    after = (
        "pool_llama,a,2,5,0,0,0,0,0,UP,,",
        "pool_llama.IN.0f0f0f0f,a,1,3,0,0,0,0,0,UP,,",
        "pool_other,a,0,1,0,0,0,0,1,UP,,",
    )
    _, second = reports_of(answer(*before), answer(*after))
    assert second.counts == {A: Counts(5), OTHER: Counts(1, 1)}
    assert second.in_flight == {A: 3, OTHER: 0}


def test_errors_of_haproxy_itself_count_once_for_the_pool() -> None:
    first, second, third = reports_of(
        answer("pool_llama,a,0,5,0,0,0,0,0,UP,,", "pool_llama,BACKEND,0,9,2,0,0,0,2,UP,,"),
        # 4 of 7 requests had no server, 2 reached a server that answered 500 or broke off, 1 was moved
        answer("pool_llama,a,0,8,1,1,0,1,1,DOWN,,", "pool_llama,BACKEND,0,16,7,1,0,0,8,DOWN,,"),
        # a limit of the pool refuses 3 of 4; the other one fails at the server
        answer("pool_llama,a,0,9,2,1,0,1,1,UP,,", "pool_llama,BACKEND,0,20,8,1,0,0,12,UP,,"),
    )
    assert [item.own_errors for item in (first, second, third)] == [{}, {"llama": 4}, {"llama": 3}]
    assert second.counts == {A: Counts(4, 4)}


def test_each_repeated_try_is_a_failure() -> None:
    """As a HAProxy counts a dead server with two retries, then one whose 503 is tried elsewhere, four times each."""
    _, refused, busy = reports_of(
        answer("pool_llama,a,0,0,0,0,0,0,0,UP,,,0", "pool_llama,BACKEND,0,0,0,0,0,0,0,UP,,"),
        answer("pool_llama,a,0,3,1,0,2,0,0,DOWN,,,0", "pool_llama,BACKEND,0,4,4,0,2,0,4,DOWN,,"),
        answer("pool_llama,a,0,7,1,0,6,4,0,UP,,,0", "pool_llama,BACKEND,0,8,4,0,6,4,4,UP,,"),
    )
    assert (refused.counts, refused.own_errors) == ({A: Counts(3, 3)}, {"llama": 3})
    assert (busy.counts, busy.own_errors) == ({A: Counts(4, 4)}, {})


def test_request_that_waits_for_its_next_try_is_not_an_answer() -> None:
    """HAProxy waits a second before a second try.

    Meanwhile the first server has no request in flight, and no failure.
    """
    _, waiting, moved = reports_of(
        answer("pool_llama,a,0,0,0,0,0,0,0,UP,,,0"),
        answer("pool_llama,a,0,3,0,0,0,0,0,UP,,,0"),
        answer("pool_llama,a,0,3,0,0,0,3,0,UP,,,0"),
    )
    assert (waiting.counts, moved.counts) == ({}, {A: Counts(3, 3)})


def test_own_errors_of_a_new_worker_count_from_zero() -> None:
    _, second = reports_of(
        answer("pool_llama,BACKEND,0,16,7,1,0,0,8,DOWN,,"), answer("pool_llama,BACKEND,0,2,2,0,0,0,2,DOWN,,", pid=8)
    )
    assert second.own_errors == {"llama": 2}


def test_new_worker_and_readded_server_count_from_zero() -> None:
    old, new = "pool_llama,a,0,70,0,0,0,0,3,UP,,", "pool_llama,a,0,80,0,0,0,0,1,UP,,"
    _, reloaded = reports_of(answer(old, pid=7), answer(new, pid=8))
    assert reloaded.counts == {A: Counts(80, 1)}
    _, added_again = reports_of(answer(old), answer("pool_llama,a,0,4,0,0,0,0,0,UP,,"))
    assert added_again.counts == {A: Counts(4)}


def test_unfinished_500_response_counts_as_a_request() -> None:
    _, second = reports_of(answer("pool_llama,a,0,9,0,0,0,0,0,UP,,"), answer("pool_llama,a,2,11,0,0,0,0,2,UP,,"))
    assert second.counts == {A: Counts(2, 2)}
    _, new_worker = reports_of(
        answer("pool_llama,a,0,9,0,0,0,0,0,UP,,"), answer("pool_llama,a,1,1,0,0,0,0,1,UP,,", pid=8)
    )
    assert new_worker.counts == {A: Counts(1, 1)}


def test_each_server_state_has_a_condition() -> None:
    (report,) = reports_of(
        answer(
            "pool_p,up,0,0,0,0,0,0,0,UP 1/3,L4CON,Connection refused",
            "pool_p,down,0,0,0,0,0,0,0,DOWN,L4CON,Connection refused",
            "pool_p,rising,0,0,0,0,0,0,0,DOWN 1/2,* L7OK,",
            "pool_p,passive,0,0,0,0,0,0,0,DOWN,HANA,Health analyze",
            "pool_p,nameless,0,0,0,0,0,0,0,MAINT (resolution),,",
            "pool_p,drained,0,0,0,0,0,0,0,DRAIN,,",
            "pool_p,maintained,0,0,0,0,0,0,0,MAINT,,",
        )
    )
    assert {key.replica: item for key, item in report.conditions.items()} == {
        "up": ReplicaCondition("up"),
        "down": ReplicaCondition("down", "L4CON Connection refused"),
        "rising": ReplicaCondition("starting", "L7OK, 1 of 2 required checks passed"),
        "passive": ReplicaCondition("ejected", "HANA Health analyze"),
        "nameless": ReplicaCondition("down", "its name does not resolve"),
        "drained": ReplicaCondition("draining", "DRAIN"),
        "maintained": ReplicaCondition("draining", "MAINT"),
    }


def test_new_server_is_starting_until_a_check_fails() -> None:
    row = "pool_llama,a,0,0,0,0,0,0,0,{},"
    tracking = "pool_llama.IN.0f0f0f0f,a,0,0,0,0,0,0,0,{},,"
    states = [
        each.conditions[A].state
        for each in reports_of(
            answer(row.format("DOWN,INI"), tracking.format("DOWN")),
            answer(row.format("DOWN 1/3,L7OK"), tracking.format("DOWN 1/3")),
            answer(row.format("DOWN 2/3,* L7OK")),
            answer(row.format("UP,L7OK")),
        )
    ]
    assert states == ["starting", "starting", "starting", "up"]
    failed = [answer(row.format(text)) for text in ("DOWN,INI", "DOWN,L7STS", "DOWN 1/3,L7OK", "DOWN 2/3,L7OK")]
    assert [each.conditions[A].state for each in reports_of(*failed)] == ["starting", "down", "down", "down"]
    lost = [answer(row.format(text)) for text in ("UP,L7OK", "DOWN 1/2,L7OK", "MAINT,L7OK", "DOWN,L7OK")]
    assert [each.conditions[A].state for each in reports_of(*lost)] == ["up", "down", "draining", "starting"]
    (by_agent,) = reports_of(answer(row.format("DOWN (agent),L7OK")))
    assert by_agent.conditions[A].state == "down"


def test_reason_of_an_agent_check_is_reported() -> None:
    row = "pool_llama,a,0,0,0,0,0,0,0,DOWN (agent),L7STS,Service Unavailable"
    (report_,) = reports_of(answer(row, agent="via agent : down (GPU 0 reported the fatal XID 79\x1b)"))
    reason = r"its agent reports: GPU 0 reported the fatal XID 79\x1b"
    assert report_.conditions[A] == ReplicaCondition("down", reason)


def test_backend_with_the_check_provides_the_reason() -> None:
    tracking = "pool_p.IN.0f0f0f0f,a,0,0,0,0,0,0,0,DOWN (via pool_p/a),,"
    (report_,) = reports_of(answer("pool_p,a,0,0,0,0,0,0,0,MAINT,,", tracking, "pool_p,a,0,0,0,0,0,0,0,DOWN,L4TOUT,"))
    assert report_.conditions[ReplicaKey("p", "a")] == ReplicaCondition("down", "L4TOUT")


def test_check_text_of_a_replica_is_sanitised() -> None:
    (report_,) = reports_of(answer(f"pool_p,a,0,0,0,0,0,0,0,DOWN,L7RSP,\x1b[2J{'x' * 500}"))
    reason = report_.conditions[ReplicaKey("p", "a")].reason
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


def test_invalid_answer_keeps_the_last_baseline(
    tmp_path: Path,
) -> None:
    good = "pool_llama,a,0,{},0,0,0,0,0,UP,,"

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
