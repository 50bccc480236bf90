"""`GET /api/v1/audit`."""

from __future__ import annotations

from dataclasses import dataclass

from lbctl.api.schema.values import Timestamp


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One action, and who did it."""

    number: int
    """The number of the record, from 1 and without gaps."""
    at: Timestamp
    """When it was done."""
    actor: str
    """The name of the token that was used; `lbctl` for what the control plane did by itself."""
    action: str
    """What was done, as `drain`, `end drain`, `rollout promote`, `reload`, `publish`."""
    subject: str
    """What it was done to: a pool, a replica, a route, or the version of a fleet."""
    reason: str
    """Why, in the operator's words; empty where none was given."""
    previous: str
    """The hash of the record before it; empty for the first."""
    hash: str
    """SHA-256 of the fields above, as a JSON array in this order without spaces, in hexadecimal."""


@dataclass(frozen=True, slots=True)
class Audit:
    """The kept records of the audit log."""

    records: tuple[AuditRecord, ...]
    """At most 5,000, the oldest first. Where older ones were deleted, the first has the `previous` of a deleted one."""
