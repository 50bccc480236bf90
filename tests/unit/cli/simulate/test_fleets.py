"""`lbctl simulate` with a load from options, with two fleets, with failures, and on a terminal."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from lbctl.cli import run
from tests.support.paths import ROOT
from tests.support.simulate import load
from tests.support.simulate_command import FLEET, result, synthetic


def test_load_is_generated_from_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [*synthetic(tmp_path), "--policy", "nginx:least_request"]
    (steady,) = result(capsys, command)["policies"]
    assert steady["requests"] == pytest.approx(300, rel=0.2)
    (bursts,) = result(capsys, command, "--burst", "20")["policies"]
    assert bursts["ttft"]["p95"] > 1.5 * steady["ttft"]["p95"]


@pytest.mark.parametrize("missing", ["--rate", "--prompt", "--answer", "--duration"])
def test_generated_load_needs_all_options(missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = synthetic(tmp_path)
    at = command.index(missing)
    assert run(command[:at] + command[at + 2 :]) == 64
    assert f"{missing} is missing" in " ".join(capsys.readouterr().err.split())
    assert run(command[:2]) == 64
    assert "set the load with --trace FILE, or with --rate" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("option", ["--prompt", "--answer", "--burst"])
def test_load_option_must_be_a_number(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*synthetic(tmp_path), option, "nan"]) == 64
    assert f"{option}: not a number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["acme"], "'acme' is not NAME=SHARE[:PRIORITY]"),
        (["acme=0"], "with a positive share"),
        (["acme=nan"], "with a positive share"),
        (["=1"], "'=1' is not NAME=SHARE[:PRIORITY]"),
        (["acme=1:urgent"], "'urgent' is not a priority; use high, normal, low"),
        (["acme=1", "acme=2"], "--tenant: acme is set twice"),
    ],
)
def test_invalid_tenants_are_refused(
    texts: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*synthetic(tmp_path), *(each for text in texts for each in ("--tenant", text))]) == 64
    assert message in " ".join(capsys.readouterr().err.split())


QUEUED = f"""\
{FLEET}    balance: {{algorithm: pick}}
    circuit_breaker: {{per_replica: {{max_requests: 4}}}}
    queue: {{max_wait: 10s}}
"""


def test_queue_is_simulated_by_tenant_and_priority(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [*synthetic(tmp_path, QUEUED), "--tenant", "flood=9:low", "--tenant", "small=1:high"]
    command += ["--policy", "envoy:pick,envoy:round_robin"]
    picked, other = result(capsys, command)["policies"]
    assert other["queue"] is None
    tenants, priorities = picked["queue"]["tenants"], picked["queue"]["priorities"]
    assert tenants == {"flood": priorities["low"], "small": priorities["high"]}
    assert tenants["flood"]["requests"] > 5 * tenants["small"]["requests"]
    assert tenants["flood"]["rejected"] > 0
    assert tenants["small"]["rejected"] == 0
    assert tenants["small"]["wait_p99"] < 0.5 * tenants["flood"]["wait_p99"]
    assert run(command) == 0
    assert re.search(r"^envoy:pick +tenant small +\d+ ", capsys.readouterr().out, re.MULTILINE)


def test_two_fleets_are_compared_with_the_same_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = FLEET.replace("weight: 5", "weight: 2")
    synthetic(tmp_path, small, "small.yaml")
    command = [*synthetic(tmp_path), "--against", str(tmp_path / "small.yaml"), "--policy", "nginx:random,envoy:random"]
    value = result(capsys, command)
    rows = [f"{item['fleet']}/{item['policy']}" for item in value["policies"]]
    assert rows == ["fleet/nginx:random", "fleet/envoy:random", "small/nginx:random", "small/envoy:random"]
    assert value["loads"]["small"] > 1.3 * value["loads"]["fleet"]
    assert run(command) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[1:5]] == rows
    assert re.search(r"fleet/(nginx|envoy):random has the lowest .*; small/", out)
    assert "Its fleet has more capacity: the load is" in out


def test_killed_replica_fails_requests_and_late_one_gets_fewer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*synthetic(tmp_path), "--policy", "haproxy:round_robin"]
    (undisturbed,) = result(capsys, command)["policies"]
    (killed,) = result(capsys, command, "--kill", "big@20")["policies"]
    assert (undisturbed["failed"], undisturbed["shed"]) == (0, 0)
    assert killed["failed"] > 0
    assert killed["share"]["big"] < 0.6 * undisturbed["share"]["big"]
    (late,) = result(capsys, command, "--join", "big@30")["policies"]
    assert late["share"]["big"] < 0.7 * undisturbed["share"]["big"]


TELEMETRY = '    telemetry: {sources: [{kind: vllm, url: "http://{address}/metrics"}]}\n    replicas:'
HASHED = "    balance: {algorithm: hash, hash: {key: {header: x-session}}}\n    replicas:"


def test_weighting_and_slow_start_depend_on_the_algorithm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Weighting and slow start follow the simulated algorithm, not the algorithm in the files."""
    watched = FLEET.replace("    replicas:", TELEMETRY)
    hashed = watched.replace("    replicas:", HASHED)
    for event in (["--slow", "big=0@10"], ["--join", "big@20"]):
        shares = [
            result(capsys, synthetic(tmp_path, each), "--policy", policy, *event)["policies"][0]["share"]["big"]
            for policy in ("haproxy:round_robin", "haproxy:hash")
            for each in (watched, hashed)
        ]
        assert shares[0] == shares[1]
        assert shares[2] == shares[3]


LIMITED = FLEET.replace("    replicas:", "    circuit_breaker: {per_replica: {max_requests: 2}}\n    replicas:")


def test_requests_above_a_limit_of_the_proxy_are_shed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [*synthetic(tmp_path, LIMITED), "--policy", "nginx:round_robin"]
    value = result(capsys, command)
    (policy,) = value["policies"]
    assert policy["shed"] > 0.2
    # The load bound of a limited replica counts only two requests at a time.
    assert value["load"] > 1.5 * result(capsys, synthetic(tmp_path), "--policy", "nginx:random")["load"]
    synthetic(tmp_path, LIMITED)
    assert policy["failed"] == 0
    assert run(command) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[-1] == f"{100 * policy['shed']:.1f}%"
    rate = result(capsys, command, "--find", "rate", "--slo", "failed < 1%")["found"]["nginx:round_robin"]
    assert rate < 2.5


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--find", "rate", "--slo", "ttft p99 < 2s"]])
def test_terminal_shows_the_progress(tmp_path: Path, more: list[str]) -> None:
    command = [*synthetic(tmp_path), "--policy", "nginx:random,envoy:random", *more]
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-m", "lbctl", *command], stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # Linux: the other side was closed
            while data := os.read(ours, 4096):
                shown += data
        assert process.stdout is not None
        assert b"nginx:random" in process.stdout.read()
    os.close(ours)
    parts = [int(each) for each in re.findall(rb"(\d+)%", shown)]
    assert b"Simulating" in shown
    assert parts == sorted(parts)
    assert max(after - before for before, after in pairwise(parts)) <= 30
    assert parts[-1] == 100


def test_commands_of_the_simulate_page_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "reference" / "simulate.md").read_text(encoding="utf-8").replace("\\\n", " ")
    commands = re.findall(r"^lbctl (simulate .*)$", page, re.MULTILINE)
    assert len(commands) == 6
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "new.yaml").write_text((ROOT / "examples" / "mixed-gpus.yaml").read_text())
    trace = load(40, 5.0, 500, 80)
    rows = zip(trace.times, trace.prompts, trace.answers, strict=True)
    (tmp_path / "trace.csv").write_text("time,prompt,answer\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows))
    monkeypatch.chdir(tmp_path)
    for command in commands:
        assert run([*shlex.split(command), "--requests", "40", "--policy", "nginx:random"]) == 0, command
        assert "nginx:random" in capsys.readouterr().out
