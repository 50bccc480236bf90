"""A fleet file lost most of its replicas by mistake: Envoys keep all of them until an operator confirms the change."""

from __future__ import annotations

import time

from lbctl.cli import run
from tests.support.processes.control import ControlPlane
from tests.support.processes.driven_envoys import DrivenEnvoys
from tests.support.processes.driving import loaded, synced
from tests.support.processes.fleet import pool_of
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually


def _reload(control: ControlPlane, *more: str) -> int:
    token = str(control.state / "api-token")
    return run(["reload", "--server", control.url, "--token-file", token, *more])


def test_envoys_keep_lost_replicas_until_confirmed(driven_envoys: DrivenEnvoys) -> None:
    control, envoys = driven_envoys.control, driven_envoys.envoys
    with replicas("a", "b", "c") as members:
        driven_envoys.serve(fleet := driven_envoys.fleet_of(members))
        with loaded(envoys, 100) as loads:
            control.write({**fleet, "pools": {"pool": pool_of(members[:1])}})
            eventually(lambda: bool(control.status["fleet"]["shrink"]))
            assert _reload(control) == 1
            refused = time.monotonic()
            time.sleep(0.5)
            assert [set(load.since(refused).by_replica) for load in loads] == [{"a", "b", "c"}] * 2
            assert _reload(control, "--allow-shrink") == 0
            synced(control)
            confirmed = time.monotonic()
            assert [set(load.since(confirmed).by_replica) for load in loads] == [{"a"}] * 2
