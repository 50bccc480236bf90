"""The page about rendering: its proxies start as shown. Also the fleets of README.md and of the front page."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lbctl.cli import run
from tests.docs.pages import ROOT, blocks
from tests.docs.reader import beside_another_envoy
from tests.support.processes import background
from tests.support.processes.binaries import KINDS, Kind, require
from tests.support.processes.client import Client
from tests.support.processes.ports import free_port
from tests.support.processes.waiting import eventually

(_STARTS,) = [block.text for block in blocks("docs/how-to/render-a-configuration.md") if block.language == "sh"]
STARTS = {kind: next(line for line in _STARTS.splitlines() if re.search(rf"\b{kind}\b", line)) for kind in KINDS}
GUARDED = """\
version: 1
listeners: {gateway: {bind: "127.0.0.1:PORT"}}
routes:
  chat: {match: {path_prefix: /v1}, pool: llama, auth: {api_keys: {file: keys}}}
  ready: {match: {path: /ready}, respond: {status: 200, body: ready}}
pools: {llama: {replicas: [{address: "127.0.0.1:9"}]}}
"""


@pytest.mark.e2e
@pytest.mark.parametrize("kind", KINDS)
def test_proxy_starts_as_shown_with_files_next_to_its_own(kind: Kind, tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "fleet").mkdir()
    (tmp_path / "fleet" / "fleet.yaml").write_text(GUARDED.replace("PORT", str(port)))
    (tmp_path / "fleet" / "keys").write_text("sk-abc: acme\n")
    tmp_path.chmod(0o755)
    path = os.pathsep.join([str(Path(sys.executable).parent), str(require(kind).parent), os.environ["PATH"]])
    command = ["bash", "-c", STARTS[kind].partition("   #")[0]]
    client, env = Client(port), os.environ | {"PATH": path}
    quiet = subprocess.DEVNULL
    with (
        beside_another_envoy(),
        subprocess.Popen(command, cwd=tmp_path, env=env, stdout=quiet, stderr=quiet, start_new_session=True) as proxy,
    ):
        try:
            eventually(lambda: client.get("/ready").ok)
            assert client.post("/v1").status == 401
            assert client.post("/v1", headers={"authorization": "Bearer sk-abc"}).status == 503
        finally:
            os.killpg(proxy.pid, signal.SIGTERM)
    background.close()


def test_fleet_of_the_readme_is_valid(tmp_path: Path) -> None:
    (shown,) = [block.text for block in blocks("README.md") if block.language == "yaml"]
    (tmp_path / "fleet.yaml").write_text(shown)
    assert run(["validate", str(tmp_path / "fleet.yaml")]) == 0


def test_fleet_of_the_front_page_is_the_quickstart() -> None:
    (shown,) = [block.text for block in blocks("docs/index.md") if block.language == "yaml"]
    example = (ROOT / "examples" / "quickstart.yaml").read_text(encoding="utf-8")
    assert example.partition("\n")[2] == shown
