"""The proxy's own checker takes each fleet of tests/golden as it is rendered for that version of the proxy."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.cli import run
from tests.golden.cases import CASES, DIRECTORY
from tests.support.processes.binaries import KINDS, Kind, rendered_version, require


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("invalid-")])
def test_the_proxy_accepts_what_is_rendered_for_its_version(
    name: str, kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    require(kind)
    version = rendered_version(kind)
    assert version, "`make test-newer` names the version"
    monkeypatch.chdir(DIRECTORY / name)
    code = run(["render", "-t", kind, "--proxy-version", version, "--check", "-d", str(tmp_path), "in.yaml"])
    assert code == 0, capsys.readouterr().err
