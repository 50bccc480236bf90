"""The files that this process publishes: its own files or the leader's. The reconciler uses one of the two objects."""

from __future__ import annotations

from lbctl.model.load import SourceText
from lbctl.serve.fleet.history import FleetHistory, digest_of
from lbctl.serve.fleet.inputs import Origin
from lbctl.serve.fleet.log import PublicationLog
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.fleet.saver import FleetSaver
from lbctl.store.history import ActiveRollback, Cause
from lbctl.store.records import SavedFleet


class OwnFiles:
    """The files on disk, or a rollback's files.

    Published fleets are saved, and recorded in the history and the audit log.
    """

    confirms_losses = False
    """Whether another process has accepted the loss of replicas and keys."""
    leader = None
    """Another process's fleet that is published here."""

    def __init__(self, history: FleetHistory, publications: PublicationLog, saver: FleetSaver) -> None:
        self._history = history
        self._publications = publications
        self._saver = saver

    @property
    def rollback(self) -> ActiveRollback | None:
        """The active rollback; None if there is none."""
        return self._history.rollback

    @property
    def origin(self) -> Origin:
        """Origin of the files."""
        return "files" if self.rollback is None else "history"

    async def pinned(self) -> tuple[SourceText, ...] | None:
        """Return the files that an active rollback publishes instead of the files on disk."""
        return await self._history.pinned()

    async def served(self, files: tuple[SourceText, ...], fleet: PublishedFleet, cause: Cause) -> None:
        """Add a fleet to the history."""
        await self._history.served(files, fleet, cause)

    async def save(self, saved: SavedFleet | None) -> None:
        """Save the published fleet with these files; None means that the files have not changed."""
        await self._saver.save(saved)

    async def record(self) -> None:
        """Add the last publication to the audit log."""
        await self._publications.record()


class LeaderFiles:
    """The leader's files, which the leader saves and records; if there is no leader, the files on disk."""

    confirms_losses = True
    """Whether another process has accepted the loss of replicas and keys."""
    rollback = None
    """A rollback by this process; the leader's rollback is contained in the leader's files."""

    def __init__(self, history: FleetHistory, publications: PublicationLog, leader: SavedFleet | None) -> None:
        """`leader`: the leader's fleet; None until it is known."""
        self.leader = leader
        self._history = history
        self._publications = publications

    @property
    def origin(self) -> Origin:
        """Origin of the files."""
        return "files" if self.leader is None else "leader"

    async def pinned(self) -> tuple[SourceText, ...] | None:
        """Return the leader's files; None if they are identical to the files on disk."""
        if self.leader is None or await self._history.on_disk() == digest_of(self.leader.texts):
            return None
        return self.leader.texts

    async def served(self, files: tuple[SourceText, ...], fleet: PublishedFleet, cause: Cause) -> None:
        """Do nothing: the fleet is not added to the history."""

    async def save(self, saved: SavedFleet | None) -> None:
        """Do nothing: nothing is saved."""

    async def record(self) -> None:
        """Do nothing: the publication is not recorded in the audit log."""
        self._publications.leave_out()
