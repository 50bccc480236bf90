"""`lbctl import --compare`: the configuration and its fleet, run by the real proxy, treat requests alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.cli import run as command
from tests.e2e.support.binaries import require
from tests.support.importer import SAMPLES

pytestmark = [pytest.mark.e2e]


@pytest.mark.parametrize(
    ("kind", "file"),
    [("nginx", "session-hash.conf"), ("haproxy", "canary-headers-hosts.cfg"), ("envoy", "canary-weighted.yaml")],
)
def test_a_configuration_and_its_fleet_agree(kind: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    require(kind)  # type: ignore[arg-type]
    assert command(["import", kind, str(SAMPLES / kind / file), "--compare"]) == 0
    lines = capsys.readouterr().err.splitlines()
    summary = next(line for line in lines if "compared requests agree" in line)
    agree, _, compared = summary.split()[:3]
    assert agree == compared
    assert int(compared) >= 3


def test_a_header_that_is_not_carried_over_is_a_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require("nginx")
    file = tmp_path / "nginx.conf"
    file.write_text(
        "server { listen 80; location / { proxy_pass http://10.0.0.1:80; proxy_set_header X-A $connection; } }"
    )
    assert command(["import", "nginx", str(file), "--compare"]) == 1
    errors = capsys.readouterr().err
    assert "LB986" in errors
    assert "headers lost: x-a" in errors
