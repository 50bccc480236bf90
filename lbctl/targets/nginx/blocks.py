"""The parts of nginx.conf as the template receives them: every text is a Token, every list is in its final order.

Locations are in `location_blocks`.
"""

from __future__ import annotations

from dataclasses import dataclass

from lbctl.targets.nginx.location_blocks import CheckLocation, Location, Mirrored, PickSubrequest
from lbctl.targets.token import Token

_ONE_LINE = 260
"""The most characters of a map in one line."""


@dataclass(frozen=True, slots=True)
class Map:
    """`map source variable { … }`; the entries are (key, value)."""

    source: Token
    """The value that the map looks up."""
    variable: Token
    """The variable that gets the value."""
    entries: tuple[tuple[Token, Token], ...]
    """(key, value), in the order of the file."""
    volatile: bool = False
    """Whether nginx evaluates the variable anew at each use."""
    include: Token | None = None
    """A file with more entries."""
    included: int = 0
    """The number of entries in that file."""

    @property
    def is_short(self) -> bool:
        """Whether it is written in one line."""
        texts = [self.source.text, self.variable.text, *(token.text for entry in self.entries for token in entry)]
        return self.include is None and sum(map(len, texts)) + 2 * len(texts) <= _ONE_LINE


@dataclass(frozen=True, slots=True)
class Draw:
    """`split_clients`; the entries are (percentage or `*`, value)."""

    source: Token
    """The value from which the draw is computed."""
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
    """The value by which requests are counted."""
    name: Token
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
    """The challenge of a 401."""
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
    """Whether one of its pools uses gRPC, so that nginx answers gRPC clients in their format."""
    max_header_bytes: int
    """The largest size of a line of the request's head."""
    no_route: Token
    """The body of the answer where a request has no route."""
    has_regex: bool
    """Whether a rule has a regular expression, whose evaluation may give up."""
    locations: tuple[Location, ...]
    """The locations, in the order of the routes."""
    refused: tuple[Token, ...] = ()
    """The conditions that hold for clients that are refused by their address where a request has no route."""
    questions: tuple[PickSubrequest, ...] = ()
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
    def reads_bodies(self) -> bool:
        """Whether bodies are read before the picker is asked."""
        return any(item.reads_body for item in self.handled)

    @property
    def forwards(self) -> bool:
        """Whether requests are sent to replicas, which may fail."""
        return any(item.forwarding is not None for item in self.handled)


@dataclass(frozen=True, slots=True)
class LogFormat:
    """A `log_format`: its name and its text."""

    name: Token
    text: Token
