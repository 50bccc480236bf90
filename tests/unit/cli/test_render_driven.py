"""`lbctl render` for a proxy that `lbctl serve` drives: one line names the functions that `serve` provides."""

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


def messages_of_render(directory: Path, capsys: pytest.CaptureFixture[str], kind: str, how: str) -> list[str]:
    file = directory / "fleet.yaml"
    file.write_text(FLEET.format(kind=kind, how=how))
    assert run(["render", "-t", kind, str(file), "-d", str(directory / "out")]) == 0
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("case", DRIVEN)
def test_functions_of_serve_are_summarised_in_one_line(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, how = DRIVEN[case]
    lines = messages_of_render(tmp_path, capsys, kind, how)
    summaries = [line for line in lines if line.startswith("lbctl: ")]
    assert len(summaries) == 1
    assert "edge needs `lbctl serve`" in summaries[0]
    assert all(code in summaries[0] for code in ALWAYS)
    assert ("LB475" in summaries[0]) == ("LB474" in summaries[0]) == (kind == "nginx")
    warned_codes = {line.split("warning ")[1][:5] for line in lines if "warning" in line}
    assert not warned_codes & done_by_control_plane_for(kind).keys()
    assert ("LB413" in warned_codes) == (kind != "envoy")


@pytest.mark.parametrize("kind", LEFT_ALONE)
def test_proxy_without_serve_gets_a_warning_for_each_function(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = messages_of_render(tmp_path, capsys, kind, LEFT_ALONE[kind])
    for code in ALWAYS:
        assert any(f"warning {code} " in line for line in lines), code
    assert not any("LB497" in line for line in lines), "`control` is about no file of a proxy"
    assert not any(line.startswith("lbctl: ") for line in lines)


def test_control_plane_never_provides_protection() -> None:
    protecting = {item.code for item in FEATURES if item.protects}
    assert not protecting & {code for kind in LEFT_ALONE for code in done_by_control_plane_for(kind)}
