"""`lbctl up` with real proxies: a URL with a key, a fleet that follows its file, and no process left at the end."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from lbctl.apply.reserved_ports import reserve
from tests.support.fleets import fleet_of, write_fleet
from tests.support.processes.binaries import Kind, require
from tests.support.processes.client import Client
from tests.support.processes.ports import HOST, free_port
from tests.support.processes.replicas import Replica
from tests.support.processes.up import Up, up
from tests.support.processes.waiting import eventually


class Site(Client):
    """The client of the fleet's only listener."""

    def __init__(self, run: Up) -> None:
        super().__init__(free_port())
        self.run = run

    def write(self, replica: Replica, *, auth: Mapping[str, Any] | None = None, **sections: Any) -> None:
        """Write a fleet with this replica and a route that answers /ready by itself."""
        ready = {"match": {"path": "/ready"}, "respond": {"status": 200, "body": "ready"}}
        fleet = fleet_of(
            {"model": {"name": "m"}, "replicas": [{"address": replica.address}]},
            listener={"bind": f"{HOST}:{self.port}"},
            route={"match": {"path_prefix": "/v1/"}, **({"auth": auth} if auth else {})},
            routes={"ready": ready},
            **sections,
        )
        new_file = write_fleet(self.run.folder, fleet, ".fleet.new")
        new_file.replace(self.run.folder / "fleet.yaml")

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


def _kill(run: Up, program: str) -> None:
    """Send SIGKILL to the process of `lbctl up` whose command line contains `program`."""

    def matches() -> list[int]:
        return [pid for pid, line in run.processes().items() if program in line]

    eventually(lambda: len(matches()) == 1)  # a fork that has not started its own program yet looks the same
    (pid,) = matches()
    os.kill(pid, signal.SIGKILL)


def test_key_opens_the_url_and_ctrl_c_ends_everything(site: Site, replica: Replica, kind: Kind) -> None:
    """Ctrl-C works although the parent process ignores SIGINT, as a script's background job does."""
    require(kind)
    site.write(replica)
    site.run.start("--proxy", kind, script='trap "" INT; exec "$@"')
    output = site.run.await_ready()
    key = site.run.key
    assert f"http://{HOST}:{site.port}" in output
    assert f"http://{HOST}:{site.run.api}/" in output
    assert f'-H "authorization: Bearer {key}"' in output
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


def test_next_start_has_the_same_key_and_hides_it(site: Site, replica: Replica) -> None:
    """A second command for the same fleet is rejected. If `serve` dies, the proxy ends too."""
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
    assert f"is already running this fleet: process {site.run.process.pid if site.run.process else 0}" in second.stderr
    site.run.signal(signal.SIGTERM)
    assert site.run.wait() == 0
    site.run.start("--proxy", "haproxy")
    assert key not in site.run.await_ready()
    assert site.status(key) == 200

    _kill(site.run, "serve")
    assert site.run.wait() == 1
    assert "serve exited unexpectedly by signal SIGKILL" in site.run.err.read_text()
    assert site.run.processes() == {}


def test_envoy_fleet_gets_its_key_file_and_one_more_envoy(site: Site, replica: Replica) -> None:
    """The fleet drives its Envoys by xDS and requires keys of a file that is missing. If Envoy dies, `serve` ends."""
    require("envoy")
    edge = {"kind": "envoy", "nodes": ["edge-*"], "admin": f"{HOST}:{free_port()}"}
    xds = {"bind": f"{HOST}:{free_port()}"}
    auth = {"api_keys": {"file": "keys.txt", "header": "x-api-key"}}
    site.write(replica, auth=auth, proxies={"edge": edge}, control={"xds": xds})
    site.run.start("--proxy", "envoy")
    output = site.run.await_ready()
    assert site.run.key in (site.run.folder / "keys.txt").read_text()
    assert f'-H "x-api-key: {site.run.key}"' in output
    assert site.get("/v1/models", {"x-api-key": site.run.key}).ok
    assert (site.status(), site.status(site.run.key)) == (401, 401)

    _kill(site.run, "envoy -c")
    assert site.run.wait() == 1
    assert "envoy exited unexpectedly by signal SIGKILL" in site.run.err.read_text()
    assert site.run.processes() == {}


def test_up_runs_on_if_nothing_reads_its_logs(site: Site, replica: Replica) -> None:
    require("haproxy")
    site.write(replica)
    site.run.start("--proxy", "haproxy", script='exec "$@" 2> >(true)')  # as after `lbctl up 2>&1 | head`
    site.run.await_ready()
    assert site.status(site.run.key) == 200
    site.run.signal(signal.SIGINT)
    assert site.run.wait() == 0
    assert site.run.processes() == {}


def test_killed_up_leaves_no_process(site: Site, replica: Replica, kind: Kind) -> None:
    require(kind)
    site.write(replica)
    site.run.start("--proxy", kind)
    site.run.await_ready()
    site.run.signal(signal.SIGKILL)
    site.run.wait()
    eventually(lambda: site.run.processes() == {} and site.closed())


def test_address_in_use_is_reported_with_owner_and_line(site: Site, replica: Replica) -> None:
    require("haproxy")
    site.write(replica)
    with socket.socket() as occupant:
        occupant.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        occupant.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        occupant.bind((HOST, site.port))
        occupant.listen()
        done = site.run.run("--proxy", "haproxy")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"fleet.yaml:4:11: error LB972 listeners.gateway.bind: {HOST}:{site.port}: in use by" in done.stderr


def test_up_is_not_ready_while_its_port_is_taken(site: Site, replica: Replica) -> None:
    """Another program listens on the port while the proxy is starting, as `nginx -t` of another fleet does."""
    held, begun = site.run.folder / "held", site.run.folder / "begun"
    held.touch()
    program = site.run.folder / "bin" / "haproxy"
    program.parent.mkdir()
    wait = f"case $* in *-db*) touch {begun}; while [ -e {held} ]; do sleep 0.05; done;; esac"
    program.write_text(f'#!/bin/sh\n{wait}\nexec {require("haproxy")} "$@"\n')
    program.chmod(0o755)
    site.write(replica)
    site.run.start("--proxy", "haproxy", script=f'PATH={program.parent}:$PATH exec "$@"')
    eventually(lambda: begun.exists() and "listening for proxies" in site.run.err.read_text())
    with reserve(site.port) as other:
        other.listen()
        time.sleep(0.5)
        assert "dashboard" not in site.run.out.read_text()
    held.unlink()
    site.run.await_ready()
    assert site.status(site.run.key) == 200
