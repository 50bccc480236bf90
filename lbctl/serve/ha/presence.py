"""Heartbeats of the members in the store, with their addresses and published versions.

A member name belongs to one process. If another process uses the name, this process waits until the heartbeat expires,
and gives up if the heartbeat is renewed.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any

from lbctl.base.foreign_json import parse_object
from lbctl.serve.ha import fields
from lbctl.store.interface import Presence, SharedStore, UnusableError
from lbctl.store.records import UNREADABLE

INTERVAL = 1.0
"""Seconds between announcements."""
MAX_SAMPLES = 900_000
"""Maximum total number of characters for all members' samples. Together with the other announcement data, every kind of
store accepts this much at a time."""
TTL = 5.0
"""Seconds after which a member without announcements counts as gone."""


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A member's heartbeat. Times are in seconds since the epoch on the member's own clock."""

    name: str
    """The member's name."""
    role: str = ""
    """The role: leader, follower or isolated."""
    epoch: int = 0
    """The epoch in which the member leads, or whose decisions it follows."""
    api: str = ""
    """The URL of the member's API; empty while closed."""
    xds: str = ""
    """The address for Envoys; empty while closed."""
    version: str = ""
    """The lbctl version."""
    snapshot: str = ""
    """The version of the member's published snapshot."""
    digest: str = ""
    """The digest of the member's files on disk, without `control`."""
    lag: float | None = None
    """Seconds since the leader's last heartbeat was seen; None for the leader."""
    clock: float = 0.0
    """Number of seconds by which the leader's clock is ahead of the member's clock."""
    latency: float | None = None
    """Time that the store's last response took, in seconds; None before the first."""
    problem: str = ""
    """The reason why the member cannot use the store; empty if it can."""
    at: float = field(default_factory=time.time)
    """Time of the heartbeat."""
    shares: bool = False
    """Whether the member scrapes the pools that the leader assigns to it."""
    steps: tuple[str, ...] = ()
    """IDs of the rollout steps that its proxies have applied."""
    pickers: tuple[str, ...] = ()
    """The pickers that subscribe to the member, as `lbctl.serve.picker.peers` writes them."""
    samples: str = ""
    """Samples that it has scraped for the leader; empty if there are none."""


def steps_of_others(members: Iterable[MemberInfo], own_name: str) -> frozenset[str]:
    """Return the IDs of the rollout steps that the proxies of the other members have."""
    return frozenset(step for item in members if item.name != own_name for step in item.steps)


class KnownMembers:
    """The last announcements of all members. `name`: the name of this member."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self._infos: tuple[MemberInfo, ...] = ()

    @property
    def infos(self) -> tuple[MemberInfo, ...]:
        """The announcements; empty if this process is the only one."""
        return self._infos

    def replace(self, infos: tuple[MemberInfo, ...]) -> None:
        """Replace all announcements with newer ones."""
        self._infos = infos

    def steps(self) -> frozenset[str]:
        """Return the IDs of the rollout steps that the proxies of the other members have."""
        return steps_of_others(self._infos, self.name)


def write_info(info: MemberInfo) -> str:
    """Serialize the announcement of a member."""
    problem = "".join(filter(str.isprintable, info.problem))[: fields.MAX_PROBLEM]
    return json.dumps(asdict(replace(info, problem=problem)))


def read_infos(presences: Iterable[Presence]) -> tuple[MemberInfo, ...]:
    """Parse the announcements of at most MAX_MEMBERS members; announcements without a valid member name are omitted."""
    named = (item for item in presences if fields.is_name(item.member))
    return tuple(map(read_info, islice(named, fields.MAX_MEMBERS)))


def read_info(presence: Presence) -> MemberInfo:
    """Parse a heartbeat. If it is malformed, the result has only the name and a `problem`.

    A field that another version does not write has its default value. Fields that only another version writes are
    ignored.
    """
    try:
        row = parse_object(presence.value)
        values = {key: read(key, row[key]) for key, read in _FIELDS.items() if key in row}
    except UNREADABLE as error:
        reason = str(error) if isinstance(error, fields.FieldError) else "it was not written by a member"
        return MemberInfo(presence.member, problem=f"its heartbeat is malformed: {reason}")
    return MemberInfo(name=presence.member, **values)


def _role(field: str, value: object) -> str:
    if value not in ("", "leader", "follower", "isolated"):
        raise fields.FieldError(f"{field} is not a role")
    return str(value)


_FIELDS: Mapping[str, Callable[[str, object], Any]] = {
    "role": _role,
    "epoch": fields.epoch,
    "api": fields.url,
    "xds": fields.address,
    "version": fields.line,
    "snapshot": fields.line,
    "digest": fields.line,
    "lag": fields.number_or_none,
    "clock": fields.number,
    "latency": fields.number_or_none,
    "problem": lambda field, value: fields.line(field, value, fields.MAX_PROBLEM),
    "at": fields.time,
    "shares": fields.flag,
    "steps": fields.texts,
    "pickers": fields.texts,
    "samples": lambda field, value: fields.raw_text(field, value, MAX_SAMPLES),
}
"""Maps each field of an announcement to the function that checks it."""


async def claim(store: SharedStore, name: str, waiting: Callable[[str], None]) -> None:
    """Wait until no other process uses the name. Raises UnusableError if a running process keeps it, and StoreError."""
    other = await _holder(store, name)
    if other is None:
        return
    waiting(f"another process uses the member name {name}: waiting for it to exit")
    deadline = time.monotonic() + TTL + INTERVAL
    while time.monotonic() < deadline:
        await asyncio.sleep(INTERVAL / 2)
        now = await _holder(store, name)
        if now is None:
            return
        if (now.instance, now.value) != (other.instance, other.value):
            break
    raise UnusableError(
        f"another running serve is already the member {name} of {store.location}: set a different control.member for "
        "each process"
    )


async def _holder(store: SharedStore, name: str) -> Presence | None:
    return next(
        (item for item in await store.members() if item.member == name and item.instance != store.instance), None
    )
