"""A line of the traffic log that an nginx sends over syslog: a request's replicas and their responses.

Any user on this machine can send such lines, so lines are parsed strictly. A line is ignored if it does not exactly
match lbctl's format, or if its proxy, pool or replica is not in the fleet. The functions are pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Literal, NamedTuple

from lbctl.base.hosts import is_ip
from lbctl.ir.address import Address
from lbctl.ir.pools import Pool
from lbctl.serve.traffic.ledger import ReplicaKey

MAX_LINE_BYTES = 4096
"""Maximum length of a line in bytes."""
Dropped = Literal["malformed", "proxy", "replica"]
"""Reason why a line is ignored: it is malformed, or its proxy or replica is not in the fleet."""
DROPPED: tuple[Dropped, ...] = ("malformed", "proxy", "replica")
_CLIENT_LEFT = "499"
_SAYS_NOTHING = 400
"""Lowest status of a response whose latency does not reflect the replica's speed."""
_ERROR = "500"
"""Lowest status that is treated as an error."""
_MAX_TRIES = 64
_SECONDS = re.compile(r"[0-9]{1,9}\.[0-9]{3}")
_LINE = re.compile(
    rb"<[0-9]{1,3}>[A-Z][a-z]{2} [ 0-9][0-9] [0-9]{2}:[0-9]{2}:[0-9]{2} lbctl: "
    rb"([A-Za-z0-9._-]{1,128})\|\"?([A-Za-z0-9._-]{1,128})\"?\|([0-9]{3})\|([ -{}~]{0,3000})\|([0-9, :-]{0,500})"
    rb"(?:\|([0-9., :-]{0,800})\|([0-9., :-]{0,800}))?"
)


NO_REPLICA = ""
"""Replica name for a try in which nginx itself responded with an error."""


class Try(NamedTuple):
    """One attempt to reach a replica."""

    replica: ReplicaKey
    """Replica to which the request was sent; `NO_REPLICA` if nginx had no replica for it."""
    failed: bool
    """Whether the replica responded with a status of 500 or higher, or did not respond although its client was
    waiting."""
    answered: bool = False
    """Whether the replica responded with a status below 500."""
    first_byte: float | None = None
    """Milliseconds until the response started, or until the client disconnected if that was earlier. None if the
    response's status is 400 or higher, or if the line comes from an older configuration."""
    total: float | None = None
    """Milliseconds until the response ended."""


class ReplicaAddresses:
    """Looks up a replica by the address that nginx logs. `hosts` maps host names to their IP addresses.

    If none of a pool's replicas is available, nginx logs the pool's name instead of an address.
    """

    def __init__(self, pools: Iterable[Pool], hosts: Mapping[str, tuple[str, ...]]) -> None:
        """Start without tables, because most fleets do not have a proxy that logs."""
        self._pools = {pool.name: pool for pool in pools}
        self._hosts = hosts

    def find(self, address: str, pool: str | None) -> ReplicaKey | None:
        """Return this pool's replica, or, without a pool, the only replica in the fleet with this address."""
        if pool is None:
            return self._anywhere.get(address)
        by_address, by_port = self._by_pool.get(pool, _NOWHERE)
        port = address.rpartition(":")[2]
        return by_address.get(address) or (by_port.get(int(port)) if port.isdecimal() else None)

    def has(self, pool: str) -> bool:
        """Return whether the fleet has this pool."""
        return pool in self._pools

    @cached_property
    def _by_pool(self) -> Mapping[str, _Replicas]:
        return {name: _replicas(pool, self._hosts) for name, pool in self._pools.items()}

    @cached_property
    def _anywhere(self) -> Mapping[str, ReplicaKey | None]:
        """Maps each address to its replica; None if several replicas have the address."""
        found: dict[str, ReplicaKey | None] = {}
        for pool in self._pools.values():
            for replica in pool.replicas:
                for text in _texts(replica.address, self._hosts):
                    found[text] = None if text in found else ReplicaKey(pool.name, replica.name)
        return found


class _Replicas(NamedTuple):
    """One pool's replicas."""

    by_address: Mapping[str, ReplicaKey]
    by_port: Mapping[int, ReplicaKey]
    """Replicas with a host name, if no other such replica has the same port."""


_NOWHERE = _Replicas({}, {})


def _replicas(pool: Pool, hosts: Mapping[str, tuple[str, ...]]) -> _Replicas:
    named = Counter(item.address.port for item in pool.replicas if _is_name(item.address))
    by_address: dict[str, ReplicaKey] = {}
    by_port: dict[int, ReplicaKey] = {}
    for replica in pool.replicas:
        key, address = ReplicaKey(pool.name, replica.name), replica.address
        for text in _texts(address, hosts):
            by_address.setdefault(text, key)
        if _is_name(address) and named[address.port] == 1:
            by_port[address.port] = key
    return _Replicas(by_address, by_port)


def tries_of(line: bytes, proxies: frozenset[str], addresses: ReplicaAddresses) -> tuple[str, list[Try]] | Dropped:
    """Return the proxy and the tries in a line, or the reason why the line is ignored."""
    match = _LINE.fullmatch(line) if len(line) <= MAX_LINE_BYTES else None
    if match is None:
        return "malformed"
    proxy, pool, status, *lists = (part.decode("ascii") for part in match.groups(b""))
    if proxy not in proxies:
        return "proxy"
    rows = list(_rows(*lists))
    if not rows or len(rows) > _MAX_TRIES:
        return "malformed"
    last = rows[-1].group
    tries = [
        Try(replica, _failed(row.code, status), _answered(row.code), *_latencies(row, status))
        for row in rows
        if (replica := addresses.find(row.address, pool if row.group == last else None)) is not None
    ]
    if status >= _ERROR and addresses.has(pool) and all(":" not in row.address for row in rows if row.group == last):
        tries.append(Try(ReplicaKey(pool, NO_REPLICA), failed=True))
    return (proxy, tries) if tries else "replica"


class _Row(NamedTuple):
    """One attempt as logged by nginx: one element from each of five lists."""

    group: int
    address: str
    code: str
    header_time: str
    response_time: str


def _rows(addresses: str, *others: str) -> Iterator[_Row]:
    """Yield each try. nginx begins a new group when it tries another pool; lists of a different length are ignored."""
    groups = addresses.split(" : ")
    split = [item.split(" : ") for item in others]
    if len(split[0]) != len(groups):
        return
    for number, group in enumerate(groups):
        tries = group.split(", ")
        parts = [item[number].split(", ") if len(item) == len(groups) else [] for item in split]
        if len(parts[0]) == len(tries):
            for index, address in enumerate(tries):
                yield _Row(number, address, *(part[index] if len(part) == len(tries) else "" for part in parts))


def _latencies(row: _Row, status: str) -> tuple[float | None, float | None]:
    """Return the milliseconds until the first and last byte of a try.

    If the client disconnected, it is treated as having waited until then.
    """
    total = _milliseconds(row.response_time)
    if row.code == "-":
        return (total, total) if status == _CLIENT_LEFT else (None, None)
    if not row.code.isdecimal() or int(row.code) >= _SAYS_NOTHING:
        return None, None
    return _milliseconds(row.header_time), total


def _milliseconds(seconds: str) -> float | None:
    return 1000 * float(seconds) if _SECONDS.fullmatch(seconds) else None


def _failed(code: str, status: str) -> bool:
    return status != _CLIENT_LEFT if code == "-" else not code.isdecimal() or int(code) >= 500


def _answered(code: str) -> bool:
    return code.isdecimal() and int(code) < 500


def _is_name(address: Address) -> bool:
    return not address.path and not is_ip(address.host)


def _texts(address: Address, hosts: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    if _is_name(address):
        yield from (str(Address(host, address.port)) for host in hosts.get(address.host, ()))
    else:
        yield str(address)
