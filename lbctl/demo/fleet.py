"""The quickstart as a fleet that can run here: its ports replaced where somebody else has them, and rendered.

A replica's socket is bound when its port is chosen, so no one can take it in between; the listener's port is only
tried, because Envoy binds it itself.
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
    """`listener`: where Envoy will listen. `replicas`: bound sockets, in the order of the quickstart."""

    listener: int
    replicas: tuple[socket.socket, ...]

    @property
    def replaced(self) -> dict[int, int]:
        """A port of the quickstart → the one that stands for it, where that is another."""
        wanted = (LISTENER, *REPLICAS)
        got = (self.listener, *(item.getsockname()[1] for item in self.replicas))
        return {old: new for old, new in zip(wanted, got, strict=True) if old != new}


def choose_ports() -> Ports:
    """The quickstart's own ports where they are free."""
    replicas = tuple(map(_bound, REPLICAS))
    with _bound(LISTENER) as tried:
        return Ports(tried.getsockname()[1], replicas)


def write_fleet(ports: Ports, directory: Path) -> Path:
    """The quickstart with these ports, as a file in `directory`."""
    text = _QUICKSTART.read_text(encoding="utf-8")
    for old, new in ports.replaced.items():
        text = text.replace(f"{HOST}:{old}", f"{HOST}:{new}")
    path = directory / "quickstart.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def pool_of(path: Path) -> Pool:
    """The fleet's only pool. ConfigError where the file is no fleet."""
    diagnostics = Diagnostics()
    source = read([str(path)], diagnostics)
    compiled = source and compile_fleet(source, oldest_versions(), diagnostics)
    if not compiled:
        raise ConfigError(diagnostics)
    return compiled.topology.pools[0]


def render(kind: str, fleet: Path, directory: Path) -> Path:
    """What `lbctl render` makes of it, in `directory`. CalledProcessError where it fails, with its words on stderr."""
    command = [sys.executable, "-m", "lbctl", "render", "-t", kind, "-d", str(directory), str(fleet)]
    subprocess.run(command, check=True)
    (made,) = directory.iterdir()
    return made


def _bound(port: int) -> socket.socket:
    """A socket on that port, or on any where it is taken."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((HOST, port))
    except OSError:
        made.bind((HOST, 0))
    return made
