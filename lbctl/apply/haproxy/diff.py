"""Computes the commands that make a running HAProxy's servers match those in a view. It does no I/O.

lbctl sends only differences, in an order that never leaves a pool without replicas for longer than necessary. New
servers come first, then weights, then returning servers, and finally leaving servers. A leaving server is put into
maintenance, finishes its requests, and is then deleted. A difference that cannot be resolved by a command requires a
reload.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from lbctl.apply.haproxy import commands, running, slots
from lbctl.apply.haproxy.running import Place, Running
from lbctl.base.hosts import is_ip
from lbctl.targets.haproxy import desired
from lbctl.targets.haproxy.desired import Desired, DesiredServer

Addresses = Mapping[str, tuple[str, ...]]
"""Maps a host name to its IP addresses."""
Cut = Collection[tuple[str, str]]
"""(pool, replica) pairs whose drain deadline has passed."""


@dataclass(frozen=True, slots=True)
class CommandPlan:
    """The commands to send, the reasons to `reload` the file, and removed servers that still have requests."""

    commands: tuple[str, ...]
    """Commands to send, in order."""
    reload: tuple[str, ...]
    leaving: tuple[Place, ...]
    """Removed servers that still have requests."""


def plan(
    wanted: Desired,
    now: Running,
    cut: Cut = (),
    addresses: Addresses | None = None,
    undeletable: Collection[Place] = (),
    unaddable: Collection[Place] = (),
) -> CommandPlan:
    """Compute the plan.

    `undeletable` servers, which HAProxy cannot delete, remain in maintenance until a reload. `unaddable` servers, which
    HAProxy has refused to add, need a slot.
    """
    hosts = addresses or {}
    nowhere = {(item.backend, item.name) for item in wanted.servers if _host(item, hosts) is None}
    placed = tuple(slots.place(wanted, now, unaddable, nowhere))
    places = {(each.item.backend, each.item.name): each.item for each in placed}
    current = {place: item for place, item in now.servers.items() if place[0] in wanted.backends}
    taken = [each for each in placed if slots.is_taken_anew(each, now)]
    starting = {(each.item.backend, each.item.name) for each in taken}
    pairs = [(item, current[place]) for place, item in places.items() if place in current and place not in starting]
    new = [item for place, item in places.items() if place not in current]
    unwanted = [(place, item) for place, item in current.items() if place not in places]
    sequence = [
        *_limits(wanted, now),
        *(command for item in new for command in _add(item, hosts, unaddable)),
        *(command for each in taken for command in slots.take(each, _host(each.item, hosts))),
        *(command for item, server in pairs for command in _address_change(item, server, hosts)),
        *(command for item, server in pairs if item.state == "ready" for command in _make_ready(item, server)),
        *(command for item, server in pairs if item.state != "ready" for command in _drain(item, server)),
        *(command for place, server in reversed(unwanted) for command in _remove(place, server, now, undeletable)),
        *_end_sessions(
            [*unwanted, *(((item.backend, item.name), server) for item, server in pairs if item.state != "ready")],
            now,
            cut,
        ),
    ]
    reload_reasons = [reason for item in new for reason in _cannot_add(item, hosts, unaddable)]
    reload_reasons += [reason for item, server in pairs for reason in _needs_reload(item, server)]
    leaving = tuple(_replica(place, now) for place, server in unwanted if server.sessions)
    return CommandPlan(tuple(sequence), tuple(dict.fromkeys(reload_reasons)), leaving)


def _limits(wanted: Desired, now: Running) -> Iterator[str]:
    """Yield the commands for changed request limits.

    If the file defines no variables for them, the limits are in its rules.
    """
    changed = [commands.limit(name, value) for name, value in wanted.limits if now.limits.get(name, value) != value]
    yield from (commands.UNLOCK, *changed) if changed else ()


def _add(item: DesiredServer, hosts: Addresses, unaddable: Collection[Place]) -> Iterator[str]:
    host = _host(item, hosts)
    if host is None or next(_cannot_add(item, hosts, unaddable), None):
        return
    at = (item.backend, item.name)
    if item.state != "ready" or not item.checked:
        yield commands.add(*at, host, item.address.port, item.arguments)
        if item.state == "ready":
            yield from commands.enable(*at, checked=False)
        return
    yield commands.add(*at, host, item.address.port, _without_weight(item.arguments))
    yield from commands.enable(*at, checked=True)
    yield commands.weight(*at, item.weight)


def _without_weight(arguments: tuple[str, ...]) -> tuple[str, ...]:
    place = arguments.index("weight") + 1
    return (*arguments[:place], "0", *arguments[place + 1 :])


def _host(item: DesiredServer, hosts: Addresses) -> str | None:
    """Return a new server's IP address, or None if it has none."""
    if item.address.path:
        return None
    if is_ip(item.address.host):
        return item.address.host
    return next(iter(hosts.get(item.address.host, ())), None)


def _cannot_add(item: DesiredServer, hosts: Addresses, unaddable: Collection[Place]) -> Iterator[str]:
    at = (item.backend, item.name)
    if item.needs_slot or at in unaddable:
        why = "has a cookie" if item.needs_slot else "HAProxy cannot add it"
        yield f"{'/'.join(at)} is new, {why}, and no spare slot is suitable"
        return
    host = _host(item, hosts)
    if host is None:
        yield f"{'/'.join(at)} is new, and the Runtime API cannot resolve names"
        return
    try:
        commands.add(*at, host, item.address.port, item.arguments)
    except commands.UnsafeError as error:
        yield f"{'/'.join(at)} is new: {error}"


def _address_change(item: DesiredServer, server: running.RunningServer, hosts: Addresses) -> Iterator[str]:
    """Yield the commands for an address change.

    If a name resolves to several IP addresses, the server keeps its current address as long as it is among them.
    """
    if item.address.path:
        return
    ip = is_ip(item.address.host)
    hosts_wanted = (item.address.host,) if ip else hosts.get(item.address.host, (server.host,))
    if hosts_wanted and hosts_wanted[0] and (server.host not in hosts_wanted or server.port != item.address.port):
        host = server.host if server.host in hosts_wanted else hosts_wanted[0]
        yield commands.address(item.backend, item.name, host, item.address.port)


def _make_ready(item: DesiredServer, server: running.RunningServer) -> Iterator[str]:
    if server.weight != item.weight:
        yield commands.weight(item.backend, item.name, item.weight)
    if server.own_maint or server.own_drain:
        yield commands.state(item.backend, item.name, "ready")


def _drain(item: DesiredServer, server: running.RunningServer) -> Iterator[str]:
    """Yield the commands for a drain.

    If a server has weight 0 and no cookie, and the picker does not use it, it gets no new requests anyway.
    """
    if server.maint or (not server.weight and not server.cookie and not item.picked):
        return
    if item.state == "maint" or not server.drain:
        yield commands.state(item.backend, item.name, item.state)


def _remove(place: Place, server: running.RunningServer, now: Running, undeletable: Collection[Place]) -> Iterator[str]:
    if place in now.slots:
        yield from slots.release(place, server, now)
    elif not server.own_maint:
        yield commands.state(*place, "maint")
    elif not server.sessions and place not in undeletable:
        yield commands.delete(*place)


def _end_sessions(leaving: list[tuple[Place, running.RunningServer]], now: Running, cut: Cut) -> Iterator[str]:
    for place, server in leaving:
        backend, replica = _replica(place, now)
        if server.sessions and (desired.pool_name(backend), replica) in cut:
            yield commands.cut(*place)


def _replica(place: Place, now: Running) -> Place:
    """Return the backend and the replica of this server, which may be a slot."""
    return place[0], now.slots.get(place, place[1])


def _needs_reload(item: DesiredServer, server: running.RunningServer) -> Iterator[str]:
    """Yield an existing server's differences that only a reload can resolve.

    Tracking is not compared, because a server added at runtime has its own checks.
    """
    at = f"{item.backend}/{item.name}"
    if item.backup != server.backup:
        yield f"{at} changes between backup and active"
    if item.cookie and not server.cookie:
        yield f"{at} has no cookie"
    if item.address.path and server.host:
        yield f"{at} moves to a unix socket"
