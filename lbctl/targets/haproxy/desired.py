"""A view's servers, listed by backend in Runtime API terms.

The list matches the rendered file, because both are built from the same parts, weights and arguments. A replica that is
in several backends is listed for each of them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from lbctl.ir.address import Address
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.snapshot import View
from lbctl.targets.haproxy import limits, locality_tiers, sections, servers
from lbctl.targets.haproxy.locality_tiers import TierBackend
from lbctl.targets.replica_weights import quantise

State = Literal["ready", "drain", "maint"]
_AGENT_CHECK = {"agent-check": 1, "agent-addr": 2, "agent-port": 2, "agent-inter": 2, "agent-send": 2}
"""Arguments of an agent check. `agent-send` ends with a line feed, which Runtime API commands cannot contain."""
_LEFT_OUT = {"track": 2, "init-addr": 2, "no-check": 1, **_AGENT_CHECK}
"""Arguments that HAProxy does not accept for a server added at run time, with the number of words of each."""

_OWN = {"weight": 2, "id": 2, "cookie": 2, "disabled": 1}
"""Arguments in which a server may differ from a slot, with the number of words of each."""


@dataclass(frozen=True, slots=True)
class DesiredServer:
    """The desired state of a server in the running HAProxy."""

    backend: str
    name: str
    address: Address
    weight: int
    """Weight, 0…256."""
    state: State
    """Administrative state."""
    arguments: tuple[str, ...]
    """Arguments that follow the address in `add server`."""
    checked: bool = False
    """Whether health checks determine if the server is up."""
    cookie: bool = False
    """Whether an affinity cookie can select this server. No command can change this."""
    backup: bool = False
    """Whether the server is a backup. No command can change this."""
    picked: bool = False
    """Whether `use-server` may select this server, regardless of its weight."""
    slottable: bool = False
    """Whether the server differs from a spare slot of its backend only in settings that commands can change."""
    needs_slot: bool = False
    """Whether HAProxy cannot add the server under its own name, because the server has a cookie."""


@dataclass(frozen=True, slots=True)
class Desired:
    """All desired servers in the running HAProxy."""

    backends: frozenset[str]
    """All backends of pools, including empty ones."""
    servers: tuple[DesiredServer, ...]
    """Servers. If a server tracks another one, it comes after that server."""
    limits: tuple[tuple[str, int], ...] = ()
    """(variable, value) of the pools' limits."""


def desired(view: View) -> Desired:
    """Return the servers and limits for the view."""
    parts = tuple(locality_tiers.all_parts(view))
    return Desired(
        frozenset(map(limits.backend, parts)),
        tuple(item for part in parts for item in _servers(part)),
        tuple(variable for part in parts for variable in limits.variables(part)),
    )


def pool_name(backend: str) -> str:
    """Return the pool that a backend serves, whichever part of the pool it contains."""
    return locality_tiers.pool_name(sections.bare(backend))


def _servers(part: TierBackend) -> Iterator[DesiredServer]:
    pool = part.pool
    ids, backups = servers.ids_of(pool), locality_tiers.backups(pool)
    default_arguments = _arguments(servers.default(part).text)[1:]
    weights = quantise(servers.shares_of(part), servers.MAX_WEIGHT)
    drained, slot_arguments = part.view.drained[pool.name], _in_common(_arguments(servers.slot(part, "SLOT").text)[3:])
    for replica, weight in zip(pool.replicas, weights, strict=True):
        state = _drain_state(pool) if replica.name in drained else "ready"
        own_arguments = _arguments(servers.server(part, replica, weight, ids, backups).text)
        slottable = _in_common(own_arguments[3:]) == slot_arguments
        yield _server(part, replica, weight, state, (*default_arguments, *own_arguments[3:]), slottable)


def _in_common(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Return the arguments of a server that are common to all servers in its backend."""
    return tuple(_without(arguments, {**_LEFT_OUT, **_OWN}))


def _server(
    part: TierBackend, replica: Replica, weight: int, state: State, arguments: tuple[str, ...], slottable: bool
) -> DesiredServer:
    pool = part.pool
    return DesiredServer(
        backend=limits.backend(part),
        name=replica.name,
        address=replica.address,
        weight=weight,
        state=state,
        arguments=tuple(_without(arguments, _LEFT_OUT)),
        checked=pool.active is not None,
        cookie="cookie" in arguments and state == "ready",
        backup="backup" in arguments,
        picked=pool.balance.pick is not None,
        slottable=slottable,
        needs_slot="cookie" in arguments,
    )


def _drain_state(pool: Pool) -> State:
    """Return the state for a drained replica.

    In drain mode, a replica can still be reached through a cookie, a session or the picker. In maintenance mode, it
    receives no new requests, but its current requests continue.
    """
    return "maint" if pool.affinity or pool.session or pool.balance.pick else "drain"


def _arguments(line: str) -> tuple[str, ...]:
    return tuple(shlex.split(line))


def _without(arguments: tuple[str, ...], left_out: Mapping[str, int]) -> Iterator[str]:
    skipped = 0
    for argument in arguments:
        skipped = max(skipped, left_out.get(argument, 0))
        if not skipped:
            yield argument
        skipped = max(0, skipped - 1)
