"""The servers that a view calls for, backend by backend, in the terms of the Runtime API.

The rendered file and this list agree, since both are built from the same parts, weights and arguments. A replica that
is in several backends is listed for each of them.
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
"""Arguments that a server added at runtime does not accept, with the number of words that each takes."""


@dataclass(frozen=True, slots=True)
class DesiredServer:
    """A server as it should be in the running HAProxy."""

    backend: str
    """The name of the backend."""
    name: str
    """The name of the server."""
    address: Address
    """Where it listens."""
    weight: int
    """The weight, 0…256."""
    state: State
    """Its administrative state."""
    arguments: tuple[str, ...]
    """The arguments that follow the address in `add server`."""
    checked: bool = False
    """Whether health checks decide if it is up."""
    cookie: bool = False
    """Whether an affinity cookie can lead to it; no command changes this."""
    backup: bool = False
    """Whether it is a backup; no command changes this."""
    tracks: bool = False
    """Whether it follows the health of the same replica's server in another backend; no command changes this."""


@dataclass(frozen=True, slots=True)
class Desired:
    """All servers that should be in the running HAProxy."""

    backends: frozenset[str]
    """All backends for replicas, including those that have none."""
    servers: tuple[DesiredServer, ...]
    """The servers; one that another tracks is before it."""
    limits: tuple[tuple[str, int], ...] = ()
    """(variable, value) of `request_limits`."""


def desired(view: View) -> Desired:
    """Return the servers and limits that the view calls for."""
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
    """Return the pool that a backend serves, whichever part of the pool it holds."""
    return locality_tiers.pool_name(backend.removeprefix(_PREFIX))


def _servers(part: Part) -> Iterator[DesiredServer]:
    pool = part.pool
    ids, backups = servers.ids_of(pool), locality_tiers.backups(pool)
    default_arguments = _arguments(servers.default(pool).text)[1:]
    weights = quantise(servers.shares_of(part), servers.MAX_WEIGHT)
    drained = part.view.drained[pool.name]
    for replica, weight in zip(pool.replicas, weights, strict=True):
        state = _drain_state(pool) if replica.name in drained else "ready"
        own_arguments = _arguments(servers.server(part, replica, weight, ids, backups).text)
        yield _server(part, replica, weight, state, (*default_arguments, *own_arguments[3:]))


def _server(part: Part, replica: Replica, weight: int, state: State, arguments: tuple[str, ...]) -> DesiredServer:
    pool = part.pool
    return DesiredServer(
        backend=request_limits.backend(part),
        name=replica.name,
        address=replica.address,
        weight=weight,
        state=state,
        arguments=tuple(_for_runtime(arguments)),
        checked=pool.active is not None,
        cookie="cookie" in arguments and state == "ready",
        backup="backup" in arguments,
        tracks="track" in arguments,
    )


def _drain_state(pool: Pool) -> State:
    """Return the state of a drained replica.

    A cookie still leads to a replica in drain; in maintenance it receives nothing new, and its requests go on.
    """
    return "maint" if pool.affinity else "drain"


def _arguments(line: str) -> tuple[str, ...]:
    return tuple(shlex.split(line))


def _for_runtime(arguments: tuple[str, ...]) -> Iterator[str]:
    skipped = 0
    for argument in arguments:
        skipped = max(skipped, _LEFT_OUT.get(argument, 0))
        if not skipped:
            yield argument
        skipped = max(0, skipped - 1)
