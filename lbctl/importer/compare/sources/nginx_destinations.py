"""Request destinations in a compared nginx configuration, which are upstreams or replicas' echo servers.

No part of a destination comes from the file. If a destination contains a variable, the comparison adds a `map` that
converts strings that name an upstream or a replica. Any other string results in an empty destination, which causes the
location to be closed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from lbctl.apply.reserved_ports import LOOPBACK
from lbctl.importer.compare.places import StandIns
from lbctl.importer.compare.sources.nginx_values import RESERVED, is_harmless, quoted
from lbctl.importer.nginx.values import address

UPSTREAM_NAME = re.compile(r"(?![0-9.]+$|unix)[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
"""Upstream name that nginx never parses as an address, regardless of what follows it."""
_URL = re.compile(r"(?:(https?|grpcs?)://)?([^/?]*)(.*)", re.DOTALL)
_PATH = re.compile(r"\$(?:\{(?:request_uri|uri|document_uri)\}|(?:request_uri|uri|document_uri)(?!\w)).*", re.DOTALL)
"""Variable that contains a path and therefore ends the host name in front of it."""
_PORTS = {"https": 443, "grpcs": 443}
"""Default ports of URL schemes."""


@dataclass(frozen=True, slots=True)
class Destination:
    """The argument of `proxy_pass` or `grpc_pass`."""

    url: str
    variable: str = ""
    """Variable that is empty if the request must not be forwarded. Empty if the destination needs no variable."""


class Destinations:
    """A configuration's destinations."""

    def __init__(self, places: StandIns, known: Collection[str]) -> None:
        self.upstreams: set[str] = set()
        self._places = places
        self._known = known
        self._maps: dict[tuple[str, str], str] = {}

    def of(self, text: str, protocol: str) -> Destination | None:
        """Return the destination for an argument, or None if it leads to any other address.

        `protocol` is `http` or `grpc`.
        """
        match = _URL.fullmatch(text.replace("$scheme://", "http://", 1) if text.startswith("$scheme:") else text)
        if match is None or not is_harmless(text, self._known) or not (match[1] or protocol).startswith(protocol):
            return None
        scheme, host, path = match[1] or "", match[2], match[3]
        if tail := _PATH.search(host):
            host, path = host[: tail.start()], tail[0] + path
        if path[:1] not in {"", "/", "?"}:
            path = f"${{{self._variable('path', path)}}}"
        if "$" in host:
            variable = self._variable("host" if scheme else protocol, host)
            return Destination(f"{protocol}://${{{variable}}}{path}", variable)
        if not scheme and protocol == "http":
            return None
        if host in self.upstreams:
            return Destination(f"{protocol}://{host}{path}")
        port = self._places.replica_port(address(host, _PORTS.get(scheme, 80)) or "")
        return Destination(f"{protocol}://{LOOPBACK}:{port}{path}") if port is not None else None

    def maps(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the head of each `map` that the destinations need, together with its lines."""
        for (kind, source), name in self._maps.items():
            entries = ["volatile;", "default /;", f'"~^[/?]" {quoted(source)};']
            if kind != "path":
                entries = ['default "";', *(f"{quoted(key)} {quoted(to)};" for key, to in self._known_hosts(kind))]
            yield f"map {quoted(source)} ${name}", entries

    def _variable(self, kind: str, source: str) -> str:
        return self._maps.setdefault((kind, source), f"{RESERVED}{kind}_{len(self._maps)}")

    def _known_hosts(self, kind: str) -> Iterator[tuple[str, str]]:
        """Yield the strings that name an upstream or a replica, together with their destinations."""
        schemes = {"host": ("",), "http": ("http://", "https://"), "grpc": ("grpc://", "grpcs://", "")}[kind]
        found = {name: name for name in self.upstreams}
        for place, port in self._places.replicas.items():
            names = {place, place.removesuffix(":80"), place.removesuffix(":443")}
            found |= {name: f"{LOOPBACK}:{port}" for name in names if name not in self.upstreams}
        yield from ((f"{scheme}{name}", to) for name, to in found.items() for scheme in schemes)
