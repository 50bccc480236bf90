"""Invalid files, lost replicas and drains of a running `lbctl serve`: it keeps the last valid fleet and reports why."""

from __future__ import annotations

import json
import math
import signal
import sqlite3
import time
from contextlib import closing

import yaml

from tests.support.fleets import Fleet
from tests.support.processes.control import ControlPlane, controlling, settled
from tests.support.processes.fleet import fleet_of, pool_of
from tests.support.processes.invocation import Invocation, invoke
from tests.support.processes.ports import HOST
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually


def fleet(count: int = 4, **pool: object) -> Fleet:
    written = [{"name": f"r{n}", "address": f"{HOST}:{9000 + n}"} for n in range(count)]
    return fleet_of({"replicas": written, **pool})


def status(control: ControlPlane, *arguments: str) -> Invocation:
    return invoke(["status", *arguments, "--server", control.url])


def count_of(control: ControlPlane) -> int:
    count: int = control.status["snapshot"]["replicas"]
    return count


def saved_drains(control: ControlPlane) -> str:
    """Return the saved drains as text; empty if there are none."""
    with closing(sqlite3.connect(control.state / "lbctl.db")) as database:
        row = database.execute("SELECT value FROM entries WHERE key = 'drains'").fetchone()
    return row[0] if row else ""


def invalid(control: ControlPlane) -> bool:
    return not control.status["fleet"]["valid"]


def test_invalid_file_changes_nothing_and_is_reported() -> None:
    with replicas("a", "b", "c") as (a, b, c), controlling(fleet_of([a, b])) as control:
        version = control.status["snapshot"]["version"]
        assert status(control, "--check").code == 0
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
        assert shown.code == 3
        assert errors[0]["text"] in shown.stdout

        control.write(fleet_of([a, b, c]))
        eventually(lambda: not invalid(control))
        assert count_of(control) == 3
        assert status(control, "--check").code == 0
        assert control.metrics()["lbctl_fleet_valid"] == 1
        eventually(lambda: "the files are published again" in control.log)


def test_start_with_invalid_files_serves_the_saved_fleet() -> None:
    with controlling(fleet()) as control:
        version = control.status["snapshot"]["version"]
        control.kill()
        control.write_text("version: 1\npools: [")
        control.start()
        now = control.status
        assert (now["snapshot"]["version"], now["snapshot"]["from"]) == (version, "state")
        assert now["fleet"]["valid"] is False
        assert "using the last valid fleet from the state" in control.log
        control.write(fleet(5))
        eventually(lambda: count_of(control) == 5)
        assert control.status["snapshot"]["from"] == "files"


def test_start_without_files_serves_the_saved_fleet() -> None:
    with controlling(fleet()) as control:
        version = control.status["snapshot"]["version"]
        control.kill()
        (control.files / "fleet.yaml").unlink()
        control.files.rmdir()
        control.start()
        assert control.status["snapshot"]["version"] == version


def test_start_with_invalid_files_and_no_state_waits() -> None:
    with controlling(fleet(), start=False) as control:
        control.write_text("version: 1\npools: [")
        control.start(ready=False)
        eventually(lambda: "no fleet yet" in control.log)
        assert "--state" in control.log, "a forgotten --state is the usual reason"
        assert "LB004" in control.log
        eventually(lambda: "the API listens" in control.log)
        assert not control.ready()
        now = control.status
        assert (now["ready"], now["snapshot"]) == (False, None)
        assert now["listens"]["xds"] is None
        assert status(control, "--check").code == 3
        control.write(fleet())
        control.await_ready()
        assert count_of(control) == 4
        assert control.stop() == 0


def test_loss_of_many_replicas_needs_a_confirmation() -> None:
    with controlling(fleet(4)) as control:
        control.write(fleet(1))
        eventually(lambda: invalid(control))
        assert count_of(control) == 4
        assert "from 4 to 1" in control.status["fleet"]["shrink"][0]["text"]
        assert control.metrics()['lbctl_reloads_total{result="refused"}'] == 1

        assert control.reload().json()["result"] == "refused"
        command = ["reload", "--server", control.url, "--token-file", str(control.state / "api-token")]
        refused = invoke(command)
        assert refused.code == 1
        assert "--allow-shrink" in refused.stderr

        done = invoke([*command, "--allow-shrink"])
        assert done.code == 0, done.stderr
        assert count_of(control) == 1
        assert not invalid(control)


def test_loss_during_downtime_needs_a_confirmation() -> None:
    with controlling(fleet(4)) as control:
        control.kill()
        control.write(fleet(1))
        control.start()
        assert count_of(control) == 4
        assert control.status["snapshot"]["from"] == "state"
        assert control.reload(allow_shrink=True).json()["result"] == "published"
        assert count_of(control) == 1


def test_settings_that_envoy_lacks_are_logged_once() -> None:
    with controlling(fleet(timeouts={"queue": "5s"}, drain_deadline="10s")) as control:
        codes = [item["code"] for item in control.status["fleet"]["diagnostics"]]
        assert codes == ["LB471"]
        assert control.log.count("LB471") == 1
        control.signal(signal.SIGHUP)
        eventually(lambda: control.metrics()['lbctl_reloads_total{result="unchanged"}'] == 1)
        assert control.log.count("LB471") == 1


def test_settings_that_need_a_restart_are_reported() -> None:
    with controlling(fleet()) as control:
        control.write({**fleet(), "control": {"logs": {"bind": f"{HOST}:18515"}}})
        eventually(lambda: control.status["restart"] == ["control.logs.bind"])
        eventually(lambda: "keys=control.logs.bind" in control.log)


def test_drain_deadline_removes_the_replica_despite_a_restart() -> None:
    with (
        replicas("one", "two") as (one, two),
        controlling(fleet_of([one, two])) as control,
        control.envoy("edge") as envoy,
    ):
        eventually(lambda: len(envoy.hosts("pool")) == 2)
        drained = fleet_of(pool_of([one, two]))
        drained["listeners"] = written(control)["listeners"]
        drained["pools"]["pool"]["replicas"][0]["drain"] = True
        begun = time.monotonic()
        control.write(_with_deadline(drained, 3600))
        eventually(lambda: envoy.hosts("pool")[one.address]["health_status"].get("eds_health_status") == "DRAINING")
        (row,) = (row for row in rows(control) if row["name"] == one.name)
        assert row["share"] == 0
        assert row["drained"] is not None
        eventually(lambda: one.name in saved_drains(control))
        control.kill()
        deadline = math.ceil(time.monotonic() - begun) + 4
        control.write(_with_deadline(drained, deadline))
        control.start()
        assert next(row for row in rows(control) if row["name"] == one.name)["drained"] == row["drained"]
        eventually(lambda: list(envoy.hosts("pool")) == [two.address])
        assert time.monotonic() - begun > deadline - 0.5
        assert next(item for item in rows(control) if item["name"] == one.name)["out"] is True
        lines = [line.split() for line in status(control, "pools").stdout.splitlines() if line.startswith("pool ")]
        states = {line[1]: line[2] for line in lines}
        assert states == {one.name: "removed", two.name: "in"}
        settled(envoy)


def _with_deadline(fleet: Fleet, seconds: int) -> Fleet:
    fleet["pools"]["pool"]["drain_deadline"] = f"{seconds}s"
    return fleet


def test_node_without_a_proxy_is_refused_and_named() -> None:
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
        assert checked.code == 0, "any user of the machine can connect as a stranger"
        assert "warning    unconfirmed envoy stranger is REFUSED" in checked.stdout


def test_status_of_proxies_has_a_line_for_each_proxy_or_type() -> None:
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
    replica_rows: list[dict[str, object]] = pool["replicas"]
    return replica_rows


def written(control: ControlPlane) -> Fleet:
    fleet: Fleet = yaml.safe_load((control.files / "fleet.yaml").read_text())
    return fleet
