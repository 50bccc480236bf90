"""The locations of nginx.conf for the template, and their content."""

from __future__ import annotations

from dataclasses import dataclass

from lbctl.targets.token import Token


@dataclass(frozen=True, slots=True)
class Tls:
    """The TLS settings for connections to a pool's replicas."""

    name: Token
    """Name that the replicas' certificates must contain."""
    ca: Token | None
    """CA bundle; None: certificates are not verified."""
    certificate: Token | None
    """File of the client certificate; None: no client certificate."""
    key: Token | None
    """File of the client certificate's private key."""


@dataclass(frozen=True, slots=True)
class Forwarding:
    """The directives that send a request to an upstream. Times are in milliseconds."""

    module: Token
    """`proxy` or `grpc`: the prefix of nearly all of these directives."""
    url: Token
    """URL of the upstream."""
    path: Token | None
    """Variable that contains the rewritten path, if any; it is empty if nginx cannot find the part to replace."""
    new_uri: Token | None
    """Variable whose text becomes the request's path with gRPC, whose URL has no path."""
    http_version: Token | None
    """HTTP version to the upstream; None if the module does not support the setting."""
    removed_headers: tuple[Token, ...]
    """Directives that remove request headers, several per line."""
    request_headers: tuple[tuple[Token, Token], ...]
    """(name, value) pairs of request headers to set."""
    hide: tuple[Token, ...]
    """A replica's response headers that are not forwarded."""
    connect: int
    """Connection timeout in milliseconds."""
    idle: int
    """Timeout between two reads or writes, in milliseconds."""
    tries: int
    """Maximum number of attempts, including the first."""
    next_timeout: int
    """Timeout for all attempts, in milliseconds."""
    conditions: Token
    """Words of `next_upstream`."""
    tls: Tls | None
    """TLS settings for connections to replicas; None: plain connections."""
    on_502: Token
    """Named location that responds if no replica could be reached."""
    on_504: Token
    """Named location that responds if a replica timed out."""
    on_500: Token | None = None
    """Location for requests whose query to the picker failed; None without a query."""


@dataclass(frozen=True, slots=True)
class Limit:
    """`limit_req` (with `burst`) or `limit_conn` (with `maximum`)."""

    zone: Token
    burst: int | None = None
    """Number of requests above the rate that are admitted immediately; None for `limit_conn`."""
    maximum: int | None = None
    """Maximum number of requests in flight; None for `limit_req`."""

    @property
    def directive(self) -> str:
        """Directive of the limit. nginx counts a request once for each of the two directives."""
        return "limit_req" if self.burst is not None else "limit_conn"


@dataclass(frozen=True, slots=True)
class Answer:
    """The proxy's own response. `texts` are set as variables one after the other, and `body` joins the variables."""

    status: int
    content_type: Token
    texts: tuple[Token, ...]
    """Parts of a body that is too long for one variable."""
    body: Token | None
    """Body; None: no body."""


@dataclass(frozen=True, slots=True)
class Check:
    """The check of requests by an external service."""

    path: Token
    """Path of the location that queries the service."""
    variables: tuple[tuple[Token, Token], ...]
    """(variable, value) pairs set by its response."""


@dataclass(frozen=True, slots=True)
class CheckLocation:
    """The internal location that queries an external service about a request."""

    path: Token
    target: Token
    """URL of the service."""
    forwarded_for: Token
    """Variable that contains the value of X-Forwarded-For."""
    headers: tuple[tuple[Token, Token], ...]
    """(name, variable) pairs of request headers that the service receives."""
    limits: tuple[Limit, ...]
    """Limits that count nothing, if the request is to be counted after the service has accepted it."""
    connect: int
    """Connection timeout in milliseconds."""
    answer: int
    """Response timeout in milliseconds."""


@dataclass(frozen=True, slots=True)
class Location:
    """One way to handle a request.

    Exactly one of `answer`, `forwarding`, `elsewhere`, `redirect` and `onward` is set.
    """

    name: Token
    """Path or named location."""
    variables: tuple[tuple[Token, Token], ...]
    """(variable, value) pairs that are set first."""
    response_headers: tuple[tuple[Token, Token], ...] = ()
    """(name, value) pairs that are added to the response."""
    refused: tuple[Token, ...] = ()
    """Conditions for rejecting clients by address."""
    limits: tuple[Limit, ...] = ()
    tenant: Token | None = None
    """Variable that is empty if the request has no valid credentials."""
    check: Check | None = None
    """Check by an external service; None: no check."""
    refusal: int = 503
    """Status with which a `limit_conn` rejects requests."""
    answer: Answer | None = None
    """The proxy's own response; None: the proxy does not respond itself."""
    forwarding: Forwarding | None = None
    """How the request is forwarded; None: it is not forwarded."""
    refuses_upgrade: bool = False
    """Whether WebSocket requests are rejected. Otherwise, nginx would open a tunnel if the replica sent an unsolicited
    101 response."""
    elsewhere: Token | None = None
    """Named location that handles the request instead."""
    status: int | None = None
    """Status that replaces the status of the response from `elsewhere`."""
    redirect: bool = False
    """Whether the client is redirected to https."""
    onward: Token | None = None
    """Named location in which the request continues afterwards."""
    reads_body: bool = False
    """Whether the body is read before the request continues."""
    mirror: Token | None = None
    """Location that sends the mirrored copy; None: no copy."""
    keeps_uri: bool = False
    """Whether the mirrored copy needs the path without escapes, because the mirror uses gRPC."""
    question: Token | None = None
    """Path of the location that queries the picker; None: no picker."""
    picker_rejects: bool = False
    """Whether the picker may reject requests because of a queue or limits on prompt tokens."""
    may_wait: bool = False
    """Whether requests may wait in the pool's queue, at the picker."""
    own_lines: tuple[Token, ...] = ()
    """Operator's own lines."""

    @property
    def says_429(self) -> bool:
        """Whether one of its limits rejects requests with 429."""
        limits = self.forwarding is not None or self.onward is not None
        return limits and (self.refusal == 429 or any(x.burst is not None for x in self.limits))

    @property
    def has_other_403(self) -> bool:
        """Whether, after the address check, an external service or the picker may also reject a request with 403."""
        return self.check is not None or self.picker_rejects


@dataclass(frozen=True, slots=True)
class PickSubrequest:
    """The internal location that queries the picker for a replica."""

    path: Token
    target: Token
    """URL of the query."""
    proxy: Token
    """Name of this proxy."""
    tenant: Token | None
    """Variable that contains the tenant; None: the route has no tenant."""
    key_file: Token | None
    """File that contains the line which sends the picker's key; None: no key."""
    headers: tuple[tuple[Token, Token], ...]
    """(name, variable) pairs of the client's headers and address that the picker needs."""
    body: Token | None
    """Variable that contains the beginning of the client's body; None: the picker does not receive it."""
    connect: int
    """Connection timeout in milliseconds."""
    answer: int
    """Response timeout in milliseconds."""
    on_401: Token | None = None
    """Location in which the request waits in the pool's queue if necessary; None: it does not wait."""
    waits: bool = False
    """Whether requests wait in this location. In this case, the query ends if the client disconnects."""


@dataclass(frozen=True, slots=True)
class Mirrored:
    """The location that sends a mirrored copy of a request."""

    path: Token
    """Path of the internal location."""
    draw: Token | None
    """Variable that is 1 if the request is copied; None if every request is copied."""
    forwarding: Forwarding
    """Settings for forwarding the copy."""
