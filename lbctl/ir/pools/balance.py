"""How the replica for a request is chosen. Durations are in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Algorithm = Literal["round_robin", "least_request", "least_time", "random", "hash"]


@dataclass(frozen=True, slots=True)
class HashKey:
    """What a hash of a request is computed from."""

    kind: Literal["header", "cookie", "query", "source_ip", "json_body", "prompt_prefix"]
    """The part of the request that is hashed."""
    name: str = ""
    """Empty for source_ip; a path such as `$.user` for json_body."""
    bytes: int = 0
    """The length of a prompt_prefix."""


@dataclass(frozen=True, slots=True)
class SessionKey:
    """What names the session of a request: a header or a field of the JSON body."""

    header: str = ""
    """The header's name in lower case; empty for a field of the body."""
    body: str = ""
    """The field as `$.user`; empty for a header."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """How the beginning of a prompt is recognised."""

    block: int = 256
    """The size of a block in bytes."""
    blocks: int = 128
    """The largest number of blocks of one prompt."""


@dataclass(frozen=True, slots=True)
class PickPolicy:
    """How the picker chooses a replica for each request, for the algorithm `pick`."""

    session: tuple[SessionKey, ...]
    """What names a session; the first one that a request has counts."""
    prefix: Prefix | None = Prefix()
    """How prompts are recognised; None: they are not."""
    bound: float = 1.25
    """> 1: affinity ends at this many times the mean load by capacity."""
    timeout: int = 200
    """How long a proxy waits for the picker, in milliseconds."""

    @property
    def reads_bodies(self) -> bool:
        """Whether the picker needs the beginning of the request's body."""
        return self.prefix is not None or any(key.body for key in self.session)

    @property
    def session_headers(self) -> tuple[str, ...]:
        """The headers that may name a session, in order."""
        return tuple(key.header for key in self.session if key.header)


@dataclass(frozen=True, slots=True)
class Balance:
    """How a pool's replica is chosen for a request."""

    algorithm: Algorithm = "least_request"
    """How the proxy chooses by itself; with `pick`, the requests that the picker does not answer."""
    key: HashKey | None = None
    """What is hashed; None for every algorithm but `hash`."""
    bounded_load: float | None = None
    """> 1: no replica carries more than this many times the mean load."""
    pick: PickPolicy | None = None
    """How the picker chooses; None: the proxy alone does."""

    @property
    def name(self) -> str:
        """The algorithm as it is written in a fleet file."""
        return "pick" if self.pick else self.algorithm


@dataclass(frozen=True, slots=True)
class Affinity:
    """A cookie that keeps a client on one replica."""

    cookie: str
    ttl: int = 1_800_000
    """How long the client keeps the cookie."""


@dataclass(frozen=True, slots=True)
class SessionHeader:
    """The header in which replicas name sessions; the requests of a session go to the replica that named it."""

    name: str
    """The lower-case name of the header."""
    ttl: int = 86_400_000
    """How long an idle session is remembered."""


@dataclass(frozen=True, slots=True)
class Locality:
    """Preference for replicas in the proxy's own zone or region."""

    prefer: Literal["zone", "region"] = "zone"
    """Which replicas are local: those of the proxy's zone, or of its region."""
    spill_below: float = 70.0
    """The percentage of healthy local replicas below which requests leave the locality."""
