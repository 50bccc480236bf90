"""The pickers that exchange counts and memories: they are subscribed to this process or to another member.

A picker that listens on loopback can be reached only from its own machine. Members announce such a picker together with
their loopback interface's identity.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from lbctl.base.hosts import address_of, is_ip, is_loopback, is_metadata
from lbctl.ir.address import Address

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")
_PORTS = range(1, 65_536)
_ID = re.compile(r"[0-9A-Za-z]{1,64}")
_ADDRESS = re.compile(r"(?:[0-9.]+|\[[0-9A-Fa-f:]+\]):[0-9]{1,5}")


class Peer(NamedTuple):
    """A picker that other pickers can reach."""

    id: str
    address: str
    """The picker's gRPC address as IP:PORT."""
    interface: str = ""
    """Identity of the loopback interface available to the picker; empty if unknown."""


def local_peer(own: str, bind: Address) -> Peer:
    """Return this machine's picker that listens at `bind`."""
    return Peer(own, str(bind.from_here), own_interface())


@cache
def own_interface() -> str:
    """Return the identity of this process's loopback interface; empty if the system does not reveal it."""
    try:
        return f"{_BOOT.read_text().strip()}/{os.stat(_NETWORK).st_ino}"  # noqa: PTH116 -- a link to no file
    except OSError:
        return ""


def others(peers: Iterable[Peer], own: Peer | None) -> Mapping[str, str]:
    """Return the pickers that can exchange messages with a picker in both directions, as a map from IDs to addresses.

    `own` is None if other pickers cannot reach this one.
    """
    if own is None:
        return {}
    return {
        peer.id: peer.address for peer in peers if peer.id != own.id and _can_reach(own, peer) and _can_reach(peer, own)
    }


def remote_peer(own: str, address: str, client: str) -> Peer | None:
    """Return the picker with this address that has connected from `client`; None if others cannot reach it."""
    bind = Address(_host(address), int(address.rpartition(":")[2]))
    if is_loopback(client):
        return local_peer(own, bind)
    if bind.on_loopback:
        return None
    return Peer(own, address if bind.from_here == bind else str(replace(bind, host=client)))


def written(peers: Iterable[Peer]) -> tuple[str, ...]:
    """Return the announcement for this process's pickers."""
    return tuple(" ".join(peer) for peer in sorted(peers))


def read(announcement: Iterable[str]) -> Iterator[Peer]:
    """Yield the pickers in an announcement. Strings that a member would not write are skipped."""
    for text in announcement:
        parts = text.split(" ")
        if len(parts) == 3 and is_valid(*parts[:2]):
            yield Peer(*parts)


def is_valid(own: str, address: str) -> bool:
    """Return whether a picker can have this ID and this address."""
    if not _ID.fullmatch(own) or not _ADDRESS.fullmatch(address) or int(address.rpartition(":")[2]) not in _PORTS:
        return False
    host = _host(address)
    return is_ip(host) and not is_metadata(host, address_of(host))


def _can_reach(own: Peer, other: Peer) -> bool:
    return not is_loopback(_host(other.address)) or own.interface == other.interface != ""


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")
