"""Listeners, which define where clients connect, and the table of rules that assigns each request to a route."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lbctl.ir.address import Address

MAX_HEADER_COUNT, MAX_HEADER_BYTES = 1000, 128 * 1024
"""Default limits on request headers."""


@dataclass(frozen=True, slots=True)
class PathMatch:
    """A condition on a request's path."""

    kind: Literal["exact", "prefix", "regex"] = "prefix"
    """How the path is compared with the value."""
    value: str = "/"
    """A prefix consists of whole segments without a trailing slash. For example, `/v1` matches `/v1` and `/v1/x`, but
    not `/v1x`.

    A regular expression uses RE2 syntax and must match the whole path.
    """


@dataclass(frozen=True, slots=True)
class Rule:
    """One row in a listener's table. All of its conditions must match."""

    route: str
    """Name of the route that gets the request."""
    host: str = ""
    """"" matches any host, `name.example` matches exactly, and `*.example.com` matches one or more labels in front of
    the domain.

    The port is ignored, and matching is case-insensitive.
    """
    path: PathMatch = PathMatch()
    """Condition on the path."""
    methods: tuple[str, ...] = ()
    """HTTP methods that match. If empty, any method matches."""
    headers: tuple[tuple[str, str], ...] = ()
    """(lowercase name, exact value) pairs, sorted."""
    models: tuple[str, ...] = ()
    """Exact model names, or prefixes with a trailing `*`. If empty, any model matches."""
    closed_route: str = ""
    """The route in the file, if `route` returns 503 instead of it."""
    clear_model: bool = False
    """Whether requests that meet all other conditions but whose model is ambiguous are refused
    (`ir.protected_models`)."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A listener's certificate."""

    certificate: str
    """Path of a PEM certificate chain."""
    key: str
    """Path of the private key in PEM."""
    hosts: tuple[str, ...] = ()
    """SNI names for which the certificate is used. Empty for the default certificate."""


@dataclass(frozen=True, slots=True)
class ListenerTls:
    """A listener's TLS settings."""

    certificates: tuple[Certificate, ...]
    """At least one certificate, where the first is the default."""
    min_version: Literal["1.2", "1.3"] = "1.2"
    """Minimum TLS version."""
    client_ca: str | None = None
    """Path of the CA bundle for client certificates, or None if no client certificate is requested."""
    client_certificate: Literal["required", "optional"] = "optional"
    """Whether a client must send a certificate, if `client_ca` is set."""
    client_crl: str | None = None
    """Path of the revocation lists for client certificates, or None if revocation is not checked."""


@dataclass(frozen=True, slots=True)
class ClientAddress:
    """How a listener determines the client's address behind another load balancer."""

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
    """Path of the log file, or None for the proxy's default destination."""
    format: Literal["json", "text", "none"] = "json"
    """Format of each line. `none` disables the log."""


@dataclass(frozen=True, slots=True)
class Tracing:
    """Settings for reporting a listener's trace spans."""

    otlp: Address
    """The collector's OTLP address."""
    sample: float
    """Percentage of requests that are sampled."""
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
    """TLS termination, or None for plain connections."""
    http2: bool = True
    """Whether clients can use HTTP/2."""
    client_address: ClientAddress | None = None
    """Source of the client's address behind another load balancer, or None to use the connection's peer address."""
    allow_from: tuple[str, ...] | None = None
    """Client networks that are allowed to send requests, sorted. None allows all networks."""
    deny_from: tuple[str, ...] = ()
    """Client networks that are rejected, sorted. They take precedence over `allow_from`."""
    proxy_protocol: bool = False
    """Whether every connection begins with a PROXY protocol header."""
    max_connections: int | None = None
    """Maximum number of client connections, or None for no limit."""
    max_body: int | None = None
    """Maximum size of a request body in bytes, or None for no limit."""
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
    """Span reporting settings, or None if disabled."""
    request_id: str = "x-request-id"
    """Name of the header that contains the request ID."""
    rules: tuple[Rule, ...] = ()
    """Rules in order of precedence. The first matching rule applies. If none matches, the response is 404."""

    @property
    def address_headers(self) -> tuple[str, ...]:
        """Return the headers that pass the client's address to replicas, in addition to `x-forwarded-for`."""
        return (self.client_address or ClientAddress(())).forward
