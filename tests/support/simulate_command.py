"""A fleet and a load for tests of `lbctl simulate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lbctl.cli import run

FLEET = """\
version: 1
listeners: {l: {bind: "127.0.0.1:8000"}}
routes: {r: {match: {path_prefix: /v1/}, pool: p}}
pools:
  p:
    replicas:
      - {name: big, address: "127.0.0.1:8001", weight: 5, zone: a}
      - {name: middle, address: "127.0.0.1:8002", weight: 2, zone: a}
      - {name: small, address: "127.0.0.1:8003", weight: 1, zone: b}
"""


SYNTHETIC = ["--rate", "5/s", "--prompt", "500", "--answer", "80", "--duration", "60s"]


def synthetic(tmp_path: Path, fleet: str = FLEET, name: str = "fleet.yaml") -> list[str]:
    """Return the arguments of the command for a load made from options."""
    (tmp_path / name).write_text(fleet)
    return ["simulate", str(tmp_path / name), *SYNTHETIC]


def result(capsys: pytest.CaptureFixture[str], arguments: list[str], *more: str) -> dict[str, Any]:
    """Run the command, and return what it prints as JSON; nothing may go to standard error."""
    assert run([*arguments, *more, "-o", "json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    value: dict[str, Any] = json.loads(out)
    return value
