"""`lbctl up` with a picker: it has free ports where nobody has chosen them, and a chosen port in use is an error."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import requests

from lbctl.base.ports import PICKER
from tests.support.processes.binaries import Kind, require
from tests.support.processes.client import Client
from tests.support.processes.ports import HOST, free_port
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.up import up
from tests.support.processes.waiting import eventually

FLEET = """\
version: 1
listeners: {{gateway: {{bind: "127.0.0.1:{port}"}}}}
routes: {{chat: {{match: {{path_prefix: /}}, pool: llama}}}}
pools: {{llama: {{model: {{name: m}}, balance: {{algorithm: pick}}, replicas: {replicas}}}}}
{more}
"""


@contextmanager
def _taken(port: int) -> Iterator[None]:
    """Somebody listens at the port: this test, where nobody else does."""
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(socket.create_server((HOST, port)))
        yield


def _write(folder: Path, port: int, members: list[Replica], more: str = "") -> None:
    rows = json.dumps([{"address": item.address} for item in members])
    (folder / "fleet.yaml").write_text(FLEET.format(port=port, replicas=rows, more=more))


def test_the_picker_gets_free_ports_where_nobody_has_chosen_them(tmp_path: Path, kind: Kind) -> None:
    require(kind)
    with up(tmp_path) as run, replicas("a", "b") as two, _taken(PICKER):
        client = Client(free_port())
        _write(tmp_path, client.port, two)
        run.start("--proxy", kind)
        run.await_ready()

        def status() -> dict[str, object]:
            answer = requests.get(f"http://{HOST}:{run.api}/api/v1/status", timeout=10).json()["picker"]
            return {"listens": answer["listens"] != f"{HOST}:{PICKER}", "running": answer["running"]}

        eventually(lambda: status() == {"listens": True, "running": True})

        def picks() -> bool:
            assert client.get("/v1/models", {"authorization": f"Bearer {run.key}"}).ok
            page = requests.get(f"http://{HOST}:{run.api}/metrics", timeout=10).text
            return any(
                line.startswith("lbctl_pick_decisions_total{") and 'pool="llama"' in line for line in page.splitlines()
            )

        eventually(picks)


def test_a_chosen_port_of_the_picker_that_is_in_use_is_named_with_its_owner_and_its_line(tmp_path: Path) -> None:
    require("haproxy")
    with up(tmp_path) as run, replicas("a") as one, socket.create_server((HOST, 0)) as server:
        taken = f"{HOST}:{server.getsockname()[1]}"
        _write(tmp_path, free_port(), one, f'control: {{picker: {{bind: "{taken}"}}}}')
        done = run.run("--proxy", "haproxy")
    assert (done.returncode, done.stdout) == (1, "")
    assert "fleet.yaml:5:26: error LB972 control.picker.bind: " in done.stderr
    assert f"process {os.getpid()} has {taken}" in done.stderr


@pytest.mark.parametrize("text", ["127.0.0.1:65535", "127.0.0.1", "unix:/run/x"])
def test_an_address_without_a_next_port_is_no_address_of_a_picker(tmp_path: Path, text: str) -> None:
    require("haproxy")
    with up(tmp_path) as run, replicas("a") as one:
        _write(tmp_path, free_port(), one)
        done = run.run("--proxy", "haproxy", env={"LBCTL_SERVE_PICKER_BIND": text})
    assert (done.returncode, done.stdout) == (64, "")
    assert "LBCTL_SERVE_PICKER_BIND: " in done.stderr
