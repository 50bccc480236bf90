"""Rows of the API about the members of the control plane."""

from __future__ import annotations

from lbctl.serve.api import schema
from lbctl.serve.api.status_rows import timestamp
from lbctl.serve.ha.member import Member
from lbctl.serve.ha.presence import MemberInfo


def members(member: Member | None) -> schema.Members:
    """Return the document about all members."""
    if member is None:
        return schema.Members(None, None, ())
    by_name = {item.name: item for item in member.members}
    leader = next((item for item in by_name.values() if item.role == "leader"), None)
    rows = tuple(_row(by_name[name], leader, member) for name in sorted(by_name))
    return schema.Members(member.store.location, leader.name if leader else None, rows)


def _row(item: MemberInfo, leader: MemberInfo | None, member: Member) -> schema.Member:
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
        files_differ=leader is not None and item.digest != leader.digest,
        lag=None if item.lag is None else round(item.lag, 3),
        clock=round(item.clock, 3),
        latency=None if item.latency is None else round(item.latency, 6),
        problem=item.problem or None,
        at=timestamp(item.at),
    )
