"""`lbctl render` lists what `--check` replaced and which files the output directory lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.cli import run
from tests.support.processes.binaries import KINDS, Kind, require

_FLEET = """\
version: 1
listeners:
  gateway:
    bind: "127.0.0.1:8443"
    tls: {certificates: [{certificate: tls/a.crt, key: tls/a.key}]}
    access_log: {path: /var/log/edge.log}
routes: {all: {match: {path_prefix: /}, pool: p}}
pools: {p: {replicas: [{address: "vllm-0.ml.svc:8000"}, {address: "10.0.0.1:8000"}]}}
"""


def messages_of_render(kind: Kind, tmp_path: Path, capfd: pytest.CaptureFixture[str], *options: str) -> str:
    (tmp_path / "fleet.yaml").write_text(_FLEET)
    assert run(["render", "-t", kind, *options, str(tmp_path / "fleet.yaml")]) == 0
    return capfd.readouterr().err


def create_tls_files(directory: Path) -> None:
    (directory / "tls").mkdir()
    for name in ("a.crt", "a.key"):
        (directory / "tls" / name).touch()


@pytest.mark.e2e
@pytest.mark.parametrize("kind", KINDS)
def test_replacements_for_the_check_are_listed(kind: Kind, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    require(kind)
    messages = messages_of_render(kind, tmp_path, capfd, "--check", "-d", str(tmp_path / "out"))
    (line,) = [line for line in messages.splitlines() if "not checked" in line]
    assert "files that are not here (tls/a.crt, tls/a.key)" in line
    assert "host names, which a proxy may look up when it starts (vllm-0.ml.svc)" in line
    assert line.endswith("access logs, which it opens when it starts (/var/log/edge.log)") == (kind != "haproxy")


@pytest.mark.parametrize("kind", KINDS)
def test_missing_files_in_the_output_directory_are_listed(
    kind: Kind, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert "lacks" not in messages_of_render(kind, tmp_path, capfd, "-d", str(out))
    create_tls_files(tmp_path)
    assert f"{out} lacks files that the proxy reads: tls/a.crt, tls/a.key (" in messages_of_render(
        kind, tmp_path, capfd, "-d", str(out)
    )
    create_tls_files(out)
    assert "lacks" not in messages_of_render(kind, tmp_path, capfd, "-d", str(out))
    assert "lacks" not in messages_of_render(kind, tmp_path, capfd, "-d", str(out), "--files-root", "/nowhere/at/all")
