"""Where clients come in, and the table of rules that sends each request to a route."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lbctl.ir.address import Address


@dataclass(frozen=True, slots=True)
class PathMatch:
    """`prefix` is of whole segments, without a last slash: `/v1` matches `/v1` and `/v1/x`, never `/v1x`. `regex`: RE2,
    the whole path."""

    kind: Literal["exact", "prefix", "regex"] = "prefix"
    value: str = "/"


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a listener's table. All conditions must hold.

    `host`: "" any, `name.example` exact, `*.example.com` one or more labels before it; compared without port and case.
    `methods` empty: any. `headers`: (lower-case name, exact value), sorted. `models`: exact names, or a prefix with a
    trailing `*`; empty: any.
    """

    route: str
    host: str = ""
    path: PathMatch = PathMatch()
    methods: tuple[str, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Certificate:
    """Paths of a PEM chain and its key, and the SNI names that it is for; no hosts: the default certificate."""

    certificate: str
    key: str
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ListenerTls:
    certificates: tuple[Certificate, ...]
    """At least one; the first is the default."""
    min_version: Literal["1.2", "1.3"] = "1.2"
    client_ca: str | None = None
    client_certificate: Literal["required", "optional"] = "optional"


@dataclass(frozen=True, slots=True)
class ClientAddress:
    """Who the client is, behind another balancer: `header` is believed from `trusted` networks (CIDR) alone."""

    trusted: tuple[str, ...]
    header: str = "x-forwarded-for"


@dataclass(frozen=True, slots=True)
class AccessLog:
    path: str = "/dev/stdout"
    format: Literal["json", "text", "none"] = "json"


@dataclass(frozen=True, slots=True)
class Tracing:
    otlp: Address
    sample: float
    service: str


@dataclass(frozen=True, slots=True)
class Listener:
    name: str
    bind: Address
    tls: ListenerTls | None = None
    http2: bool = True
    client_address: ClientAddress | None = None
    proxy_protocol: bool = False
    max_connections: int | None = None
    max_body: int | None = None
    inspect: int = 256 * 1024
    request_headers_timeout: int = 15_000
    idle_timeout: int | None = 3_600_000
    access_log: AccessLog = AccessLog()
    tracing: Tracing | None = None
    request_id: str = "x-request-id"
    rules: tuple[Rule, ...] = ()
    """Which request goes to which route, by precedence: the first rule that matches decides; none: 404."""
