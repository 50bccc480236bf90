"""The proxy's own checker accepts each golden fleet, rendered for that version of the proxy."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.cli import run
from tests.golden.cases import DIRECTORY, configurations
from tests.support.processes.binaries import KINDS, Kind, rendered_version, require


@pytest.mark.parametrize(("case", "kind"), [(case, kind) for kind in KINDS for case in configurations(kind)])
def test_proxy_accepts_the_configuration_for_its_version(
    case: str, kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    require(kind)
    version = rendered_version(kind)
    assert version, "`make test-newer` sets the version"
    monkeypatch.chdir(DIRECTORY / case)
    code = run(["render", "-t", kind, "--proxy-version", version, "--check", "-d", str(tmp_path), "in.yaml"])
    assert code == 0, capsys.readouterr().err
