"""The locations of nginx.conf as the template receives them, and what each of them holds."""

from __future__ import annotations

from dataclasses import dataclass

from lbctl.targets.token import Token


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
    new_uri: Token | None
    """The variable whose text becomes the path of the request, for gRPC, whose URL has none."""
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
    burst: int | None = None
    """How many requests more are admitted at once; None for `limit_conn`."""
    maximum: int | None = None
    """The number of requests in flight; None for `limit_req`."""

    @property
    def directive(self) -> str:
        """The directive: nginx counts a request once for each of the two."""
        return "limit_req" if self.burst is not None else "limit_conn"


@dataclass(frozen=True, slots=True)
class Answer:
    """A response of the proxy's own; `texts` are set as variables one after the other, and `body` joins them."""

    status: int
    content_type: Token
    texts: tuple[Token, ...]
    """The parts of a body that is too long for one variable."""
    body: Token | None
    """The returned body; None: no body."""


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
    target: Token
    """The URL of the service."""
    forwarded_for: Token
    """The variable with the value of X-Forwarded-For."""
    headers: tuple[tuple[Token, Token], ...]
    """(name, variable) of the request's headers that the service gets."""
    limits: tuple[Limit, ...]
    """Limits that count nothing, where the request is counted after the service has let it in."""
    connect: int
    """Milliseconds for the connection."""
    answer: int
    """Milliseconds for the answer."""


@dataclass(frozen=True, slots=True)
class Location:
    """One way to handle a request.

    Exactly one of `answer`, `forwarding`, `elsewhere`, `redirect` and `onward` is set.
    """

    name: Token
    """The path or the named location."""
    variables: tuple[tuple[Token, Token], ...]
    """(variable, value) that are set first."""
    response_headers: tuple[tuple[Token, Token], ...] = ()
    """(name, value) that are added to the response."""
    refused: tuple[Token, ...] = ()
    """The conditions that hold for clients that are refused by their address."""
    limits: tuple[Limit, ...] = ()
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
    refuses_upgrade: bool = False
    """Whether a request for a WebSocket is refused: nginx would open a tunnel if the replica answers 101 unasked."""
    elsewhere: Token | None = None
    """The named location that handles the request instead."""
    status: int | None = None
    """The status that replaces the status of the response from `elsewhere`."""
    redirect: bool = False
    """Whether the client is redirected to https."""
    onward: Token | None = None
    """The named location in which the request goes on when it has passed this one."""
    reads_body: bool = False
    """Whether the body is read before the request goes on."""
    mirror: Token | None = None
    """The location that sends the copy; None: no copy is sent."""
    keeps_uri: bool = False
    """Whether the copy of a request needs its path without escapes, since the mirror is gRPC."""
    question: Token | None = None
    """The path of the location that asks the picker; None: nothing is picked."""
    own_lines: tuple[Token, ...] = ()
    """The operator's own lines."""

    @property
    def says_429(self) -> bool:
        """Whether one of its limits refuses with 429."""
        limits = self.forwarding is not None or self.onward is not None
        return limits and (self.refusal == 429 or any(x.burst is not None for x in self.limits))


@dataclass(frozen=True, slots=True)
class PickSubrequest:
    """The internal location that asks the picker for a replica."""

    path: Token
    target: Token
    """The URL of the question."""
    proxy: Token
    """The name of this proxy."""
    tenant: Token | None
    """The variable with the tenant; None: the route knows none."""
    key_file: Token | None
    """The file with the line that sends the picker's key; None: it has none."""
    headers: tuple[tuple[Token, Token], ...]
    """(name, variable) of the headers that may name a session."""
    body: Token | None
    """The variable with the beginning of the client's body; None: the picker does not get it."""
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
