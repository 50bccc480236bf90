"""What members say about themselves in the store: where they are, and what they serve.

A name belongs to one process. A process that finds its name in use by another one waits until that announcement
expires, and gives up where it is renewed instead.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, field, fields

from lbctl.base.records import dataclass
from lbctl.serve.state.interface import Presence, SharedStore, UnusableError

INTERVAL = 1.0
"""Seconds between two announcements."""
TTL = 5.0
"""Seconds after which a member that announces nothing is gone."""


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """What a member says about itself. Times are seconds since the epoch by its own clock."""

    name: str
    """The member's name."""
    role: str = ""
    """leader, follower or isolated."""
    epoch: int = 0
    """The epoch in which it leads, or whose decisions it follows."""
    api: str = ""
    """The URL of its API; empty while it is closed."""
    xds: str = ""
    """The address for Envoys; empty while it is closed."""
    version: str = ""
    """The version of lbctl."""
    snapshot: str = ""
    """The version of what it serves."""
    digest: str = ""
    """The digest of the files on its disk, without `control`."""
    lag: float | None = None
    """Seconds since the leader's last sign of life was seen; None for the leader."""
    clock: float = 0.0
    """Seconds that the leader's clock is ahead of its own."""
    latency: float | None = None
    """Seconds of the store's last answer; None before the first."""
    problem: str = ""
    """Why it cannot use the store; empty where it can."""
    at: float = field(default_factory=time.time)
    """When it said so."""
    shares: bool = False
    """Whether it scrapes pools for a leader that gives it some."""
    steps: tuple[str, ...] = ()
    """The ids of the steps of rollouts that its proxies have."""
    samples: str = ""
    """What it has scraped for the leader; empty where there is nothing."""


def steps_of_others(members: Iterable[MemberInfo], own_name: str) -> frozenset[str]:
    """Return the ids of the steps of rollouts that the proxies of the other members have."""
    return frozenset(step for item in members if item.name != own_name for step in item.steps)


def write_info(info: MemberInfo) -> str:
    """Serialize the announcement of a member."""
    return json.dumps(asdict(info))


def read_info(presence: Presence) -> MemberInfo:
    """Parse an announcement; of one that cannot be read the name is left."""
    try:
        row = json.loads(presence.value)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        return MemberInfo(presence.member)
    values = {item.name: row[item.name] for item in fields(MemberInfo) if item.name in row}
    steps = row.get("steps")
    return MemberInfo(
        **{**values, "name": presence.member, "steps": tuple(map(str, steps)) if isinstance(steps, list) else ()}
    )


async def claim(store: SharedStore, name: str, waiting: Callable[[str], None]) -> None:
    """Wait until no other process has the name. Raises UnusableError where a live one keeps it, and StoreError."""
    other = await _holder(store, name)
    if other is None:
        return
    waiting(f"another process has the name {name}: waiting until it is gone")
    deadline = time.monotonic() + TTL + INTERVAL
    while time.monotonic() < deadline:
        await asyncio.sleep(INTERVAL / 2)
        now = await _holder(store, name)
        if now is None:
            return
        if (now.instance, now.value) != (other.instance, other.value):
            break
    raise UnusableError(f"another running serve is the member {name} of {store.location}: give each a control.member")


async def _holder(store: SharedStore, name: str) -> Presence | None:
    return next(
        (item for item in await store.members() if item.member == name and item.instance != store.instance), None
    )
