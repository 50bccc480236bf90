"""A picker that hangs: `status` and the metrics report it within seconds, and its costs are included in later
counts."""

from __future__ import annotations

import os
import signal

import requests

from tests.support.processes.fleet import entry
from tests.support.processes.lbctl_process import PICKER_MAY_HANG, short_pauses
from tests.support.processes.picker import frozen, picked, pid_of
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually


def test_hanging_picker_counts_as_down_and_keeps_its_fallbacks() -> None:
    with short_pauses(PICKER_MAY_HANG), replicas("a", "b") as two:
        pool = {"replicas": [entry(item) for item in two], "balance": {"algorithm": "pick"}}
        with picked("haproxy", pool) as (control, client):
            pid = pid_of(control)
            with frozen(pid):
                eventually(lambda: not control.status["picker"]["running"])
                assert control.status["picker"]["starts"] == 1, "it has not been ended"
                assert "hangs: it has reported nothing for" in control.status["picker"]["reason"]
                assert control.metric("lbctl_picker_up") == 0.0
                client.load(20, 4).assert_no_failure()
                eventually(lambda: control.metric("lbctl_pick_fallbacks") > 0)
                lost = control.metric("lbctl_pick_fallbacks")
                os.kill(pid, signal.SIGKILL)
            eventually(lambda: control.status["picker"]["running"] and control.status["picker"]["starts"] > 1)
            assert control.metric("lbctl_pick_fallbacks") >= lost


def test_picker_and_serve_export_the_same_metrics() -> None:
    with replicas("a", "b") as two:
        pool = {"replicas": [entry(item) for item in two], "balance": {"algorithm": "pick"}}
        with picked("haproxy", pool) as (control, client):
            client.load(20, 4).assert_no_failure()
            eventually(lambda: control.metric("lbctl_pick_decisions_total") > 0)
            host, port = control.status["picker"]["listens"].split(":")
            page = requests.get(f"http://{host}:{int(port) + 1}/metrics", timeout=10).text
            own = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE lbctl_pick_")}
            assert own == {f"lbctl_pick_{name}" for name in ("decisions_total", "seconds", "open", "lost_ends_total")}
            served = requests.get(f"{control.url}/metrics", timeout=10).text
            names = {line.split()[2] for line in served.splitlines() if line.startswith("# TYPE lbctl_pick_")}
            assert own <= names
