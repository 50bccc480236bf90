"""Selection of the replica for a request. Durations are in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Algorithm = Literal["round_robin", "least_request", "least_time", "random", "hash"]


@dataclass(frozen=True, slots=True)
class HashKey:
    """Input of a hash: a part of the request."""

    kind: Literal["header", "cookie", "query", "source_ip", "json_body", "prompt_prefix"]
    """The part of the request that is hashed."""
    name: str = ""
    """Empty for source_ip; a path such as `$.user` for json_body."""
    bytes: int = 0
    """Length of a prompt_prefix, in bytes."""


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Session identifier of a request: a header or a field of the JSON body."""

    header: str = ""
    """The header's name in lower case; empty for a field of the body."""
    body: str = ""
    """Field, for example `$.user`; empty for a header."""

    @property
    def name(self) -> str:
        """Return the header's name or the field."""
        return self.header or self.body


DEFAULT_SESSION_KEYS = (
    *(
        SessionKey(header=name)
        for name in (
            "x-session-id",
            "x-claude-code-session-id",
            "x-session-affinity",
            "session-id",
            "session_id",
            "x-correlation-id",
        )
    ),
    *(SessionKey(body=f"$.{name}") for name in ("session_id", "prompt_cache_key", "metadata.user_id", "user")),
)
"""Session keys of a pool that does not set any. docs/reference/picker.md lists the clients that send them."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """Settings for recognising prompts by their beginning."""

    block: int = 256
    """Block size in bytes."""
    blocks: int = 128
    """Maximum number of blocks of one prompt."""


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """Settings of the picker's queue, where requests wait while all replicas are full."""

    max_wait: int
    """Time after which a waiting request is rejected."""
    max_requests: int = 500
    """Maximum number of waiting requests at each picker."""
    order: Literal["fair", "fifo"] = "fair"
    by: Literal["tenant", "client_ip", "header", "all"] = "tenant"
    """Criterion that determines which requests form a flow. With the order `fair`, flows share the replicas by
    weight."""
    header: str = ""
    """Lowercase name of the header whose value identifies the flow; empty unless `by` is header."""
    weights: tuple[tuple[str, float], ...] = ()
    """Weights (> 0) of individual tenants, by name. Other flows have the weight 1."""
    priority_header: str = ""
    """Lowercase name of the header that some tenants use to choose a priority; empty: none."""
    priority_tenants: tuple[tuple[str, str], ...] = ()
    """Tenants that may choose a priority, by name, with the highest that each may use: high, normal or low."""


@dataclass(frozen=True, slots=True, order=True)
class TokenLimit:
    """Limit on the prompt tokens of a route's requests, as estimated by the picker."""

    route: str
    by: Literal["tenant", "client_ip", "header", "all"]
    """Criterion that determines which requests share the limit."""
    tokens: int
    """Number of prompt tokens (> 0) allowed in each period."""
    period: int
    """Length of the period, in milliseconds."""
    header: str = ""
    """The lowercase name of the header; empty unless `by` is header."""


@dataclass(frozen=True, slots=True)
class PickPolicy:
    """Settings of the picker, which chooses a replica for each request with the algorithm `pick`."""

    session: tuple[SessionKey, ...]
    """Session identifiers; the first identifier that a request contains is used."""
    prefix: Prefix | None = Prefix()
    """Settings for recognising prompts; None: prompts are not recognised."""
    bound: float = 1.25
    """Multiple (> 1) of the mean load per capacity at which affinity ends."""
    timeout: int = 200
    """Maximum time, in milliseconds, for the picker to answer a request that does not wait in a queue."""
    queue: QueuePolicy | None = None
    """Queue for requests while all replicas are full; None: the picker answers every request at once."""

    token_limits: tuple[TokenLimit, ...] = ()
    """Limits of the routes that lead to the pool, sorted by route."""

    @property
    def reads_bodies(self) -> bool:
        """Whether the picker needs the beginning of the request's body."""
        return self.prefix is not None or any(key.body for key in self.session)

    @property
    def session_headers(self) -> tuple[str, ...]:
        """Return the headers that may identify the session, in order."""
        return tuple(key.header for key in self.session if key.header)

    @property
    def question_headers(self) -> tuple[str, ...]:
        """Return the request headers that the picker needs, without duplicates, starting with those for the session."""
        queued = (self.queue.header, self.queue.priority_header) if self.queue else ()
        named = (*queued, *(limit.header for limit in self.token_limits))
        return tuple(dict.fromkeys((*self.session_headers, *filter(None, named))))

    @property
    def longest_wait(self) -> int:
        """Return the maximum time for the picker to answer a request, including its time in the queue."""
        return self.timeout + (self.queue.max_wait if self.queue else 0)


@dataclass(frozen=True, slots=True)
class Balance:
    """Load-balancing settings of a pool."""

    algorithm: Algorithm = "least_request"
    """Algorithm of the proxy itself; with `pick`, it is used for requests that the picker does not answer."""
    key: HashKey | None = None
    """Input of the hash; None for every algorithm except `hash`."""
    bounded_load: float | None = None
    """Maximum load of a replica, as a multiple (> 1) of the mean load."""
    pick: PickPolicy | None = None
    """Settings of the picker; None: the proxy itself selects replicas."""

    @property
    def name(self) -> str:
        """Return the algorithm as written in a fleet file."""
        return "pick" if self.pick else self.algorithm

    @property
    def queue(self) -> QueuePolicy | None:
        """Return the queue for requests at the picker; None if the pool has none."""
        return self.pick.queue if self.pick else None


@dataclass(frozen=True, slots=True)
class Affinity:
    """A cookie that keeps a client on one replica."""

    cookie: str
    ttl: int = 1_800_000
    """Lifetime of the cookie."""


@dataclass(frozen=True, slots=True)
class SessionHeader:
    """Header that replicas use to send session IDs. The requests of a session go to the replica that sent its ID."""

    name: str
    """The lowercase name of the header."""
    ttl: int = 86_400_000
    """Time for which an idle session is remembered."""


@dataclass(frozen=True, slots=True)
class Locality:
    """Preference for replicas in the proxy's own zone or region."""

    prefer: Literal["zone", "region"] = "zone"
    """Scope of local replicas: the proxy's zone, or its region."""
    spill_below: float = 70.0
    """Percentage of healthy local replicas below which requests leave the locality."""
