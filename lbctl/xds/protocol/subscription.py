"""One type on one stream: the client's subscription, its accepted content, and the next response.

The object implements the rules of xDS within one type, in both variants, without I/O and without a clock. The rules
between types (order, gating, delayed removal) are in `stream`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from lbctl.xds.protocol.budget import ExhaustedError
from lbctl.xds.protocol.events import Acked, Nacked, State, TypeStatus, blamed, mentioned
from lbctl.xds.protocol.rejections import RejectedVersions, Rejection
from lbctl.xds.protocol.wire import Nonces, Response, XdsRequest, content_version, set_version
from lbctl.xds.resource import CDS, LDS, Resource

__all__ = ["Acked", "Nacked", "State", "Subscription", "TypeStatus"]

MAX_NAMES = 100_000
"""Maximum number of names in one stream's subscription to a type."""

MAX_BYTES = 3 << 20
"""Approximate maximum size of a divisible response: clients other than Envoy accept 4 MiB by default."""

_WILDCARD_TYPES = (CDS, LDS)
"""Types that start with a wildcard subscription, and are sent as a whole in the state-of-the-world variant."""
_WHOLE_SET = ""
"""Name under which the rejection of a whole set is recorded."""
_ABSENT = ""
"""Version of a removed resource."""


class Subscription:
    """The subscription to one type.

    In the methods, `content` is all resources of the type, ordered by name.
    """

    def __init__(self, type_url: str, nonces: Nonces, *, delta: bool) -> None:
        self.type_url = type_url
        self.wildcard = False
        self.names: set[str] = set()
        self.accepted: dict[str, Resource] = {}
        self.initial_versions: dict[str, str] = {}  # name → version that a delta client has from an earlier stream
        self.waiting: Response | None = None  # the response that was sent but not yet answered
        self.acked_once = False  # whether the client has accepted any response
        self.rejected: dict[str, str] = {}  # name → message, if the newest content is rejected
        self._delta = delta
        self._nonces = nonces
        self._is_whole_set = not delta and type_url in _WILDCARD_TYPES
        self._claimed_version = ""  # the version that a state-of-the-world client has from an earlier stream
        self._subscribed = False  # whether the client has sent a request.
        self._has_named = False  # whether it named resources; if so, an empty list is not a wildcard.
        self._answer_wildcard = False  # whether to answer a new wildcard even without resources
        self._dirty: set[str] = set()  # names to compare with the accepted content
        self._must_send: set[str] = set()  # names to send even if they have been accepted
        self._uncertain: dict[str, Resource | None] = {}  # rejected with others: the client may have accepted it
        self._rejected_versions = RejectedVersions()

    # ── Requests

    def request(self, request: XdsRequest, content: Mapping[str, Resource]) -> Acked | Nacked | None:
        """Process a request: an answer to the outstanding response, a changed subscription, or both.

        Raises `StreamError`.
        """
        event = self._process_answer(request)
        if self._delta:
            self._rename_delta(request, content)
        else:
            self._rename_sotw(request, content)
        self._subscribed = True
        if len(self.names) + len(self.initial_versions) > MAX_NAMES:
            raise ExhaustedError(f"more than {MAX_NAMES} names of {self.type_url}")
        return event

    def _process_answer(self, request: XdsRequest) -> Acked | Nacked | None:
        response = self.waiting
        if response is None or request.nonce != response.nonce:
            return None
        self.waiting = None
        self._claimed_version = ""
        if request.error is not None:
            return self._nack(response, request.error)
        if not self._delta and self._has_named and not request.names and request.version != response.version:
            return None  # the client discarded it, because it arrived after the type was unsubscribed
        return self._ack(response)

    def _ack(self, response: Response) -> Acked:
        self.acked_once = True
        if self._is_whole_set:
            self.accepted.clear()
            self._uncertain.clear()
        for resource in response.resources:
            self._forget(resource.name)
            if self.covers(resource.name):
                self.accepted[resource.name] = resource
        for name in response.removed:
            self._forget(name)
        names = (*(resource.name for resource in response.resources), *response.removed)
        return Acked(self.type_url, response.nonce, response.version, names)

    def _nack(self, response: Response, message: str) -> Nacked:
        sent: dict[str, Resource | None] = dict.fromkeys(self.accepted if self._is_whole_set else response.removed)
        sent |= {resource.name: resource for resource in response.resources}
        names = blamed((*(resource.name for resource in response.resources), *response.removed), message)
        if self._is_whole_set:
            self._rejected_versions.record(_WHOLE_SET, response.version, Rejection(names, message))
            sent = {name: each for name, each in sent.items() if not (each and self._has(each))}
        else:
            for name in names:
                resource = sent[name]
                version = resource.version if resource else _ABSENT
                self._rejected_versions.record(name, version, Rejection((name,), message))
        # Blamed content was not applied: the client keeps its possible earlier content.
        sent |= {name: self._uncertain.get(name) for name in mentioned(sent, message)}
        sent = {name: each for name, each in sent.items() if self.covers(name)}
        self._uncertain |= sent
        self._dirty |= sent.keys()
        return Nacked(self.type_url, response.nonce, response.version, names, message)

    def _has(self, resource: Resource) -> bool:
        accepted = self.accepted.get(resource.name)
        return accepted is not None and accepted.version == resource.version

    # ── Subscriptions

    def covers(self, name: str) -> bool:
        """Return whether the client subscribes to this name."""
        return self.wildcard or name in self.names

    def _rename_sotw(self, request: XdsRequest, content: Mapping[str, Resource]) -> None:
        if not self._subscribed:
            self._claimed_version = request.version
        elif not request.nonce and request.error is None and self.waiting is None and self.acked_once:
            self._reset()
        names = set(request.names)
        self._has_named = self._has_named or bool(names)
        wildcard = "*" in names or (not self._has_named and self.type_url in _WILDCARD_TYPES)
        names.discard("*")
        dropped, added = self.names - names, names - self.names
        self.names = names
        self._set_wildcard(wildcard, content)
        self._drop(dropped)
        self._add(added)

    def _reset(self) -> None:
        """Reset the subscription: a client that sent a nonce before and sends none now has lost its state."""
        self.acked_once = self._has_named = self.wildcard = False
        self.names = set()
        self.accepted.clear()
        self.rejected.clear()
        self._rejected_versions.clear()
        self._uncertain.clear()

    def _rename_delta(self, request: XdsRequest, content: Mapping[str, Resource]) -> None:
        added, removed = set(request.names), set(request.removed)
        wildcard = self.wildcard and "*" not in removed
        if not self._subscribed:
            self.initial_versions = dict(request.versions)
            wildcard = not added and self.type_url in _WILDCARD_TYPES
        wildcard = wildcard or "*" in added
        added.discard("*")
        if self._subscribed and wildcard == self.wildcard and not (added or removed):
            return
        dropped = (removed & self.names) - added
        self.names = (self.names - dropped) | added
        self._set_wildcard(wildcard, content)
        self._drop(dropped)
        claimed = added & self.initial_versions.keys() if not self._subscribed else set()
        self._dirty |= claimed
        self._add(added - claimed)
        self._must_send |= dropped if wildcard else set()
        if not wildcard:
            self.initial_versions = {
                name: self.initial_versions[name] for name in self.initial_versions.keys() & self.names
            }

    def _set_wildcard(self, wildcard: bool, content: Mapping[str, Resource]) -> None:
        was_wildcard, self.wildcard = self.wildcard, wildcard
        if wildcard and not was_wildcard:
            self._answer_wildcard = not self.initial_versions
            self._dirty |= content.keys() | self.initial_versions.keys()
        elif was_wildcard and not wildcard:
            self._answer_wildcard = False
            self._drop(
                (self.accepted.keys() | self.initial_versions.keys() | self._uncertain.keys() | self._dirty)
                - self.names
            )

    def _add(self, names: Collection[str]) -> None:
        """Send newly subscribed names, even if they were rejected or accepted before."""
        self._must_send.update(names)
        for name in names:
            self._forget_rejection(name)

    def _drop(self, names: Iterable[str]) -> None:
        for name in names:
            self._must_send.discard(name)
            if not self.wildcard:
                self._dirty.discard(name)
                self._forget(name)
                self._forget_rejection(name)

    def _forget_rejection(self, name: str) -> None:
        self.rejected.pop(name, None)
        self._rejected_versions.forget(name)

    def _forget(self, name: str) -> None:
        self.accepted.pop(name, None)
        self.initial_versions.pop(name, None)
        self._uncertain.pop(name, None)

    # ── Responses

    def touch(self, names: Collection[str]) -> None:
        """Mark these names as new, changed or removed."""
        self._dirty.update(names if self.wildcard else self.names.intersection(names))

    def force(self, name: str) -> None:
        """Send this resource again even if it is accepted, provided that the client subscribes to it."""
        if self.covers(name):
            self._must_send.add(name)
            self.initial_versions.pop(name, None)
            self._claimed_version = ""

    def retry_rejected(self) -> int:
        """Forget the rejections, so that the resources are sent once more, and return their number."""
        rejected = tuple(self.rejected)
        if self._rejected_versions:
            self._dirty.update(rejected, self._uncertain)
        self.rejected.clear()
        self._rejected_versions.clear()
        return len(rejected)

    def must_contain(self, name: str) -> bool:
        """Return whether a future response must contain this name."""
        return name in self._must_send

    def lacks(self, resource: Resource) -> bool:
        """Return True unless the client has certainly accepted exactly this content."""
        return resource.name in self._uncertain or not self._has(resource)

    def held_by_client(self, name: str) -> Resource | None:
        """Return the resource that the client has, will soon have or may have under this name."""
        sent = {resource.name: resource for resource in self.waiting.resources} if self.waiting else {}
        return sent.get(name) or self.accepted.get(name) or self._uncertain.get(name)

    @property
    def _wants(self) -> bool:
        return self.wildcard or bool(self.names)

    def is_settled(self, held: Collection[str]) -> bool:
        """Return whether all content has been accepted; a rejected resource that is held for removal does not count."""
        return self._is_idle and self.rejected.keys() <= set(held)

    @property
    def _is_idle(self) -> bool:
        return self.waiting is None and not (self._dirty or self._must_send or self._answer_wildcard)

    @property
    def is_due(self) -> bool:
        """Return whether there may be something to send now."""
        return self.waiting is None and bool(self._dirty or self._must_send or self._answer_wildcard)

    def next(self, content: Mapping[str, Resource], held: Collection[str], *, gated: bool) -> Response | None:
        """Return the next response and count it as sent, or return None if there is none. Call it only if `is_due`.

        `held`: names whose removal is postponed. `gated`: whether the client keeps its content of this type, because
        resources of another type must be acknowledged first.
        """
        self.waiting = (
            self._next_whole_set(content, gated) if self._is_whole_set else self._next_partial(content, held, gated)
        )
        return self.waiting

    def _next_whole_set(self, content: Mapping[str, Resource], gated: bool) -> Response | None:
        view = self._view(content)
        version = set_version(view)
        if version == self._claimed_version and self.wildcard and not self.names:
            self._accept_claim(view)
            return None
        if gated and (self.accepted or self._claimed_version):
            return None
        rejection = self._rejected_versions.get(_WHOLE_SET, version)
        self.rejected = dict.fromkeys(*rejection) if rejection else {}
        wanted = self._answer_wildcard or self._uncertain or any(name in content for name in self._must_send)
        wanted = wanted or any(self._differs(name, content) for name in self._dirty)
        self._answer_wildcard = False
        self._dirty.clear()
        self._must_send.clear()
        if rejection or not wanted:
            return None
        return Response(self.type_url, self._nonces, view, version=version, delta=False)

    def _accept_claim(self, view: tuple[Resource, ...]) -> None:
        self._claimed_version = ""
        self._answer_wildcard = False
        self.acked_once = True
        self._dirty.clear()
        self.accepted = {resource.name: resource for resource in view}

    def _differs(self, name: str, content: Mapping[str, Resource]) -> bool:
        target = content.get(name) if self.covers(name) else None
        return name in self.accepted if target is None else self.lacks(target)

    def _next_partial(self, content: Mapping[str, Resource], held: Collection[str], gated: bool) -> Response | None:
        must_send, dirty, answer_wildcard = self._must_send, self._dirty, self._answer_wildcard
        self._must_send, self._dirty, self._answer_wildcard = set(), set(), False
        resources: list[Resource] = []
        removed: list[str] = []
        size = 0
        for name in sorted(must_send | dirty):
            target = content.get(name)
            if target is None:
                if self._must_remove(name, held, must_send=name in must_send, gated=gated):
                    removed.append(name)
            elif resources and size + len(target.body) > MAX_BYTES and self.type_url not in _WILDCARD_TYPES:
                self._postpone(name, must_send=name in must_send)
            elif resource := self._choose(target, must_send=name in must_send, gated=gated):
                resources.append(resource)
                size += len(resource.body)
        if not (resources or removed or answer_wildcard):
            return None
        version = self._partial_version(content, resources)
        return Response(
            self.type_url, self._nonces, tuple(resources), tuple(removed), version=version, delta=self._delta
        )

    def _partial_version(self, content: Mapping[str, Resource], sent: Iterable[Resource]) -> str:
        """Return the version of a response that contains only part of the set; empty means a digest of the response.

        In the state-of-the-world variant, it is the digest of the client's complete content after this response,
        because a version identifies the whole type there.
        """
        if self.type_url in _WILDCARD_TYPES:
            return set_version(self._view(content))
        if self._delta:
            return ""
        after = {name: item for name, item in self.accepted.items() if name not in self._uncertain}
        after |= {item.name: item for item in sent}
        return set_version(tuple(after[name] for name in sorted(after)))

    def _postpone(self, name: str, *, must_send: bool) -> None:
        (self._must_send if must_send else self._dirty).add(name)

    def _must_remove(self, name: str, held: Collection[str], *, must_send: bool, gated: bool) -> bool:
        self.rejected.pop(name, None)
        if not self._delta:
            self._forget(name)
            return False
        if must_send:
            return True
        if name in held or not (name in self.accepted or name in self.initial_versions or name in self._uncertain):
            return False
        if gated:
            self._postpone(name, must_send=False)
            return False
        rejection = self._rejected_versions.get(name, _ABSENT)
        if rejection:
            self.rejected[name] = rejection.message
        return rejection is None

    def _choose(self, target: Resource, *, must_send: bool, gated: bool) -> Resource | None:
        """Return the content to send: `target`, the last accepted content if `target` must not be sent, or None."""
        name = target.name
        if not must_send and name not in self._uncertain and self.initial_versions.get(name) == target.version:
            self.acked_once = True
            self.accepted[name] = target
            del self.initial_versions[name]
        accepted = self.accepted.get(name)
        self.rejected.pop(name, None)
        if rejection := self._rejected_versions.get(name, target.version):
            self.rejected[name] = rejection.message
        elif gated and (accepted or self._claimed_version or name in self.initial_versions):
            self._postpone(name, must_send=must_send and accepted is None)
        else:
            return target if must_send or self.lacks(target) else None
        if not must_send or accepted is None or self._rejected_versions.get(name, accepted.version):
            return None
        return accepted

    # ── Status

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
