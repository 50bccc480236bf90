"""A file that lost most of the replicas by mistake: Envoys keep all of them until somebody says that it is meant."""

from __future__ import annotations

import subprocess
import sys
import time

from tests.support.processes.control import ControlPlane, controlling, driven
from tests.support.processes.driving import BOTH, both, loaded, synced
from tests.support.processes.fleet import fleet_of, pool_of
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually


def _reload(control: ControlPlane, *more: str) -> int:
    token = str(control.state / "api-token")
    command = [sys.executable, "-m", "lbctl", "reload", "--server", control.url, "--token-file", token, *more]
    return subprocess.run(command, capture_output=True, timeout=120, check=False).returncode


def test_envoys_keep_what_a_file_lost_until_it_is_confirmed() -> None:
    with (
        replicas("a", "b", "c") as members,
        controlling(fleet := fleet_of(members, **driven(*BOTH))) as control,
        both(control) as envoys,
        loaded(envoys) as loads,
    ):
        synced(control)
        control.write({**fleet, "pools": {"pool": pool_of(members[:1])}})
        eventually(lambda: bool(control.status["fleet"]["shrink"]))
        assert _reload(control) == 1
        now = time.monotonic()
        time.sleep(0.5)
        assert [set(load.since(now).by_replica) for load in loads] == [{"a", "b", "c"}] * 2
        assert _reload(control, "--allow-shrink") == 0
        synced(control)
        now = time.monotonic()
        time.sleep(0.5)
        assert [set(load.since(now).by_replica) for load in loads] == [{"a"}] * 2
