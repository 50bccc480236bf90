"""One type on one stream: what the client subscribes to, what it has accepted, and what to send next.

It implements the rules of xDS within one type, in both variants, without I/O and without a clock. The rules between
types (order, gating, delayed removal) are in `stream`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from lbctl.xds.protocol.budget import ExhaustedError
from lbctl.xds.protocol.events import Acked, Nacked, State, TypeStatus, blamed
from lbctl.xds.protocol.wire import Nonces, Request, Response, content_version, set_version
from lbctl.xds.resource import CDS, LDS, Resource

__all__ = ["Acked", "Nacked", "State", "Subscription", "TypeStatus"]

MOST_NAMES = 100_000
"""The maximal number of names that one stream may subscribe to for one type."""

MOST_REFUSED = 16
"""The number of rejected versions of one resource that are remembered."""

MOST_BYTES = 3 << 20
"""The approximate maximal size of a divisible response: clients other than Envoy accept 4 MiB by default."""

_SETS = (CDS, LDS)  # with a wildcard from the start, and sent whole in the state of the world
_SET = ""  # as whose content a whole set is refused
_ABSENT = ""  # the version of a resource that is removed


class Subscription:
    """The subscription to one type. `content` in its methods is all resources of the type, in the order of names."""

    def __init__(self, type_url: str, nonces: Nonces, *, delta: bool) -> None:
        self.type_url = type_url
        self.wildcard = False
        self.names: set[str] = set()
        self.accepted: dict[str, Resource] = {}
        self.initial_versions: dict[str, str] = {}  # what a delta client has from an earlier stream: name → version
        self.waiting: Response | None = None  # sent, not answered
        self.acked_once = False  # something has been accepted
        self.rejected: dict[str, str] = {}  # the newest content of these is rejected: name → message
        self._delta = delta
        self._nonces = nonces
        self._whole = not delta and type_url in _SETS
        self._claim = ""  # the version that a client of the state of the world has from an earlier stream
        self._known = False  # has been asked for on this stream
        self._named = False  # … by names: an empty list means nothing since
        self._greet = False  # a new wildcard is answered even if there is nothing
        self._dirty: set[str] = set()  # to be compared with what is accepted
        self._must_send: set[str] = set()  # to be sent though it be accepted
        self._unsure: dict[str, Resource | None] = {}  # refused with others: the client may have taken it
        self._refused: dict[str, dict[str, tuple[tuple[str, ...], str]]] = {}  # name → version → names, message

    # ── what the client says

    def request(self, request: Request, content: Mapping[str, Resource]) -> Acked | Nacked | None:
        """Process a request: an answer to the outstanding response, a changed subscription, or both.

        Raises `StreamError`.
        """
        event = self._answer(request)
        if self._delta:
            self._rename_delta(request, content)
        else:
            self._rename_sotw(request, content)
        self._known = True
        if len(self.names) + len(self.initial_versions) > MOST_NAMES:
            raise ExhaustedError(f"more than {MOST_NAMES} names of {self.type_url}")
        return event

    def _answer(self, request: Request) -> Acked | Nacked | None:
        response = self.waiting
        if response is None or request.nonce != response.nonce:
            return None
        self.waiting = None
        self._claim = ""
        if request.error is not None:
            return self._nack(response, request.error)
        if not self._delta and self._named and not request.names and request.version != response.version:
            return None  # thrown away: it came when the type was no longer watched
        return self._ack(response)

    def _ack(self, response: Response) -> Acked:
        self.acked_once = True
        if self._whole:
            self.accepted.clear()
            self._unsure.clear()
        for resource in response.resources:
            self._forget(resource.name)
            if self.covers(resource.name):
                self.accepted[resource.name] = resource
        for name in response.removed:
            self._forget(name)
        names = (*(resource.name for resource in response.resources), *response.removed)
        return Acked(self.type_url, response.nonce, response.version, names)

    def _nack(self, response: Response, message: str) -> Nacked:
        sent: dict[str, Resource | None] = dict.fromkeys(self.accepted if self._whole else response.removed)
        sent |= {resource.name: resource for resource in response.resources}
        names = blamed((*(resource.name for resource in response.resources), *response.removed), message)
        if self._whole:
            self._refuse(_SET, response.version, names, message)
            sent = {name: each for name, each in sent.items() if not (each and self._has(each))}
        else:
            for name in names:
                resource = sent[name]
                self._refuse(name, resource.version if resource else _ABSENT, (name,), message)
        sent = {name: each for name, each in sent.items() if self.covers(name)}
        self._unsure |= sent
        self._dirty |= sent.keys()
        return Nacked(self.type_url, response.nonce, response.version, names, message)

    def _refuse(self, name: str, version: str, names: tuple[str, ...], message: str) -> None:
        versions = self._refused.setdefault(name, {})
        versions[version] = (names, message)
        if len(versions) > MOST_REFUSED:
            del versions[next(iter(versions))]

    def _has(self, resource: Resource) -> bool:
        good = self.accepted.get(resource.name)
        return good is not None and good.version == resource.version

    # ── what the client asks for

    def covers(self, name: str) -> bool:
        """Return whether the client subscribes to this name."""
        return self.wildcard or name in self.names

    def _rename_sotw(self, request: Request, content: Mapping[str, Resource]) -> None:
        if not self._known:
            self._claim = request.version
        elif not request.nonce and request.error is None and self.waiting is None and self.acked_once:
            self._begin_anew()
        names = set(request.names)
        self._named = self._named or bool(names)
        wildcard = "*" in names or (not self._named and self.type_url in _SETS)
        names.discard("*")
        gone, added = self.names - names, names - self.names
        self.names = names
        self._set_wildcard(wildcard, content)
        self._drop(gone)
        self._add(added)

    def _begin_anew(self) -> None:
        """Reset the subscription: a client that sent a nonce before and sends none now has lost its state."""
        self.acked_once = self._named = self.wildcard = False
        self.names = set()
        self.accepted.clear()
        self.rejected.clear()
        self._refused.clear()
        self._unsure.clear()

    def _rename_delta(self, request: Request, content: Mapping[str, Resource]) -> None:
        added, removed = set(request.names), set(request.removed)
        wildcard = self.wildcard and "*" not in removed
        if not self._known:
            self.initial_versions = dict(request.versions)
            wildcard = not added and self.type_url in _SETS
        wildcard = wildcard or "*" in added
        added.discard("*")
        if self._known and wildcard == self.wildcard and not (added or removed):
            return
        gone = (removed & self.names) - added
        self.names = (self.names - gone) | added
        self._set_wildcard(wildcard, content)
        self._drop(gone)
        self._add(added)
        self._must_send |= gone if wildcard else set()
        if not wildcard:
            self.initial_versions = {
                name: self.initial_versions[name] for name in self.initial_versions.keys() & self.names
            }

    def _set_wildcard(self, wildcard: bool, content: Mapping[str, Resource]) -> None:
        had, self.wildcard = self.wildcard, wildcard
        if wildcard and not had:
            self._greet = not self.initial_versions
            self._dirty |= content.keys() | self.initial_versions.keys()
        elif had and not wildcard:
            self._greet = False
            self._drop(
                (self.accepted.keys() | self.initial_versions.keys() | self._unsure.keys() | self._dirty) - self.names
            )

    def _add(self, names: Collection[str]) -> None:
        """Send names that are subscribed to anew, even if they were rejected or accepted before."""
        self._must_send.update(names)
        for name in names:
            self._pardon(name)

    def _drop(self, names: Iterable[str]) -> None:
        for name in names:
            self._must_send.discard(name)
            if not self.wildcard:
                self._dirty.discard(name)
                self._forget(name)
                self._pardon(name)

    def _pardon(self, name: str) -> None:
        self.rejected.pop(name, None)
        self._refused.pop(name, None)

    def _forget(self, name: str) -> None:
        self.accepted.pop(name, None)
        self.initial_versions.pop(name, None)
        self._unsure.pop(name, None)

    # ── what there is for it

    def touch(self, names: Collection[str]) -> None:
        """Mark these names as new, changed or removed."""
        self._dirty.update(names if self.wildcard else self.names.intersection(names))

    def force(self, name: str) -> None:
        """Send this resource again even if it is accepted, provided that the client subscribes to it."""
        if self.covers(name):
            self._must_send.add(name)

    def again(self) -> int:
        """Forget what was rejected, so that it is sent once more, and return the number of resources."""
        rejected = tuple(self.rejected)
        if self._refused:
            self._dirty.update(rejected, self._unsure)
        self.rejected.clear()
        self._refused.clear()
        return len(rejected)

    def owes(self, name: str) -> bool:
        """Return whether a later response must contain this name."""
        return name in self._must_send

    def lacks(self, resource: Resource) -> bool:
        """Return whether the client is not known to have accepted this very content."""
        return resource.name in self._unsure or not self._has(resource)

    def given(self, name: str) -> Resource | None:
        """Return what the client has under this name, is about to have, or may have."""
        sent = {resource.name: resource for resource in self.waiting.resources} if self.waiting else {}
        return sent.get(name) or self.accepted.get(name) or self._unsure.get(name)

    @property
    def _wants(self) -> bool:
        return self.wildcard or bool(self.names)

    def is_settled(self, held: Collection[str]) -> bool:
        """Return whether all content has been accepted; a rejected resource that is held for removal does not count."""
        return self._is_idle and self.rejected.keys() <= set(held)

    @property
    def _is_idle(self) -> bool:
        return self.waiting is None and not (self._dirty or self._must_send or self._greet)

    @property
    def is_due(self) -> bool:
        """Return whether there may be something to send now."""
        return self.waiting is None and bool(self._dirty or self._must_send or self._greet)

    def next(self, content: Mapping[str, Resource], held: Collection[str], *, gated: bool) -> Response | None:
        """Return the next response, which counts as sent, or None. Call it only if `is_due`.

        `held`: names whose removal is postponed. `gated`: what the client has of this type must not change for now.
        """
        self.waiting = self._next_set(content, gated) if self._whole else self._next_some(content, held, gated)
        return self.waiting

    def _next_set(self, content: Mapping[str, Resource], gated: bool) -> Response | None:
        view = self._view(content)
        version = set_version(view)
        if version == self._claim and self.wildcard and not self.names:
            self._accept_claim(view)
            return None
        if gated and (self.accepted or self._claim):
            return None
        refusal = self._refused.get(_SET, {}).get(version)
        self.rejected = dict.fromkeys(*refusal) if refusal else {}
        wanted = self._greet or self._unsure or any(name in content for name in self._must_send)
        wanted = wanted or any(self._moved(name, content) for name in self._dirty)
        self._greet = False
        self._dirty.clear()
        self._must_send.clear()
        if refusal or not wanted:
            return None
        return Response(self.type_url, self._nonces, view, version=version, delta=False)

    def _accept_claim(self, view: tuple[Resource, ...]) -> None:
        self._claim = ""
        self._greet = False
        self.acked_once = True
        self._dirty.clear()
        self.accepted = {resource.name: resource for resource in view}

    def _moved(self, name: str, content: Mapping[str, Resource]) -> bool:
        target = content.get(name) if self.covers(name) else None
        return name in self.accepted if target is None else self.lacks(target)

    def _next_some(self, content: Mapping[str, Resource], held: Collection[str], gated: bool) -> Response | None:
        must_send, dirty, greet = self._must_send, self._dirty, self._greet
        self._must_send, self._dirty, self._greet = set(), set(), False
        resources: list[Resource] = []
        removed: list[str] = []
        size = 0
        for name in sorted(must_send | dirty):
            target = content.get(name)
            if target is None:
                if self._is_to_go(name, held, must_send=name in must_send, gated=gated):
                    removed.append(name)
            elif resources and size + len(target.body) > MOST_BYTES and self.type_url not in _SETS:
                self._postpone(name, must_send=name in must_send)
            elif resource := self._choose(target, must_send=name in must_send, gated=gated):
                resources.append(resource)
                size += len(resource.body)
        if not (resources or removed or greet):
            return None
        version = set_version(self._view(content)) if self.type_url in _SETS else ""
        return Response(
            self.type_url, self._nonces, tuple(resources), tuple(removed), version=version, delta=self._delta
        )

    def _postpone(self, name: str, *, must_send: bool) -> None:
        (self._must_send if must_send else self._dirty).add(name)

    def _is_to_go(self, name: str, held: Collection[str], *, must_send: bool, gated: bool) -> bool:
        self.rejected.pop(name, None)
        if not self._delta:
            self._forget(name)
            return False
        if must_send:
            return True
        if name in held or not (name in self.accepted or name in self.initial_versions or name in self._unsure):
            return False
        if gated:
            self._postpone(name, must_send=False)
            return False
        refusal = self._refused.get(name, {}).get(_ABSENT)
        if refusal:
            self.rejected[name] = refusal[1]
        return refusal is None

    def _choose(self, target: Resource, *, must_send: bool, gated: bool) -> Resource | None:
        """Return the content to send, the last accepted content if that must not be sent, or None."""
        name = target.name
        if not must_send and name not in self._unsure and self.initial_versions.get(name) == target.version:
            self.acked_once = True
            self.accepted[name] = target
            del self.initial_versions[name]
        good = self.accepted.get(name)
        refused = self._refused.get(name, {})
        self.rejected.pop(name, None)
        if target.version in refused:
            self.rejected[name] = refused[target.version][1]
        elif gated and (good or self._claim or name in self.initial_versions):
            self._postpone(name, must_send=must_send and good is None)
        else:
            return target if must_send or self.lacks(target) else None
        return good if must_send and good and good.version not in refused else None

    # ── how far it is

    def _view(self, content: Mapping[str, Resource]) -> tuple[Resource, ...]:
        if self.wildcard:
            return tuple(content.values())
        return tuple(content[name] for name in sorted(self.names) if name in content)

    def status(self, content: Mapping[str, Resource] | None) -> TypeStatus:
        """Return the status of the type; `content` is None before the first offer."""
        view = self._view(content or {})
        accepted = tuple(self.accepted[name] for name in sorted(self.accepted))
        return TypeStatus(
            type_url=self.type_url,
            wildcard=self.wildcard,
            names=tuple(sorted(self.names)),
            count=len(self.names),
            state="WAITING" if content is None else self._state(view),
            acked_version=content_version(accepted) if self.acked_once or not self._wants else "",
            offered_version=content_version(view) if content is not None else "",
            message=next(iter(self.rejected.values()), ""),
            nacked=tuple(sorted(self.rejected)),
        )

    def _state(self, view: tuple[Resource, ...]) -> State:
        if self.rejected:
            return "NACKED"
        if not self._is_idle:
            return "STALE"
        return "WAITING" if self._wants and not (view or self.acked_once) else "SYNCED"
