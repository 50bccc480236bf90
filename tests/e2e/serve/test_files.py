"""What bad files, lost replicas and drains do to a running `lbctl serve`: what was good serves on, and it is told."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

from tests.support.fleets import Fleet
from tests.support.processes.control import ControlPlane, controlling, settled
from tests.support.processes.fleet import fleet_of, pool_of
from tests.support.processes.ports import HOST
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually


def fleet(count: int = 4, **pool: object) -> Fleet:
    written = [{"name": f"r{n}", "address": f"{HOST}:{9000 + n}"} for n in range(count)]
    return fleet_of({"replicas": written, **pool})


def status(control: ControlPlane, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lbctl", "status", *arguments, "--server", control.url]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def count_of(control: ControlPlane) -> int:
    found: int = control.status["snapshot"]["replicas"]
    return found


def saved_drains(control: ControlPlane) -> str:
    """What the state has of drains, as text; empty where it has none yet."""
    with closing(sqlite3.connect(control.state / "lbctl.db")) as database:
        row = database.execute("SELECT value FROM entries WHERE key = 'drains'").fetchone()
    return row[0] if row else ""


def invalid(control: ControlPlane) -> bool:
    return not control.status["fleet"]["valid"]


def test_a_bad_file_changes_nothing_and_is_told_everywhere() -> None:
    with controlling(fleet()) as control:
        version = control.status["snapshot"]["version"]
        assert status(control, "--check").returncode == 0
        control.write_text("version: 1\npools: {pool: {replicas: [{address: 5}]}}\n")
        eventually(lambda: invalid(control))

        assert control.ready()
        now = control.status
        assert now["snapshot"]["version"] == version
        errors = [item for item in now["fleet"]["diagnostics"] if item["severity"] == "error"]
        assert (errors[0]["line"], errors[0]["file"]) == (2, str(control.files / "fleet.yaml"))
        eventually(lambda: errors[0]["text"] in control.log)
        metrics = control.metrics()
        assert metrics["lbctl_fleet_valid"] == 0
        assert metrics['lbctl_reloads_total{result="invalid"}'] == 1
        assert metrics["lbctl_ready"] == 1

        shown = status(control, "--check")
        assert shown.returncode == 3
        assert errors[0]["text"] in shown.stdout

        control.write(fleet(5))
        eventually(lambda: not invalid(control))
        assert count_of(control) == 5
        assert status(control, "--check").returncode == 0
        assert control.metrics()["lbctl_fleet_valid"] == 1
        eventually(lambda: "the files are served again" in control.log)


def test_broken_files_at_the_start_and_a_good_fleet_in_the_state_serve_that_one() -> None:
    with controlling(fleet()) as control:
        version = control.status["snapshot"]["version"]
        control.kill()
        control.write_text("version: 1\npools: [")
        control.start()
        now = control.status
        assert (now["snapshot"]["version"], now["snapshot"]["from"]) == (version, "state")
        assert now["fleet"]["valid"] is False
        assert "serving the last good fleet of the state" in control.log
        control.write(fleet(5))
        eventually(lambda: count_of(control) == 5)
        assert control.status["snapshot"]["from"] == "files"


def test_files_that_are_gone_at_the_start_leave_the_good_fleet_of_the_state() -> None:
    with controlling(fleet()) as control:
        version = control.status["snapshot"]["version"]
        control.kill()
        (control.files / "fleet.yaml").unlink()
        control.files.rmdir()
        control.start()
        assert control.status["snapshot"]["version"] == version


def test_broken_files_and_nothing_in_the_state_wait_for_better_ones() -> None:
    with controlling(fleet(), start=False) as control:
        control.write_text("version: 1\npools: [")
        control.start(ready=False)
        eventually(lambda: "no fleet yet" in control.log)
        assert "LB004" in control.log
        eventually(lambda: "the API listens" in control.log)
        assert not control.ready()
        now = control.status
        assert (now["ready"], now["snapshot"]) == (False, None)
        assert now["listens"]["xds"] is None
        assert status(control, "--check").returncode == 3
        control.write(fleet())
        control.await_ready()
        assert count_of(control) == 4
        assert control.stop() == 0


def test_losing_too_many_replicas_waits_to_be_confirmed() -> None:
    with controlling(fleet(4)) as control:
        control.write(fleet(1))
        eventually(lambda: invalid(control))
        assert count_of(control) == 4
        assert "from 4 to 1" in control.status["fleet"]["shrink"][0]["text"]
        assert control.metrics()['lbctl_reloads_total{result="refused"}'] == 1

        assert control.reload().json()["result"] == "refused"
        command = [sys.executable, "-m", "lbctl", "reload", "--server", control.url]
        token = ["--token-file", str(control.state / "api-token")]
        refused = subprocess.run([*command, *token], capture_output=True, text=True, timeout=30, check=False)
        assert refused.returncode == 1
        assert "--allow-shrink" in refused.stderr

        done = subprocess.run(
            [*command, *token, "--allow-shrink"], capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 0, done.stderr
        assert count_of(control) == 1
        assert not invalid(control)


def test_a_loss_while_it_was_down_waits_to_be_confirmed_too() -> None:
    with controlling(fleet(4)) as control:
        control.kill()
        control.write(fleet(1))
        control.start()
        assert count_of(control) == 4
        assert control.status["snapshot"]["from"] == "state"
        assert control.reload(allow_shrink=True).json()["result"] == "published"
        assert count_of(control) == 1


def test_what_an_envoy_cannot_say_is_told_but_not_what_is_done_in_its_place() -> None:
    with controlling(fleet(timeouts={"queue": "5s"}, drain_deadline="10s")) as control:
        found = [item["code"] for item in control.status["fleet"]["diagnostics"]]
        assert found == ["LB471"]
        assert control.log.count("LB471") == 1
        control.signal(signal.SIGHUP)
        eventually(lambda: control.metrics()['lbctl_reloads_total{result="unchanged"}'] == 1)
        assert control.log.count("LB471") == 1


def test_what_only_a_restart_takes_is_told() -> None:
    with controlling(fleet()) as control:
        control.write({**fleet(), "control": {"logs": {"bind": f"{HOST}:18515"}}})
        eventually(lambda: control.status["restart"] == ["control.logs.bind"])
        eventually(lambda: "keys=control.logs.bind" in control.log)


def test_a_drained_replica_leaves_an_envoy_after_the_deadline_and_a_restart_does_not_begin_it_anew() -> None:
    with (
        replicas("one", "two") as (one, two),
        controlling(fleet_of([one, two])) as control,
        control.envoy("edge") as envoy,
    ):
        eventually(lambda: len(envoy.hosts("pool")) == 2)
        drained = pool_of([one, two], drain_deadline="4s")
        drained["replicas"][0]["drain"] = True
        begun = time.monotonic()
        control.write({**fleet_of(drained), "listeners": written(control)["listeners"]})
        eventually(lambda: envoy.hosts("pool")[one.address]["health_status"].get("eds_health_status") == "DRAINING")
        (row,) = (row for row in rows(control) if row["name"] == one.name)
        assert row["share"] == 0
        assert row["drained"] is not None
        eventually(lambda: one.name in saved_drains(control))
        control.kill()
        control.start()
        assert next(row for row in rows(control) if row["name"] == one.name)["drained"] == row["drained"]
        eventually(lambda: list(envoy.hosts("pool")) == [two.address])
        assert time.monotonic() - begun > 3.5
        assert next(item for item in rows(control) if item["name"] == one.name)["out"] is True
        lines = [line.split() for line in status(control, "pools").stdout.splitlines() if line.startswith("pool ")]
        states = {line[1]: line[2] for line in lines}
        assert states == {one.name: "removed", two.name: "in"}
        settled(envoy)


def test_a_node_that_no_proxy_is_for_gets_nothing_and_is_named() -> None:
    proxies = {"edge": {"kind": "envoy", "nodes": ["edge-*"]}}
    with (
        replicas("one") as (one,),
        controlling(fleet_of([one], proxies=proxies)) as control,
        control.envoy("edge-1"),
        control.envoy("stranger", wait=False),
    ):
        eventually(lambda: bool(control.status["unmatched"]))
        assert [item["node"] for item in control.status["unmatched"]] == ["stranger"]
        eventually(lambda: control.proxies["edge-1"]["state"] == "SYNCED")
        assert control.metrics()["lbctl_xds_unmatched_nodes_total"] >= 1
        shown = status(control, "proxies")
        assert "stranger" in shown.stdout
        assert "SYNCED" in shown.stdout
        checked = status(control, "--check")
        assert checked.returncode == 3
        assert "stranger is REFUSED" in checked.stderr


def test_the_status_of_proxies_is_one_line_a_proxy_and_in_its_wide_form_one_a_type() -> None:
    with replicas("one") as (one,), controlling(fleet_of([one])) as control, control.envoy("edge"):
        eventually(lambda: control.proxies["edge"]["state"] == "SYNCED")
        (line,) = [line.split() for line in status(control, "proxies", "--check").stdout.splitlines()[1:]]
        assert line[:4] == ["edge", "envoy", "envoy", "SYNCED"]
        lines = [line.split() for line in status(control, "proxies", "-o", "wide").stdout.splitlines()[1:]]
        assert {(line[0], line[2], line[3]) for line in lines} == {
            ("edge", kind, "SYNCED") for kind in ("cds", "eds", "lds", "rds")
        }
        listed = json.loads(status(control, "proxies", "-o", "json").stdout)
        assert [item["node"] for item in listed] == ["edge"]
        assert listed[0]["last_good"] == control.status["snapshot"]["version"]


def rows(control: ControlPlane) -> list[dict[str, object]]:
    (pool,) = control.get("pools")["pools"]
    found: list[dict[str, object]] = pool["replicas"]
    return found


def written(control: ControlPlane) -> Fleet:
    import yaml

    found: Fleet = yaml.safe_load((control.files / "fleet.yaml").read_text())
    return found
