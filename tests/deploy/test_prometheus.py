"""contrib/prometheus: promtool accepts the files, and every alert has a firing and a silent test case."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml

from tests.support.paths import ROOT
from tests.support.tools import require_tool

CONTRIB = ROOT / "contrib" / "prometheus"


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "--lint-fatal", "lbctl.rules.yml"),
        ("test", "rules", "lbctl.rules.test.yml"),
    ],
)
def test_promtool_accepts_the_files(arguments: tuple[str, ...]) -> None:
    command = [require_tool("promtool"), *arguments]
    process = subprocess.run(command, cwd=CONTRIB, capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == 0, process.stdout + process.stderr


def test_every_alert_has_a_firing_and_a_silent_case() -> None:
    alerts = _alerts()
    tests = yaml.safe_load((CONTRIB / "lbctl.rules.test.yml").read_text(encoding="utf-8"))["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    assert sorted(case["alertname"] for case in cases if case["exp_alerts"]) == alerts
    assert sorted(case["alertname"] for case in cases if not case["exp_alerts"]) == alerts


def test_every_alert_is_on_the_page_about_monitoring() -> None:
    page = (ROOT / "docs" / "how-to" / "monitor-and-alert.md").read_text(encoding="utf-8")
    assert sorted(set(re.findall(r"`(Lbctl\w+)`", page))) == _alerts()


def _alerts() -> list[str]:
    groups = yaml.safe_load((CONTRIB / "lbctl.rules.yml").read_text(encoding="utf-8"))["groups"]
    return sorted(rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule)
