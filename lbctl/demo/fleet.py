"""The quickstart as a fleet that can run here: rendered, with other ports where its own are in use.

A replica's socket is bound when its port is chosen, so no other process can take it; the listener's port is only
tested, because Envoy binds it itself.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from lbctl.base.diagnostics import ConfigError, Diagnostics
from lbctl.compile.fleet import compile_fleet
from lbctl.ir.pools import Pool
from lbctl.model.fleet import read
from lbctl.targets import oldest_versions

HOST = "127.0.0.1"
LISTENER = 8080
REPLICAS = (9001, 9002, 9003)
_QUICKSTART = Path(__file__).with_name("quickstart.yaml")


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports that the demo uses."""

    listener: int
    """Where Envoy will listen."""
    replicas: tuple[socket.socket, ...]
    """Bound sockets, in the order of the quickstart."""

    @property
    def replaced(self) -> dict[int, int]:
        """Map each port of the quickstart that is in use to its replacement."""
        original = (LISTENER, *REPLICAS)
        chosen = (self.listener, *(replica.getsockname()[1] for replica in self.replicas))
        return {old: new for old, new in zip(original, chosen, strict=True) if old != new}


def choose_ports() -> Ports:
    """Choose the quickstart's own ports where they are free."""
    replicas = tuple(map(_bound, REPLICAS))
    with _bound(LISTENER) as probe:
        return Ports(probe.getsockname()[1], replicas)


def write_fleet(ports: Ports, directory: Path) -> Path:
    """Write the quickstart with these ports to a file in `directory`."""
    text = _QUICKSTART.read_text(encoding="utf-8")
    for old, new in ports.replaced.items():
        text = text.replace(f"{HOST}:{old}", f"{HOST}:{new}")
    path = directory / "quickstart.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def pool_of(path: Path) -> Pool:
    """Return the fleet's only pool. Raises ConfigError if the fleet is invalid."""
    diagnostics = Diagnostics()
    source = read([str(path)], diagnostics)
    compiled = source and compile_fleet(source, oldest_versions(), diagnostics)
    if not compiled:
        raise ConfigError(diagnostics)
    return compiled.topology.pools[0]


def render(kind: str, fleet: Path, directory: Path) -> Path:
    """Run `lbctl render` into `directory`, and return the file. Raises CalledProcessError; the reason is on stderr."""
    command = [sys.executable, "-m", "lbctl", "render", "-t", kind, "-d", str(directory), str(fleet)]
    subprocess.run(command, check=True)
    (file,) = directory.iterdir()
    return file


def _bound(port: int) -> socket.socket:
    """Bind a socket to the port, or to any free one if it is in use."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((HOST, port))
    except OSError:
        bound.bind((HOST, 0))
    return bound
