"""Hostile configurations, and the objects on this machine that they would create, change, delete, connect to or run.

A file in `tests/security/hostile` refers to these objects by placeholders:

- `@DIR@`: a directory with files that must not change; `@DIR@/program` leaves a file there when it runs
- `@UNIX@`, `@TCP@` and `@TCP_PORT@`: sockets that listen; `@TCP@` is HOST:PORT, and also the address of a UDP socket
- `@FREE_PORT@`: a port on which no process may listen
"""

from __future__ import annotations

import random
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lbctl.apply.reserved_ports import LOOPBACK, port_of, reserve
from tests.support.paths import ROOT

DIRECTORY = ROOT / "tests" / "security" / "hostile"
KINDS = tuple(sorted(item.name for item in DIRECTORY.iterdir() if item.is_dir()))
_FILES = {
    "kept": "{secret}\n",
    "evil.lua": 'os.execute("{directory}/program")\n',
    "evil.js": "export default {{run: () => require('fs').writeFileSync('{directory}/executed', 'x')}};\n",
    "evil.pm": 'package evil; system("{directory}/program"); 1;\n',
    "networks.conf": "127.0.0.0-127.255.255.255 {secret};\n",
    "some.map": "~. {secret};\n",
    "module.so": "\x7fELF",
    "spoe.conf": "[evil]\nspoe-agent evil\n",
    "below/0123456789abcdef0123456789abcdef": "{secret}\n",
    "below/other": "{secret}\n",
}
_PORTS = range(11_000, 17_000)
"""Ports that no other test uses, and that the system does not assign. A proxy of another test may still connect to the
port of a replica that has ended."""
_PROGRAM = "#!/bin/sh\necho executed > {directory}/executed\n"


@dataclass(frozen=True)
class Guard:
    """The objects to which a hostile file refers."""

    directory: Path
    """`@DIR@`."""
    secret: str
    """Content of the files there, which no response may contain."""
    listeners: dict[str, socket.socket]
    free_port: int
    before: dict[str, tuple[object, ...]]

    @property
    def own(self) -> Path:
        """A directory next to it, which may be changed."""
        return self.directory.parent / "own"

    def written(self, kind: str, file: Path, directory: Path) -> Path:
        """Return a copy of a file in the directory, next to its includes, with the placeholders replaced."""
        port = str(self.listeners["tcp"].getsockname()[1])
        names = {
            "@DIR@": str(self.directory),
            "@UNIX@": self.listeners["unix"].getsockname(),
            "@TCP@": f"{LOOPBACK}:{port}",
            "@TCP_PORT@": port,
            "@FREE_PORT@": str(self.free_port),
        }
        included = [item for item in (DIRECTORY / kind).glob("*/*") if item.is_file()]
        for item in (file, *included):
            copy = directory / item.relative_to(DIRECTORY / kind)
            copy.parent.mkdir(parents=True, exist_ok=True)
            text = item.read_bytes().decode()
            for name, value in names.items():
                text = text.replace(name, value)
            copy.write_bytes(text.encode())
        return directory / file.name

    def violations(self) -> list[str]:
        """Return what was created, changed, deleted or connected to."""
        after = _snapshot(self.directory)
        names = sorted({*self.before, *after})
        changed = [f"{name} is another one" for name in names if self.before.get(name) != after.get(name)]
        return changed + [f"{name} was connected to" for name, item in self.listeners.items() if _is_met(item)]


@contextmanager
def guarded() -> Iterator[Guard]:
    """Create these objects for the duration of the block."""
    base = Path(tempfile.mkdtemp(prefix="guard-"))
    directory, secret = base / "kept", secrets.token_hex(16)
    for name, text in _FILES.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(directory=directory, secret=secret))
        path.chmod(0o666)
    (directory / "program").write_text(_PROGRAM.format(directory=directory))
    (base / "own").mkdir()
    for path in (base, directory, directory / "below", directory / "program"):
        path.chmod(0o777)
    listeners = _listeners(base)
    with reserve() as free:
        try:
            yield Guard(directory, secret, listeners, port_of(free), _snapshot(directory))
        finally:
            for item in listeners.values():
                item.close()
            shutil.rmtree(base)


def _listeners(base: Path) -> dict[str, socket.socket]:
    tcp, udp = _on_one_port()
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(str(base / "socket"))
    unix.listen()
    (base / "socket").chmod(0o777)
    for item in (tcp, udp, unix):
        item.setblocking(False)
    return {"tcp": tcp, "udp": udp, "unix": unix}


def _on_one_port() -> tuple[socket.socket, socket.socket]:
    """Return a TCP socket that listens, and a UDP socket on the same port."""
    while True:
        tcp, udp = socket.socket(socket.AF_INET, socket.SOCK_STREAM), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        address = LOOPBACK, random.choice(_PORTS)
        try:
            for item in (tcp, udp):
                item.bind(address)
        except OSError:
            tcp.close()
            udp.close()
        else:
            tcp.listen()
            return tcp, udp


def _is_met(item: socket.socket) -> bool:
    with suppress(BlockingIOError):
        if item.type == socket.SOCK_DGRAM:
            return bool(item.recv(1 << 16)) or True
        item.accept()[0].close()
        return True
    return False


def _snapshot(directory: Path) -> dict[str, tuple[object, ...]]:
    found = dict[str, tuple[object, ...]]()
    for path in (directory, *directory.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, content)
    return found
