"""Replacements for the addresses and certificates in a source while it is running on loopback."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from lbctl.apply.placeholders import STAND_IN_CERTIFICATE, STAND_IN_KEY
from lbctl.apply.reserved_ports import LOOPBACK, port_of, reserve

_DEAD = 9
"""Port of the `discard` service, which no longer exists on current systems."""

STAND_IN_TIMEOUT = "10s"
"""Timeout that both proxies use for the replacement of an external authorization service."""


@dataclass(frozen=True, slots=True)
class StandIns:
    """The replacements for one of the two proxies."""

    directory: Path
    binds: Mapping[str, int]
    """Maps a listener's address, in fleet-file form, to its loopback port."""
    replicas: Mapping[str, int]
    """Maps the address of each replica or authorization service to its echo server's port."""
    dead: int = _DEAD
    """Loopback port for addresses that do not belong to replicas. Nothing listens on it."""

    @property
    def pem(self) -> str:
        """Path of a file that contains a certificate and its key."""
        return str(self.directory / "stand-in.pem")

    def write_certificates(self) -> None:
        """Write the certificate and key that replace the certificate and key of the source."""
        Path(self.pem).write_text(STAND_IN_CERTIFICATE + STAND_IN_KEY)

    @property
    def no_files(self) -> str:
        """Path of a nonexistent directory, which therefore cannot contain any files."""
        return str(self.directory / "no-files")

    def replica(self, address: str) -> str:
        """Return a replica's echo server address or, for other addresses, an address on which nothing listens."""
        return f"{LOOPBACK}:{self.replica_port(address) or self.dead}"

    def replica_port(self, address: str) -> int | None:
        """Return the port of a replica's echo server, or None for other addresses."""
        return self.replicas.get(address) or self.replicas.get(re.sub("^localhost:", "127.0.0.1:", address))


@contextmanager
def reserved_ports(names: Iterable[str]) -> Iterator[dict[str, int]]:
    """Yield a loopback port for each name. No other process can use these ports until the block ends."""
    with ExitStack() as stack:
        yield {name: port_of(stack.enter_context(reserve())) for name in names}
