"""`lbctl up` with the real proxies: a URL with a key, a fleet that follows its file, and nothing left at the end."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lbctl.apply.reserved_ports import reserve
from tests.support.processes.binaries import Kind, require
from tests.support.processes.client import Client
from tests.support.processes.ports import HOST, free_port
from tests.support.processes.replicas import Replica
from tests.support.processes.up import Up, up
from tests.support.processes.waiting import eventually

FLEET = """\
version: 1
listeners: {{gateway: {{bind: "127.0.0.1:{port}"}}}}
routes:
  chat: {{match: {{path_prefix: /v1/}}, pool: llama{auth}}}
  ready: {{match: {{path: /ready}}, respond: {{status: 200, body: ready}}}}
pools: {{llama: {{model: {{name: m}}, replicas: [{{address: "{address}"}}]}}}}
"""


class Site(Client):
    """The client of the fleet's only listener."""

    def __init__(self, run: Up) -> None:
        super().__init__(free_port())
        self.run = run

    def write(self, replica: Replica, auth: str = "") -> None:
        text = FLEET.format(port=self.port, address=replica.address, auth=auth)
        beside = self.run.folder / ".fleet.new"
        beside.write_text(text)
        beside.replace(self.run.folder / "fleet.yaml")

    def status(self, key: str = "") -> int:
        return self.get("/v1/models", {"authorization": f"Bearer {key}"} if key else {}).status

    def replica_for(self, key: str) -> str:
        return self.get("/v1/models", {"authorization": f"Bearer {key}"}).header("x-replica") or ""

    def closed(self) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex((HOST, self.port)) != 0


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with up(tmp_path) as run:
        yield Site(run)


@pytest.fixture
def replica() -> Iterator[Replica]:
    with Replica("one") as one:
        yield one


def test_a_key_opens_the_url_and_ctrl_c_ends_everything(site: Site, replica: Replica, kind: Kind) -> None:
    require(kind)
    site.write(replica)
    site.run.start("--proxy", kind)
    said = site.run.await_ready()
    key = site.run.key
    assert f"http://{HOST}:{site.port}" in said
    assert f"http://{HOST}:{site.run.api}/" in said
    assert f'-H "authorization: Bearer {key}"' in said
    assert (site.status(), site.status("sk-wrong"), site.status(key)) == (401, 401, 200)
    assert site.get("/ready").ok
    with Replica("two") as two:
        site.write(two)
        eventually(lambda: site.replica_for(key) == "two")
    site.run.signal(signal.SIGINT)
    assert site.run.wait() == 0
    assert site.run.processes() == {}
    assert site.closed()
    assert list(site.run.folder.glob("lbctl-up-*")) == []
    log = site.run.err.read_text()
    assert "Traceback" not in log
    assert "work-in-progress" not in log, "Envoy's remarks on its API are not the user's concern"


def test_the_next_start_takes_the_same_key_and_shows_it_no_more(site: Site, replica: Replica) -> None:
    require("haproxy")
    site.write(replica)
    site.run.start("--proxy", "haproxy")
    site.run.await_ready()
    key = site.run.key
    (file,) = (site.run.folder / "state").rglob("keys")
    assert file.stat().st_mode & 0o777 == 0o600
    assert key not in file.read_text()
    second = site.run.run("--proxy", "haproxy")
    assert (second.returncode, second.stdout) == (1, "")
    assert f"runs this fleet already: process {site.run.process.pid if site.run.process else 0}" in second.stderr
    site.run.signal(signal.SIGTERM)
    assert site.run.wait() == 0
    site.run.start("--proxy", "haproxy")
    assert key not in site.run.await_ready()
    assert site.status(key) == 200


def test_a_fleet_that_asks_for_keys_gets_its_missing_key_file(site: Site, replica: Replica) -> None:
    require("envoy")
    site.write(replica, auth=", auth: {api_keys: {file: keys.txt, header: x-api-key}}")
    site.run.start("--proxy", "envoy")
    said = site.run.await_ready()
    assert site.run.key in (site.run.folder / "keys.txt").read_text()
    assert f'-H "x-api-key: {site.run.key}"' in said
    assert site.get("/v1/models", {"x-api-key": site.run.key}).ok
    assert site.status(site.run.key) == 401


def test_it_ends_by_ctrl_c_also_where_its_parent_has_ignored_that(site: Site, replica: Replica, kind: Kind) -> None:
    require(kind)
    site.write(replica)
    site.run.start("--proxy", kind, script='trap "" INT; exec "$@"')
    site.run.await_ready()
    site.run.signal(signal.SIGINT)
    assert site.run.wait() == 0
    assert site.run.processes() == {}


def test_it_serves_on_and_ends_in_order_where_nobody_reads_its_logs(site: Site, replica: Replica) -> None:
    require("haproxy")
    site.write(replica)
    site.run.start("--proxy", "haproxy", script='exec "$@" 2> >(true)')  # as after `lbctl up 2>&1 | head`
    site.run.await_ready()
    assert site.status(site.run.key) == 200
    site.run.signal(signal.SIGINT)
    assert site.run.wait() == 0
    assert site.run.processes() == {}


@pytest.mark.parametrize("victim", ["serve", "envoy -c"])
def test_where_one_of_the_two_dies_the_other_ends_and_the_reason_is_shown(
    site: Site, replica: Replica, victim: str
) -> None:
    require("envoy")
    site.write(replica)
    site.run.start("--proxy", "envoy")
    site.run.await_ready()

    def victims() -> list[int]:
        return [pid for pid, line in site.run.processes().items() if victim in line]

    eventually(lambda: len(victims()) == 1)  # a fork that has not begun its own program yet looks the same
    (pid,) = victims()
    os.kill(pid, signal.SIGKILL)
    assert site.run.wait() == 1
    assert f"{victim.split()[0]} ended by itself by signal SIGKILL" in site.run.err.read_text()
    assert site.run.processes() == {}


def test_its_programs_end_when_it_is_killed_itself(site: Site, replica: Replica, kind: Kind) -> None:
    require(kind)
    site.write(replica)
    site.run.start("--proxy", kind)
    site.run.await_ready()
    site.run.signal(signal.SIGKILL)
    site.run.wait()
    eventually(lambda: site.run.processes() == {} and site.closed())


def test_an_address_in_use_is_named_with_its_owner_and_its_line(site: Site, replica: Replica) -> None:
    require("haproxy")
    site.write(replica)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((HOST, site.port))
        taken.listen()
        done = site.run.run("--proxy", "haproxy")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"fleet.yaml:2:29: error LB972 listeners.gateway.bind: {HOST}:{site.port}: in use by" in done.stderr


def test_it_is_not_ready_while_another_program_has_the_port(site: Site, replica: Replica) -> None:
    """As `nginx -t` of another fleet, which listens for a moment, when the proxy is still starting."""
    held, begun = site.run.folder / "held", site.run.folder / "begun"
    held.touch()
    program = site.run.folder / "bin" / "haproxy"
    program.parent.mkdir()
    wait = f"case $* in *-db*) touch {begun}; while [ -e {held} ]; do sleep 0.05; done;; esac"
    program.write_text(f'#!/bin/sh\n{wait}\nexec {require("haproxy")} "$@"\n')
    program.chmod(0o755)
    site.write(replica)
    site.run.start("--proxy", "haproxy", script=f'PATH={program.parent}:$PATH exec "$@"')
    eventually(lambda: begun.exists() and "proxies are served" in site.run.err.read_text())
    with reserve(site.port) as other:
        other.listen()
        time.sleep(1)
        assert "dashboard" not in site.run.out.read_text()
    held.unlink()
    site.run.await_ready()
    assert site.status(site.run.key) == 200


def test_a_fleet_of_envoys_by_xds_gets_one_more(site: Site, replica: Replica) -> None:
    require("envoy")
    site.write(replica)
    with (site.run.folder / "fleet.yaml").open("a") as fleet:
        fleet.write(f"proxies: {{edge: {{kind: envoy, nodes: [edge-*], admin: '{HOST}:{free_port()}'}}}}\n")
        fleet.write(f"control: {{xds: {{bind: '{HOST}:{free_port()}'}}}}\n")
    site.run.start("--proxy", "envoy")
    site.run.await_ready()
    assert site.status(site.run.key) == 200
    assert site.status() == 401
