"""Listeners: where clients connect, and the table of rules that sends each request to a route."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lbctl.ir.address import Address

MAX_HEADER_COUNT, MAX_HEADER_BYTES = 1000, 128 * 1024
"""Default limits of request headers."""


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
    """One line of a listener's table. All of its conditions must match."""

    route: str
    """Name of the route that gets the request."""
    host: str = ""
    """"": any; `name.example`: exact; `*.example.com`: one or more labels before it.

    The port and letter case are ignored.
    """
    path: PathMatch = PathMatch()
    """Condition on the path."""
    methods: tuple[str, ...] = ()
    """Empty: any method."""
    headers: tuple[tuple[str, str], ...] = ()
    """(lowercase name, exact value), sorted."""
    models: tuple[str, ...] = ()
    """Exact names, or a prefix with a trailing `*`; empty: any."""
    closed_route: str = ""
    """The route in the file, if `route` returns 503 in its place."""
    clear_model: bool = False
    """Whether requests with an ambiguous model that meet all other conditions are refused (`ir.protected_models`)."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate of a listener."""

    certificate: str
    """Path of a PEM chain."""
    key: str
    """Path of the private key in PEM."""
    hosts: tuple[str, ...] = ()
    """SNI names that the certificate is used for; empty for the default certificate."""


@dataclass(frozen=True, slots=True)
class ListenerTls:
    """TLS settings of a listener."""

    certificates: tuple[Certificate, ...]
    """At least one certificate; the first is the default."""
    min_version: Literal["1.2", "1.3"] = "1.2"
    """Minimum TLS version."""
    client_ca: str | None = None
    """Path of the CA bundle for client certificates; None: no client certificate is requested."""
    client_certificate: Literal["required", "optional"] = "optional"
    """Whether a client must send a certificate, if `client_ca` is set."""
    client_crl: str | None = None
    """Path of the revocation lists for client certificates; None: revocation is not checked."""


@dataclass(frozen=True, slots=True)
class ClientAddress:
    """How a listener finds the client's address behind another load balancer."""

    trusted: tuple[str, ...]
    """Networks (CIDR) of load balancers whose header is trusted."""
    header: str = "x-forwarded-for"
    """Header that contains the client's address."""
    forward: tuple[str, ...] = ("x-real-ip",)
    """Lowercase names of the headers that pass the client's address to replicas, sorted."""


@dataclass(frozen=True, slots=True)
class AccessLog:
    """Destination and format of a listener's access log."""

    path: str | None = None
    """Path of the log file; None: the proxy's default destination."""
    format: Literal["json", "text", "none"] = "json"
    """Format of a line; `none` disables the log."""


@dataclass(frozen=True, slots=True)
class Tracing:
    """Settings for reporting a listener's spans."""

    otlp: Address
    """The collector's OTLP address."""
    sample: float
    """Sampled share of requests, in percent."""
    service: str
    """Service name in the spans."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket that accepts clients, with its limits and its rules."""

    name: str
    """The name, unique in the fleet."""
    bind: Address
    """Address on which the listener listens."""
    tls: ListenerTls | None = None
    """TLS termination; None: plain connections."""
    http2: bool = True
    """Whether clients may use HTTP/2."""
    client_address: ClientAddress | None = None
    """Source of the client's address behind another load balancer; None: the peer address of the connection."""
    allow_from: tuple[str, ...] | None = None
    """Networks of clients that may send requests, sorted; None: all networks."""
    deny_from: tuple[str, ...] = ()
    """Networks of clients that are rejected, sorted; they take precedence over `allow_from`."""
    proxy_protocol: bool = False
    """Whether every connection begins with a PROXY protocol header."""
    max_connections: int | None = None
    """Maximum number of client connections; None: unlimited."""
    max_body: int | None = None
    """Maximum size of a request body in bytes; None: unlimited."""
    max_header_count: int = MAX_HEADER_COUNT
    """Maximum number of header lines in a request."""
    max_header_bytes: int = MAX_HEADER_BYTES
    """Maximum total size of a request's headers, in bytes."""
    inspect: int = 16 * 1024 * 1024
    """Maximum number of body bytes that the proxy buffers to read the model or a key."""
    request_headers_timeout: int = 15_000
    """Milliseconds."""
    idle_timeout: int | None = 3_600_000
    """Milliseconds; None: unlimited."""
    access_log: AccessLog = AccessLog()
    tracing: Tracing | None = None
    """Span reporting; None: disabled."""
    request_id: str = "x-request-id"
    """Header that contains the request's ID."""
    rules: tuple[Rule, ...] = ()
    """Rules by precedence: the first rule that matches decides. If none matches, the response is 404."""

    @property
    def address_headers(self) -> tuple[str, ...]:
        """Return the headers that carry the client's address to replicas, in addition to `x-forwarded-for`."""
        return (self.client_address or ClientAddress(())).forward
