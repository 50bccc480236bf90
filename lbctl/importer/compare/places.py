"""What stands in for the addresses and the certificates of a source while it runs on loopback."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

from lbctl.apply.placeholders import STAND_IN_CERTIFICATE, STAND_IN_KEY
from lbctl.base.records import dataclass
from lbctl.importer.compare.echo import LOOPBACK

DEAD = f"{LOOPBACK}:9"
"""Where an address leads that is none of a replica: nothing listens there."""

PATIENCE = "10s"
"""How long both proxies wait for the stand-in of a service that decides."""


@dataclass(frozen=True, slots=True)
class StandIns:
    """The stand-ins for one of the two proxies."""

    directory: Path
    """Its own directory."""
    binds: Mapping[str, int]
    """The address of a listener, as the fleet writes it → the port on loopback."""
    replicas: Mapping[str, int]
    """The address of a replica, or of a service that decides about requests → the port of its echo server."""

    @property
    def pem(self) -> str:
        """The path of a certificate with its key."""
        return str(self.directory / "stand-in.pem")

    def write_certificates(self) -> None:
        """Write the certificate and the key that stand in for those of the source."""
        Path(self.pem).write_text(STAND_IN_CERTIFICATE + STAND_IN_KEY)

    def replica(self, address: str) -> str:
        """Return the address of the echo server of a replica; one that nobody listens on for any other address."""
        port = self.replicas.get(address) or self.replicas.get(re.sub("^localhost:", "127.0.0.1:", address))
        return f"{LOOPBACK}:{port}" if port is not None else DEAD


def free_ports(names: Iterable[str]) -> dict[str, int]:
    """Return a free port on loopback for each name."""
    with ExitStack() as stack:
        ports = {}
        for name in names:
            listening = stack.enter_context(socket.socket())
            listening.bind((LOOPBACK, 0))
            ports[name] = listening.getsockname()[1]
    return ports
