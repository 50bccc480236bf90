"""A HAProxy and an nginx as operators run them next to `lbctl serve`: their settings in a fleet, and their
processes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lbctl.cli import run
from tests.support.fleets import Fleet, write_fleet
from tests.support.processes.binaries import require
from tests.support.processes.client import Client
from tests.support.processes.fleet import put, started
from tests.support.processes.ports import HOST, free_port
from tests.support.processes.proxies import Haproxy, Nginx, Proxy

_OWN = "events {{}}\nhttp {{ server {{ listen {host}:{port}; return 204; }} }}\n"


class _Master(Haproxy):
    """`haproxy -W -db`: reloaded by SIGUSR2 to the master."""

    def _command(self) -> list[str]:
        return [str(self.binary), "-W", "-db", "-f", str(self.config)]


class Edge(Client):
    """A proxy that is not started yet, and a client of its listener. `sections` are for its fleet."""

    def __init__(self, name: str, directory: Path, entry: dict[str, Any]) -> None:
        super().__init__(free_port())
        self.name = name
        self.directory = directory
        self.entry = entry
        # A reload of nginx closes idle connections. It also closes connections whose response began before it, even if
        # the client is just sending its next request on one (docs/how-to/drive-haproxy-and-nginx.md).
        self.keeps_connections = entry["kind"] != "nginx"

    @property
    def sections(self) -> Fleet:
        """Return the sections to be merged into a fleet."""
        return {
            "listeners": {self.name: {"bind": f"{HOST}:{self.port}"}},
            "proxies": {self.name: {**self.entry, "listeners": [self.name]}},
        }

    @property
    def config(self) -> Path:
        return Path(str(self.entry["config"]))


@contextmanager
def haproxy(name: str = "ha", *, min_interval: str = "1s", **keys: Any) -> Iterator[Edge]:
    """Yield a directory and a section of `proxies` for HAProxy, with a Runtime API unless `keys` contains another
    setting."""
    with _directory() as directory:
        reload = ["/bin/sh", "-c", f"kill -USR2 $(cat {directory}/pid)"]
        entry = {
            "kind": "haproxy",
            "version": "2.6",
            "config": str(directory / "haproxy.cfg"),
            "reload": {"command": reload, "min_interval": min_interval},
            **(keys or {"runtime_api": str(directory / "admin.sock")}),
        }
        yield Edge(name, directory, entry)


@contextmanager
def nginx(name: str = "ng", *, min_interval: str = "1s") -> Iterator[Edge]:
    with _directory() as directory:
        binary = str(require("nginx"))
        config = directory / "etc" / "nginx.conf"
        command = [binary, "-p", f"{directory}/", "-c", str(config), "-g", "daemon off; pid nginx.pid;", "-s", "reload"]
        entry = {
            "kind": "nginx",
            "version": "1.22",
            "config": str(config),
            "reload": {"command": command, "min_interval": min_interval},
        }
        yield Edge(name, directory, entry)


def add(fleet: Fleet, *edges: Edge) -> Fleet:
    """Add the listeners and the proxies of these edges to the fleet, and return it."""
    for edge in edges:
        for section, entries in edge.sections.items():
            fleet[section] = {**fleet.get(section, {}), **entries}
    return fleet


@contextmanager
def started_edge(edge: Edge, fleet: Fleet) -> Iterator[Proxy]:
    """Start HAProxy with the output of `lbctl render` for the fleet, and nginx with an operator's configuration."""
    process = _process(edge, fleet)
    with started(process):
        yield process


def _process(edge: Edge, fleet: Fleet) -> Proxy:
    if edge.entry["kind"] == "nginx":
        own = free_port()
        put(edge.directory, {"etc/nginx.conf": _OWN.format(host=HOST, port=own)})
        return Nginx(require("nginx"), edge.directory, edge.config, [own])
    source = edge.directory / "source"
    source.mkdir()
    _command(
        "render", "-t", "haproxy", "--proxy", edge.name, "-d", str(edge.directory), str(write_fleet(source, fleet))
    )
    return _WithPid(require("haproxy"), edge.directory, edge.config, [edge.port])


class _WithPid(_Master):
    """Writes the master's process id next to its configuration."""

    def _spawn(self, command: Sequence[str]) -> None:
        super()._spawn(command)
        (self.directory / "pid").write_text(str(self.process.pid))


def _command(*words: str) -> None:
    code = run(list(words))
    assert code == 0, f"lbctl {' '.join(words)} ended with {code}"


@contextmanager
def _directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="lbctl-e2e-"))
    directory.chmod(0o755)  # nginx serves as another user
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
