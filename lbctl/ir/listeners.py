"""Listeners: where clients connect, and the table of rules that sends each request to a route."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lbctl.ir.address import Address

MAX_HEADER_COUNT, MAX_HEADER_BYTES = 1000, 128 * 1024
"""The limits of request headers by default."""


@dataclass(frozen=True, slots=True)
class PathMatch:
    """A condition on the path of a request."""

    kind: Literal["exact", "prefix", "regex"] = "prefix"
    """How the path is compared with the value."""
    value: str = "/"
    """A prefix consists of whole segments without a trailing slash: `/v1` matches `/v1` and `/v1/x`, never `/v1x`.

    A regex is RE2 and matches the whole path.
    """


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a listener's table. All its conditions must hold."""

    route: str
    """The name of the route that gets the request."""
    host: str = ""
    """"": any; `name.example`: exact; `*.example.com`: one or more labels before it. Compared without port and case."""
    path: PathMatch = PathMatch()
    """The condition on the path."""
    methods: tuple[str, ...] = ()
    """Empty: any."""
    headers: tuple[tuple[str, str], ...] = ()
    """(lower-case name, exact value), sorted."""
    models: tuple[str, ...] = ()
    """Exact names, or a prefix with a trailing `*`; empty: any."""
    clear_model: bool = False
    """Whether requests with an ambiguous model that meet all other conditions are refused (`ir.protected_models`)."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate of a listener."""

    certificate: str
    """The path of a PEM chain."""
    key: str
    """The path of its private key in PEM."""
    hosts: tuple[str, ...] = ()
    """The SNI names that it serves; empty for the default certificate."""


@dataclass(frozen=True, slots=True)
class ListenerTls:
    """How a listener terminates TLS."""

    certificates: tuple[Certificate, ...]
    """At least one; the first is the default."""
    min_version: Literal["1.2", "1.3"] = "1.2"
    """The lowest version of TLS that is accepted."""
    client_ca: str | None = None
    """The path of the authorities that sign client certificates; None: none is requested."""
    client_certificate: Literal["required", "optional"] = "optional"
    """Whether a client must send a certificate, where `client_ca` is set."""
    client_crl: str | None = None
    """The path of the lists of revoked client certificates; None: none is looked at."""


@dataclass(frozen=True, slots=True)
class ClientAddress:
    """How to find the client's address behind another load balancer."""

    trusted: tuple[str, ...]
    """The networks (CIDR) of load balancers whose header is used."""
    header: str = "x-forwarded-for"
    """The header that holds the client's address."""
    forward: tuple[str, ...] = ("x-real-ip",)
    """The lower-case names of the headers that carry the client's address to replicas, sorted."""


@dataclass(frozen=True, slots=True)
class AccessLog:
    """Where and in which form a listener writes its access log."""

    path: str | None = None
    """The file that it is written to; None: where the proxy writes it by default."""
    format: Literal["json", "text", "none"] = "json"
    """The form of a line; `none` writes nothing."""


@dataclass(frozen=True, slots=True)
class Tracing:
    """How a listener reports spans."""

    otlp: Address
    """The collector's OTLP address."""
    sample: float
    """The sampled part of requests, in percent."""
    service: str
    """The name of the service in the spans."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket that accepts clients, with its limits and its rules."""

    name: str
    """The name, unique in the fleet."""
    bind: Address
    """Where it listens."""
    tls: ListenerTls | None = None
    """How it terminates TLS; None: plain connections."""
    http2: bool = True
    """Whether clients may use HTTP/2."""
    client_address: ClientAddress | None = None
    """How the client's address is found behind another load balancer; None: it is that of the connection."""
    allow_from: tuple[str, ...] | None = None
    """The networks of clients that may send requests, sorted; None: every network."""
    deny_from: tuple[str, ...] = ()
    """The networks of clients that are refused, sorted; they come before `allow_from`."""
    proxy_protocol: bool = False
    """Whether every connection begins with a PROXY protocol header."""
    max_connections: int | None = None
    """The largest number of client connections; None: unlimited."""
    max_body: int | None = None
    """The largest request body in bytes; None: unlimited."""
    max_header_count: int = MAX_HEADER_COUNT
    """The largest number of header lines of a request."""
    max_header_bytes: int = MAX_HEADER_BYTES
    """The largest size of the headers of a request."""
    inspect: int = 16 * 1024 * 1024
    """How many bytes of a body the proxy may buffer to read the model or a key from it."""
    request_headers_timeout: int = 15_000
    """Milliseconds."""
    idle_timeout: int | None = 3_600_000
    """Milliseconds; None: unlimited."""
    access_log: AccessLog = AccessLog()
    tracing: Tracing | None = None
    """How spans are reported; None: they are not."""
    request_id: str = "x-request-id"
    """The header that carries the request's id."""
    rules: tuple[Rule, ...] = ()
    """Which request reaches which route, by precedence: the first rule that matches decides; none: 404."""

    @property
    def address_headers(self) -> tuple[str, ...]:
        """Return the headers that carry the client's address to replicas, besides `x-forwarded-for`."""
        return (self.client_address or ClientAddress(())).forward
