"""A pool of a Deployment's pods: requests follow the pods on all three proxies, and none fails."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from tests.support.processes.client import Client
from tests.support.processes.control import controlling, driven
from tests.support.processes.fleet import fleet_of
from tests.support.processes.kubernetes import deployment, three
from tests.support.processes.waiting import eventually


def reached(client: Client) -> set[str]:
    return set(client.load(40).by_replica)


def test_requests_follow_pods_without_failure_on_any_proxy(tmp_path: Path) -> None:
    with deployment(tmp_path, 3) as pods, three(pods) as (control, clients), ExitStack() as stack:
        loads = [stack.enter_context(client.steady(15, keep_alive=False)) for client in clients.values()]

        def all_reach(names: list[str]) -> None:
            for client in clients.values():
                eventually(lambda client=client: reached(client) == set(names))

        all_reach(list(pods.pods))
        pods.scale(8)
        all_reach(list(pods.pods))
        pods.api.away()
        eventually(lambda: "Connection refused" in str(control.status["names"]))
        time.sleep(1)
        all_reach(list(pods.pods))
        pods.api.back()
        pods.scale(3)
        all_reach(list(pods.pods))
        pods.roll(at_once=3)
        all_reach(list(pods.pods))
        assert control.status["fleet"]["shrink"] == []
        for load in loads:
            load.load.assert_no_failure()


def test_vanished_pods_are_removed_after_confirmation(tmp_path: Path) -> None:
    with deployment(tmp_path, 3, grace=0) as pods, controlling(fleet_of(pods.pool(), **driven("edge"))) as control:
        pods.end(list(pods.pods)[1:])
        eventually(lambda: control.status["fleet"]["shrink"] != [])
        assert "from 3 to 1" in str(control.status["fleet"]["shrink"])
        assert control.reload(allow_shrink=True).status_code == 200
        eventually(lambda: control.status["snapshot"]["replicas"] == 1)
