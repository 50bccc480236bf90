"""The commands that README.md shows work as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lbctl.cli import run
from tests.e2e.support import background
from tests.e2e.support.binaries import KINDS, Kind, require
from tests.e2e.support.client import Client
from tests.e2e.support.ports import free_port
from tests.e2e.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHOWN = [
    line.removeprefix("$ ").partition("  #")[0].strip()
    for block in re.findall(r"^```console\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
    if line.startswith("$ ")
]
COMMANDS = [line for line in SHOWN if re.search(r"\blbctl\b", line)]

_STARTS, *_ = re.findall(r"^```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
STARTS = {kind: next(line for line in _STARTS.splitlines() if re.search(rf"\b{kind}\b", line)) for kind in KINDS}
GUARDED = """\
version: 1
listeners: {gateway: {bind: "127.0.0.1:PORT"}}
routes:
  chat: {match: {path_prefix: /v1}, pool: llama, auth: {api_keys: {file: keys}}}
  ready: {match: {path: /ready}, respond: {status: 200, body: ready}}
pools: {llama: {replicas: [{address: "127.0.0.1:9"}]}}
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A directory like the repository's, where what the commands write does no harm; `fleet/` is a user's own."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "fleet").mkdir()
    shutil.copy(ROOT / "examples" / "quickstart.yaml", tmp_path / "fleet")
    return tmp_path


@pytest.mark.parametrize("line", COMMANDS)
def test_a_shown_command_works(line: str, checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    for kind in _checked(line):
        require(kind)
    path = os.pathsep.join([str(_shim(tmp_path_factory.mktemp("bin"))), os.environ["PATH"]])
    env = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-euc", line], cwd=checkout, env=env, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    if " -d out" in line:
        assert list((checkout / "out").iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_a_proxy_starts_as_it_is_shown_with_the_files_beside_its_own(kind: Kind, tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "fleet.yaml").write_text(GUARDED.replace("PORT", str(port)))
    (tmp_path / "keys").write_text("sk-abc: acme\n")
    assert run(["render", "-t", kind, "-d", str(tmp_path / "out"), str(tmp_path / "fleet.yaml")]) == 0
    tmp_path.chmod(0o755)
    path = os.pathsep.join([str(require(kind).parent), os.environ["PATH"]])
    command = ["bash", "-c", STARTS[kind].partition("   #")[0]]
    client, env = Client(port), os.environ | {"PATH": path}
    with subprocess.Popen(
        command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as proxy:
        try:
            eventually(lambda: client.get("/ready").ok)
            assert client.post("/v1").status == 401
            assert client.post("/v1", headers={"authorization": "Bearer sk-abc"}).status == 503
        finally:
            os.killpg(proxy.pid, signal.SIGTERM)
    background.close()


def test_the_commands_of_the_introduction_are_among_them() -> None:
    assert {command for line in COMMANDS for command in re.findall(r"\blbctl (\w+)", line)} >= {
        "gpus", "render", "schema", "validate",
    }  # fmt: skip
    assert {line.split()[1] for line in SHOWN if line.startswith("make")} == set(_targets()) & {
        "bench", "check", "demo", "test",
    }  # fmt: skip


def test_the_fleet_on_the_first_screen_is_the_quickstart() -> None:
    (shown,) = re.findall(r"^```yaml\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    example = (ROOT / "examples" / "quickstart.yaml").read_text(encoding="utf-8")
    assert example.partition("\n")[2] == shown


def test_every_linked_page_is_there() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def _checked(line: str) -> list[Kind]:
    words = shlex.split(line)
    return [kind for kind in KINDS if "--check" in words and kind in words]


def _targets() -> list[str]:
    return re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


def _shim(folder: Path) -> Path:
    """A directory with the command `lbctl` of this checkout."""
    command = folder / "lbctl"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m lbctl "$@"\n')
    command.chmod(0o755)
    return folder
