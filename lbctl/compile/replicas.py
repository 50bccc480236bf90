"""Resolves a pool's replicas as listed in the fleet, with their names and the data-parallel ranks on one host.

A replica with `ports: N` is a group of N ranks. Each rank is a replica with its own port and its own subset of the
GPUs. It also has its own health, drain and signals, because it is a separate server.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from lbctl.base.diagnostics import Path
from lbctl.compile.context import Context
from lbctl.compile.convert import address
from lbctl.ir.address import Address
from lbctl.model.pool import Pool, Replica

_LAST_PORT = 65_535
_MAX_NAME_LENGTH = 63
_HINT = 'for example {name: dp, address: "10.0.0.1:9010", ports: 4}'


def name_of(replica: Replica) -> str:
    """Return the name of a replica, which is derived from its address if no name is specified."""
    return replica.name or replica_name(address(replica.address))


def replica_name(where: Address) -> str:
    """Return the address with every character that is not allowed in a name replaced by `-`."""
    text = str(where).lower()
    return re.sub(r"[^a-z0-9._-]", "-", text).lstrip("._-")[:63] or "replica"


def with_ranks(ctx: Context, name: str, pool: Pool) -> Pool:
    """Return the pool with a replica for each rank. Reports LB153 for invalid ranks."""
    if all(replica.ports is None for replica in pool.replicas):
        return pool
    ranks = [
        (index, rank)
        for index, replica in enumerate(pool.replicas)
        for rank in _ranks(ctx, ("pools", name, "replicas", index), replica)
    ]
    ctx.origins[name] = tuple(index for index, _ in ranks)
    return pool.model_copy(update={"replicas": [rank for _, rank in ranks]})


def entries(pool: Pool) -> dict[str, int]:
    """Map the name of each of the pool's replicas, including ranks, to the index of its entry in the file."""
    return {name: index for index, replica in enumerate(pool.replicas) for name in _names(replica)}


def _names(replica: Replica) -> Iterator[str]:
    if replica.ports is None:
        yield name_of(replica)
    else:
        yield from (name_of(_rank(replica, number)) for number in range(replica.ports))


def _ranks(ctx: Context, path: Path, replica: Replica) -> list[Replica]:
    if replica.ports is None:
        return [replica]
    problem, key = _problem(replica, replica.ports)
    if problem:
        ctx.error("LB153", problem, (*path, key), _HINT)
        return [replica]
    return [_rank(replica, number) for number in range(replica.ports)]


def _problem(replica: Replica, count: int) -> tuple[str, str]:
    """Return the problem with the ranks and the key that it concerns, or two empty strings if the ranks are valid."""
    if replica.address.path:
        return "a socket has no ports", "ports"
    last = replica.address.port + count - 1
    if last > _LAST_PORT:
        return (
            f"{count} ports starting at {replica.address.port} end at {last}, but the highest port is {_LAST_PORT}",
            "ports",
        )
    if replica.name is not None and len(_name(replica.name, count - 1)) > _MAX_NAME_LENGTH:
        return f"the name {_name(replica.name, count - 1)} is longer than {_MAX_NAME_LENGTH} characters", "ports"
    if len(replica.devices) % count:
        return f"{len(replica.devices)} devices cannot be divided among {count} ranks", "devices"
    return "", ""


def _rank(replica: Replica, number: int) -> Replica:
    assert replica.ports is not None
    part = len(replica.devices) // replica.ports
    return replica.model_copy(
        update={
            "name": _name(replica.name, number) if replica.name else None,
            "address": replace(replica.address, port=replica.address.port + number),
            "devices": replica.devices[number * part : (number + 1) * part],
        }
    )


def _name(name: str, number: int) -> str:
    return f"{name}-{number}"
