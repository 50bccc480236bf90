"""One type on one stream: what the client has asked for, what it has accepted, and what it is to be sent next.

The rules of xDS that concern one type alone, in both variants, without I/O and without a clock. What one type has to do
with another (order, what waits, what is removed last) is not known here: see `stream`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from lbctl.xds.events import Acked, Nacked, State, TypeStatus, blamed
from lbctl.xds.resource import CDS, LDS, Resource
from lbctl.xds.wire import Nonces, Request, Response, StreamError, content_version, set_version

__all__ = ["Acked", "Nacked", "State", "Subscription", "TypeStatus"]

MOST_NAMES = 100_000
"""That one stream may name of one type."""

MOST_REFUSED = 16
"""Refused contents of one resource that are remembered."""

MOST_BYTES = 3 << 20
"""In one response that may be divided, about: clients other than Envoy take 4 MiB by default."""

_SETS = (CDS, LDS)  # with a wildcard from the start, and sent whole in the state of the world
_SET = ""  # as whose content a whole set is refused
_ABSENT = ""  # the version of a resource that is removed


class Subscription:
    """`content`, wherever it is asked for: all that there is of the type, in the order of names."""

    def __init__(self, type_url: str, nonces: Nonces, *, delta: bool) -> None:
        self.type_url = type_url
        self.wildcard = False
        self.names: set[str] = set()
        self.accepted: dict[str, Resource] = {}
        self.claimed: dict[str, str] = {}  # what a delta client has from an earlier stream: name → version
        self.waiting: Response | None = None  # sent, not answered
        self.heard = False  # something has been accepted
        self.stuck: dict[str, str] = {}  # the newest content of these is refused: name → words
        self._delta = delta
        self._nonces = nonces
        self._whole = not delta and type_url in _SETS
        self._claim = ""  # the version that a client of the state of the world has from an earlier stream
        self._known = False  # has been asked for on this stream
        self._named = False  # … by names: an empty list means nothing since
        self._greet = False  # a new wildcard is answered even if there is nothing
        self._dirty: set[str] = set()  # to be compared with what is accepted
        self._owed: set[str] = set()  # to be sent though it be accepted
        self._unsure: dict[str, Resource | None] = {}  # refused with others: the client may have taken it
        self._refused: dict[str, dict[str, tuple[tuple[str, ...], str]]] = {}  # name → version → names, words

    # ── what the client says

    def request(self, request: Request, content: Mapping[str, Resource]) -> Acked | Nacked | None:
        """An answer to the response that waits, a change of what is asked for, or both. Raises `StreamError`."""
        event = self._answer(request)
        if self._delta:
            self._rename_delta(request, content)
        else:
            self._rename_sotw(request, content)
        self._known = True
        if len(self.names) > MOST_NAMES:
            raise StreamError(f"more than {MOST_NAMES} names of {self.type_url}")
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
        self.heard = True
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

    def _nack(self, response: Response, words: str) -> Nacked:
        told: dict[str, Resource | None] = dict.fromkeys(self.accepted if self._whole else response.removed)
        told |= {resource.name: resource for resource in response.resources}
        names = blamed((*(resource.name for resource in response.resources), *response.removed), words)
        if self._whole:
            self._refuse(_SET, response.version, names, words)
            told = {name: each for name, each in told.items() if not (each and self._has(each))}
        else:
            for name in names:
                resource = told[name]
                self._refuse(name, resource.version if resource else _ABSENT, (name,), words)
        told = {name: each for name, each in told.items() if self.covers(name)}
        self._unsure |= told
        self._dirty |= told.keys()
        return Nacked(self.type_url, response.nonce, response.version, names, words)

    def _refuse(self, name: str, version: str, names: tuple[str, ...], words: str) -> None:
        versions = self._refused.setdefault(name, {})
        versions[version] = (names, words)
        if len(versions) > MOST_REFUSED:
            del versions[next(iter(versions))]

    def _has(self, resource: Resource) -> bool:
        good = self.accepted.get(resource.name)
        return good is not None and good.version == resource.version

    # ── what the client asks for

    def covers(self, name: str) -> bool:
        """Whether it is asked for."""
        return self.wildcard or name in self.names

    def _rename_sotw(self, request: Request, content: Mapping[str, Resource]) -> None:
        if not self._known:
            self._claim = request.version
        elif not request.nonce and request.error is None and self.waiting is None and self.heard:
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
        """A client that has known a nonce, and now knows none, has lost all."""
        self.heard = self._named = self.wildcard = False
        self.names = set()
        self.accepted.clear()
        self.stuck.clear()
        self._refused.clear()
        self._unsure.clear()

    def _rename_delta(self, request: Request, content: Mapping[str, Resource]) -> None:
        added, removed = set(request.names), set(request.removed)
        wildcard = self.wildcard and "*" not in removed
        if not self._known:
            self.claimed = dict(request.versions)
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
        self._owed |= gone if wildcard else set()
        if not wildcard:
            self.claimed = {name: self.claimed[name] for name in self.claimed.keys() & self.names}

    def _set_wildcard(self, wildcard: bool, content: Mapping[str, Resource]) -> None:
        had, self.wildcard = self.wildcard, wildcard
        if wildcard and not had:
            self._greet = not self.claimed
            self._dirty |= content.keys() | self.claimed.keys()
        elif had and not wildcard:
            self._greet = False
            self._drop((self.accepted.keys() | self.claimed.keys() | self._unsure.keys() | self._dirty) - self.names)

    def _add(self, names: Collection[str]) -> None:
        """What is asked for anew is sent anew, even what was refused."""
        self._owed.update(names)
        for name in names:
            self._pardon(name)

    def _drop(self, names: Iterable[str]) -> None:
        for name in names:
            self._owed.discard(name)
            if not self.wildcard:
                self._dirty.discard(name)
                self._forget(name)
                self._pardon(name)

    def _pardon(self, name: str) -> None:
        self.stuck.pop(name, None)
        self._refused.pop(name, None)

    def _forget(self, name: str) -> None:
        self.accepted.pop(name, None)
        self.claimed.pop(name, None)
        self._unsure.pop(name, None)

    # ── what there is for it

    def touch(self, names: Collection[str]) -> None:
        """The content of these is new, another, or gone."""
        self._dirty.update(names if self.wildcard else self.names.intersection(names))

    def force(self, name: str) -> None:
        """This is sent once more, if it is asked for, though it be accepted."""
        if self.covers(name):
            self._owed.add(name)

    def again(self) -> int:
        """Forgets what was refused, so that it is sent once more. How many resources that are: what the client was to
        get and did not."""
        stuck = tuple(self.stuck)
        if self._refused:
            self._dirty.update(stuck, self._unsure)
        self.stuck.clear()
        self._refused.clear()
        return len(stuck)

    def owes(self, name: str) -> bool:
        """Whether a response that is still to come will have it."""
        return name in self._owed

    def lacks(self, resource: Resource) -> bool:
        """Whether this very content is not known to be accepted."""
        return resource.name in self._unsure or not self._has(resource)

    def given(self, name: str) -> Resource | None:
        """What the client has under this name, or is about to have, or may have."""
        sent = {resource.name: resource for resource in self.waiting.resources} if self.waiting else {}
        return sent.get(name) or self.accepted.get(name) or self._unsure.get(name)

    @property
    def _wants(self) -> bool:
        return self.wildcard or bool(self.names)

    def is_settled(self, held: Collection[str]) -> bool:
        """All that there is has been accepted. That something was refused which is to be removed does not count."""
        return self._is_idle and self.stuck.keys() <= set(held)

    @property
    def _is_idle(self) -> bool:
        return self.waiting is None and not (self._dirty or self._owed or self._greet)

    @property
    def is_due(self) -> bool:
        """Whether there may be something to be sent now."""
        return self.waiting is None and bool(self._dirty or self._owed or self._greet)

    def next(self, content: Mapping[str, Resource], held: Collection[str], *, gated: bool) -> Response | None:
        """What is to be sent now, where there may be something (`is_due`); it counts as sent. `held`: those whose
        removal is not due yet. `gated`: what the client has of this type is not to be changed for now."""
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
        self.stuck = dict.fromkeys(*refusal) if refusal else {}
        wanted = self._greet or self._unsure or any(name in content for name in self._owed)
        wanted = wanted or any(self._moved(name, content) for name in self._dirty)
        self._greet = False
        self._dirty.clear()
        self._owed.clear()
        if refusal or not wanted:
            return None
        return Response(self.type_url, self._nonces, view, version=version, delta=False)

    def _accept_claim(self, view: tuple[Resource, ...]) -> None:
        self._claim = ""
        self._greet = False
        self.heard = True
        self._dirty.clear()
        self.accepted = {resource.name: resource for resource in view}

    def _moved(self, name: str, content: Mapping[str, Resource]) -> bool:
        target = content.get(name) if self.covers(name) else None
        return name in self.accepted if target is None else self.lacks(target)

    def _next_some(self, content: Mapping[str, Resource], held: Collection[str], gated: bool) -> Response | None:
        owed, dirty, greet = self._owed, self._dirty, self._greet
        self._owed, self._dirty, self._greet = set(), set(), False
        resources: list[Resource] = []
        removed: list[str] = []
        size = 0
        for name in sorted(owed | dirty):
            target = content.get(name)
            if target is None:
                if self._is_to_go(name, held, owed=name in owed, gated=gated):
                    removed.append(name)
            elif resources and size + len(target.body) > MOST_BYTES and self.type_url not in _SETS:
                self._postpone(name, owed=name in owed)
            elif resource := self._choose(target, owed=name in owed, gated=gated):
                resources.append(resource)
                size += len(resource.body)
        if not (resources or removed or greet):
            return None
        version = set_version(self._view(content)) if self.type_url in _SETS else ""
        return Response(
            self.type_url, self._nonces, tuple(resources), tuple(removed), version=version, delta=self._delta
        )

    def _postpone(self, name: str, *, owed: bool) -> None:
        (self._owed if owed else self._dirty).add(name)

    def _is_to_go(self, name: str, held: Collection[str], *, owed: bool, gated: bool) -> bool:
        self.stuck.pop(name, None)
        if not self._delta:
            self._forget(name)
            return False
        if owed:
            return True
        if name in held or not (name in self.accepted or name in self.claimed or name in self._unsure):
            return False
        if gated:
            self._postpone(name, owed=False)
            return False
        refusal = self._refused.get(name, {}).get(_ABSENT)
        if refusal:
            self.stuck[name] = refusal[1]
        return refusal is None

    def _choose(self, target: Resource, *, owed: bool, gated: bool) -> Resource | None:
        """What to send of a resource: its content, what was good if that content must not go out, or nothing."""
        name = target.name
        if not owed and name not in self._unsure and self.claimed.get(name) == target.version:
            self.heard = True
            self.accepted[name] = target
            del self.claimed[name]
        good = self.accepted.get(name)
        refused = self._refused.get(name, {})
        self.stuck.pop(name, None)
        if target.version in refused:
            self.stuck[name] = refused[target.version][1]
        elif gated and (good or self._claim or name in self.claimed):
            self._postpone(name, owed=owed and good is None)
        else:
            return target if owed or self.lacks(target) else None
        return good if owed and good and good.version not in refused else None

    # ── how far it is

    def _view(self, content: Mapping[str, Resource]) -> tuple[Resource, ...]:
        if self.wildcard:
            return tuple(content.values())
        return tuple(content[name] for name in sorted(self.names) if name in content)

    def status(self, content: Mapping[str, Resource] | None) -> TypeStatus:
        """`content` is None as long as there is none for anybody."""
        view = self._view(content or {})
        accepted = tuple(self.accepted[name] for name in sorted(self.accepted))
        return TypeStatus(
            type_url=self.type_url,
            wildcard=self.wildcard,
            names=tuple(sorted(self.names)),
            state="WAITING" if content is None else self._state(view),
            acked_version=content_version(accepted) if self.heard or not self._wants else "",
            offered_version=content_version(view) if content is not None else "",
            message=next(iter(self.stuck.values()), ""),
            nacked=tuple(sorted(self.stuck)),
        )

    def _state(self, view: tuple[Resource, ...]) -> State:
        if self.stuck:
            return "NACKED"
        if not self._is_idle:
            return "STALE"
        return "WAITING" if self._wants and not (view or self.heard) else "SYNCED"
