"""Rollouts on Envoy, HAProxy and nginx: by time, by hand, over a killed control plane, with steady traffic."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from typing import Any

import pytest

from lbctl.cli import run
from tests.e2e.support import edges
from tests.e2e.support.client import Steady
from tests.e2e.support.control import ControlPlane, controlling, driven
from tests.e2e.support.edges import Edge
from tests.e2e.support.engines import Engine, engines
from tests.e2e.support.fleet import Fleet, pool_of
from tests.e2e.support.http1 import Request
from tests.e2e.support.state import refusing
from tests.e2e.support.waiting import eventually

_GENERATE = Request("POST", "/v1/completions?n=4", timeout=20.0)


def _fleet(old: Engine, new: Engine, rollout: dict[str, Any], *sites: Edge) -> Fleet:
    fleet: Fleet = {
        "version": 1,
        **driven("edge"),
        "routes": {
            "chat": {
                "match": {"path_prefix": "/"},
                "split": {"old": 100, "new": 0},
                "sticky_split": {"cookie": "variant"},
                "rollout": {"to": "new", **rollout},
            }
        },
        "pools": {
            "old": pool_of([old], model={"name": "m", "version": "v1"}),
            "new": pool_of([new], model={"name": "m", "version": "v2"}),
        },
    }
    for site in sites:
        for section, entries in site.sections.items():
            fleet[section] = {**fleet[section], **entries}
    return fleet


def _rollout(control: ControlPlane, *words: str) -> int:
    return run(["rollout", *words, "--server", control.url, "--token-file", str(control.state / "api-token")])


def _row(control: ControlPlane) -> dict[str, Any]:
    (row,) = control.get("rollouts")["rollouts"]
    found: dict[str, Any] = row
    return found


def _in_sync(control: ControlPlane) -> None:
    version = control.status["snapshot"]["version"]
    names = ("edge", "ha", "ng")
    eventually(lambda: all(control.proxies.get(name, {}).get("last_good") == version for name in names))


def _only(loads: list[Steady], pool: str) -> None:
    began = time.monotonic()
    time.sleep(1)
    assert [set(load.since(began).by_replica) for load in loads] == [{pool}] * len(loads)


def test_a_timed_rollout_is_promoted_on_all_three_proxies_over_a_killed_serve_and_loses_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ExitStack() as stack:
        old, new = stack.enter_context(engines("old", "new"))
        ha, ng = stack.enter_context(edges.haproxy()), stack.enter_context(edges.nginx())
        steps = [{"percent": "50%", "hold": "8s"}, {"percent": "100%"}]
        fleet = _fleet(old, new, {"mode": "timed", "steps": steps}, ha, ng)
        for site in (ha, ng):
            stack.enter_context(edges.started_edge(site, fleet))
        control = stack.enter_context(controlling(fleet))
        envoy = stack.enter_context(control.envoy("edge", ["edge"]))
        _in_sync(control)
        clients = [envoy.client(), ha, ng]
        loads = [stack.enter_context(each.steady(15, _GENERATE, keep_alive=False)) for each in clients]
        eventually(lambda: _row(control)["phase"] == "progressing")
        begun = _row(control)["since"]
        control.kill()
        control.start()
        eventually(lambda: _row(control)["phase"] == "promoted")
        assert control.log.count("step=1 ") == 1, "a step is done once, also over a SIGKILL"
        assert _row(control)["since"] > begun
        _in_sync(control)
        _only(loads, "new")
        assert run(["status", "rollouts", "--server", control.url]) == 0
        assert "{new: 1, old: 0}" in capsys.readouterr().out
        assert run(["diff", str(control.files), "--against", "live", "--server", control.url]) == 0
        assert "{new: 1, old: 0}" in capsys.readouterr().out
        assert run(["render", str(control.files), "-t", "haproxy"]) == 0
        files, warnings = capsys.readouterr()
        assert run(["render", str(control.files), "-t", "haproxy", "--server", control.url]) == 0
        live, nothing = capsys.readouterr()
        assert ("LB702" in warnings, "LB702" in nothing, live == files) == (True, False, False)

        assert _rollout(control, "abort", "chat", "--reason", "worse answers", "--wait") == 0
        _in_sync(control)
        _only(loads, "old")
        control.kill()
        control.start()
        _in_sync(control)
        _only(loads, "old")
        assert (_row(control)["phase"], _row(control)["reason"]) == ("aborted", "worse answers")
        for load in loads:
            load.load.assert_no_failure()
            assert {"old", "new"} <= set(load.load.by_replica)


def test_a_person_moves_a_manual_rollout_and_sticky_clients_keep_their_variant(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with engines("old", "new") as (old, new):
        fleet = _fleet(old, new, {"mode": "manual", "steps": [{"percent": "40%"}, {"percent": "100%"}]})
        with controlling(fleet) as control, control.envoy("edge", ["edge"]) as envoy:
            client = envoy.client()
            assert {client.post("/v1/completions?n=1").replica for _ in range(20)} == {"old"}
            assert _row(control)["phase"] == "waiting"
            assert _rollout(control, "promote", "chat") == 1
            assert "it is waiting: start it first" in capsys.readouterr().err
            assert _rollout(control, "start", "chat", "--wait") == 0
            assert "step 1 of 2: new has 40 %" in capsys.readouterr().err
            answers = [client.post("/v1/completions?n=1") for _ in range(40)]
            assert {answer.replica for answer in answers} == {"old", "new"}
            cookie = (
                next(answer for answer in answers if answer.replica == "old").header("set-cookie").partition(";")[0]
            )
            assert _rollout(control, "set", "chat", "90", "--wait") == 0
            assert _row(control)["phase"] == "paused"
            metrics = control.metrics()
            assert metrics['lbctl_rollout_share{route="chat"}'] == 0.9
            assert metrics['lbctl_rollout_phase{phase="paused",route="chat"}'] == 1
            sticky = {client.post("/v1/completions?n=1", headers=[("cookie", cookie)]).replica for _ in range(20)}
            assert sticky == {"old"}
            assert _rollout(control, "promote", "chat", "--wait") == 0
            assert {client.post("/v1/completions?n=1").replica for _ in range(20)} == {"new"}
            fleet["routes"]["chat"]["split"] = {"old": 1, "new": 0}
            control.write(fleet)
            eventually(lambda: _row(control)["phase"] == "superseded")
            eventually(lambda: {client.post("/v1/completions?n=1").replica for _ in range(5)} == {"old"})


def test_who_may_not_and_what_cannot_be_is_refused_and_nothing_moves(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = {
        "version": 1,
        "listeners": {"gateway": {"bind": "127.0.0.1:9"}},
        "routes": {
            "chat": {
                "match": {"path_prefix": "/"},
                "split": {"old": 100, "new": 0},
                "rollout": {"to": "new", "mode": "manual", "steps": [{"percent": "5%"}, {"percent": "100%"}]},
            },
            "plain": {"match": {"path_prefix": "/x"}, "pool": "old"},
        },
        "pools": {name: {"replicas": [{"address": "127.0.0.1:9"}]} for name in ("old", "new")},
    }
    with controlling(fleet) as control:
        eventually(lambda: bool(control.get("rollouts")["rollouts"]))
        for words, message in (
            (["pause", "chat"], "the rollout of chat cannot pause: it is waiting: start it first"),
            (["start", "plain"], "there is no rollout of a route 'plain'; routes with a rollout: chat"),
            (["set", "chat", "101"], "101"),
        ):
            assert _rollout(control, *words) in (1, 64)
            assert message in capsys.readouterr().err
        assert run(["rollout", "abort", "chat", "--server", control.url, "--token-file", "/nowhere"]) != 0
        for body in ({"route": "chat", "action": "fly"}, {"route": "chat", "action": "set", "percent": "x"}, {"a": 1}):
            token = (control.state / "api-token").read_text().strip()
            answer = control._ask("POST", "/api/v1/rollouts", json=body, headers={"authorization": f"Bearer {token}"})
            assert answer.status_code == 400, json.dumps(body)
        assert _row(control)["phase"] == "waiting"


def test_an_abort_that_cannot_be_saved_is_applied_said_and_saved_later(capsys: pytest.CaptureFixture[str]) -> None:
    fleet: Fleet = {
        "version": 1,
        "listeners": {"gateway": {"bind": "127.0.0.1:9"}},
        "routes": {
            "chat": {
                "match": {"path_prefix": "/"},
                "split": {"old": 1, "new": 0},
                "rollout": {"to": "new", "mode": "manual", "steps": [{"percent": "40%"}, {"percent": "100%"}]},
            }
        },
        "pools": {name: {"replicas": [{"address": "127.0.0.1:9"}]} for name in ("old", "new")},
    }
    with controlling(fleet) as control:
        eventually(lambda: bool(control.get("rollouts")["rollouts"]))
        assert _rollout(control, "start", "chat") == 0
        with refusing(control):
            assert _rollout(control, "promote", "chat") == 4
            assert _row(control)["percent"] == 40
            capsys.readouterr()
            assert _rollout(control, "abort", "chat") == 4
            said = capsys.readouterr().err
            assert "is aborted, but the state cannot be written" in said
            assert "nothing was changed" not in said
            assert (_row(control)["phase"], _row(control)["split"]) == ("aborted", {"new": 0, "old": 1})
        time.sleep(3)
        control.kill()
        control.start()
        eventually(lambda: bool(control.get("rollouts")["rollouts"]))
        assert _row(control)["phase"] == "aborted"
        assert _rollout(control, "start", "chat") == 0, "actions are recorded again"
