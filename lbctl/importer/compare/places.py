"""What stands in for the addresses and the certificates of a source while it runs on loopback."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from lbctl.apply.placeholders import STAND_IN_CERTIFICATE, STAND_IN_KEY
from lbctl.apply.reserved_ports import LOOPBACK, port_of, reserve

_DEAD = 9
"""The port of `discard`, on which nothing listens today."""

STAND_IN_TIMEOUT = "10s"
"""How long both proxies wait for the stand-in of a service that decides."""


@dataclass(frozen=True, slots=True)
class StandIns:
    """The stand-ins for one of the two proxies."""

    directory: Path
    binds: Mapping[str, int]
    """The address of a listener, as the fleet writes it → the port on loopback."""
    replicas: Mapping[str, int]
    """The address of a replica, or of a service that decides about requests → the port of its echo server."""
    dead: int = _DEAD
    """The port on loopback where an address leads that is none of a replica: nothing listens there."""

    @property
    def pem(self) -> str:
        """The path of a certificate with its key."""
        return str(self.directory / "stand-in.pem")

    def write_certificates(self) -> None:
        """Write the certificate and the key that stand in for those of the source."""
        Path(self.pem).write_text(STAND_IN_CERTIFICATE + STAND_IN_KEY)

    @property
    def no_files(self) -> str:
        """The path of a directory that does not exist: no path that begins with it leads to a file."""
        return str(self.directory / "no-files")

    def replica(self, address: str) -> str:
        """Return the address of the echo server of a replica; one that nobody listens on for any other address."""
        return f"{LOOPBACK}:{self.replica_port(address) or self.dead}"

    def replica_port(self, address: str) -> int | None:
        """Return the port of the echo server of a replica; None for any other address."""
        return self.replicas.get(address) or self.replicas.get(re.sub("^localhost:", "127.0.0.1:", address))


@contextmanager
def reserved_ports(names: Iterable[str]) -> Iterator[dict[str, int]]:
    """A port on loopback for each name, which no other process gets until the block ends."""
    with ExitStack() as stack:
        yield {name: port_of(stack.enter_context(reserve())) for name in names}
