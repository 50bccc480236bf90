"""Computes the commands that bring the servers of a running HAProxy to those of a view. It does no I/O.

Only differences are sent, in an order that leaves no pool without replicas for longer than necessary: new servers
first, then weights, then servers that return, last servers that leave. A leaving server is put into maintenance, where
it finishes its requests, and is deleted once it has none. What no command can change is a reason to reload the file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from lbctl.apply.haproxy import commands, running
from lbctl.apply.haproxy.running import Place, Running
from lbctl.base.hosts import is_ip
from lbctl.targets.haproxy import desired
from lbctl.targets.haproxy.desired import Desired, DesiredServer

Addresses = Mapping[str, tuple[str, ...]]
"""Host name → its IPs."""
Cut = Collection[tuple[str, str]]
"""(pool, replica) whose deadline has passed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The commands to send. `reload`: why the file is needed. `leaving`: unwanted servers that still have requests."""

    commands: tuple[str, ...]
    reload: tuple[str, ...]
    leaving: tuple[Place, ...]


def plan(
    wanted: Desired, now: Running, cut: Cut = (), addresses: Addresses | None = None, kept: Collection[Place] = ()
) -> Plan:
    """Compute the plan. `kept`: servers that HAProxy refuses to delete; they stay in maintenance until a reload."""
    places = {(item.backend, item.name): item for item in wanted.servers}
    current = {place: item for place, item in now.servers.items() if place[0] in wanted.backends}
    both = [(item, current[place]) for place, item in places.items() if place in current]
    new = [item for place, item in places.items() if place not in current]
    unwanted = [(place, item) for place, item in current.items() if place not in places]
    hosts = addresses or {}
    sequence = [
        *_limits(wanted, now),
        *(command for item in new for command in _added(item, hosts)),
        *(command for item, old in both for command in _moved(item, old, hosts)),
        *(command for item, old in both if item.state == "ready" for command in _ready(item, old)),
        *(command for item, old in both if item.state != "ready" for command in _drained(item, old)),
        *(command for place, old in reversed(unwanted) for command in _left(place, old, place in kept)),
        *_cut([*unwanted, *(((item.backend, item.name), old) for item, old in both if item.state != "ready")], cut),
    ]
    needed = [why for item in new for why in _unsayable(item, hosts)]
    needed += [why for item, old in both for why in _fixed(item, old)]
    leaving = tuple(place for place, old in unwanted if old.sessions)
    return Plan(tuple(sequence), tuple(dict.fromkeys(needed)), leaving)


def _limits(wanted: Desired, now: Running) -> Iterator[str]:
    """Yield the changed request limits; a file without their variables has the limits in its rules."""
    moved = [commands.limit(name, most) for name, most in wanted.limits if now.limits.get(name, most) != most]
    yield from (commands.UNLOCK, *moved) if moved else ()


def _added(item: DesiredServer, hosts: Addresses) -> Iterator[str]:
    host = _host(item, hosts)
    if host is None or next(_unsayable(item, hosts), None):
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
    """Return the IP of a new server, or None if it has none."""
    if item.address.path:
        return None
    if is_ip(item.address.host):
        return item.address.host
    return next(iter(hosts.get(item.address.host, ())), None)


def _unsayable(item: DesiredServer, hosts: Addresses) -> Iterator[str]:
    at = (item.backend, item.name)
    host = _host(item, hosts)
    if host is None:
        yield f"{'/'.join(at)} is new, and the Runtime API resolves no names"
        return
    try:
        commands.add(*at, host, item.address.port, item.arguments)
    except commands.UnsafeError as error:
        yield f"{'/'.join(at)} is new: {error}"


def _moved(item: DesiredServer, old: running.Server, hosts: Addresses) -> Iterator[str]:
    """Yield the change of address; a name with several IPs keeps the current one while it is among them."""
    if item.address.path:
        return
    ip = is_ip(item.address.host)
    right = (item.address.host,) if ip else hosts.get(item.address.host, (old.host,))
    if right and right[0] and (old.host not in right or old.port != item.address.port):
        host = old.host if old.host in right else right[0]
        yield commands.address(item.backend, item.name, host, item.address.port)


def _ready(item: DesiredServer, old: running.Server) -> Iterator[str]:
    if old.weight != item.weight:
        yield commands.weight(item.backend, item.name, item.weight)
    if old.own_maint or old.own_drain:
        yield commands.state(item.backend, item.name, "ready")


def _drained(item: DesiredServer, old: running.Server) -> Iterator[str]:
    """Yield the drain; a server without weight and cookie gets nothing new anyway, as the file writes it."""
    if old.maint or (not old.weight and not old.cookie):
        return
    if item.state == "maint" or not old.drain:
        yield commands.state(item.backend, item.name, item.state)


def _left(place: Place, old: running.Server, kept: bool) -> Iterator[str]:
    if not old.own_maint:
        yield commands.state(*place, "maint")
    elif not old.sessions and not kept:
        yield commands.delete(*place)


def _cut(leaving: list[tuple[Place, running.Server]], cut: Cut) -> Iterator[str]:
    for (backend, server), old in leaving:
        if old.sessions and (desired.pool_name(backend), server) in cut:
            yield commands.cut(backend, server)


def _fixed(item: DesiredServer, old: running.Server) -> Iterator[str]:
    """Yield what no command can change on an existing server. A server added at runtime has its own checks."""
    at = f"{item.backend}/{item.name}"
    if item.backup != old.backup:
        yield f"{at} changes between backup and active"
    if item.cookie and not old.cookie:
        yield f"{at} has no cookie"
    if item.address.path and old.host:
        yield f"{at} moves to a unix socket"
