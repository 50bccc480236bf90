"""`lbctl render` lists which files the output directory lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.cli import run
from tests.support.fleets import fleet_of, write_fleet
from tests.support.processes.binaries import KINDS, Kind


def messages_of_render(kind: Kind, tmp_path: Path, capfd: pytest.CaptureFixture[str], *options: str) -> str:
    tls = {"certificates": [{"certificate": "tls/a.crt", "key": "tls/a.key"}]}
    file = write_fleet(tmp_path, fleet_of(listener={"tls": tls}))
    assert run(["render", "-t", kind, *options, str(file)]) == 0
    return capfd.readouterr().err


def create_tls_files(directory: Path) -> None:
    (directory / "tls").mkdir()
    for name in ("a.crt", "a.key"):
        (directory / "tls" / name).touch()


@pytest.mark.parametrize("kind", KINDS)
def test_missing_files_in_the_output_directory_are_listed(
    kind: Kind, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert "lacks" not in messages_of_render(kind, tmp_path, capfd, "-d", str(out))
    create_tls_files(tmp_path)
    assert f"{out} does not contain files that the proxy reads: tls/a.crt, tls/a.key (" in messages_of_render(
        kind, tmp_path, capfd, "-d", str(out)
    )
    create_tls_files(out)
    assert "lacks" not in messages_of_render(kind, tmp_path, capfd, "-d", str(out))
    assert "lacks" not in messages_of_render(kind, tmp_path, capfd, "-d", str(out), "--files-root", "/nowhere/at/all")
