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
from tests.docs.shell import Shell
from tests.support.processes import background
from tests.support.processes.binaries import KINDS, Kind, require
from tests.support.processes.client import Client
from tests.support.processes.ports import free_pair, free_port
from tests.support.processes.replicas import replicas
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


@pytest.mark.e2e
def test_rendered_proxies_query_the_picker_of_serve(tmp_path: Path) -> None:
    page = [block for block in blocks("docs/how-to/run-the-picker.md") if block.words]
    fleet, commands = page[0].text, page[1].text
    with replicas("a", "b") as two:
        nginx, haproxy, picker = free_port(), free_port(), free_pair()
        binds = {"8080": nginx, "8000": haproxy, "18001": picker, "18514": free_port()}
        binds |= {"9001": two[0].port, "9002": two[1].port}
        (tmp_path / "fleet.yaml").write_text(
            re.sub(r"(?<=127\.0\.0\.1:)\d+", lambda found: str(binds[found[0]]), fleet)
        )
        tmp_path.chmod(0o755)
        places = {Path(sys.executable).parent, require("nginx").parent, require("haproxy").parent}
        env = os.environ | {"PATH": os.pathsep.join([*map(str, places), os.environ["PATH"]])}
        env |= {f"LBCTL_SERVE_{name}_BIND": f"127.0.0.1:{free_port()}" for name in ("XDS", "API")}
        steps = tmp_path / "steps"
        steps.mkdir()
        with Shell(tmp_path, steps, env) as shell:
            code, output = shell.run(commands, 60.0)
            assert code == 0, output
            eventually(lambda: _sessions_meet(nginx, haproxy))


def _sessions_meet(*ports: int) -> bool:
    """Return whether these proxies send each of ten sessions to one replica, and the sessions to both replicas."""
    reached = []
    for number in range(10):
        headers = {"x-session-id": str(number)}
        answers = [Client(port).get("/v1/models", headers) for port in ports for _ in range(2)]
        reached.append({answer.replica for answer in answers})
    return all(len(each) == 1 for each in reached) and set().union(*reached) == {"a", "b"}


def test_fleet_of_the_readme_is_valid(tmp_path: Path) -> None:
    (shown,) = [block.text for block in blocks("README.md") if block.language == "yaml"]
    (tmp_path / "fleet.yaml").write_text(shown)
    assert run(["validate", str(tmp_path / "fleet.yaml")]) == 0


def test_fleet_of_the_front_page_is_the_quickstart() -> None:
    (shown,) = [block.text for block in blocks("docs/index.md") if block.language == "yaml"]
    example = (ROOT / "examples" / "quickstart.yaml").read_text(encoding="utf-8")
    assert example.partition("\n")[2] == shown
