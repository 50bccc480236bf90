"""State shared by all streams of an xDS server: newest publication, each node's newest stream, limits, memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lbctl.xds.protocol.budget import Budget
from lbctl.xds.protocol.call import Call
from lbctl.xds.protocol.connection import Client
from lbctl.xds.protocol.first_messages import FirstMessages
from lbctl.xds.protocol.node_status import NodeStatus, StreamObserver
from lbctl.xds.protocol.peer import UNIX, Context
from lbctl.xds.protocol.publication import EndedNodes, Publication
from lbctl.xds.protocol.unread_messages import UnreadMessages

if TYPE_CHECKING:
    from lbctl.xds.build.snapshot_cache import CachedSnapshot
    from lbctl.xds.protocol.session import StreamSession
    from lbctl.xds.resource import Resources

_LOG_INTERVAL = 60.0
"""Seconds after which the rejection of the same node is logged again."""
_MAX_DENIALS = 1000


@dataclass(frozen=True, slots=True)
class Service:
    """A method of a discovery service. `only` is the resource type that a per-type service serves."""

    delta: bool
    """Whether the service uses the delta variant."""
    only: str | None = None

    @property
    def kind(self) -> str:
        """Return the variant of the protocol, `delta` or `sotw`."""
        return "delta" if self.delta else "sotw"


@dataclass(slots=True)
class ServerContext:
    """The state that all streams of a server share.

    `patience`: timeout in seconds for the first request. `read_within`: timeout for a client to read a message.
    `guarded`: clients over TCP may receive secrets. `socket`: path of the Unix socket, whose clients always may.
    """

    node_status: NodeStatus
    observer: StreamObserver
    settle: float
    patience: float
    read_within: float
    first_messages: FirstMessages
    """Turns of clients that are identified only by their host."""
    unread: UnreadMessages
    authenticated: bool = False
    """Whether clients over TCP have presented a certificate."""
    guarded: bool = True
    socket: str = ""
    budget: Budget = field(default_factory=Budget)
    held: Callable[[], bool] = lambda: False
    """Whether a newer publication is expected soon; if so, new streams wait for it."""
    publication: Publication | None = None
    earlier: Publication | None = None
    """Last publication of the previous process, if it differs."""
    remembered: EndedNodes = field(default_factory=EndedNodes)
    newest: dict[tuple[str, str | None], StreamSession] = field(default_factory=dict)
    """Maps (node ID, type) to the newest open stream of the node and service."""
    denials: dict[tuple[str, str], float] = field(default_factory=dict)
    """Maps (node ID, reason) to the time when it was last logged, earliest first."""

    def identifies(self, context: Context) -> bool:
        """Return whether the client is identified by more than its host: by its certificate, or by using the socket."""
        return self.authenticated or context.peer().startswith(UNIX)

    async def first_message(self, call: Call, context: Context, client: Client | None) -> object:
        """Return the first message of a call, when it is its turn. Raises CrowdedError if there are too many calls."""
        if client is not None:
            self.unread.begin(client)
        if self.identifies(context):
            return await self.next_message(context, client)
        return await self.first_messages.read(client, call, lambda: self.next_message(context, client))

    async def next_message(self, context: Context, client: Client | None) -> object:
        """Return the next message of a call. `client` is None for the Unix socket."""
        message = await context.read()
        if client is not None and isinstance(message, bytes):
            self.unread.note_read(client, len(message))
        return message

    def publish(self, snapshot: CachedSnapshot) -> Publication:
        """Publish this snapshot, and return the publication."""
        self.publication = Publication(snapshot, self.publication)
        self.remembered.forget()
        return self.publication

    def recall(self, snapshot: CachedSnapshot) -> None:
        """Set the snapshot that the previous process published."""
        self.earlier = Publication(snapshot)

    def lose_socket(self) -> None:
        """Record that clients cannot connect to the Unix socket."""
        self.socket = ""

    def enter(self, key: tuple[str, str | None], session: StreamSession) -> None:
        """Make this the newest stream of a node (id, type)."""
        self.newest[key] = session

    def leave(self, key: tuple[str, str | None], session: StreamSession) -> None:
        """Forget an ended stream, and store its node's resources, unless a newer stream of the node is open."""
        if self.newest.get(key) is session:
            del self.newest[key]
            if last := session.last():
                self.remembered.keep(*key, last)

    def last(self, key: tuple[str, str | None]) -> Resources | None:
        """Return the resources of a node (id, type) according to its newest or last stream; None if unknown."""
        session = self.newest.get(key)
        return session.last() if session else self.remembered.last(*key)

    def is_news(self, node_id: str, reason: str, now: float) -> bool:
        """Return whether to log this rejection of the node. A rejected node reconnects continuously."""
        key = (node_id, reason)
        if self.denials.get(key, -_LOG_INTERVAL) + _LOG_INTERVAL > now:
            return False
        self.denials.pop(key, None)
        self.denials[key] = now
        if len(self.denials) > _MAX_DENIALS:
            del self.denials[next(iter(self.denials))]
        return True
