"""The parts of nginx.conf for the template. Every text is a Token, and every list is in its final order.

Locations are in `location_blocks`.
"""

from __future__ import annotations

from dataclasses import dataclass

from lbctl.targets.nginx.location_blocks import CheckLocation, Location, Mirrored, PickSubrequest
from lbctl.targets.token import Token

_ONE_LINE = 260
"""Maximum length of a map on one line, in characters."""


@dataclass(frozen=True, slots=True)
class Map:
    """`map source variable { … }`; the entries are (key, value)."""

    source: Token
    """Expression that is looked up."""
    variable: Token
    """Variable that receives the value."""
    entries: tuple[tuple[Token, Token], ...]
    """(key, value) pairs in file order."""
    volatile: bool = False
    """Whether nginx evaluates the variable at each use."""
    include: Token | None = None
    """File that contains more entries."""
    included: int = 0
    """Number of entries in that file."""

    @property
    def is_short(self) -> bool:
        """Whether the map is written on one line."""
        texts = [self.source.text, self.variable.text, *(token.text for entry in self.entries for token in entry)]
        return self.include is None and sum(map(len, texts)) + 2 * len(texts) <= _ONE_LINE


@dataclass(frozen=True, slots=True)
class Draw:
    """`split_clients`; the entries are (percentage or `*`, value)."""

    source: Token
    """Expression that the draw is based on."""
    variable: Token
    """Variable that receives the value."""
    entries: tuple[tuple[Token, Token], ...]
    """(percentage or `*`, value) pairs; the last one has `*`."""


@dataclass(frozen=True, slots=True)
class Geo:
    """`geo address variable`: the variable is 1 for addresses in the networks, otherwise 0."""

    address: Token
    """Variable that contains the address."""
    variable: Token
    """Variable to set."""
    networks: tuple[Token, ...]
    """Networks in CIDR notation."""
    outside: tuple[Token, ...] = ()
    """Networks for which the variable is 0, although a larger network in `networks` contains them."""


@dataclass(frozen=True, slots=True)
class Zone:
    """A `limit_req_zone` (with `rate`) or a `limit_conn_zone`; `size` is in KiB."""

    key: Token
    """Key that requests are counted by."""
    name: Token
    size: int
    """Shared memory size in KiB."""
    rate: Token | None = None
    """Rate of a `limit_req_zone`; None for a `limit_conn_zone`."""


@dataclass(frozen=True, slots=True)
class UpstreamServer:
    """One `server` line of an upstream. Each parameter is a complete word such as weight=100."""

    address: Token
    """Address, or host name and port."""
    parameters: tuple[Token, ...]
    """Words after the address."""


@dataclass(frozen=True, slots=True)
class UpstreamBlock:
    """An `upstream` block. `zone` is in KiB; times are in milliseconds."""

    name: Token
    zone: int
    """Shared memory size in KiB."""
    method: Token | None
    """Balancing directive; None: round robin."""
    servers: tuple[UpstreamServer, ...]
    """Servers, in pool order."""
    keepalive: int
    """Number of idle connections that each worker keeps."""
    keepalive_timeout: int
    """Time in milliseconds for which idle connections are kept."""
    keepalive_requests: int
    """Maximum number of requests on one connection."""
    resolver: Token | None = None
    """Resolver for its host names; None: names are resolved only at startup."""
    sticky: Token | None = None
    """Cookie directive in newer versions; None: no cookie."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and its host names."""

    certificate: Token
    """File of the certificate chain."""
    key: Token
    """File of the private key."""
    hosts: tuple[Token, ...]
    """Server names."""


@dataclass(frozen=True, slots=True)
class ServerBlock:
    """One `server` block per identity (one block without TLS), all with the same locations."""

    listen: Token
    """Address and its parameters, except default_server."""
    http2: bool
    """Whether to write the directive `http2 on` (1.25.1 and later)."""
    identities: tuple[Identity, ...]
    """One per certificate; empty without TLS."""
    protocols: Token | None
    """Accepted TLS versions; None without TLS."""
    client_ca: Token | None
    """CA bundle for client certificates; None: client certificates are not requested."""
    verify: Token | None
    """Whether a client certificate is required or optional; None without `client_ca`."""
    challenge: Token
    """Challenge of a 401."""
    client_crl: Token | None
    """File of the revocation lists for client certificates; None: revocation is not checked."""
    checks: tuple[CheckLocation, ...]
    """Locations that query external authorization services."""
    trusted: tuple[Token, ...]
    """Networks whose peers may report the client's address in a header."""
    address_header: Token | None
    """Header that contains the client's address; None: the address of the connection is used."""
    several_addresses: Token | None
    """Variable that is 1 if several header lines contain the client's address."""
    max_body: int
    """Maximum body size in bytes; 0: unlimited."""
    header_timeout: int
    """Timeout for a request's headers, in milliseconds."""
    idle_timeout: int
    """Time for which idle client connections are kept, in milliseconds."""
    log_path: Token | None
    """File of the access log; None: disabled."""
    logged: Token | None
    """Variable that is 0 for requests that are not logged; None if all requests are logged."""
    log_format: Token
    """Name of the server's `log_format`."""
    traffic_log: Token | None
    """Syslog server for the traffic log, as an argument of `access_log`."""
    request_id: tuple[Token, Token]
    """Name of the header and the variable that contains its value."""
    target: Token | None
    """Variable, set by a map, that contains a request's location; None with `only`."""
    only: Location | None
    """Handling of every request, if it never differs; None: the map finds the location."""
    variables: tuple[Token, ...]
    """Variables for the tenant, the variant and the mirrored copy, if the fleet uses them."""
    has_grpc: bool
    """Whether one of the server's pools uses gRPC, so that nginx sends gRPC statuses to gRPC clients."""
    max_header_bytes: int
    """Maximum length of a line in the request's head, in bytes."""
    no_route: Token
    """Body of the response to a request without a route."""
    has_regex: bool
    """Whether a rule has a regular expression, which may exceed PCRE's limits on a long path."""
    locations: tuple[Location, ...]
    """Locations, in route order."""
    refused: tuple[Token, ...] = ()
    """Conditions for rejecting clients by address if a request has no route."""
    questions: tuple[PickSubrequest, ...] = ()
    """Locations that query the picker."""
    pick_log: Token | None = None
    """Syslog server for reports that picked requests have ended; None if no pool uses the picker."""
    mirrors: tuple[Mirrored, ...] = ()
    """Locations that send mirrored copies of requests."""
    own_lines: tuple[Token, ...] = ()
    """Operator's own lines."""
    own_headers: tuple[tuple[Token, Token], ...] = ()
    """Headers that routes set on nginx's own responses: the name, and the variable that contains the route's value."""

    @property
    def handled(self) -> tuple[Location, ...]:
        """All ways in which a request is handled."""
        return self.locations if self.only is None else (self.only,)

    @property
    def refuses(self) -> bool:
        """Whether clients are rejected by address."""
        return bool(self.refused) or any(item.refused for item in self.handled)

    @property
    def has_keys(self) -> bool:
        """Whether a request may lack credentials."""
        return any(item.tenant is not None or item.check is not None for item in self.handled)

    @property
    def says_429(self) -> bool:
        """Whether a limit or the picker rejects requests with 429."""
        return self.picker_rejects or any(item.says_429 for item in self.handled)

    @property
    def picker_rejects(self) -> bool:
        """Whether the picker may reject requests."""
        return any(item.picker_rejects for item in self.handled)

    @property
    def reads_bodies(self) -> bool:
        """Whether bodies are read before the picker is queried."""
        return any(item.reads_body for item in self.handled)

    @property
    def forwards(self) -> bool:
        """Whether requests are sent to replicas, which may fail."""
        return any(item.forwarding is not None for item in self.handled)


@dataclass(frozen=True, slots=True)
class LogFormat:
    """A `log_format`: its name and text."""

    name: Token
    text: Token
