"""The list of problems: its entries, their order, and which of them make `status --check` fail."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from lbctl.api import schema
from lbctl.control.health import SUSPECTED
from lbctl.ir.proxies import Proxy
from lbctl.serve.api.problems import Observed, problems, replica_counts
from lbctl.targets.key_hashes import HashOnly
from tests.support import api

DOWN = replace(api.REPLICA, name="b", state="down", state_reason="lbctl cannot connect: connection refused")
GONE = replace(api.ENVOY, connected=False, state="GONE")


def found(**observed: Any) -> list[tuple[str, str, str]]:
    """Return severity, kind and subject of each problem."""
    rows = problems(Observed("", api.FILES, **observed))
    return [(item.severity, item.kind, item.subject) for item in rows]


def test_nothing_is_wrong_with_a_healthy_fleet() -> None:
    assert found(pools=[api.pool("llama", api.REPLICA)], proxies=[api.ENVOY, api.DRIVEN]) == []


def test_pool_without_fit_replica_is_critical_where_it_is_used() -> None:
    pool = api.pool("llama", DOWN)
    assert found(pools=[pool]) == [("critical", "pool_down", "llama"), ("warning", "replica_down", "llama/b")]
    assert found(pools=[replace(pool, in_use=False)]) == [("warning", "replica_down", "llama/b")]
    assert found(pools=[api.pool("llama", DOWN, api.REPLICA)]) == [("warning", "replica_down", "llama/b")]
    assert found(pools=[api.pool("llama")]) == [("critical", "pool_down", "llama")]
    open_pool = replace(pool, fail_open=True, errors=0.1)
    assert found(pools=[open_pool]) == [("warning", "replica_down", "llama/b")]
    assert found(pools=[replace(open_pool, failing=True)])[0] == ("critical", "pool_down", "llama")
    text = problems(Observed("", api.FILES, pools=[pool]))[0]
    assert text.text == "pool llama has no available replica: b is down (lbctl cannot connect: connection refused)"
    assert text.command == "lbctl status pools --pool llama"


def test_replicas_that_the_picker_suspects_are_a_warning() -> None:
    reason = f"at the floor weight: {SUSPECTED}"
    rows = [replace(api.REPLICA, name=f"r{number}", state="ramping", state_reason=reason) for number in range(7)]
    assert found(pools=[api.pool("llama", rows[0])]) == [("warning", "replica_stalled", "llama/r0")]
    shown = problems(Observed("", api.FILES, pools=[api.pool("llama", *rows)]))
    assert shown[0].text == f"llama/r0 is at the floor weight: {SUSPECTED}"
    assert shown[0].command == "lbctl explain weight llama/r0"
    assert [item.text for item in shown[5:]] == ["2 more replicas have probably stalled, according to the picker"]


def test_pool_that_answers_only_errors_is_critical() -> None:
    failing = replace(api.pool("llama", replace(api.REPLICA, errors=1.0)), failing=True)
    assert found(pools=[failing]) == [("critical", "pool_failing", "llama")]
    erring = replace(api.pool("llama", replace(api.REPLICA, errors=0.2)), errors=0.2)
    assert found(pools=[erring]) == [("warning", "replica_errors", "llama/a")]


def test_requests_that_proxies_refuse_are_a_problem() -> None:
    refused = replace(api.pool("llama", replace(api.REPLICA, errors=0.0)), errors=0.2)
    assert found(pools=[refused]) == [("warning", "pool_errors", "llama")]
    assert found(pools=[replace(refused, errors=0.02)]) == []
    assert found(pools=[replace(refused, errors=1.0, failing=True)]) == [("critical", "pool_failing", "llama")]
    why = "1 of 3 replicas is available, and load_shedding.min_healthy is 50%"
    shedding = replace(api.pool("llama", DOWN, api.REPLICA), errors=0.9, shedding=why)
    assert found(pools=[shedding])[0] == ("critical", "pool_shedding", "llama")
    assert found(pools=[replace(shedding, in_use=False)]) == [("warning", "replica_down", "llama/b")]
    text = problems(Observed("", api.FILES, pools=[shedding]))[0].text
    assert text == f"proxies reject requests for pool llama: {why}"


def test_last_envoy_of_an_entry_must_not_leave() -> None:
    second = replace(GONE, node="edge-2")
    assert found(proxies=[GONE]) == [("critical", "no_proxy", "edge")]
    assert found(proxies=[api.ENVOY, second]) == [("warning", "proxy_gone", "edge")]
    assert found(proxies=[GONE, second], is_alone=False) == [("warning", "proxy_gone", "edge")]
    never = {"expected": [Proxy("edge", "envoy", ())]}
    assert found(**never, seconds=10.0) == []
    assert found(**never, seconds=100.0) == [("critical", "no_proxy", "edge")]
    assert found(**never, seconds=100.0, proxies=[api.ENVOY]) == []
    by_files = replace(api.DRIVEN, node="edge", proxy="edge", kind="envoy", connected=False, state="NOT DRIVEN")
    assert found(**never, seconds=100.0, proxies=[by_files]) == []


def test_missing_envoy_may_use_rendered_files() -> None:
    for nodes, hint in (((), " (if it uses rendered files, set `config` in the entry)"), (("edge-*",), "")):
        missing = Proxy("edge", "envoy", (), nodes=nodes)
        (row,) = problems(Observed("", api.FILES, expected=[missing], seconds=100.0))
        assert row.text == f"no envoy of the entry edge has connected since lbctl started{hint}"


def test_proxy_that_rejects_or_fails_is_critical() -> None:
    failing = replace(api.DRIVEN, state="FAILING", reason="no HAProxy answers")
    rejecting = replace(api.ENVOY, state="NACKED")
    waiting = replace(api.ENVOY, state="WAITING")
    assert found(proxies=[failing, rejecting, waiting]) == [
        ("critical", "proxy", "ha"),
        ("critical", "proxy", "edge-1"),
    ]


def test_valid_files_behind_a_rollback_name_the_history() -> None:
    ignored = replace(api.FILES, valid=False, refused="ignored until they change", diagnostics=())
    (row,) = problems(Observed("", ignored, rolled_back=True))
    assert (row.severity, row.command) == ("critical", "lbctl history")
    assert row.text == "an earlier fleet is published: the files are ignored until they change"
    (row,) = problems(Observed("", replace(ignored, refused="bad"), rolled_back=False))
    assert row.command.startswith("lbctl validate")


def test_rollout_that_cannot_begin_is_critical() -> None:
    waiting = replace(api.ROLLOUT, unavailable="pool next has no replicas")
    assert found(rollouts=[api.ROLLOUT]) == []
    assert found(rollouts=[waiting]) == [("critical", "rollout_waiting", "chat")]
    assert found(rollouts=[replace(waiting, mode="manual")]) == [("warning", "rollout_waiting", "chat")]
    assert found(rollouts=[replace(waiting, phase="progressing")]) == []
    of_a_follower = replace(waiting, unavailable=None, reason="pool next has no replicas")
    assert found(rollouts=[of_a_follower]) == [("critical", "rollout_waiting", "chat")]
    (row,) = problems(Observed("", api.FILES, rollouts=[waiting]))
    assert row.text == "the rollout of chat cannot start: pool next has no replicas"
    assert row.command == "lbctl rollout status chat"


def test_rollout_that_was_rolled_back_is_a_warning() -> None:
    ended = replace(api.ROLLOUT, phase="rolled_back", reason="2 bad evaluations")
    (row,) = problems(Observed("", api.FILES, rollouts=[ended]))
    assert (row.severity, row.kind) == ("warning", "rollout_failed")
    assert row.text == f"the rollout of chat was rolled back at {api.THEN}: 2 bad evaluations"
    assert found(rollouts=[replace(ended, phase="aborted")]) == []
    paused = replace(ended, phase="paused", analysis=replace(api.ANALYSIS, failures=2))
    assert found(rollouts=[paused]) == [("warning", "rollout_failed", "chat")]
    assert found(rollouts=[replace(paused, analysis=api.ANALYSIS), replace(paused, analysis=None)]) == []


def test_worst_problems_come_first() -> None:
    rows = problems(
        Observed(
            "starting", replace(api.FILES, valid=False, refused="bad"), pools=[api.pool("llama", DOWN, api.REPLICA)],
            proxies=[GONE], unsaved="disk full", sources=schema.SourceCounts(2, 1, {"llama": 1}),
        )
    )  # fmt: skip
    kinds = [item.kind for item in rows]
    assert kinds == ["not_ready", "files", "no_proxy", "store", "replica_down", "metrics"]
    assert all(item.command.startswith("lbctl ") for item in rows)
    assert rows[-1].text == "1 metrics source of pool llama is failing"


def test_replicas_are_counted_by_state() -> None:
    many = [replace(DOWN, name=f"r{number}") for number in range(12)]
    row = replica_counts([api.pool("llama", api.REPLICA, *many), api.pool("qwen", api.REPLICA)])
    assert (row.total, row.states) == (14, {"in": 2, "down": 12})
    assert row.away["down"][:2] == ("llama/r0", "llama/r1")
    assert len(row.away["down"]) == 10


def _picks(requests: int, missed: int, in_flight: int = 0) -> schema.Pool:
    row = schema.RecentPicks(requests, requests - missed, missed, in_flight, 1.0 - missed / requests)
    return replace(api.pool("llama", api.REPLICA), picks=row)


def test_picker_that_is_not_asked_is_critical() -> None:
    running = schema.PickerStatus("127.0.0.1:18001", True, False, None, 1, None, 0, 1)
    assert found(pools=[_picks(30, 30)], picker=running) == [("critical", "picker_unasked", "llama")]
    assert found(pools=[_picks(30, 30, in_flight=2)], picker=running) == [("warning", "picks_missed", "llama")]
    assert found(pools=[_picks(100, 20)], picker=running) == [("warning", "picks_missed", "llama")]
    assert found(pools=[_picks(100, 5)], picker=running) == []
    assert found(pools=[_picks(10, 10)], picker=running) == []
    stopped = replace(running, running=False)
    assert found(pools=[_picks(30, 30)], picker=stopped) == [("critical", "picker", "")]
    row = problems(Observed("", api.FILES, pools=[_picks(30, 30)], picker=running))[0]
    assert row.text == (
        "proxies do not use the picker for pool llama: 30 requests in the last minute, none of them picked "
        "(the log of serve lists the proxies without the picker's key)"
    )
    assert row.command == "lbctl status proxies"


def test_api_keys_that_a_connected_proxy_refuses_are_a_problem() -> None:
    every, some = HashOnly("chat", 2, 2), HashOnly("admin", 1, 2)
    edge = {"edge": (every, some)}
    second = replace(api.ENVOY, node="edge-b")
    rows = problems(Observed("", api.FILES, proxies=[api.ENVOY, second], refused_keys=edge))
    assert [(item.severity, item.kind, item.subject) for item in rows] == [
        ("critical", "keys_refused", "chat"),
        ("warning", "keys_refused", "admin"),
    ]
    names = f"{api.ENVOY.node}, edge-b"
    assert (
        rows[0].text == f"the proxies {names} reject all API keys of the route chat, because the key file contains "
        "only their hashes"
    )
    assert rows[0].command == f"lbctl lint {' '.join(api.FILES.paths)}"
    (row,) = problems(Observed("", api.FILES, proxies=[api.ENVOY], refused_keys={"edge": (some,)}))
    assert row.text == (
        f"the proxy {api.ENVOY.node} rejects 1 of 2 API keys of the route admin, because the key file contains only "
        "their hashes"
    )
    assert found(refused_keys=edge) == []
    assert found(proxies=[replace(api.ENVOY, proxy="other")], refused_keys=edge) == []
    assert found(proxies=[replace(api.ENVOY, connected=False)], refused_keys=edge) == []


def test_files_that_lose_too_much_are_not_a_case_for_validate() -> None:
    shrink = schema.Diagnostic("LB901", "error", "it loses 9 of 10", None, None, None, None, None, "it loses 9 of 10")
    refused = replace(api.FILES, valid=False, refused="too many replicas would be removed", shrink=(shrink,))
    assert {item.command for item in problems(Observed("", refused))} == {"lbctl reload --allow-shrink"}
    invalid = replace(refused, diagnostics=(shrink,))
    assert problems(Observed("", invalid))[0].command == "lbctl validate fleet/"
