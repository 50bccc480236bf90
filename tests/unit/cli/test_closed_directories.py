"""Paths in a directory that this user may not search, for example /etc/ssl/private."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FLEET = """\
version: 1
listeners: {gateway: {bind: "127.0.0.1:8080", tls: {certificates: [{certificate: a.crt, key: closed/a.key}]}}}
routes: {all: {pool: p, auth: {api_keys: {file: closed/keys}}}}
pools: {p: {replicas: [{address: "127.0.0.1:1"}]}, q: {discovery: {file: {path: closed/targets}}}}
control: {state: closed/state}
"""
WITHOUT_RIGHTS = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"] if os.geteuid() == 0 else []
"""Command prefix that removes root's right to search every directory."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a fleet and a subdirectory `closed` that only root may search."""
    (tmp_path / "fleet.yaml").write_text(FLEET)
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed/fleet.yaml").write_text(FLEET)
    (tmp_path / "closed").chmod(0)
    return tmp_path


def lbctl(command: str, place: Path) -> tuple[int, str]:
    """Run lbctl in `place`. Return its exit code and its output."""
    ended = subprocess.run(
        [*WITHOUT_RIGHTS, sys.executable, "-m", "lbctl", *command.split()],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=90,
        check=False,
    )
    return ended.returncode, ended.stdout


def test_validate_reports_why_each_file_cannot_be_read(place: Path) -> None:
    code, printed = lbctl("validate fleet.yaml", place)
    assert [line.partition("warning ")[2].partition(": no request")[0] for line in printed.splitlines()] == [
        "LB110 listeners.gateway.tls.certificates[0].certificate: there is no file 'a.crt'",
        "LB110 listeners.gateway.tls.certificates[0].key: 'closed/a.key' cannot be read: permission denied",
        "LB503 routes.all.auth.api_keys.file: 'closed/keys' cannot be read (permission denied)",
        "LB110 pools.q.discovery.file.path: 'closed/targets' cannot be read: permission denied",
    ]
    assert code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "expected", "reason"),
    [
        ("doctor fleet.yaml", 3, "closed/state: permission denied"),
        ("bootstrap --xds 127.0.0.1:18000 --tls-ca closed/ca", 64, "--tls-ca: there is no file "),
        ("diff closed/fleet.yaml", 1, "closed/fleet.yaml:1:1: error LB002: cannot be read: permission denied"),
        ("render -t nginx -d closed/out fleet.yaml", 1, ": Permission denied"),
        ("serve fleet.yaml", 1, " cannot be used: permission denied"),
        ("serve --state own closed/fleet.yaml", 1, "error LB002: cannot be read: permission denied"),
    ],
)
def test_command_reports_the_permission_error(command: str, expected: int, reason: str, place: Path) -> None:
    code, printed = lbctl(command, place)
    assert "Traceback" not in printed
    assert reason in printed
    assert code == expected
