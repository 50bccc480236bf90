"""Envoy accepts the output of `lbctl bootstrap`."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.cli import run
from tests.support.bootstrap import TLS_OPTIONS, with_certificates
from tests.support.envoy import validate_file


def validate(path: Path) -> None:
    process = validate_file(path, "info")
    assert process.returncode == 0, process.stderr
    assert "deprecat" not in process.stderr.lower()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--xds", "127.0.0.1:18000"],
        ["--xds", "lbctl.ml.svc:18000", "--node", "edge-1", "--region", "us-east-1", "--zone", "us-east-1a"],
        ["--xds", "[::1]:18000", "--proxy-admin", "127.0.0.1:9901"],
        ["--xds", "127.0.0.1:18000", "--proxy-admin", "127.0.0.1:9901", "--proxy-metrics", "127.0.0.1:9902"],
        ["--xds", "unix:/run/lbctl/xds.sock", "--node", 'a "quoted": {node} #1'],
        ["--xds", "127.0.0.1:18000", *TLS_OPTIONS],
        ["--xds", "lbctl.ml.svc:18000", *TLS_OPTIONS],
        ["--xds", "lbctl.ml.svc:18000", *TLS_OPTIONS[:2]],
    ],
)
def test_envoy_accepts_the_bootstrap(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = with_certificates(arguments, tmp_path)
    assert run(["bootstrap", *options]) == 0
    single_file = tmp_path / "alone.yaml"
    single_file.write_text(capsys.readouterr().out)
    validate(single_file)
    assert run(["bootstrap", *options, "-d", str(tmp_path / "out")]) == 0
    assert capsys.readouterr() == ("", "")
    validate(tmp_path / "out" / "envoy.yaml")
