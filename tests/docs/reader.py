"""The environment of a reader: a clone of the repository in which lbctl is installed, free ports, and variables."""

from __future__ import annotations

import os
import random
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.docs.pages import ROOT
from tests.support.processes.binaries import require
from tests.support.processes.ports import free_port, hold

_PORT = re.compile(r"(?<![\w.])(?:80[08]0|8443|900[1-9]|9901|180[08]0|18514)(?![\w.])")
"""The ports that pages and examples mention."""
_XDS, _API = "18000", "18080"
_HOT_RESTART = "\0envoy_domain_socket_parent_0".ljust(108, "\0")
"""Name of the abstract socket that an Envoy with hot restart holds unless it has another base id. A second Envoy fails
to start while it is bound. The address is as long as a Unix address can be."""
_FOLDERS = (".ci", "examples", "schemas")
_FILES = ("Makefile", "README.md", "pyproject.toml")
_GIT = ("git", "-c", "user.name=reader", "-c", "user.email=reader@example.com")


class Ports:
    """Replaces each port of a page by a free port with as many digits."""

    def __init__(self) -> None:
        self._others: dict[str, str] = {}

    def other(self, text: str) -> str:
        return _PORT.sub(lambda found: self.of(found[0]), text)

    def of(self, port: str) -> str:
        if port not in self._others:
            self._others[port] = _free(len(port))
        return self._others[port]


def clone(folder: Path, ports: Ports) -> None:
    """Make the folder that `git clone` and `make install` leave, as far as pages use it.

    Its examples use the replaced ports.
    """
    for name in _FOLDERS:
        shutil.copytree(ROOT / name, folder / name)
    for name in _FILES:
        shutil.copy2(ROOT / name, folder / name)
    for path in (folder / "examples").rglob("*.yaml"):
        path.write_text(ports.other(path.read_text(encoding="utf-8")), encoding="utf-8")
    (folder / ".gitignore").write_text(".venv/\n")
    for command in (("git", "init", "-q", "-b", "main"), ("git", "add", "-A"), (*_GIT, "commit", "-q", "-m", "all")):
        subprocess.run(command, cwd=folder, check=True)
    _installed(folder / ".venv")


def environment(folder: Path, ports: Ports) -> dict[str, str]:
    """Return the environment variables of a reader. They replace the default ports of lbctl."""
    xds, api = f"127.0.0.1:{ports.of(_XDS)}", f"127.0.0.1:{ports.of(_API)}"
    path = os.pathsep.join([str(folder / ".venv" / "bin"), os.environ["PATH"], "/usr/sbin"])
    env = {"PATH": path, "HOME": str(folder), "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8", "COLUMNS": "100"}
    env |= {"LBCTL_SERVE_XDS_BIND": xds, "LBCTL_SERVE_API_BIND": api}
    return env | {"LBCTL_SERVER": f"http://{api}", "LBCTL_DEMO_DURATION": "5s"}


@contextmanager
def beside_another_envoy() -> Iterator[None]:
    """Hold the socket of an Envoy of another user. If a real Envoy holds it already, that one is enough."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        with suppress(OSError):
            sock.bind(_HOT_RESTART)
        yield


def _installed(venv: Path) -> None:
    """Make the virtual environment that `make install` leaves, so that make does not create it again."""
    (venv / "bin").mkdir(parents=True)
    python, envoy = shlex.quote(sys.executable), shlex.quote(str(require("envoy")))
    programs = {"python": f'{python} "$@"', "lbctl": f'{python} -m lbctl "$@"', "envoy": f'{envoy} "$@"'}
    for name, line in programs.items():
        (venv / "bin" / name).write_text(f"#!/bin/sh\nexec {line}\n")
        (venv / "bin" / name).chmod(0o755)
    (venv / ".demo").touch()


def _free(digits: int) -> str:
    """Return a port that is reserved for this process.

    The system assigns none with four digits, so these are tried at random.
    """
    if digits != 4:
        return str(free_port())
    while True:
        port = random.randrange(2000, 10_000)
        try:
            hold(port)
        except OSError:
            continue
        return str(port)
