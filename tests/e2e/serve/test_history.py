"""The previously published fleets of a running control plane, and a rollback to one of them with a real Envoy."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from lbctl.cli import run
from tests.support.fleets import Fleet
from tests.support.processes.control import ControlPlane, controlling, driven
from tests.support.processes.fleet import fleet_of
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.state import refusing
from tests.support.processes.waiting import eventually
from tests.support.processes.xds_envoy import XdsEnvoy


def _cli(control: ControlPlane, *words: str) -> int:
    return run([*words, "--server", control.url, "--token-file", str(control.state / "api-token")])


def _history(control: ControlPlane) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = control.get("history")["entries"]
    return entries


def _fleet(edge: Fleet, *members: Replica, **more: Any) -> Fleet:
    return fleet_of({"replicas": [{"name": item.name, "address": item.address} for item in members]}, **edge, **more)


def _reaches(envoy: XdsEnvoy, *names: str) -> None:
    """Wait until the Envoy sends its requests to these replicas: its workers get a fleet after it has accepted it."""
    eventually(lambda: set(envoy.client().load(60).by_replica) == set(names))


def test_rollback_holds_until_the_files_change(
    capsys: pytest.CaptureFixture[str],
) -> None:
    edge = driven("edge")
    with (
        replicas("a", "b", "c") as (a, b, c),
        controlling(_fleet(edge, a, b)) as control,
        control.envoy("edge", ["edge"]) as envoy,
    ):
        first = _history(control)[0]["digest"]
        assert _cli(control, "rollback") == 1
        assert "no earlier fleet has been saved" in capsys.readouterr().err
        control.write(_fleet(edge, a, b, c))
        _reaches(envoy, "a", "b", "c")
        eventually(lambda: len(_history(control)) == 2)
        assert [(row["replicas"], row["current"], row["actor"]) for row in _history(control)] == [
            (2, False, "lbctl"), (3, True, "lbctl"),
        ]  # fmt: skip
        control.write_text("version: 1\nroutes: [")
        eventually(lambda: not control.status["fleet"]["valid"])
        assert _cli(control, "rollback", first[:11] + "x") == 1
        assert f"did you mean '{first[:12]}'" in capsys.readouterr().err

        assert _cli(control, "rollback", "--reason", "c is slow", "--wait") == 0
        assert f"published {first[:12]} until the files change" in capsys.readouterr().err
        _reaches(envoy, "a", "b")
        assert _cli(control, "status", "--check") == 3
        shown = capsys.readouterr()
        assert f"digest {first[:12]}" in shown.out
        assert "by operator: c is slow; the files" in shown.out
        assert "because operator rolled back" in shown.err
        assert _cli(control, "reload") == 1
        assert "ignored until they change" in capsys.readouterr().err
        assert control.metric("lbctl_fleet_valid") == 0

        control.kill()
        control.start()
        assert control.status["snapshot"]["from"] == "history"
        assert control.status["served"]["rollback"]["reason"] == "c is slow"
        _reaches(envoy, "a", "b")
        assert _cli(control, "history", "-o", "json") == 0
        rows = json.loads(capsys.readouterr().out)
        assert [(row["action"], row["actor"], row["digest"] == first) for row in rows] == [
            ("rollback", "operator", True), ("files", "lbctl", False), ("files", "lbctl", True),
        ]  # fmt: skip

        control.write(_fleet(edge, b, c))
        _reaches(envoy, "b", "c")
        assert _cli(control, "status", "--check", "--wait", "1m", "--expect", "1") == 0
        assert control.status["served"]["rollback"] is None
        assert control.status["snapshot"]["from"] == "files"
        actions = [(row["action"], row["subject"], row["reason"]) for row in control.get("audit")["records"]]
        assert ("rollback", first, "c is slow") in actions


def test_rollback_that_loses_many_replicas_needs_confirmation(capsys: pytest.CaptureFixture[str]) -> None:
    edge = driven("edge")
    with (
        replicas("a", "b", "c") as (a, b, c),
        controlling(_fleet(edge, a)) as control,
        control.envoy("edge", ["edge"]) as envoy,
    ):
        control.write(_fleet(edge, a, b, c))
        eventually(lambda: len(_history(control)) == 2)
        version = control.status["snapshot"]["version"]
        assert _cli(control, "rollback") == 1
        shown = capsys.readouterr().err
        assert "rejected" in shown
        assert "LB" in shown
        assert control.status["snapshot"]["version"] == version
        assert control.status["served"]["rollback"] is None
        assert _cli(control, "rollback", "--allow-shrink", "--wait") == 0
        _reaches(envoy, "a")
        assert _cli(control, "rollback", "--wait") == 0
        assert "which is identical to the files" in capsys.readouterr().err
        _reaches(envoy, "a", "b", "c")
        assert control.status["fleet"]["valid"], "the files are served again, so nothing is rolled back"


def test_commit_of_the_files_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with replicas("a", "b") as (a, b):
        edge = driven("edge")
        with controlling(_fleet(edge, a), start=False) as control:
            git = ["git", "-C", str(control.files), "-c", "user.name=anna", "-c", "user.email=anna@example.com"]
            for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first", "--no-gpg-sign"]):
                subprocess.run([*git, *command], check=True, timeout=30)
            control.start()
            asked = [*git, "rev-parse", "HEAD"]
            commit = subprocess.run(asked, check=True, capture_output=True, text=True, timeout=30).stdout.strip()
            eventually(lambda: control.status["served"]["commit"] == commit)
            assert not control.status["served"]["dirty"]
            control.write(_fleet(edge, a, b))
            eventually(lambda: control.status["served"]["dirty"])
            assert _cli(control, "status") == 0
            assert f"commit {commit[:12]} with changes" in capsys.readouterr().out
            assert _cli(control, "history") == 0
            assert f"{commit[:12]}+" in capsys.readouterr().out


def test_rollback_that_cannot_be_saved_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    edge = driven("edge")
    with replicas("a", "b") as (a, b), controlling(_fleet(edge, a)) as control:
        control.write(_fleet(edge, a, b))
        eventually(lambda: len(_history(control)) == 2)
        version = control.status["snapshot"]["version"]
        with refusing(control):
            assert _cli(control, "rollback", "--allow-shrink") == 4
            assert "nothing was changed" in capsys.readouterr().err
        assert control.status["served"]["rollback"] is None
        assert control.status["snapshot"]["version"] == version
        control.kill()
        control.start()
        assert control.status["snapshot"]["version"] == version


def test_rollback_without_its_key_file_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    edge = driven("edge")
    keyed = {"everything": {"pool": "pool", "auth": {"api_keys": {"file": "keys.txt"}}}}
    with (
        replicas("a", "b") as (a, b),
        controlling(_fleet(edge, a, routes=keyed), files={"keys.txt": f"sk-{'x' * 40}: acme\n"}) as control,
    ):
        control.write(_fleet(edge, a, b))
        eventually(lambda: len(_history(control)) == 2)
        (control.files / "keys.txt").unlink()
        version = control.status["snapshot"]["version"]
        assert _cli(control, "rollback", "--allow-shrink") == 1
        shown = capsys.readouterr().err
        assert "LB503" in shown
        assert "the published fleet does not change" in shown
        assert control.status["snapshot"]["version"] == version
        assert control.status["fleet"]["valid"]
