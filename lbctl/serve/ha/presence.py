"""The members' heartbeats in the store, which contain their addresses and published versions.

A member name belongs to a single process. If another process is using the name, this process waits for the heartbeat to
expire, and gives up if the heartbeat is renewed.
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
"""Maximum total number of characters in all members' samples. Together with the rest of the announcements, this is
small enough for every kind of store."""
TTL = 5.0
"""Seconds without an announcement after which a member is considered gone."""


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A member's heartbeat. Times are in seconds since the epoch on the member's own clock."""

    name: str
    """Name of the member."""
    role: str = ""
    """Role of the member: leader, follower or isolated."""
    epoch: int = 0
    """The epoch in which the member is leading, or whose decisions it is following."""
    api: str = ""
    """URL of the member's API; empty while closed."""
    xds: str = ""
    """Address for Envoys; empty while closed."""
    version: str = ""
    """The lbctl version."""
    snapshot: str = ""
    """Version of the member's published snapshot."""
    digest: str = ""
    """Digest of the member's files on disk, without `control`."""
    lag: float | None = None
    """Seconds since the leader's last heartbeat was received; None for the leader."""
    clock: float = 0.0
    """Number of seconds by which the leader's clock is ahead of the member's clock."""
    latency: float | None = None
    """Duration of the store's last response, in seconds; None before the first response."""
    problem: str = ""
    """Reason why the member cannot use the store; empty if it can."""
    at: float = field(default_factory=time.time)
    """Time of the heartbeat."""
    shares: bool = False
    """Whether the member scrapes pools that the leader assigns to it."""
    steps: tuple[str, ...] = ()
    """IDs of the rollout steps that its proxies have applied."""
    pickers: tuple[str, ...] = ()
    """Pickers that subscribe to the member, in the format written by `lbctl.serve.picker.peers`."""
    samples: str = ""
    """Samples scraped for the leader; empty if there are none."""


def steps_of_others(members: Iterable[MemberInfo], own_name: str) -> frozenset[str]:
    """Return the IDs of the rollout steps that other members' proxies have applied."""
    return frozenset(step for item in members if item.name != own_name for step in item.steps)


class KnownMembers:
    """All members' most recent announcements. `name`: this member's name."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self._infos: tuple[MemberInfo, ...] = ()

    @property
    def infos(self) -> tuple[MemberInfo, ...]:
        """The announcements; empty if this is the only process."""
        return self._infos

    def replace(self, infos: tuple[MemberInfo, ...]) -> None:
        """Replace all announcements with newer ones."""
        self._infos = infos

    def steps(self) -> frozenset[str]:
        """Return the IDs of the rollout steps that other members' proxies have applied."""
        return steps_of_others(self._infos, self.name)


def write_info(info: MemberInfo) -> str:
    """Serialize a member's announcement."""
    problem = "".join(filter(str.isprintable, info.problem))[: fields.MAX_PROBLEM]
    return json.dumps(asdict(replace(info, problem=problem)))


def read_infos(presences: Iterable[Presence]) -> tuple[MemberInfo, ...]:
    """Parse the announcements of at most MAX_MEMBERS members; announcements without a valid member name are omitted."""
    named = (item for item in presences if fields.is_name(item.member))
    return tuple(map(read_info, islice(named, fields.MAX_MEMBERS)))


def read_info(presence: Presence) -> MemberInfo:
    """Parse a heartbeat. If it is malformed, the result contains only the name and a `problem`.

    Fields that another version does not write have their default values. Fields that only another version writes are
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
"""Maps each field of an announcement to the function that validates it."""


async def claim(store: SharedStore, name: str, waiting: Callable[[str], None]) -> None:
    """Wait until no other process is using the name.

    Raises UnusableError if a running process keeps using it, and StoreError.
    """
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
