"""What nginx.conf consists of, as the template gets it: every text is a Token, every list is in its final order."""

from __future__ import annotations

from dataclasses import dataclass

from lbctl.targets.token import Token


@dataclass(frozen=True, slots=True)
class Map:
    """`map source variable { … }`; entries are (key, value). `volatile`: looked up anew each time; `include`: a file
    with more entries."""

    source: Token
    variable: Token
    entries: tuple[tuple[Token, Token], ...]
    volatile: bool = False
    include: Token | None = None


@dataclass(frozen=True, slots=True)
class Draw:
    """`split_clients`: entries are (percent or `*`, value)."""

    source: Token
    variable: Token
    entries: tuple[tuple[Token, Token], ...]


@dataclass(frozen=True, slots=True)
class Geo:
    """`geo address variable`: 1 for the networks, else 0."""

    address: Token
    variable: Token
    networks: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Zone:
    """A `limit_req_zone` (with `rate`) or a `limit_conn_zone`; `size` in KiB."""

    key: Token
    name: Token
    size: int
    rate: Token | None = None


@dataclass(frozen=True, slots=True)
class Server:
    """A line of an upstream; `parameters` are whole words such as weight=100."""

    address: Token
    parameters: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Upstream:
    """`zone` in KiB, times in ms."""

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
    """To the replicas of a pool."""

    name: Token
    ca: Token | None
    certificate: Token | None
    key: Token | None


@dataclass(frozen=True, slots=True)
class Forwarding:
    """`module` is proxy or grpc: the first word of nearly every directive here. Times in ms."""

    module: Token
    url: Token
    path: Token | None
    """The variable with the rewritten path, where there is one: empty if it could not be told."""
    http_version: Token | None
    request_headers: tuple[tuple[Token, Token], ...]
    """(name, value); an empty value removes."""
    hide: tuple[Token, ...]
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
    """`limit_req` (with `burst`) or `limit_conn` (with `most`)."""

    zone: Token
    burst: int | None = None
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What the proxy says itself; `texts` are set as variables one after the other and written together."""

    status: int
    content_type: Token
    texts: tuple[Token, ...]
    body: Token | None


@dataclass(frozen=True, slots=True)
class Location:
    """One way that a request can end. Exactly one of `answer`, `forwarding`, `elsewhere` and `redirect` holds."""

    name: Token
    variables: tuple[tuple[Token, Token], ...]
    response_headers: tuple[tuple[Token, Token], ...] = ()
    limits: tuple[Limit, ...] = ()
    tenant: Token | None = None
    """The variable that is empty where nobody is to be let in."""
    refusal: int = 503
    """With which status a `limit_conn` refuses."""
    answer: Answer | None = None
    forwarding: Forwarding | None = None
    elsewhere: Token | None = None
    status: int | None = None
    """What the answer from `elsewhere` is called, if not by its own status."""
    redirect: bool = False
    mirror: Token | None = None


@dataclass(frozen=True, slots=True)
class Mirrored:
    """The copy of a request: `draw` is the variable that says whether this one is copied, if not all are."""

    path: Token
    draw: Token | None
    forwarding: Forwarding


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and the names that it is for."""

    certificate: Token
    key: Token
    hosts: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Listener:
    """One `server` block for each identity (one without TLS), all with the same locations."""

    listen: Token
    """Address and its parameters, without default_server."""
    http2: bool
    """As a directive of its own (1.25.1 and later)."""
    identities: tuple[Identity, ...]
    protocols: Token | None
    client_ca: Token | None
    verify: Token | None
    trusted: tuple[Token, ...]
    address_header: Token | None
    several_addresses: Token | None
    """The variable that is 1 where the client is named in more than one line."""
    max_body: int
    header_timeout: int
    idle_timeout: int
    log_path: Token | None
    log_format: Token
    request_id: tuple[Token, Token]
    """The header's name, and the variable."""
    target: Token
    has_regex: bool
    """Whether a rule has an expression, which may give up."""
    locations: tuple[Location, ...]
    mirrors: tuple[Mirrored, ...] = ()


@dataclass(frozen=True, slots=True)
class LogFormat:
    name: Token
    text: Token
