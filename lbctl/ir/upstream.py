"""What requests to a pool have in place of the client's own.

A hosted API gets a host, a path and headers of its own; replicas that ask for a key get one header.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lbctl.ir.secrets import HeaderSecret


@dataclass(frozen=True, slots=True)
class UpstreamHeader:
    """A header that is set on each request to the pool: a text, or a prefix and the content of a file."""

    name: str
    """The name in lower case."""
    text: str = ""
    """The value, or what stands before the content of the file."""
    file: str | None = None
    """The path of the file with the secret; None: `text` is the whole value."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """What a request to a pool has in place of the client's own."""

    host: str
    """The Host header; empty: the client's."""
    path_prefix: str = ""
    """What stands before the path, without a slash at its end."""
    headers: tuple[UpstreamHeader, ...] = ()
    """The headers that are set, by name."""

    @property
    def server_name(self) -> str:
        """The host without its port."""
        return self.host.partition(":")[0]


def header_values(upstream: Upstream, secrets: Mapping[str, HeaderSecret]) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of the headers that are set; one whose file could not be read is left out."""
    for header in upstream.headers:
        if header.file is None:
            yield header.name, header.text
        elif header.file in secrets:
            yield header.name, header.text + secrets[header.file].value
