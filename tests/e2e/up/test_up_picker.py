"""`lbctl up` with a picker: it gets free ports by default, and a configured port in use is an error."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import requests

from lbctl import cli
from lbctl.base.ports import PICKER
from tests.support.fleets import fleet_of, write_fleet
from tests.support.processes.binaries import Kind, require
from tests.support.processes.client import Client
from tests.support.processes.ports import HOST, free_port
from tests.support.processes.replicas import replicas
from tests.support.processes.up import Up, up
from tests.support.processes.waiting import eventually


@contextmanager
def _occupied(port: int) -> Iterator[None]:
    """Listen on the port, unless another program does."""
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(socket.create_server((HOST, port)))
        yield


def _write(folder: Path, port: int, addresses: Sequence[str], **sections: Any) -> None:
    members = [{"address": address} for address in addresses]
    pool = {"model": {"name": "m"}, "balance": {"algorithm": "pick"}, "replicas": members}
    write_fleet(folder, fleet_of(pool, listener={"bind": f"{HOST}:{port}"}, **sections))


@pytest.mark.parametrize(
    "kind", ["haproxy", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("envoy", "nginx"))]
)
def test_picker_gets_free_ports_by_default(tmp_path: Path, kind: Kind) -> None:
    require(kind)
    with up(tmp_path) as run, replicas("a", "b") as two, _occupied(PICKER):
        client = Client(free_port())
        _write(tmp_path, client.port, [replica.address for replica in two])
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
                line.startswith("lbctl_pick_decisions_total{") and 'pool="pool"' in line for line in page.splitlines()
            )

        eventually(picks)


def test_picker_port_in_use_is_reported_with_owner_and_line(tmp_path: Path) -> None:
    require("haproxy")
    with up(tmp_path) as run, socket.create_server((HOST, 0)) as server:
        address = f"{HOST}:{server.getsockname()[1]}"
        _write(tmp_path, free_port(), ["127.0.0.1:9"], control={"picker": {"bind": address}})
        line = 1 + (tmp_path / "fleet.yaml").read_text().splitlines().index("  picker:") + 1
        done = run.run("--proxy", "haproxy")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"fleet.yaml:{line}:11: error LB972 control.picker.bind: " in done.stderr
    assert f"process {os.getpid()} uses {address}" in done.stderr


@pytest.mark.parametrize("text", ["127.0.0.1:65535", "127.0.0.1", "unix:/run/x"])
def test_picker_address_without_a_next_port_is_refused(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _write(tmp_path, free_port(), ["127.0.0.1:9"])
    monkeypatch.chdir(tmp_path)
    for name, value in {**Up(tmp_path).own_env, "LBCTL_SERVE_PICKER_BIND": text}.items():
        monkeypatch.setenv(name, value)
    assert cli.run(["up", "--proxy", "haproxy"]) == 64
    output = capsys.readouterr()
    assert output.out == ""
    assert "LBCTL_SERVE_PICKER_BIND: " in output.err
