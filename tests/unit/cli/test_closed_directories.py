"""Paths in a directory that this user may not search, for example /etc/ssl/private."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

FLEET = """\
version: 1
listeners: {gateway: {bind: "127.0.0.1:8080", tls: {certificates: [{certificate: a.crt, key: closed/a.key}]}}}
routes: {all: {pool: p, auth: {api_keys: {file: closed/keys}}}}
pools: {p: {replicas: [{address: "127.0.0.1:1"}]}, q: {discovery: {file: {path: closed/targets}}}}
control: {state: closed/state}
"""
WITHOUT_RIGHTS = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"] if os.geteuid() == 0 else []
"""Command prefix that removes root's right to search every directory."""


COMMANDS = {
    "doctor fleet.yaml": (4, "closed/state: permission denied"),
    "bootstrap --xds 127.0.0.1:18000 --tls-ca closed/ca": (64, "--tls-ca: the file "),
    "diff closed/fleet.yaml": (1, "closed/fleet.yaml:1:1: error LB002: cannot be read: permission denied"),
    "render -t nginx -d closed/out fleet.yaml": (1, ": Permission denied"),
    "serve fleet.yaml": (1, " cannot be used: permission denied"),
    "serve --state own closed/fleet.yaml": (1, "error LB002: cannot be read: permission denied"),
}
"""Command → its exit code, and a part of its output."""
VALIDATE = "validate fleet.yaml"
RUN_EACH = """
import contextlib, io, json, sys, traceback
from lbctl.cli import run

results = {}
for command in sys.argv[1:]:
    output, code = io.StringIO(), None
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            code = run(command.split())
        except BaseException:
            traceback.print_exc()
    results[command] = code, output.getvalue()
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int | None, str]]:
    """The exit code and output of each command, in a directory with a fleet and a subdirectory that is closed."""
    directory = tmp_path_factory.mktemp("fleet")
    (directory / "fleet.yaml").write_text(FLEET)
    closed = directory / "closed"
    closed.mkdir()
    (closed / "fleet.yaml").write_text(FLEET)
    closed.chmod(0)
    command = [*WITHOUT_RIGHTS, sys.executable, "-c", RUN_EACH, VALIDATE, *COMMANDS]
    env = os.environ | {"PYTHONPATH": str(ROOT), "LBCTL_ENVOY": "/nowhere"}
    process = subprocess.run(command, cwd=directory, env=env, stdout=subprocess.PIPE, timeout=90, check=True)
    closed.chmod(0o700)
    return {command: (code, output) for command, (code, output) in json.loads(process.stdout).items()}


@pytest.mark.slow
def test_validate_reports_why_each_file_cannot_be_read(results: dict[str, tuple[int | None, str]]) -> None:
    code, output = results[VALIDATE]
    assert [line.partition("warning ")[2].partition(": it authenticates")[0] for line in output.splitlines()] == [
        "LB110 listeners.gateway.tls.certificates[0].certificate: the file 'a.crt' does not exist",
        "LB110 listeners.gateway.tls.certificates[0].key: 'closed/a.key' cannot be read: permission denied",
        "LB503 routes.all.auth.api_keys.file: 'closed/keys' cannot be read (permission denied)",
        "LB110 pools.q.discovery.file.path: 'closed/targets' cannot be read: permission denied",
    ]
    assert code == 0


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_command_reports_the_permission_error(command: str, results: dict[str, tuple[int | None, str]]) -> None:
    expected, reason = COMMANDS[command]
    code, output = results[command]
    assert "Traceback" not in output
    assert reason in output
    assert code == expected
