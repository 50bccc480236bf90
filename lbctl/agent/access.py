"""Decides which clients may connect to the agent: its listen addresses, client networks and token."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass

from lbctl.agent.settings import AgentSettings
from lbctl.base.hosts import parse_ip
from lbctl.ir.address import Address

MAX_TOKEN_BYTES = 64 << 10
"""Maximum size of the token file, in bytes."""
_BACKLOG = 64
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def refusal(settings: AgentSettings) -> str:
    """Return the reason why the settings would let any client connect, or an empty string if access is restricted."""
    if settings.bind.on_loopback or settings.allow or (settings.tls_cert and settings.token_file):
        return ""
    return (
        f"any client could connect to {settings.bind} (set --allow to the networks of the proxies, "
        "or --tls-cert, --tls-key and --token-file)"
    )


def check_address(bind: Address, allow: tuple[str, ...]) -> Address:
    """Return the listen address for agent checks, which uses the port after the one in `bind`.

    Agent checks use neither TLS nor a token, so the result is a loopback address unless client networks are set.
    """
    if bind.on_loopback or allow:
        return Address(bind.host, bind.port + 1)
    return Address("::1" if ":" in bind.host else "127.0.0.1", bind.port + 1)


@dataclass(frozen=True, slots=True)
class ClientNetworks:
    """The networks from which clients may connect.

    If it is empty, all may connect. Loopback clients may always connect.
    """

    networks: tuple[_Network, ...] = ()

    @classmethod
    def parse(cls, texts: tuple[str, ...]) -> ClientNetworks:
        """Parse networks such as 10.0.0.0/8, or single addresses. Raises ValueError."""
        return cls(tuple(ipaddress.ip_network(text) for text in texts))

    def admit(self, host: str) -> bool:
        """Return whether a client with this address may connect."""
        address = parse_ip(host)
        return not self.networks or address.is_loopback or any(address in network for network in self.networks)


class _AdmittingSocket(socket.socket):
    """A listening socket that closes connections from other clients before TLS, without reading from them."""

    admit: Callable[[str], bool]

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        """Accept a connection.

        Raises ConnectionAbortedError, which asyncio ignores, if the client is not allowed to connect.
        """
        connection, peer = super().accept()
        if self.admit(peer[0]):
            return connection, peer
        connection.close()
        raise ConnectionAbortedError


def listening_socket(bind: Address, networks: ClientNetworks) -> socket.socket:
    """Return a socket that listens on the address for clients in the networks. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        bind.host, bind.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    created = _AdmittingSocket(family, kind, protocol)
    created.admit = networks.admit
    try:
        created.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            created.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        created.bind(address)
        created.listen(_BACKLOG)
    except OSError:
        created.close()
        raise
    created.setblocking(False)
    return created


def has_token(header: str, content: bytes) -> bool:
    """Return whether an Authorization header contains a bearer token from the file. Comparisons take constant time."""
    scheme, _, given = header.partition(" ")
    if scheme.lower() != "bearer":
        return False
    sent = given.strip().encode("utf-8", "surrogateescape")
    return sum(hmac.compare_digest(sent, token) for token in tokens(content)) > 0


def tokens(content: bytes) -> list[bytes]:
    """Return the tokens in a token file: all lines that are not empty and do not begin with `#`."""
    return [line for line in map(bytes.strip, content.splitlines()) if line and not line.startswith(b"#")]
