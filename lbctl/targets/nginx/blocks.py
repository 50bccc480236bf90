"""The parts of nginx.conf as the template receives them: every text is a Token, every list is in its final order."""

from __future__ import annotations

from dataclasses import dataclass

from lbctl.targets.token import Token


@dataclass(frozen=True, slots=True)
class Map:
    """`map source variable { … }`; the entries are (key, value)."""

    source: Token
    variable: Token
    entries: tuple[tuple[Token, Token], ...]
    volatile: bool = False
    """Whether nginx evaluates the variable anew at each use."""
    include: Token | None = None
    """A file with more entries."""


@dataclass(frozen=True, slots=True)
class Draw:
    """`split_clients`; the entries are (percentage or `*`, value)."""

    source: Token
    variable: Token
    entries: tuple[tuple[Token, Token], ...]


@dataclass(frozen=True, slots=True)
class Geo:
    """`geo address variable`: the variable is 1 for an address in the networks, else 0."""

    address: Token
    variable: Token
    networks: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Zone:
    """A `limit_req_zone` (with `rate`) or a `limit_conn_zone`; `size` is in KiB."""

    key: Token
    name: Token
    size: int
    rate: Token | None = None


@dataclass(frozen=True, slots=True)
class Server:
    """One `server` line of an upstream; each parameter is a whole word such as weight=100."""

    address: Token
    parameters: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Upstream:
    """An `upstream` block; `zone` is in KiB, times are in milliseconds."""

    name: Token
    zone: int
    method: Token | None
    servers: tuple[Server, ...]
    keepalive: int
    keepalive_timeout: int
    keepalive_requests: int
    resolver: Token | None = None
    sticky: Token | None = None


@dataclass(frozen=True, slots=True)
class Tls:
    """The TLS settings for connections to the replicas of a pool."""

    name: Token
    """The name that the replicas' certificates must hold."""
    ca: Token | None
    certificate: Token | None
    key: Token | None


@dataclass(frozen=True, slots=True)
class Forwarding:
    """The directives that send a request to an upstream; times are in milliseconds."""

    module: Token
    """`proxy` or `grpc`: the prefix of nearly every directive here."""
    url: Token
    path: Token | None
    """The variable with the rewritten path, if any; it is empty where nginx cannot tell what to replace."""
    http_version: Token | None
    request_headers: tuple[tuple[Token, Token], ...]
    """(name, value); an empty value removes the header."""
    hide: tuple[Token, ...]
    """The response headers of a replica that are not passed on."""
    connect: int
    idle: int
    tries: int
    next_timeout: int
    conditions: Token
    tls: Tls | None
    on_502: Token
    on_504: Token


@dataclass(frozen=True, slots=True)
class Limit:
    """`limit_req` (with `burst`) or `limit_conn` (with `maximum`)."""

    zone: Token
    burst: int | None = None
    maximum: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A response of the proxy's own; `texts` are set as variables one after the other, and `body` joins them."""

    status: int
    content_type: Token
    texts: tuple[Token, ...]
    body: Token | None


@dataclass(frozen=True, slots=True)
class Location:
    """One way to handle a request; exactly one of `answer`, `forwarding`, `elsewhere` and `redirect` is set."""

    name: Token
    variables: tuple[tuple[Token, Token], ...]
    response_headers: tuple[tuple[Token, Token], ...] = ()
    limits: tuple[Limit, ...] = ()
    tenant: Token | None = None
    """The variable that is empty if the request has no valid credentials."""
    refusal: int = 503
    """The status with which a `limit_conn` refuses."""
    answer: Answer | None = None
    forwarding: Forwarding | None = None
    elsewhere: Token | None = None
    """The named location that handles the request instead."""
    status: int | None = None
    """The status that replaces that of the response from `elsewhere`."""
    redirect: bool = False
    mirror: Token | None = None


@dataclass(frozen=True, slots=True)
class Mirrored:
    """The location that sends the copy of a request."""

    path: Token
    draw: Token | None
    """The variable that is 1 if this request is copied; None if every request is."""
    forwarding: Forwarding


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and the host names that it serves."""

    certificate: Token
    key: Token
    hosts: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Listener:
    """One `server` block for each identity (one block without TLS), all with the same locations."""

    listen: Token
    """The address and its parameters, without default_server."""
    http2: bool
    """Whether to write the directive `http2 on` (1.25.1 and later)."""
    identities: tuple[Identity, ...]
    protocols: Token | None
    client_ca: Token | None
    verify: Token | None
    trusted: tuple[Token, ...]
    address_header: Token | None
    several_addresses: Token | None
    """The variable that is 1 if more than one header line names the client."""
    max_body: int
    header_timeout: int
    idle_timeout: int
    log_path: Token | None
    log_format: Token
    traffic_log: Token | None
    """The syslog server that gets the traffic log, as an argument of `access_log`."""
    request_id: tuple[Token, Token]
    """The name of the header, and the variable with its value."""
    target: Token
    has_regex: bool
    """Whether a rule has a regular expression, whose evaluation may give up."""
    locations: tuple[Location, ...]
    mirrors: tuple[Mirrored, ...] = ()


@dataclass(frozen=True, slots=True)
class LogFormat:
    """A `log_format`: its name and its text."""

    name: Token
    text: Token
