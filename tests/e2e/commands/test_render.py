"""`lbctl render --check` lists the values that it replaced for the check."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.cli import run
from tests.support.fleets import fleet_of, replica, write_fleet
from tests.support.processes.binaries import Kind, require


def test_replacements_for_the_check_are_listed(kind: Kind, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    require(kind)
    listener = {
        "tls": {"certificates": [{"certificate": "tls/a.crt", "key": "tls/a.key"}]},
        "access_log": {"path": "/var/log/edge.log"},
    }
    replicas = [replica("a", "vllm-0.ml.svc:8000"), replica("b", "10.0.0.1:8000")]
    file = write_fleet(tmp_path, fleet_of(replicas, listener=listener))
    assert run(["render", "-t", kind, "--check", "-d", str(tmp_path / "out"), str(file)]) == 0
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "not checked" in line]
    assert "files that are not on this machine (tls/a.crt, tls/a.key)" in line
    assert "host names, which a proxy may resolve at startup (vllm-0.ml.svc)" in line
    assert line.endswith("access logs, which it opens at startup (/var/log/edge.log)") == (kind != "haproxy")


def test_missing_file_of_certificate_and_key_passes(
    kind: Kind, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    require(kind)
    pair = {"certificate": "tls/site.pem", "key": "tls/site.pem"}
    listener = {"tls": {"certificates": [pair], "client_ca": "tls/site.pem"}}
    tls = {"ca": "tls/ca.pem", "certificate": "tls/client.pem", "key": "tls/client.pem"}
    pool = {"tls": tls, "replicas": [replica("b", "10.0.0.1:8000")]}
    file = write_fleet(tmp_path, fleet_of(pool, listener=listener))
    assert run(["render", "-t", kind, "--check", "-d", str(tmp_path / "out"), str(file)]) == 0
    assert "files that are not on this machine (tls/ca.pem, tls/client.pem, tls/site.pem)" in capfd.readouterr().err
