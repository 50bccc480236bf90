"""API rows about the control plane's members."""

from __future__ import annotations

from lbctl.api import schema
from lbctl.serve.api.status_rows import timestamp
from lbctl.serve.ha.member import FleetMember
from lbctl.serve.ha.presence import MemberInfo


def members(member: FleetMember | None) -> schema.Members:
    """Return the document about all members."""
    if member is None:
        return schema.Members(None, None, ())
    leader = member.leader
    rows = tuple(_row(item, leader, member) for item in sorted(member.members, key=lambda item: item.name))
    return schema.Members(member.store.location, leader.name if leader else None, rows)


def own(member: FleetMember | None) -> schema.MemberStatus | None:
    """Return this process's member row; None if it is the only process."""
    if member is None:
        return None
    leader, age = member.leader, member.lag
    return schema.MemberStatus(
        member.name, member.election.role, leader.name if leader else None, None if age is None else round(age, 3)
    )


def _row(item: MemberInfo, leader: MemberInfo | None, member: FleetMember) -> schema.Member:
    return schema.Member(
        name=item.name,
        self=item.name == member.name,
        role=item.role,
        epoch=item.epoch,
        api=item.api or None,
        xds=item.xds or None,
        version=item.version,
        snapshot=item.snapshot,
        digest=item.digest,
        in_step=leader is None or item.snapshot == leader.snapshot,
        files_differ=item.name in member.differing,
        lag=None if item.lag is None else round(item.lag, 3),
        clock=round(item.clock, 3),
        latency=None if item.latency is None else round(item.latency, 6),
        problem=item.problem or None,
        pools=member.sharing.pools_of(item.name),
        at=timestamp(item.at),
    )
