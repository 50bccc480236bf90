"""The state of a running control plane: changes that cannot be saved are not acknowledged, and damage does not end
it."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
import requests

from lbctl.cli import run
from tests.support.processes import lbctl_process
from tests.support.processes.control import ControlPlane, controlling, driven
from tests.support.processes.fleet import fleet_of
from tests.support.processes.replicas import replicas
from tests.support.processes.state import refusing
from tests.support.processes.waiting import eventually

DRAIN = {"kind": "drain", "pool": "pool", "replica": "a"}


def _override(control: ControlPlane, method: str, **asked: Any) -> requests.Response:
    token = (control.state / "api-token").read_text().strip()
    headers = {"authorization": f"Bearer {token}"}
    return control._ask(method, "/api/v1/overrides", json=asked, headers=headers)


def test_override_that_cannot_be_saved_is_refused() -> None:
    with replicas("a", "b") as (a, b):
        pool = {"replicas": [{"name": item.name, "address": item.address} for item in (a, b)]}
        with controlling(fleet_of(pool, **driven("edge"))) as control:
            with refusing(control):
                answer = _override(control, "POST", **DRAIN)
                assert answer.status_code == 503
                assert "nothing was changed" in answer.json()["error"]
                assert control.status["overrides"] == []
                assert control.ready()
            assert _override(control, "POST", **DRAIN).status_code == 200
            with refusing(control):
                assert _override(control, "DELETE", **DRAIN).status_code == 503
            control.kill()
            control.start()
            assert [item["replica"] for item in control.status["overrides"]] == ["a"]
            assert _override(control, "DELETE", **DRAIN).json()["removed"] is True


def test_unsaved_fleet_is_saved_when_the_store_accepts_writes() -> None:
    with replicas("a", "b") as (a, b):
        fleets = [
            fleet_of({"replicas": [{"name": item.name, "address": item.address} for item in members]}, **driven("edge"))
            for members in ((a,), (a, b))
        ]
        with controlling(fleets[0]) as control:
            with refusing(control):
                control.write(fleets[1])
                eventually(lambda: "cannot save the published state" in control.log)
                assert _override(control, "POST", **DRAIN).status_code == 503
            eventually(lambda: "published state saved again" in control.log)
            assert control.log.count("cannot save the published state") == 1
            control.kill()
            control.write_text("version: 7")
            control.start()
            assert control.status["snapshot"]["replicas"] == 2


def test_damaged_state_is_set_aside_and_good_overrides_stay() -> None:
    with replicas("a", "b") as (a, b):
        pool = {"replicas": [{"name": item.name, "address": item.address} for item in (a, b)]}
        with controlling(fleet_of(pool, **driven("edge"))) as control:
            assert _override(control, "POST", **DRAIN).status_code == 200
            control.kill()
            database = sqlite3.connect(control.state / "lbctl.db")
            database.execute("UPDATE entries SET value = 'flipped' WHERE key = 'fleet/files'")
            database.commit()
            database.close()
            control.start()
            assert [item["replica"] for item in control.status["overrides"]] == ["a"]
            assert "lost: fleet/files" in control.log
            assert list(control.state.glob("lbctl.db.damaged-*Z"))


def _start_without_options(control: ControlPlane) -> None:
    control.process = lbctl_process.forked(["serve", str(control.files)], control.log_file)
    control.await_ready()


def test_serve_and_commands_find_each_other_with_a_broken_file(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = fleet_of(
        {"replicas": [{"name": name, "address": f"127.0.0.1:{port}"} for name, port in (("a", 9), ("b", 19))]}
    )
    with controlling(fleet, start=False) as control:
        binds = {"xds": {"bind": f"127.0.0.1:{control.xds}"}, "api": {"bind": f"127.0.0.1:{control.api}"}}
        control.write({**fleet, **driven("edge"), "control": {**binds, "state": str(control.state)}})
        _start_without_options(control)
        file = control.files / "fleet.yaml"
        file.write_text(f"pools: [\n{file.read_text()}")
        assert run(["drain", "pool/a", "--fleet", str(control.files)]) == 0
        control.kill()
        _start_without_options(control)
        assert run(["status", "--fleet", str(control.files)]) == 0
        shown = capsys.readouterr().out
        assert "the last valid one from the state" in shown
        assert "drain pool/a, by operator" in shown
