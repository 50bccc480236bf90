"""The parts of nginx.conf as the template receives them: every text is a Token, every list is in its final order."""

from __future__ import annotations

from dataclasses import dataclass

from lbctl.targets.token import Token

_ONE_LINE = 150
"""The most characters of a map in one line."""


@dataclass(frozen=True, slots=True)
class Map:
    """`map source variable { … }`; the entries are (key, value)."""

    source: Token
    """What the map looks up."""
    variable: Token
    """The variable that gets the value."""
    entries: tuple[tuple[Token, Token], ...]
    """(key, value), in the order of the file."""
    volatile: bool = False
    """Whether nginx evaluates the variable anew at each use."""
    include: Token | None = None
    """A file with more entries."""

    @property
    def is_short(self) -> bool:
        """Whether it is written in one line."""
        texts = [self.source.text, self.variable.text, *(token.text for entry in self.entries for token in entry)]
        return self.include is None and sum(map(len, texts)) + 2 * len(texts) <= _ONE_LINE


@dataclass(frozen=True, slots=True)
class Draw:
    """`split_clients`; the entries are (percentage or `*`, value)."""

    source: Token
    """What the draw is computed from."""
    variable: Token
    """The variable that gets the value."""
    entries: tuple[tuple[Token, Token], ...]
    """(percentage or `*`, value); the last is `*`."""


@dataclass(frozen=True, slots=True)
class Geo:
    """`geo address variable`: the variable is 1 for an address in the networks, else 0."""

    address: Token
    """The variable with the address."""
    variable: Token
    """The variable that is set."""
    networks: tuple[Token, ...]
    """The networks in CIDR form."""
    outside: tuple[Token, ...] = ()
    """Networks for which the variable is 0, although a larger one of `networks` holds them."""


@dataclass(frozen=True, slots=True)
class Zone:
    """A `limit_req_zone` (with `rate`) or a `limit_conn_zone`; `size` is in KiB."""

    key: Token
    """What requests are counted by."""
    name: Token
    """The name of the zone."""
    size: int
    """The shared memory in KiB."""
    rate: Token | None = None
    """The rate of a `limit_req_zone`; None for a `limit_conn_zone`."""


@dataclass(frozen=True, slots=True)
class UpstreamServer:
    """One `server` line of an upstream; each parameter is a whole word such as weight=100."""

    address: Token
    """The address, or the host name and port."""
    parameters: tuple[Token, ...]
    """The words after the address."""


@dataclass(frozen=True, slots=True)
class UpstreamBlock:
    """An `upstream` block; `zone` is in KiB, times are in milliseconds."""

    name: Token
    """The name of the block."""
    zone: int
    """The shared memory in KiB."""
    method: Token | None
    """The balancing directive; None: round robin."""
    servers: tuple[UpstreamServer, ...]
    """The servers, in the order of the pool."""
    keepalive: int
    """The number of idle connections that each worker keeps."""
    keepalive_timeout: int
    """How long an idle connection is kept, in milliseconds."""
    keepalive_requests: int
    """How many requests one connection carries."""
    resolver: Token | None = None
    """The resolver of its host names; None: names are resolved at the start."""
    sticky: Token | None = None
    """The cookie directive of newer versions; None: there is none."""


@dataclass(frozen=True, slots=True)
class Tls:
    """The TLS settings for connections to the replicas of a pool."""

    name: Token
    """The name that the replicas' certificates must hold."""
    ca: Token | None
    """The file of the authorities; None: nothing is verified."""
    certificate: Token | None
    """The file of the client certificate; None: none is sent."""
    key: Token | None
    """The file of the client certificate's private key."""


@dataclass(frozen=True, slots=True)
class Forwarding:
    """The directives that send a request to an upstream; times are in milliseconds."""

    module: Token
    """`proxy` or `grpc`: the prefix of nearly every directive here."""
    url: Token
    """The URL of the upstream."""
    path: Token | None
    """The variable with the rewritten path, if any; it is empty where nginx cannot tell what to replace."""
    http_version: Token | None
    """The HTTP version to the upstream; None: the module has none to set."""
    removed_headers: tuple[Token, ...]
    """The directives that remove request headers, several in a line."""
    request_headers: tuple[tuple[Token, Token], ...]
    """(name, value) of the request headers that are set."""
    hide: tuple[Token, ...]
    """The response headers of a replica that are not passed on."""
    connect: int
    """The time for a connection, in milliseconds."""
    idle: int
    """The time between two reads or writes, in milliseconds."""
    tries: int
    """The number of tries, the first included."""
    next_timeout: int
    """The time for all tries, in milliseconds."""
    conditions: Token
    """The words of `next_upstream`."""
    tls: Tls | None
    """TLS to the replicas; None: plain connections."""
    on_502: Token
    """The named location that answers when no replica could be reached."""
    on_504: Token
    """The named location that answers when a replica took too long."""
    on_500: Token | None = None
    """The location for requests whose question to the picker failed; None without a question."""


@dataclass(frozen=True, slots=True)
class Limit:
    """`limit_req` (with `burst`) or `limit_conn` (with `maximum`)."""

    zone: Token
    """The name of its zone."""
    burst: int | None = None
    """How many requests more are admitted at once; None for `limit_conn`."""
    maximum: int | None = None
    """The number of requests in flight; None for `limit_req`."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response of the proxy's own; `texts` are set as variables one after the other, and `body` joins them."""

    status: int
    """The status of the response."""
    content_type: Token
    """The Content-Type of the response."""
    texts: tuple[Token, ...]
    """The parts of a body that is too long for one variable."""
    body: Token | None
    """What is returned; None: no body."""


@dataclass(frozen=True, slots=True)
class Check:
    """How a request is checked by a service."""

    path: Token
    """The path of the location that asks the service."""
    variables: tuple[tuple[Token, Token], ...]
    """(variable, value) that its answer sets."""


@dataclass(frozen=True, slots=True)
class CheckLocation:
    """The internal location that asks a service about a request."""

    path: Token
    """Its path."""
    target: Token
    """The URL of the service."""
    forwarded_for: Token
    """The variable with the value of X-Forwarded-For."""
    headers: tuple[tuple[Token, Token], ...]
    """(name, variable) of the request's headers that the service gets."""
    connect: int
    """Milliseconds for the connection."""
    answer: int
    """Milliseconds for the answer."""


@dataclass(frozen=True, slots=True)
class Location:
    """One way to handle a request; exactly one of `answer`, `forwarding`, `elsewhere` and `redirect` is set."""

    name: Token
    """The path or the named location."""
    variables: tuple[tuple[Token, Token], ...]
    """(variable, value) that are set first."""
    response_headers: tuple[tuple[Token, Token], ...] = ()
    """(name, value) that are added to the response."""
    refused: tuple[Token, ...] = ()
    """The conditions that hold for clients that are refused by their address."""
    limits: tuple[Limit, ...] = ()
    """The limits of its requests."""
    tenant: Token | None = None
    """The variable that is empty if the request has no valid credentials."""
    check: Check | None = None
    """How a service checks the request; None: none does."""
    refusal: int = 503
    """The status with which a `limit_conn` refuses."""
    answer: Answer | None = None
    """The response of the proxy's own; None: it does not answer itself."""
    forwarding: Forwarding | None = None
    """How the request is forwarded; None: it is not."""
    elsewhere: Token | None = None
    """The named location that handles the request instead."""
    status: int | None = None
    """The status that replaces that of the response from `elsewhere`."""
    redirect: bool = False
    """Whether the client is redirected to https."""
    mirror: Token | None = None
    """The location that sends the copy; None: no copy is sent."""
    question: Token | None = None
    """The path of the location that asks the picker; None: nothing is picked."""
    own_lines: tuple[Token, ...] = ()
    """The operator's own lines."""

    @property
    def says_429(self) -> bool:
        """Whether one of its limits refuses with 429."""
        return self.forwarding is not None and (self.refusal == 429 or any(x.burst is not None for x in self.limits))


@dataclass(frozen=True, slots=True)
class Question:
    """The internal location that asks the picker for a replica."""

    path: Token
    """Its path."""
    target: Token
    """The URL of the question."""
    proxy: Token
    """The name of this proxy."""
    headers: tuple[tuple[Token, Token], ...]
    """(name, variable) of the headers that may name a session."""
    connect: int
    """Milliseconds for the connection."""
    answer: int
    """Milliseconds for the answer."""


@dataclass(frozen=True, slots=True)
class Mirrored:
    """The location that sends the copy of a request."""

    path: Token
    """The path of the internal location."""
    draw: Token | None
    """The variable that is 1 if this request is copied; None if every request is."""
    forwarding: Forwarding
    """How the copy is forwarded."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and the host names that it serves."""

    certificate: Token
    """The file of the certificate chain."""
    key: Token
    """The file of the private key."""
    hosts: tuple[Token, ...]
    """The server names."""


@dataclass(frozen=True, slots=True)
class ServerBlock:
    """One `server` block for each identity (one block without TLS), all with the same locations."""

    listen: Token
    """The address and its parameters, without default_server."""
    http2: bool
    """Whether to write the directive `http2 on` (1.25.1 and later)."""
    identities: tuple[Identity, ...]
    """One for each certificate; empty without TLS."""
    protocols: Token | None
    """The TLS versions that are accepted; None without TLS."""
    client_ca: Token | None
    """The file of the authorities of client certificates; None: none is requested."""
    verify: Token | None
    """Whether a client certificate is required or optional; None without `client_ca`."""
    challenge: Token
    """What a 401 asks for."""
    client_crl: Token | None
    """The file of the lists of revoked client certificates; None: there is none."""
    checks: tuple[CheckLocation, ...]
    """The locations that ask services about requests."""
    trusted: tuple[Token, ...]
    """The networks whose header names the client."""
    address_header: Token | None
    """The header that names the client; None: the address of the connection."""
    several_addresses: Token | None
    """The variable that is 1 if more than one header line names the client."""
    max_body: int
    """The largest body in bytes; 0: unlimited."""
    header_timeout: int
    """The time for a request's headers, in milliseconds."""
    idle_timeout: int
    """The time for which an idle client connection is kept, in milliseconds."""
    log_path: Token | None
    """The file of the access log; None: none is written."""
    logged: Token | None
    """The variable that is 0 for requests that are not logged; None where all of them are."""
    log_format: Token
    """The name of its `log_format`."""
    traffic_log: Token | None
    """The syslog server that gets the traffic log, as an argument of `access_log`."""
    request_id: tuple[Token, Token]
    """The name of the header, and the variable with its value."""
    target: Token | None
    """The location of a request, by a map; None with `only`."""
    only: Location | None
    """The handling of every request, where there is one for all; None: the map finds its location."""
    variables: tuple[Token, ...]
    """The variables of the tenant, the variant and the copy, where the fleet uses them."""
    has_grpc: bool
    """Whether one of its pools speaks gRPC, so that nginx answers gRPC clients in their way."""
    has_regex: bool
    """Whether a rule has a regular expression, whose evaluation may give up."""
    locations: tuple[Location, ...]
    """The locations, in the order of the routes."""
    refused: tuple[Token, ...] = ()
    """The conditions that hold for clients that are refused by their address where a request has no route."""
    questions: tuple[Question, ...] = ()
    """The locations that ask the picker."""
    pick_log: Token | None = None
    """The syslog server that learns the end of picked requests; None where nothing is picked."""
    mirrors: tuple[Mirrored, ...] = ()
    """The locations that send copies of requests."""
    own_lines: tuple[Token, ...] = ()
    """The operator's own lines."""
    own_headers: tuple[tuple[Token, Token], ...] = ()
    """The headers of nginx's own answers that routes set: the name, and the variable with the value for the route."""

    @property
    def handled(self) -> tuple[Location, ...]:
        """All ways in which a request is handled."""
        return self.locations if self.only is None else (self.only,)

    @property
    def refuses(self) -> bool:
        """Whether clients are refused by their address."""
        return bool(self.refused) or any(item.refused for item in self.handled)

    @property
    def has_keys(self) -> bool:
        """Whether a request may lack credentials."""
        return any(item.tenant is not None or item.check is not None for item in self.handled)

    @property
    def says_429(self) -> bool:
        """Whether a limit refuses requests with 429."""
        return any(item.says_429 for item in self.handled)

    @property
    def forwards(self) -> bool:
        """Whether requests are sent to replicas, which may fail."""
        return any(item.forwarding is not None for item in self.handled)


@dataclass(frozen=True, slots=True)
class LogFormat:
    """A `log_format`: its name and its text."""

    name: Token
    """The name of the format."""
    text: Token
    """The format itself."""
