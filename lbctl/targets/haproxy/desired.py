"""The servers that a view wants, backend by backend, as the Runtime API speaks of them.

The file and this say the same: both are made of the same parts, the same weights, the same words. A replica that stands
in several backends is wanted in each of them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from lbctl.ir.address import Address
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.snapshot import View
from lbctl.targets.haproxy import locality_tiers, request_limits, servers
from lbctl.targets.haproxy.locality_tiers import Part
from lbctl.targets.quantise import quantise

State = Literal["ready", "drain", "maint"]
_PREFIX = "pool_"
_LEFT_OUT = {"track": 2, "init-addr": 2, "no-check": 1}
"""Words of the file that a server made at runtime does not take, with how many words go."""


@dataclass(frozen=True, slots=True)
class Server:
    """`words`: what follows the address in `add server`. `checked`: its checks say when it is fit. `cookie`, `backup`,
    `tracks`: what its line in the file says and no command changes."""

    backend: str
    name: str
    address: Address
    weight: int
    state: State
    words: tuple[str, ...]
    checked: bool = False
    cookie: bool = False
    backup: bool = False
    tracks: bool = False


@dataclass(frozen=True, slots=True)
class Desired:
    """`backends`: all that hold replicas, those without any too. Homes come before what tracks them. `limits`: of
    `most`, variable and value."""

    backends: frozenset[str]
    servers: tuple[Server, ...]
    limits: tuple[tuple[str, int], ...] = ()


def desired(view: View) -> Desired:
    parts = tuple(locality_tiers.all_parts(view))
    return Desired(
        frozenset(map(request_limits.backend, parts)),
        tuple(item for part in parts for item in _servers(part)),
        tuple(
            (request_limits.variable(part), value)
            for part in parts
            if (value := request_limits.requests(part.pool)) is not None
        ),
    )


def pool_name(backend: str) -> str:
    """The pool that a backend serves, whichever part of it."""
    return locality_tiers.pool_name(backend.removeprefix(_PREFIX))


def _servers(part: Part) -> Iterator[Server]:
    pool = part.pool
    ids, backups, shared = servers.ids_of(pool), locality_tiers.backups(pool), _words(servers.default(pool).text)[1:]
    weights = quantise(servers.shares_of(part), servers.MAX_WEIGHT)
    drained = part.view.drained[pool.name]
    for replica, weight in zip(pool.replicas, weights, strict=True):
        state = _drained(pool) if replica.name in drained else "ready"
        own = _words(servers.server(part, replica, weight, ids, backups).text)
        yield _server(part, replica, weight, state, (*shared, *own[3:]))


def _server(part: Part, replica: Replica, weight: int, state: State, words: tuple[str, ...]) -> Server:
    pool = part.pool
    return Server(
        backend=request_limits.backend(part),
        name=replica.name,
        address=replica.address,
        weight=weight,
        state=state,
        words=tuple(_for_runtime(words)),
        checked=pool.active is not None,
        cookie="cookie" in words and state == "ready",
        backup="backup" in words,
        tracks="track" in words,
    )


def _drained(pool: Pool) -> State:
    """A cookie leads to a replica in drain; in maintenance nothing new comes, and what runs there goes on."""
    return "maint" if pool.affinity else "drain"


def _words(line: str) -> tuple[str, ...]:
    return tuple(shlex.split(line))


def _for_runtime(words: tuple[str, ...]) -> Iterator[str]:
    left = 0
    for word in words:
        left = max(left, _LEFT_OUT.get(word, 0))
        if not left:
            yield word
        left = max(0, left - 1)
