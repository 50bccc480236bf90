"""Applies changes in the leader's stored records to a member.

If a record is unreadable, nothing changes and this member keeps its state. The same applies to a missing record,
because an empty store does not contain any information about the fleet.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from lbctl.base.foreign_json import parse
from lbctl.runtime import log
from lbctl.serve.fleet.history import RestoredHistory
from lbctl.serve.fleet.inputs import FleetInputs
from lbctl.serve.ha import fields
from lbctl.serve.ha.roles import SharedParts
from lbctl.serve.ha.sharing import SHARING, PoolSharing
from lbctl.store import history as history_records
from lbctl.store import records
from lbctl.store.records import SavedFleet

LEADER = "leader/status"
"""The leader's heartbeat."""
FOLLOWED = (
    "fleet/files", "fleet/served", "overrides", "drains", "rollouts", "loop_output", "history/entries", "rollback",
    LEADER, SHARING,
)  # fmt: skip
"""The keys read by followers."""


@dataclass(frozen=True, slots=True)
class LeaderStatus:
    """The leader's heartbeat."""

    member: str
    """The leader's name."""
    epoch: int
    """The leader's epoch."""
    api: str
    """The URL of the leader's API."""
    at: float
    """Time at which the status was written, in seconds since the epoch on the leader's clock."""
    snapshot: str = ""
    """Version of the leader's published snapshot."""


def write_leader(status: LeaderStatus) -> str:
    """Serialize the leader's heartbeat."""
    return json.dumps([status.member, status.epoch, status.api, status.at, status.snapshot])


def read_leader(value: str) -> LeaderStatus:
    """Parse a string written by `write_leader`. Raises one of `UNREADABLE`."""
    member, epoch, api, at, snapshot = parse(value)
    return LeaderStatus(
        fields.name("member", member), fields.epoch("epoch", epoch), fields.url("api", api), fields.time("at", at),
        fields.line("snapshot", snapshot),
    )  # fmt: skip


_INPUTS: Mapping[str, Callable[[FleetInputs, str], FleetInputs]] = {
    "overrides": lambda inputs, value: replace(inputs, overrides=records.read_overrides(value)[0]),
    "drains": lambda inputs, value: replace(inputs, drains=records.read_drains(value)),
    "rollouts": lambda inputs, value: replace(inputs, rollouts=records.read_rollouts(value)),
    "loop_output": lambda inputs, value: replace(inputs, decisions=records.read_loop_output(value)[0]),
}
"""Maps each record's key to the function that returns the fleet's inputs with the record applied."""


class SharedRecords:
    """Reads and applies the leader's records."""

    def __init__(self, parts: SharedParts, sharing: PoolSharing) -> None:
        self.fleet: SavedFleet | None = None
        """The leader's fleet; None until its files have been read."""
        self.leader: LeaderStatus | None = None
        """The leader's most recent heartbeat."""
        self.damaged: dict[str, str] = {}
        """Maps each key whose stored value cannot be read to that value."""
        self._parts = parts
        self._history = history = parts.history
        self._restored = RestoredHistory(history.entries, history.rollback)
        self._readers: Mapping[str, Callable[[str], None]] = {
            "fleet/files": self._files,
            "fleet/served": self._served,
            "history/entries": self._entries,
            "rollback": self._rollback,
            LEADER: self._leader,
            SHARING: sharing.adopt,
        }

    def read(self, key: str, value: str, inputs: FleetInputs) -> FleetInputs | None:
        """Return the fleet's inputs updated from a record.

        If the record cannot be read, log this and return None; nothing changes.
        """
        try:
            if (change := _INPUTS.get(key)) is not None:
                inputs = change(inputs, value)
            elif (reader := self._readers.get(key)) is not None:
                reader(value)
            else:
                return None
        except records.UNREADABLE as error:
            if self.damaged.get(key) != value:
                log.error(
                    "cannot read a record from the store; keeping the last known value", key=key, reason=repr(error)
                )
            self.damaged[key] = value
            return None
        self.damaged.pop(key, None)
        return inputs

    def take(self, key: str, value: str) -> bool:
        """Apply a record; the caller must publish it. Return whether the record is readable."""
        parts, before = self._parts, self._parts.live.inputs
        inputs = self.read(key, value, before)
        if inputs is None:
            return False
        parts.live.stage(inputs)
        if inputs.overrides is not before.overrides:
            parts.overrides.adopt()
        if inputs.rollouts is not before.rollouts:
            parts.rollouts.adopt(before.rollouts)
        if inputs.decisions is not before.decisions:
            parts.loop.adopt(inputs.decisions)
        return True

    def restore_history(self) -> None:
        """Adopt the previous leader's history and rollback."""
        self._history.restore(self._restored)

    def _files(self, value: str) -> None:
        before = self.fleet
        self.fleet = replace(
            records.read_fleet(value),
            discovered=before.discovered if before else {},
            version=before.version if before else "",
        )

    def _served(self, value: str) -> None:
        version, discovered, _ = records.read_served(value)
        if self.fleet is not None:
            self.fleet = replace(self.fleet, discovered=discovered, version=version)

    def _entries(self, value: str) -> None:
        self._restored = replace(self._restored, entries=history_records.read_entries(value))
        self._history.take(self._restored.entries)

    def _rollback(self, value: str) -> None:
        self._restored = replace(self._restored, rollback=history_records.read_rollback(value))

    def _leader(self, value: str) -> None:
        self.leader = read_leader(value)
