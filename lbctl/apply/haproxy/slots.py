"""Assigns replicas to a running HAProxy's spare slots.

HAProxy stores the assignment in a map, so it survives a restart of the control plane. After HAProxy starts, every slot
is free, because the file lists the replicas as separate servers. A slot is reused for another replica only when it has
no requests and no connections.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from lbctl.apply.haproxy import commands, running
from lbctl.apply.haproxy.running import Place, Running
from lbctl.targets.haproxy.desired import Desired, DesiredServer


@dataclass(frozen=True, slots=True)
class Placed:
    """A desired server with its current or future name in HAProxy."""

    item: DesiredServer
    """The server. If it uses a slot, its name is the slot's name."""
    replica: str


def place(
    wanted: Desired, now: Running, unaddable: Collection[Place] = (), nowhere: Collection[Place] = ()
) -> Iterator[Placed]:
    """Yield every desired server, in a slot if it already uses one or cannot be added in any other way.

    HAProxy has refused to add the `unaddable` servers. The IP addresses of servers in `nowhere` are unknown.
    """
    holders = {(backend, replica): name for (backend, name), replica in now.slots.items()}
    candidates = [item for item in wanted.servers if item.slottable and (item.backend, item.name) not in now.servers]
    held = {(item.backend, item.name): holders.get((item.backend, item.name)) for item in candidates}
    taken = {(backend, name) for (backend, _), name in held.items() if name}
    free = _free(now, taken)
    for item in wanted.servers:
        at = item.backend, item.name
        slot = held.get(at)
        if slot is None and at in held and at not in nowhere and (item.needs_slot or at in unaddable):
            slot = next(free.get(item.backend, iter(())), None)
        yield Placed(replace(item, name=slot) if slot else item, item.name)


def _free(now: Running, taken: Collection[Place]) -> Mapping[str, Iterator[str]]:
    """Map each backend to its free slots, in order."""
    free: dict[str, list[str]] = {}
    for (backend, name), server in now.servers.items():
        idle = server.own_maint and not server.sessions and not server.connections
        if (backend, name) in now.slots and (backend, name) not in taken and idle:
            free.setdefault(backend, []).append(name)
    return {backend: iter(sorted(names, key=_number)) for backend, names in free.items()}


def _number(name: str) -> tuple[int, str]:
    return len(name), name


def is_taken_anew(placed: Placed, now: Running) -> bool:
    """Return whether the replica is about to start using its slot."""
    at = placed.item.backend, placed.item.name
    if at not in now.slots:
        return False
    return now.slots[at] != placed.replica or (now.servers[at].own_maint and placed.item.state == "ready")


def take(placed: Placed, host: str | None) -> Iterator[str]:
    """Yield the commands that assign a slot to a replica.

    A server with checks gets no requests until they succeed, even though HAProxy assumes that new servers are up. A
    server can be marked as down only after it has been enabled, so its weight is 0 until then.
    """
    item = placed.item
    at = item.backend, item.name
    yield commands.occupant(item.name, placed.replica)
    if host is not None:
        yield commands.address(*at, host, item.address.port)
    if item.state != "ready":
        return
    yield commands.weight(*at, 0 if item.checked else item.weight)
    yield commands.state(*at, "ready")
    if item.checked:
        yield commands.down(*at)
        yield commands.weight(*at, item.weight)


def release(at: Place, server: running.RunningServer, now: Running) -> Iterator[str]:
    """Yield the next command for a slot that no replica needs.

    The server finishes its requests before its slot becomes free.
    """
    if not server.own_maint:
        yield commands.state(*at, "maint")
    elif not server.sessions and now.slots.get(at, at[1]) != at[1]:
        yield commands.occupant(at[1], at[1])
