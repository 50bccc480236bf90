"""`lbctl diff --against live`: whether the files are ahead of a running serve, the fleet of the files, or both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lbctl.cli import run
from tests.support.fleets import Fleet, write_fleet
from tests.support.processes.control import ControlPlane, controlling
from tests.support.processes.fleet import fleet_of

_POOL = {
    "replicas": [
        {"name": "a", "address": "127.0.0.1:9", "weight": 2},
        {"name": "b", "address": "127.0.0.1:10", "weight": 2, "drain": True},
    ]
}


def _changed(control: ControlPlane, fleet: Fleet, directory: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return which side is ahead, and path → (live, files)."""
    code = run(
        [
            *("diff", str(write_fleet(directory, fleet)), "--against", "live", "--server", control.url),
            *("--exit-code", "-o", "json"),
        ]
    )
    report = json.loads(capsys.readouterr().out)
    assert code == (0 if report["ahead"] == "neither" else 2)
    return report["ahead"], {item["path"]: (item["live"], item["files"]) for item in report["differences"]}


def test_diff_reports_whether_files_or_fleet_are_ahead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = fleet_of(_POOL)
    ahead = json.loads(json.dumps(fleet))
    ahead["routes"]["everything"]["timeouts"] = {"idle": "2m"}
    ahead["pools"]["pool"]["replicas"][0]["weight"] = 3
    ahead["pools"]["pool"]["replicas"].append({"name": "c", "address": "127.0.0.1:11", "weight": 1})
    expected = {
        "routes.everything.timeouts.idle": ("5m", "2m"),
        "pools.pool.replicas.a.capacity": ("2", "3"),
        "pools.pool.replicas.c": (None, "127.0.0.1:11"),
    }
    sized = {
        f"pools.pool.circuit_breaker.max_{name}" for name in ("connections", "pending_requests", "requests", "retries")
    }
    with controlling(fleet) as control:
        assert _changed(control, fleet, tmp_path, capsys) == ("neither", {})
        ahead_side, differences = _changed(control, ahead, tmp_path, capsys)
        assert (ahead_side, {path: value for path, value in differences.items() if path not in sized}) == (
            "files",
            expected,
        )

        held = ["--server", control.url, "--token-file", str(control.state / "api-token")]
        assert run(["drain", "pool/a", "--reason", "a fan", "--wait", *held]) == 3
        assert "no proxy is connected, so none has applied the change" in capsys.readouterr().err
        ahead_side, differences = _changed(control, fleet, tmp_path, capsys)
        assert (ahead_side, list(differences)) == ("fleet", ["pools.pool.replicas.a override, drain"])
        assert _changed(control, ahead, tmp_path, capsys)[0] == "both"

        assert run(["diff", str(write_fleet(tmp_path, ahead)), "--against", "live", "-o", "markdown", *held[:2]]) == 0
        shown = capsys.readouterr().out
        assert shown.startswith("**lbctl diff:** both are ahead\n\n**The files are ahead**\n\n| What | Running |")
        assert "| `routes.everything.timeouts.idle` | `5m` | `2m` |  |\n" in shown
        assert "| `pools.pool.replicas.c` | (absent) | `127.0.0.1:11` | `new replica` |\n" in shown
        assert "| `pools.pool.replicas.a override, drain` | `true` | (absent) | `override: a fan` |\n" in shown

        assert run(["diff", str(tmp_path), "--against", "live", "--server", control.url]) == 0
        text = capsys.readouterr().out
        assert "the fleet is ahead:" in text
        assert "a fan" in text
        assert text.endswith("both are ahead\n")
