"""How the replica for a request is selected. Durations are in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Algorithm = Literal["round_robin", "least_request", "least_time", "random", "hash"]


@dataclass(frozen=True, slots=True)
class HashKey:
    """Input to a hash, which is a part of the request."""

    kind: Literal["header", "cookie", "query", "source_ip", "json_body", "prompt_prefix"]
    """The part of the request that is hashed."""
    name: str = ""
    """Name of the header, cookie or query parameter. Empty for source_ip, and a path such as `$.user` for json_body."""
    bytes: int = 0
    """Length of a prompt_prefix, in bytes."""


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Session identifier in a request, which is a header or a field in the JSON body."""

    header: str = ""
    """The lowercase header name. Empty for a field in the body."""
    body: str = ""
    """The field, for example `$.user`. Empty for a header."""

    @property
    def name(self) -> str:
        """Return the header name or the field."""
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
"""Session keys for a pool that does not set any. docs/reference/picker.md lists the clients that send them."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """Settings for recognising prompts by how they begin."""

    block: int = 256
    """Block size in bytes."""
    blocks: int = 128
    """Maximum number of blocks per prompt."""


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """Settings for the picker's queue, in which requests wait while all replicas are full."""

    max_wait: int
    """Time after which a waiting request is rejected."""
    max_requests: int = 500
    """Maximum number of requests waiting at each picker."""
    order: Literal["fair", "fifo"] = "fair"
    by: Literal["tenant", "client_ip", "header", "all"] = "tenant"
    """Criterion that determines which requests form a flow. With the `fair` order, flows share the replicas by
    weight."""
    header: str = ""
    """Lowercase name of the header whose value identifies the flow. Empty unless `by` is header."""
    weights: tuple[tuple[str, float], ...] = ()
    """Maps individual tenants to their weights (> 0). All other flows have a weight of 1."""
    priority_header: str = ""
    """Lowercase name of the header in which some tenants choose a priority. Empty if none is used."""
    priority_tenants: tuple[tuple[str, str], ...] = ()
    """Maps tenants that are allowed to choose a priority to the highest priority that each can use: high, normal or
    low."""


@dataclass(frozen=True, slots=True, order=True)
class TokenLimit:
    """Limit on the prompt tokens in a route's requests, as estimated by the picker."""

    route: str
    by: Literal["tenant", "client_ip", "header", "all"]
    """Criterion that determines which requests share the limit."""
    tokens: int
    """Number of prompt tokens (> 0) allowed in each period."""
    period: int
    """Length of the period, in milliseconds."""
    header: str = ""
    """Lowercase name of the header. Empty unless `by` is header."""


@dataclass(frozen=True, slots=True)
class PickPolicy:
    """Settings for the picker, which chooses a replica for each request if the algorithm is `pick`."""

    session: tuple[SessionKey, ...]
    """Session identifiers. The first one found in a request is used."""
    prefix: Prefix | None = Prefix()
    """Settings for recognising prompts, or None if prompts are not recognised."""
    bound: float = 1.25
    """Multiple (> 1) of the mean load per capacity above which affinity no longer applies."""
    timeout: int = 200
    """Maximum time, in milliseconds, for the picker to respond to a request that does not wait in a queue."""
    queue: QueuePolicy | None = None
    """Queue for requests while all replicas are full. If None, the picker responds to every request immediately."""

    token_limits: tuple[TokenLimit, ...] = ()
    """Limits on the routes that lead to the pool, sorted by route."""

    @property
    def reads_bodies(self) -> bool:
        """Whether the picker needs the beginning of the request body."""
        return self.prefix is not None or any(key.body for key in self.session)

    @property
    def session_headers(self) -> tuple[str, ...]:
        """Return the headers that can identify the session, in order."""
        return tuple(key.header for key in self.session if key.header)

    @property
    def question_headers(self) -> tuple[str, ...]:
        """Return the request headers that the picker needs, without duplicates, starting with session headers."""
        queued = (self.queue.header, self.queue.priority_header) if self.queue else ()
        named = (*queued, *(limit.header for limit in self.token_limits))
        return tuple(dict.fromkeys((*self.session_headers, *filter(None, named))))

    @property
    def longest_wait(self) -> int:
        """Return the maximum time for the picker to respond to a request, including its time in the queue."""
        return self.timeout + (self.queue.max_wait if self.queue else 0)


@dataclass(frozen=True, slots=True)
class Balance:
    """A pool's load-balancing settings."""

    algorithm: Algorithm = "least_request"
    """The proxy's own algorithm. With `pick`, it is used for requests to which the picker does not respond."""
    key: HashKey | None = None
    """Input to the hash. None for every algorithm except `hash`."""
    bounded_load: float | None = None
    """Maximum load on a replica, as a multiple (> 1) of the mean load."""
    pick: PickPolicy | None = None
    """Settings for the picker. If None, the proxy itself selects replicas."""

    @property
    def name(self) -> str:
        """Return the algorithm as written in a fleet file."""
        return "pick" if self.pick else self.algorithm

    @property
    def queue(self) -> QueuePolicy | None:
        """Return the queue for requests at the picker, or None if the pool has none."""
        return self.pick.queue if self.pick else None


@dataclass(frozen=True, slots=True)
class Affinity:
    """A cookie that keeps a client on one replica."""

    cookie: str
    ttl: int = 1_800_000
    """Lifetime of the cookie."""


@dataclass(frozen=True, slots=True)
class SessionHeader:
    """Header in which replicas send session IDs. A session's requests go to the replica that sent its ID."""

    name: str
    """The lowercase name of the header."""
    ttl: int = 86_400_000
    """Time for which an idle session is remembered."""


@dataclass(frozen=True, slots=True)
class Locality:
    """Preference for replicas in the same zone or region as the proxy."""

    prefer: Literal["zone", "region"] = "zone"
    """Scope within which replicas are local, which is the proxy's zone or its region."""
    spill_below: float = 70.0
    """Percentage of healthy local replicas below which requests are also sent outside the locality."""
