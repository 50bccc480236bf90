"""`GET /api/v1/members`."""

from __future__ import annotations

from dataclasses import dataclass

from lbctl.api.schema.values import Timestamp


@dataclass(frozen=True, slots=True)
class Member:
    """A member of the control plane, as it has announced itself last."""

    name: str
    """Its name."""
    self: bool
    """Whether it is the member that answers."""
    role: str
    """`leader`, `follower`, or `isolated`: the last leader, whose store does not answer."""
    epoch: int
    """The epoch in which it leads, or whose decisions it follows."""
    api: str | None
    """The URL of its API; null while that is closed."""
    xds: str | None
    """The address for Envoys; null while that is closed."""
    version: str
    """Its version of lbctl."""
    snapshot: str
    """The version of the snapshot that it serves."""
    digest: str
    """The digest of the files on its disk, without `control`."""
    in_step: bool
    """Whether it serves what the leader serves."""
    files_differ: bool
    """Whether its files are not the leader's; the leader's are served then."""
    lag: float | None
    """Seconds since it has seen the leader's last sign of life; null in the leader."""
    clock: float
    """Seconds that the leader's clock is ahead of its own."""
    latency: float | None
    """Seconds of the store's last answer; null before the first."""
    problem: str | None
    """Why it cannot use the store; null where it can."""
    pools: tuple[str, ...]
    """The pools whose replicas it scrapes, by the member that answers."""
    at: Timestamp
    """When it said so, by its own clock."""


@dataclass(frozen=True, slots=True)
class Members:
    """The answer of `GET /api/v1/members`."""

    store: str | None
    """The store of the members; null where there is one control plane with a state directory."""
    leader: str | None
    """The member that leads; null where none is known."""
    members: tuple[Member, ...]
    """The members, by name."""
