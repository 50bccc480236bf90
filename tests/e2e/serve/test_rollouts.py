"""Rollouts on Envoy, HAProxy and nginx: by time, by hand, over a killed control plane, with steady traffic."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from lbctl.cli import run
from tests.support.fleets import Fleet
from tests.support.processes import edges
from tests.support.processes.client import Client, Steady
from tests.support.processes.control import ControlPlane, controlling, driven
from tests.support.processes.edges import Edge
from tests.support.processes.engines import Engine, engines
from tests.support.processes.fleet import pool_of
from tests.support.processes.http1 import Request, Response
from tests.support.processes.state import refusing
from tests.support.processes.waiting import eventually

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


def _actions(control: ControlPlane) -> list[str]:
    records = control.get("audit")["records"]
    return [item["action"] for item in records if item["action"].startswith("rollout")]


def _in_sync(control: ControlPlane) -> None:
    version = control.status["snapshot"]["version"]
    names = ("edge", "ha", "ng")
    eventually(lambda: all(control.proxies.get(name, {}).get("last_good") == version for name in names))


def _only(loads: list[Steady], pool: str) -> None:
    """All requests go to this pool. On a connection that was kept over its reload, HAProxy's process of before answers
    one more request and closes the connection."""
    eventually(lambda: all(set(load.since(time.monotonic()).by_replica) == {pool} for load in loads))
    began = time.monotonic()
    time.sleep(1)
    for load in loads:
        answers = load.since(began).responses
        assert any(answer.replica == pool for answer in answers)
        assert [
            answer for answer in answers if answer.replica != pool and not (load is loads[1] and _last(answer))
        ] == []


def _last(answer: Response) -> bool:
    """Whether the server closes the connection after this answer."""
    return (answer.header("connection") or "").lower() == "close"


@contextmanager
def _three(**rollout: Any) -> Iterator[tuple[Fleet, ControlPlane, list[Client]]]:
    """`serve`, and an Envoy, a HAProxy and an nginx that it drives; the rollout comes once all three have the fleet, so
    that none of its holds passes while they start."""
    with ExitStack() as stack:
        old, new = stack.enter_context(engines("old", "new"))
        sites = [stack.enter_context(edges.haproxy()), stack.enter_context(edges.nginx())]
        fleet = _fleet(old, new, rollout, *sites)
        for site in sites:
            stack.enter_context(edges.started_edge(site, fleet))
        chat = fleet["routes"].pop("chat")
        without = {name: value for name, value in chat.items() if name != "rollout"}
        control = stack.enter_context(controlling({**fleet, "routes": {"chat": without}}))
        envoy = stack.enter_context(control.envoy("edge", ["edge"]))
        _in_sync(control)
        fleet["routes"]["chat"] = chat
        control.write(fleet)
        assert control.rollout["to"] == "new"
        yield fleet, control, [envoy.client(), *sites]


@contextmanager
def _loaded(clients: list[Client]) -> Iterator[list[Steady]]:
    """Steady traffic through an Envoy, a HAProxy and an nginx. No request may fail."""
    with ExitStack() as stack:
        loads = [stack.enter_context(client.steady(15, _GENERATE)) for client in clients]
        yield loads
    for load in loads:
        load.load.assert_no_failure()


def test_a_timed_rollout_is_promoted_on_all_three_proxies_over_a_killed_serve_and_loses_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps = [{"percent": "50%", "hold": "8s"}, {"percent": "100%"}]
    with _three(mode="timed", steps=steps) as (_, control, clients), _loaded(clients) as loads:
        eventually(lambda: control.rollout["phase"] == "progressing")
        begun = control.rollout["since"]
        control.kill()
        control.start()
        eventually(lambda: control.rollout["phase"] == "promoted")
        assert control.log.count("step=1 ") == 1, "a step is done once, also over a SIGKILL"
        assert control.rollout["since"] > begun
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
        assert (control.rollout["phase"], control.rollout["reason"]) == ("aborted", "worse answers")
        assert all({"old", "new"} <= set(load.load.by_replica) for load in loads)


def test_a_person_moves_a_manual_rollout_and_sticky_clients_keep_their_variant_on_all_three_proxies(
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps = [{"percent": "40%"}, {"percent": "100%"}]
    with _three(mode="manual", steps=steps) as (fleet, control, clients):
        assert [_variants(client) for client in clients] == [{"old"}] * 3
        assert control.rollout["phase"] == "waiting"
        assert _rollout(control, "promote", "chat") == 1
        assert "it is waiting: start it first" in capsys.readouterr().err
        assert _rollout(control, "start", "chat", "--wait") == 0
        assert "step 1 of 2: new has 40 %" in capsys.readouterr().err
        _in_sync(control)
        cookies = [_cookie_of_old(client) for client in clients]
        assert _rollout(control, "set", "chat", "90", "--wait") == 0
        assert control.rollout["phase"] == "paused"
        metrics = control.metrics()
        assert metrics['lbctl_rollout_share{route="chat"}'] == 0.9
        assert metrics['lbctl_rollout_phase{phase="paused",route="chat"}'] == 1
        _in_sync(control)
        sticky = [_variants(client, cookie) for client, cookie in zip(clients, cookies, strict=True)]
        assert sticky == [{"old"}] * 3
        assert _rollout(control, "promote", "chat", "--wait") == 0
        _in_sync(control)
        eventually(lambda: [_variants(client) for client in clients] == [{"new"}] * 3)
        fleet["routes"]["chat"]["split"] = {"old": 1, "new": 0}
        control.write(fleet)
        eventually(lambda: control.rollout["phase"] == "superseded")
        _in_sync(control)
        eventually(lambda: [_variants(client) for client in clients] == [{"old"}] * 3)


def _variants(client: Client, cookie: str = "") -> set[str | None]:
    """The pools that have answered twenty requests."""
    headers = [("cookie", cookie)] if cookie else []
    return {client.post("/v1/completions?n=1", headers=headers).replica for _ in range(20)}


def _cookie_of_old(client: Client) -> str:
    """The cookie of a client that has drawn the old pool; of forty clients some draw each pool."""
    answers = [client.post("/v1/completions?n=1") for _ in range(40)]
    assert {answer.replica for answer in answers} == {"old", "new"}
    return next(answer for answer in answers if answer.replica == "old").header("set-cookie").partition(";")[0]


def test_blue_green_is_one_step_there_and_one_back_on_all_three_proxies_and_loses_nothing() -> None:
    with _three(mode="manual", steps=[{"percent": "100%"}]) as (_, control, clients), _loaded(clients) as loads:
        _only(loads, "old")
        assert _rollout(control, "start", "chat", "--wait") == 0
        _in_sync(control)
        assert control.rollout["phase"] == "promoted"
        _only(loads, "new")
        assert _rollout(control, "abort", "chat", "--wait") == 0
        _in_sync(control)
        _only(loads, "old")


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
        assert control.rollout["phase"] == "waiting"
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
        assert control.rollout["phase"] == "waiting"


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
        assert control.rollout["phase"] == "waiting"
        assert _rollout(control, "start", "chat") == 0
        with refusing(control):
            assert _rollout(control, "promote", "chat") == 4
            assert control.rollout["percent"] == 40
            capsys.readouterr()
            assert _rollout(control, "abort", "chat") == 4
            said = capsys.readouterr().err
            assert "is aborted, but the state cannot be written" in said
            assert "nothing was changed" not in said
            assert (control.rollout["phase"], control.rollout["split"]) == ("aborted", {"new": 0, "old": 1})
        eventually(lambda: "rollout abort, aborted (split of the files)" in _actions(control))
        control.kill()
        control.start()
        assert control.rollout["phase"] == "aborted"
        assert [action for action in _actions(control) if "," in action] == [
            "rollout start, progressing (step 1, 40 %)", "rollout abort, aborted (split of the files)",
        ]  # fmt: skip
        assert _rollout(control, "start", "chat") == 0, "actions are recorded again"
