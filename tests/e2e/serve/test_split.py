"""`lbctl split set`: manual splits of a route, on Envoy, HAProxy and nginx at the same time."""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest

from lbctl.cli import run
from tests.support.fleets import Fleet
from tests.support.processes import edges
from tests.support.processes.client import Steady
from tests.support.processes.control import ControlPlane, controlling, driven
from tests.support.processes.edges import Edge
from tests.support.processes.engines import Engine, engines
from tests.support.processes.fleet import pool_of
from tests.support.processes.http1 import Request
from tests.support.processes.lbctl_process import HAPROXY_RELOADS, short_pauses
from tests.support.processes.waiting import eventually

_GENERATE = Request("POST", "/v1/completions?n=4", timeout=20.0)


def _fleet(old: Engine, new: Engine, *sites: Edge) -> Fleet:
    fleet: Fleet = {
        "version": 1,
        **driven("edge"),
        "routes": {"chat": {"match": {"path_prefix": "/"}, "split": {"old": 100, "new": 0}}},
        "pools": {"old": pool_of([old]), "new": pool_of([new])},
    }
    return edges.add(fleet, *sites)


def _split(control: ControlPlane, *words: str) -> int:
    return run(["split", *words, "--server", control.url, "--token-file", str(control.state / "api-token")])


def _in_sync(control: ControlPlane) -> None:
    """Wait until all three proxies have the currently published fleet."""
    version = control.status["snapshot"]["version"]
    eventually(lambda: all(control.proxies[name].get("last_good") == version for name in ("edge", "ha", "ng")))


def test_split_override_moves_all_proxies_and_survives_restart(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ExitStack() as stack:
        stack.enter_context(short_pauses(HAPROXY_RELOADS))
        old, new = stack.enter_context(engines("old", "new"))
        ha, ng = stack.enter_context(edges.haproxy()), stack.enter_context(edges.nginx())
        fleet = _fleet(old, new, ha, ng)
        for site in (ha, ng):
            stack.enter_context(edges.started_edge(site, fleet))
        control = stack.enter_context(controlling(fleet))
        envoy = stack.enter_context(control.envoy("edge", ["edge"]))
        _in_sync(control)
        loads = [
            stack.enter_context(envoy.client().steady(20, _GENERATE)),
            stack.enter_context(ha.steady(20, _GENERATE, keep_alive=False)),
            stack.enter_context(ng.steady(20, _GENERATE)),
        ]
        assert _split(control, "set", "chat", "old=1", "new=1", "--reason", "a canary", "--wait") == 0
        assert "set the split of chat to new 50 %, old 50 %" in capsys.readouterr().err
        began = time.monotonic()
        time.sleep(4)
        assert [load.since(began).shares().get("new", 0) for load in loads] == pytest.approx([0.5] * 3, abs=0.25)

        assert _split(control, "set", "chat", "old=0", "new=3", "--wait") == 0
        _only(loads, "new")
        assert run(["status", "--server", control.url]) == 0
        assert "split chat new=3 old=0" in " ".join(capsys.readouterr().out.split())
        assert run(["diff", str(control.files), "--against", "live", "--server", control.url]) == 0
        assert "routes.chat.split" in capsys.readouterr().out

        assert control.stop() == 0
        control.start()
        _in_sync(control)
        _only(loads, "new")

        assert _split(control, "unset", "chat") == 0
        _in_sync(control)
        _only(loads, "old")
        for load in loads:
            load.load.assert_no_failure()


def _only(loads: list[Steady], pool: str) -> None:
    eventually(lambda: all(set(load.since(time.monotonic()).by_replica) == {pool} for load in loads))
    began = time.monotonic()
    time.sleep(1)
    assert [set(load.since(began).by_replica) for load in loads] == [{pool}] * len(loads)


def test_split_override_ends_when_the_files_change_the_split() -> None:
    with engines("old", "new") as (old, new):
        fleet = _fleet(old, new)
        with controlling(fleet) as control, control.envoy("edge", ["edge"]) as envoy:
            client = envoy.client()
            assert _split(control, "set", "chat", "old=0", "new=1", "--wait") == 0
            eventually(lambda: {client.post("/v1/completions?n=2").replica for _ in range(10)} == {"new"})
            fleet["routes"]["chat"]["timeouts"] = {"idle": "2m"}
            control.write(fleet)
            eventually(lambda: control.metric("lbctl_reloads_total") >= 2)
            assert [item["kind"] for item in control.status["overrides"]] == ["split"]
            fleet["routes"]["chat"]["split"] = {"old": 99, "new": 0}
            control.write(fleet)
            eventually(lambda: not control.status["overrides"])
            eventually(lambda: {client.post("/v1/completions?n=2").replica for _ in range(5)} == {"old"})
            assert "the split in the files has changed" in control.log


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["chatt", "old=1", "new=1"], "the fleet has no route 'chatt' (did you mean 'chat'?)"),
        (["chat", "old=1"], "needs a share for each of its pools: new, old"),
        (["chat", "old=1", "newer=1"], "needs a share for each of its pools: new, old"),
        (["chat", "old=0", "new=0"], "the shares add up to 0"),
        (["chat", "old=1", "new=99999999999"], "is not a whole number from 0 to 2147483647"),
        (["plain", "old=1"], "the route plain has no split"),
        (["chat", "old=-1", "new=1"], "is not POOL=SHARE"),
        (["chat", "old=1", "old=2"], "old is set twice"),
    ],
)
def test_invalid_split_override_is_refused(
    words: list[str], message: str, served: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _split(served, "set", *words) in (1, 64)
    assert message in capsys.readouterr().err
    assert served.status["overrides"] == []


@pytest.fixture(scope="module")
def served() -> object:
    fleet = {
        "version": 1,
        "listeners": {"gateway": {"bind": "127.0.0.1:9"}},
        "routes": {
            "chat": {"match": {"path_prefix": "/chat"}, "split": {"old": 100, "new": 0}},
            "plain": {"match": {"path_prefix": "/"}, "pool": "old"},
        },
        "pools": {name: {"replicas": [{"address": "127.0.0.1:9"}]} for name in ("old", "new")},
    }
    with controlling(fleet) as control:
        yield control
