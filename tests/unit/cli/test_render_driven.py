"""`lbctl render` for a proxy that `lbctl serve` drives: what that does in its place is one line, and no loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.cli import run
from lbctl.serve.fleet.unsupported import done_by_control_plane_for
from lbctl.targets.features import FEATURES

FLEET = """\
version: 1
listeners: {{gateway: {{bind: "127.0.0.1:8080", tracing: {{otlp: "127.0.0.1:4317"}}}}}}
routes: {{chat: {{match: {{path_prefix: /}}, pool: llama}}}}
pools:
  llama:
    replicas: [{{name: a, address: "127.0.0.1:8000"}}]
    drain_deadline: 5m
    slow_start: {{window: 30s}}
    telemetry: {{sources: [{{kind: vllm, url: "http://{{host}}:8000/metrics"}}]}}
    weighting: {{strategy: adaptive}}
    health: {{active: {{http: {{path: /health}}}}, deep: {{stalled_after: 60s}}}}
proxies: {{edge: {{kind: {kind}{how}}}}}
control: {{max_shrink: 40%}}
"""
BY_FILE = ", config: /etc/proxy.conf, reload: {command: [reload]}"
DRIVEN = {
    "haproxy by its socket": ("haproxy", ", user: haproxy, runtime_api: /run/admin.sock"),
    "haproxy by agents": ("haproxy", ', user: haproxy, agent_check: {bind: "127.0.0.1:18600"}'),
    "haproxy by file": ("haproxy", BY_FILE),
    "nginx": ("nginx", BY_FILE),
    "envoy": ("envoy", ', nodes: ["edge-*"]'),
}
LEFT_ALONE = {"haproxy": ", user: haproxy", "nginx": ", config: /etc/proxy.conf", "envoy": ""}
ALWAYS = ("LB466", "LB483", "LB485", "LB486")


def said(directory: Path, capsys: pytest.CaptureFixture[str], kind: str, how: str) -> list[str]:
    file = directory / "fleet.yaml"
    file.write_text(FLEET.format(kind=kind, how=how))
    assert run(["render", "-t", kind, str(file), "-d", str(directory / "out")]) == 0
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("case", DRIVEN)
def test_what_serve_does_for_a_driven_proxy_is_one_line(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, how = DRIVEN[case]
    lines = said(tmp_path, capsys, kind, how)
    told = [line for line in lines if line.startswith("lbctl: ")]
    assert len(told) == 1
    assert "`lbctl serve`, which drives edge" in told[0]
    assert all(code in told[0] for code in ALWAYS)
    assert ("LB475" in told[0]) == ("LB474" in told[0]) == (kind == "nginx")
    warned = {line.split("warning ")[1][:5] for line in lines if "warning" in line}
    assert not warned & done_by_control_plane_for(kind).keys()
    assert ("LB413" in warned) == (kind != "envoy")


@pytest.mark.parametrize("kind", LEFT_ALONE)
def test_a_proxy_that_nobody_drives_is_warned_of_each(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = said(tmp_path, capsys, kind, LEFT_ALONE[kind])
    for code in ALWAYS:
        assert any(f"warning {code} " in line for line in lines), code
    assert not any("LB497" in line for line in lines), "`control` is about no file of a proxy"
    assert not any(line.startswith("lbctl: ") for line in lines)


def test_nothing_that_protects_is_ever_done_by_the_control_plane() -> None:
    protecting = {item.code for item in FEATURES if item.protects}
    assert not protecting & {code for kind in LEFT_ALONE for code in done_by_control_plane_for(kind)}
