"""`lbctl doctor` reads the version of each proxy's program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lbctl.cli import run
from tests.support.processes.binaries import KINDS, require


def test_doctor_accepts_the_version_of_each_proxy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in KINDS:
        require(kind)
    run(["doctor", "--state", str(tmp_path / "state"), "-o", "json"])
    states = {row["what"]: row["state"] for row in json.loads(capsys.readouterr().out)["checks"]}
    assert {kind: states[kind] for kind in KINDS} == dict.fromkeys(KINDS, "ok")
