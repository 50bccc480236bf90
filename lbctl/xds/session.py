"""One stream over the wire: reads what the client says, writes what `Stream` lets it have, tells ledger and observer.

Reading is the call's own task. Writing is a task that lives only while something is being written, so that a client
that does not read holds up itself alone, and one message at most waits for it. No task is cancelled from here: a
cancelled operation of the library would leave its buffers behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import astuple, dataclass, field
from urllib.parse import unquote

import grpc

from lbctl.ir.proxies import Proxy
from lbctl.ir.topology import Topology
from lbctl.xds.ledger import READER, Entry, Ledger, Nack, Observer
from lbctl.xds.nodes import Refused
from lbctl.xds.publication import Publication, Remembered, Seat
from lbctl.xds.resource import SHORT, Resources
from lbctl.xds.stream import Acked, Nacked, Node, Response, Stream, StreamError
from lbctl.xds.wire import read

Context = grpc.aio.ServicerContext[object, bytes]
_LOG = logging.getLogger(__name__)
_LONGEST = 253
_LONGEST_WORDS = 4000
_MOST_FINDINGS = 20
_SOONEST = 0.005
"""Seconds: because of time alone, a stream is asked again no sooner than this."""


@dataclass(frozen=True, slots=True)
class Service:
    """A method of a discovery service. `only`: the one type of a per-type service."""

    delta: bool
    only: str | None = None

    @property
    def kind(self) -> str:
        return "delta" if self.delta else "sotw"


@dataclass(slots=True)
class House:
    """What the streams of a server share. `patience`: seconds within which the first request must come."""

    ledger: Ledger
    observer: Observer
    settle: float
    patience: float
    publication: Publication | None = None
    earlier: Publication | None = None
    """What the process before this one published last, if that was something else."""
    remembered: Remembered = field(default_factory=Remembered)
    newest: dict[tuple[str, str | None], Session] = field(default_factory=dict)
    """Of each node and service, the stream that came last, if it stands."""


@dataclass(frozen=True, slots=True)
class _Sent:
    at: float
    publication: Publication


class Session:
    """Lives from a call's start to its end, all of it on the event loop."""

    __slots__ = (
        "_closed", "_context", "_entry", "_house", "_loop", "_offered", "_proxy", "_refused", "_roster", "_seat",
        "_service", "_stream", "_tasks", "_timer", "_unanswered", "_writing",
    )  # fmt: skip

    def __init__(self, house: House, service: Service, context: Context) -> None:
        self._house = house
        self._service = service
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._unanswered: dict[str, _Sent] = {}
        self._offered: Publication | None = None
        self._roster: Topology | None = None
        self._refused = self._writing = self._closed = False
        self._stream: Stream
        self._seat: Seat
        self._entry: Entry | None = None
        self._proxy: Proxy | Refused

    async def run(self) -> None:
        """Until the client has ended, or has said what no client may say, or `end` was called."""
        self._timer = self._loop.call_later(self._house.patience, self._late)
        try:
            message = await self._context.read()
            if isinstance(message, bytes):
                self._greet(message)
            while isinstance(message, bytes):
                self._hear(message)
                message = await self._context.read()
        except StreamError as error:
            await self._context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            self._close()

    def end(self, code: grpc.StatusCode, words: str) -> None:
        """Ends the stream from this side, whatever it is doing."""
        if not self._closed:
            self._start(self._abort(code, words))

    def follow(self, publication: Publication) -> None:
        """Offers what the node is to have now. A node that nothing is for any more keeps what it has."""
        if self._entry is None:
            return
        found = self._found(publication, self._entry)
        if isinstance(found, Refused):
            self._refuse(found, self._entry)
            return
        self._entry.reason = ""
        self._entry.version = publication.edition.version
        self._entry.offered = self._house.ledger.now()
        if self._offered is None and self._entry.node.agent != READER:
            self._house.newest[self._entry.node.id, self._service.only] = self
        self._offered = publication
        self._stream.offer(found)
        self._wake()

    def again(self) -> int:
        """Offers once more what the node has refused; how many resources that are."""
        count = self._stream.again() if self._entry is not None else 0
        if count:
            self._wake()
        return count

    def _greet(self, message: bytes) -> None:
        """Before the first request: the node's last stream may have left something to it."""
        self._clear_timer()
        node = read(message, delta=self._service.delta).node
        before = self._before(node) if node and node.agent != READER else None
        self._stream = Stream(
            delta=self._service.delta, only=self._service.only, before=before, settle=self._house.settle
        )

    def _before(self, node: Node) -> Resources | None:
        """What the node has, as far as it can be known: from its last stream, or from the process before this one."""
        house, key = self._house, (node.id, self._service.only)
        other = house.newest.get(key)
        before = other._stream.last() if other else house.remembered.last(*key)
        if before is not None or house.earlier is None:
            return before
        proxy = house.earlier.assign(Seat(node, self._sans()))
        found = proxy if isinstance(proxy, Refused) else house.earlier.content(proxy)
        return None if isinstance(found, Refused) else found

    def _hear(self, message: bytes) -> None:
        now = self._loop.time()
        answers = self._stream.request(message, now)
        if self._entry is None:
            self._enter(self._stream.node)
        for answer in answers:
            self._answered(answer, now)
        self._wake()

    def _enter(self, node: Node | None) -> None:
        if node is None or not node.id:
            raise StreamError("the first request must name a node")
        if not all(len(text) <= _LONGEST and text.isprintable() for text in astuple(node)):
            raise StreamError(f"what the node says of itself is not printable, or longer than {_LONGEST} characters")
        self._seat = Seat(node, self._sans())
        ledger = self._house.ledger
        self._entry = Entry(node, _peer(self._context), self._service.delta, self._stream.status, ledger.now())
        ledger.enter(self._entry)
        if self._house.publication is not None:
            self.follow(self._house.publication)
        _LOG.info("xds: %s has connected", _who(self._entry), extra=_fields(self._entry, kind=self._service.kind))

    def _sans(self) -> frozenset[str]:
        names = self._context.auth_context().get("x509_subject_alternative_name", ())
        return frozenset(name.decode(errors="replace") for name in names)

    def _found(self, publication: Publication, entry: Entry) -> Resources | Refused:
        if self._roster is not publication.roster:
            self._roster = publication.roster
            self._proxy = publication.assign(self._seat)
            entry.proxy = None if isinstance(self._proxy, Refused) else self._proxy.name
        return self._proxy if isinstance(self._proxy, Refused) else publication.content(self._proxy)

    def _refuse(self, refused: Refused, entry: Entry) -> None:
        if entry.reason != refused.reason:
            entry.reason = refused.reason
            if refused is self._proxy:
                self._house.observer.unmatched(entry.node.id)
            _LOG.warning("xds: a node gets nothing new", extra=_fields(entry, reason=refused.reason))
        if refused.denied:
            self.end(grpc.StatusCode.PERMISSION_DENIED, refused.reason)

    def _wake(self) -> None:
        """Sends what may be sent now, unless something is being sent: then it comes after that, in its newest form."""
        if self._writing or self._closed:
            return
        response = self._next()
        if response is None:
            self._rest()
        else:
            self._writing = True
            self._start(self._write(response))

    def _next(self) -> Response | None:
        """Noted as sent before it is written: the answer may come before the write has returned."""
        now = self._loop.time()
        response = self._stream.respond(now)
        if response is not None and response.type_url in SHORT and self._offered and self._entry:
            self._unanswered[response.type_url] = _Sent(now, self._offered)
            self._entry.pushed[response.type_url] = self._house.ledger.now()
        return response

    async def _write(self, response: Response | None) -> None:
        try:
            while response is not None and not self._closed:
                data = response.encode()
                if response.type_url in SHORT:
                    self._house.observer.pushed(SHORT[response.type_url], len(response.resources), len(data))
                await self._context.write(data)
                response = self._next()
        except grpc.aio.BaseError:
            return  # the call has ended, and `run` is told the same
        self._writing = False
        if not self._closed:
            self._rest()

    def _rest(self) -> None:
        """Nothing may be sent now; perhaps later, when something that is held has been held for long enough."""
        self._clear_timer()
        due = self._stream.due()
        if due is not None:
            self._timer = self._loop.call_at(max(due, self._loop.time() + _SOONEST), self._wake)
        elif not self._unanswered and self._offered is not None and self._entry is not None:
            self._refused = self._refused and any(item.state == "NACKED" for item in self._stream.status())
            if not self._refused and not self._entry.reason:
                self._house.ledger.good(self._entry)

    def _answered(self, answer: Acked | Nacked, now: float) -> None:
        sent = self._unanswered.pop(answer.type_url, None)
        if sent is None or self._entry is None:
            return
        if isinstance(answer, Nacked):
            self._nacked(answer, sent.publication, self._entry)
        else:
            self._entry.acked[answer.type_url] = self._house.ledger.now()
            self._house.observer.acked(SHORT[answer.type_url], now - sent.at)

    def _nacked(self, answer: Nacked, publication: Publication, entry: Entry) -> None:
        self._refused = True
        words = publication.edition.told(answer.message)[:_LONGEST_WORDS]
        entry.words[answer.type_url] = words
        entry.refused[answer.type_url] = self._house.ledger.now()
        names = answer.names[:_MOST_FINDINGS]
        findings = tuple(publication.edition.place(answer.type_url, name, words) for name in names)
        at = self._house.ledger.now()
        self._house.ledger.nacked(entry, Nack(at, answer.type_url, answer.version, names, words, findings))
        self._house.observer.nacked(SHORT[answer.type_url])
        fields = _fields(entry, type=SHORT[answer.type_url], version=answer.version, names=" ".join(names), words=words)
        _LOG.error("xds: a proxy refused what it was sent", extra=fields)
        for finding in findings:
            _LOG.error("%s", finding)

    def _late(self) -> None:
        self.end(grpc.StatusCode.DEADLINE_EXCEEDED, f"no request within {self._house.patience:g} seconds")

    async def _abort(self, code: grpc.StatusCode, words: str) -> None:
        """In a task of its own; the read that `run` waits for then fails, and ends it."""
        if self._closed:
            return
        try:
            await self._context.abort(code, words)
        except grpc.aio.BaseError:
            return

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _clear_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self) -> None:
        self._closed = True
        self._clear_timer()
        if self._entry is None:
            return
        self._house.ledger.leave(self._entry)
        _LOG.info("xds: %s has left", _who(self._entry), extra=_fields(self._entry, kind=self._service.kind))
        key = (self._entry.node.id, self._service.only)
        if self._house.newest.get(key) is self:
            del self._house.newest[key]
            if last := self._stream.last():
                self._house.remembered.keep(*key, last)


def _peer(context: Context) -> str:
    """`127.0.0.1:43210`, `[::1]:43210`; of a unix socket, its path."""
    return unquote(context.peer().partition(":")[2])


def _who(entry: Entry) -> str:
    return "a reader" if entry.is_reader else "a node"


def _fields(entry: Entry, **more: object) -> dict[str, object]:
    return {"fields": {"node": entry.node.id, "proxy": entry.proxy, "peer": entry.peer, **more}}
