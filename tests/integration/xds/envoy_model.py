"""A model of Envoy as an xDS client: warming, pauses, partial application, both protocol variants.

It checks every response on arrival. A violated rule raises an AssertionError.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from typing import Any

from envoy.service.discovery.v3 import discovery_pb2 as xds

from lbctl.xds.resource import CDS, EDS, LDS, RDS, SDS, TYPES

BAD = 4
"""Content with this number is rejected."""


class Body:
    """Content of a resource: its name, a number, and the names it refers to."""

    def __init__(self, data: bytes) -> None:
        self.name, self.number, uses = json.loads(data)
        self.uses = tuple(uses)

    @staticmethod
    def of(name: str, number: int, uses: Iterable[str] = ()) -> bytes:
        return json.dumps([name, number, sorted(uses)]).encode()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Body) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{self.name}{self.number}{list(self.uses) or ''}"


class Envoy:
    """One Envoy process. `out` are requests that it has written and the server has not read."""

    def __init__(self, *, delta: bool, speaks: bool) -> None:
        self.delta = delta
        self.speaks = speaks  # names rejected resources in error messages
        self.out: deque[bytes] = deque()
        self.have: dict[str, dict[str, Body]] = {kind: {} for kind in TYPES}  # in use
        self.warming: dict[str, Body] = {}  # clusters that wait for their endpoints
        self.versions: dict[str, dict[str, str]] = {kind: {} for kind in TYPES}  # delta: versions of accepted resources
        self.accepted: dict[str, str] = {}  # state of the world: accepted version_info
        self.excused: set[str] = set()  # first route tables of a name: they may refer to clusters that come later
        self.initialised = False  # the first clusters are warm, so listeners come next
        self._fed = False
        self.asked: dict[str, set[str]] = {}  # names of each type that it has subscribed to
        self._partial: dict[str, set[str]] = {kind: set() for kind in TYPES}  # applied parts of rejected responses
        self.connect()

    # ── a stream

    def connect(self) -> None:
        subscribed = () if self.delta else tuple(self.asked)
        self.out.clear()
        self.nonces: dict[str, str] = {}
        self.asked = {}
        self.refused: dict[str, set[Any]] = {kind: set() for kind in TYPES}
        self.late_ack = ""
        self._greeted = False
        self._orphans = set(self.warming)  # the new stream cannot report that they are not warm
        self._want(CDS)
        if self.have[CDS] or self.warming or EDS in subscribed:
            self._want(EDS)
        if self.initialised:
            self._want(LDS)
            self._want(SDS)
        if self.have[LDS] or RDS in subscribed:
            self._want(RDS)

    def _names(self, kind: str) -> set[str]:
        if kind == EDS:
            return {*self.have[CDS], *self.warming}
        if kind == RDS:
            return set(self.have[LDS])
        return {"ca"} if kind == SDS else set()

    def _want(self, kind: str) -> None:
        """Send the first request of a type, or its current names."""
        names = self._names(kind)
        first = kind not in self.asked
        before = self.asked.get(kind, set())
        self.asked[kind] = names
        self.refused[kind] = {each for each in self.refused[kind] if each[0] not in before ^ names}
        for name in before - names:
            self.versions[kind].pop(name, None)
        if not self.delta:
            self._send(kind, nonce=self.nonces.get(kind, ""))
        elif first or names != before:
            versions = self.versions[kind] if first else {}
            self._send(kind, add=names - before, drop=before - names, versions=versions)

    def _send(
        self,
        kind: str,
        *,
        nonce: str = "",
        error: str | None = None,
        add: Iterable[str] = (),
        drop: Iterable[str] = (),
        versions: dict[str, str] | None = None,
    ) -> None:
        message = (xds.DeltaDiscoveryRequest if self.delta else xds.DiscoveryRequest)(
            type_url=kind, response_nonce=nonce
        )
        if self.delta:
            message.resource_names_subscribe.extend(sorted(add))
            message.resource_names_unsubscribe.extend(sorted(drop))
            message.initial_resource_versions.update(versions or {})
        else:
            message.resource_names.extend(sorted(self.asked[kind]))
            message.version_info = self.accepted.get(kind, "")
        if error is not None:
            message.error_detail.code = 13
            message.error_detail.message = error
        if not self._greeted:
            message.node.id = "edge-1"
            self._greeted = True
        self.out.append(message.SerializeToString())

    def ask_again(self, kind: str, name: str) -> None:
        """Subscribe again to a resource that is already subscribed; delta only."""
        if self.delta and name in self.asked.get(kind, ()):
            self.refused[kind] = {each for each in self.refused[kind] if each[0] != name}
            self._send(kind, add=[name])

    # ── a response

    def receive(self, data: bytes) -> None:
        message = (xds.DeltaDiscoveryResponse if self.delta else xds.DiscoveryResponse).FromString(data)
        kind = message.type_url
        assert kind in self.asked, f"{kind} was not requested"
        assert message.nonce not in self.nonces.values()
        bodies = self._read(message)
        removed = list(message.removed_resources) if self.delta else []
        self._is_new(kind, bodies, removed)
        self.nonces[kind] = message.nonce
        faulty = [body for body in bodies if body.number == BAD]
        if kind == CDS and faulty and not self.speaks:  # Envoy names faulty clusters, unless it can read none of them
            self._refuse(kind, bodies, removed, faulty, message.nonce)
            return
        self._apply(kind, [body for body in bodies if body.number != BAD], {body.name for body in bodies}, removed)
        if faulty:
            self._refuse(kind, bodies, removed, faulty, message.nonce)
            return
        self._partial[kind].difference_update([body.name for body in bodies], removed)
        if kind in (CDS, LDS) and not self.delta:
            self._partial[kind].clear()
        if self.delta:
            self.versions[kind].update({each.name: each.version for each in message.resources})
            for name in removed:
                self.versions[kind].pop(name, None)
            version = ""
        else:
            version = message.version_info
        self._accept(kind, message.nonce, version)

    def _read(self, message: Any) -> list[Body]:
        inner = [each.resource for each in message.resources] if self.delta else list(message.resources)
        assert all(each.type_url == message.type_url for each in inner)
        bodies = [Body(each.value) for each in inner]
        names = [body.name for body in bodies] + (list(message.removed_resources) if self.delta else [])
        assert len(names) == len(set(names)), f"duplicates in {names}"
        return bodies

    def _is_new(self, kind: str, bodies: list[Body], removed: list[str]) -> None:
        known = self.refused[kind]
        if kind in (CDS, LDS) and not self.delta:
            assert ("", repr(bodies)) not in known, f"rejected before: {bodies}"
        for body in bodies:
            assert (body.name, repr(body)) not in known, f"rejected before: {body}"
        for name in removed:
            assert (name, "") not in known, f"rejected before: removal of {name}"

    def _refuse(self, kind: str, bodies: list[Body], removed: list[str], faulty: list[Body], nonce: str) -> None:
        if kind != CDS or self.speaks:
            self._partial[kind].update(body.name for body in bodies)
            self._partial[kind].update(removed)
        words = "Error adding/updating: " + ", ".join(f"{body.name}: no" for body in faulty)
        if kind in (CDS, LDS) and not self.delta:
            self.refused[kind].add(("", repr(bodies)))
        elif self.speaks:
            self.refused[kind].update((body.name, repr(body)) for body in faulty)
        else:
            self.refused[kind].update((body.name, repr(body)) for body in bodies)
            self.refused[kind].update((name, "") for name in removed)
        self._send(kind, nonce=nonce, error=words if self.speaks else "malformed")

    def _accept(self, kind: str, nonce: str, version: str) -> None:
        if not self.delta:
            self.accepted[kind] = version
        if kind == CDS and self.warming:
            self.late_ack = nonce
        else:
            self._send(kind, nonce=nonce)

    # ── applying resources

    def _apply(self, kind: str, bodies: list[Body], named: set[str], removed: list[str]) -> None:
        if kind in (CDS, LDS) and not self.delta:
            removed = [name for name in {*self.have[kind], *(self.warming if kind == CDS else ())} if name not in named]
        if kind == CDS:
            self._apply_clusters(bodies, removed)
        elif kind == EDS:
            self._apply_endpoints(bodies, removed)
        else:
            for body in bodies:
                if kind == RDS and body.name not in self.have[LDS]:
                    continue
                if kind == RDS and (body.name not in self.have[RDS] or body.name in self._partial[RDS]):
                    self.excused.add(body.name)
                self.have[kind][body.name] = body
            if kind == LDS:
                self._remove_listeners(removed)
                self._want(RDS)
        self.check()

    def _apply_clusters(self, bodies: list[Body], removed: list[str]) -> None:
        for body in bodies:
            if self.have[CDS].get(body.name) == body:
                self.warming.pop(body.name, None)
            elif self.warming.get(body.name) != body:
                self.warming[body.name] = body
        for name in removed:
            self.have[CDS].pop(name, None)
            self.have[EDS].pop(name, None)
            self.warming.pop(name, None)
        self._fed = True
        self.check()
        self._want(EDS)
        self._warm()

    def _apply_endpoints(self, bodies: list[Body], removed: list[str]) -> None:
        for body in bodies:
            if body.name in self._names(EDS):
                self.have[EDS][body.name] = body
                self._swap(body.name)
        for name in removed:
            self._swap(name)
        self._warm()

    def _swap(self, name: str) -> None:
        if name in self.warming:
            self.have[CDS][name] = self.warming.pop(name)

    def time_out(self) -> None:
        """Simulate initial_fetch_timeout: stop waiting for endpoints that were rejected."""
        for name in self.hopeless:
            self._swap(name)
        self._warm()

    @property
    def has_leftovers(self) -> bool:
        """Whether it has parts of a rejected response, which it cannot report on a new stream."""
        return (
            bool(self.hopeless)
            or any(self._partial.values())
            or (self.delta and any(self.have[kind].keys() - self.versions[kind].keys() for kind in (CDS, LDS)))
        )

    @property
    def hopeless(self) -> list[str]:
        return [name for name in self.warming if any(refused == name for refused, _ in self.refused[EDS])]

    def _warm(self) -> None:
        if self.warming:
            return
        if self.late_ack:
            nonce, self.late_ack = self.late_ack, ""
            self._send(CDS, nonce=nonce)
        if self._fed and not self.initialised:
            self.initialised = True
            self._want(LDS)
            self._want(SDS)

    def _remove_listeners(self, names: Iterable[str]) -> None:
        for name in names:
            self.have[LDS].pop(name, None)
            self.have[RDS].pop(name, None)
            self.excused.discard(name)

    def check(self) -> None:
        """Check that no route refers to a missing or cold cluster, once clusters have been accepted."""
        if not (self.delta or CDS in self.accepted):
            return
        for name, table in self.have[RDS].items():
            missing = set(table.uses) - self.have[CDS].keys() - self._orphans
            if not missing:
                self.excused.discard(name)
            assert not missing or name in self.excused, f"{table} refers to {missing}, existing: {self.have[CDS]}"
