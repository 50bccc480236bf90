"""What must be said to a running HAProxy so that its servers are those that a view wants. Pure.

Only differences, in an order in which no pool is ever without replicas for longer than it must: new servers first, then
weights, then those that come back, at last those that leave. A server that leaves is put into maintenance, where it
finishes what it has, and is deleted once it has nothing. What no command can do is a reason to reload the file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from lbctl.apply.haproxy import commands, running
from lbctl.apply.haproxy.running import Place, Running
from lbctl.targets.haproxy import desired
from lbctl.targets.haproxy.desired import Desired, Server

Addresses = Mapping[str, tuple[str, ...]]
"""Host name → its IPs."""
Cut = Collection[tuple[str, str]]
"""(pool, replica) whose deadline has passed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`reload`: why the file is needed. `leaving`: servers that nobody wants and that still have requests."""

    commands: tuple[str, ...]
    reload: tuple[str, ...]
    leaving: tuple[Place, ...]


def plan(
    wanted: Desired, now: Running, cut: Cut = (), addresses: Addresses | None = None, kept: Collection[Place] = ()
) -> Plan:
    """`kept`: servers that HAProxy does not delete; they stay in maintenance until a reload."""
    places = {(item.backend, item.name): item for item in wanted.servers}
    known = {place: item for place, item in now.servers.items() if place[0] in wanted.backends}
    both = [(item, known[place]) for place, item in places.items() if place in known]
    new = [item for place, item in places.items() if place not in known]
    unwanted = [(place, item) for place, item in known.items() if place not in places]
    hosts = addresses or {}
    said = [
        *_limits(wanted, now),
        *(word for item in new for word in _added(item, hosts)),
        *(word for item, old in both for word in _moved(item, old, hosts)),
        *(word for item, old in both if item.state == "ready" for word in _ready(item, old)),
        *(word for item, old in both if item.state != "ready" for word in _drained(item, old)),
        *(word for place, old in reversed(unwanted) for word in _left(place, old, place in kept)),
        *_cut([*unwanted, *(((item.backend, item.name), old) for item, old in both if item.state != "ready")], cut),
    ]
    needed = [why for item in new for why in _unsayable(item, hosts)]
    needed += [why for item, old in both for why in _fixed(item, old)]
    leaving = tuple(place for place, old in unwanted if old.sessions)
    return Plan(tuple(said), tuple(dict.fromkeys(needed)), leaving)


def _limits(wanted: Desired, now: Running) -> Iterator[str]:
    """A file without such variables has its limits in its rules."""
    moved = [commands.limit(name, most) for name, most in wanted.limits if now.limits.get(name, most) != most]
    yield from (commands.UNLOCK, *moved) if moved else ()


def _added(item: Server, hosts: Addresses) -> Iterator[str]:
    host = _host(item, hosts)
    if host is None or next(_unsayable(item, hosts), None):
        return
    at = (item.backend, item.name)
    if item.state != "ready" or not item.checked:
        yield commands.add(*at, host, item.address.port, item.words)
        if item.state == "ready":
            yield from commands.enable(*at, checked=False)
        return
    yield commands.add(*at, host, item.address.port, _without_weight(item.words))
    yield from commands.enable(*at, checked=True)
    yield commands.weight(*at, item.weight)


def _without_weight(words: tuple[str, ...]) -> tuple[str, ...]:
    place = words.index("weight") + 1
    return (*words[:place], "0", *words[place + 1 :])


def _host(item: Server, hosts: Addresses) -> str | None:
    """The IP that a new server gets."""
    if item.address.path:
        return None
    if _is_ip(item.address.host):
        return item.address.host
    return next(iter(hosts.get(item.address.host, ())), None)


def _is_ip(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()


def _unsayable(item: Server, hosts: Addresses) -> Iterator[str]:
    at = (item.backend, item.name)
    host = _host(item, hosts)
    if host is None:
        yield f"{'/'.join(at)} is new, and the Runtime API resolves no names"
        return
    try:
        commands.add(*at, host, item.address.port, item.words)
    except commands.UnsafeError as error:
        yield f"{'/'.join(at)} is new: {error}"


def _moved(item: Server, old: running.Server, hosts: Addresses) -> Iterator[str]:
    """To another address; a server whose name has several IPs stays where it is while that is one of them."""
    if item.address.path:
        return
    ip = _is_ip(item.address.host)
    right = (item.address.host,) if ip else hosts.get(item.address.host, (old.host,))
    if right and right[0] and (old.host not in right or old.port != item.address.port):
        host = old.host if old.host in right else right[0]
        yield commands.address(item.backend, item.name, host, item.address.port)


def _ready(item: Server, old: running.Server) -> Iterator[str]:
    if old.weight != item.weight:
        yield commands.weight(item.backend, item.name, item.weight)
    if old.own_maint or old.own_drain:
        yield commands.state(item.backend, item.name, "ready")


def _drained(item: Server, old: running.Server) -> Iterator[str]:
    """Without weight it gets nothing new either: so the file says it, and then without a cookie."""
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


def _fixed(item: Server, old: running.Server) -> Iterator[str]:
    """What stands in a server's line and no command changes. A server that was made at runtime checks for itself."""
    at = f"{item.backend}/{item.name}"
    if item.backup != old.backup:
        yield f"{at} changes between backup and active"
    if item.cookie and not old.cookie:
        yield f"{at} has no cookie"
    if item.address.path and old.host:
        yield f"{at} moves to a unix socket"
