"""One stream: its subscriptions to all types, and the order of updates between the types.

Updates are make-before-break. Clusters are sent before the listeners and routes that use them, which wait until the
clusters are warm. Resources that are missing from the new content stay until they are no longer used. A rejected update
leaves the client at its last accepted content. This module does no I/O and reads no clock: messages and times are
arguments, and responses are results.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from lbctl.xds.protocol.budget import Budget, StreamBudget
from lbctl.xds.protocol.events import Acked, Nacked, TypeStatus
from lbctl.xds.protocol.subscription import Subscription
from lbctl.xds.protocol.wire import Nonces, Response, StreamError, XdsNode, XdsRequest, read
from lbctl.xds.resource import CDS, EDS, LDS, RDS, TYPES, Resource, Resources

__all__ = ["Acked", "Nacked", "Response", "Stream", "StreamError", "TypeStatus", "XdsNode"]

_GATED = (LDS, RDS)
_ASK_SECONDS = 2.0
"""Seconds for which listeners and routes wait for a client that has accepted a new cluster to subscribe to its
endpoints."""
_HELD = tuple(kind for kind in TYPES if kind != LDS)

Changes = Mapping[str, Collection[str]]


@dataclass(slots=True)
class _Held:
    """A resource whose removal is postponed.

    `resource` is None if only the client knows its content. `since` is the time at which the client stopped using the
    resource.
    """

    resource: Resource | None
    since: float | None = None


class Stream:
    """The subscriptions of one stream.

    `only` is the resource type that a per-type service serves; None: all types. `before` contains the resources that
    the node had when its last stream ended. `share` is its share of the memory budget. `settle` is the time in seconds
    between the last use of a resource and its removal.
    """

    def __init__(
        self,
        *,
        delta: bool,
        only: str | None = None,
        before: Resources | None = None,
        settle: float = 1.0,
        share: StreamBudget | None = None,
    ) -> None:
        self._share = share or StreamBudget(Budget())
        self.node: XdsNode | None = None
        self._delta = delta
        self._only = only
        self._before = before
        self._settle_seconds = settle
        self._nonces = Nonces()
        self._subscriptions: dict[str, Subscription] = {}
        self._offered: Resources | None = None
        self._content: dict[str, Mapping[str, Resource]] = {}
        self._held: dict[str, dict[str, _Held]] = {kind: {} for kind in _HELD}
        self._warming: set[str] = set()  # new or changed clusters whose endpoints have not been accepted yet
        self._ask_until: float | None = None
        self._settled = False

    def request(self, message: bytes, now: float) -> list[Acked | Nacked]:
        """Process a request. A request for a type that is not served is never answered. Raises `StreamError`."""
        request = read(message, delta=self._delta)
        self._identify_node(request)
        kind = self._kind(request)
        if kind not in TYPES:
            return []
        first = kind not in self._subscriptions
        self._share.check_length(len(request.names) + len(request.removed) + len(request.versions))
        subscription = self._subscription(kind)
        content = self._content.get(kind, {})
        event = subscription.request(request, content)
        if request.names or request.removed or request.versions:
            self._share.keep(kind, subscription.names, subscription.initial_versions, content)
        if isinstance(event, Acked) and kind == EDS:
            self._warming.difference_update(name for name in event.names if not subscription.must_contain(name))
        if event and all(each.acked_once for each in self._subscriptions.values()):
            self._before = None
        if isinstance(event, Nacked) and kind == CDS:
            self._hold_accepted(event.names)
        if first:
            self._hold_claimed(subscription)
        if first and kind == EDS:
            self._force(self._warming & content.keys())
        self._update_settled(now)
        return [event] if event else []

    def _identify_node(self, request: XdsRequest) -> None:
        if self.node is None:
            if request.node is None or not request.node.id:
                raise StreamError("the first request on a stream must include a node with an id")
            self.node = request.node

    def _kind(self, request: XdsRequest) -> str:
        kind = request.type_url or self._only
        if not kind:
            raise StreamError("a request on an aggregated stream must specify its type")
        if self._only and kind != self._only:
            raise StreamError(f"this stream is for {self._only}, not for {kind}")
        return kind

    def _subscription(self, kind: str) -> Subscription:
        if kind not in self._subscriptions:
            subscriptions = {**self._subscriptions, kind: Subscription(kind, self._nonces, delta=self._delta)}
            self._subscriptions = {each: subscriptions[each] for each in TYPES if each in subscriptions}
        return self._subscriptions[kind]

    # ── Content

    def offer(self, resources: Resources) -> None:
        """Replace the content to send with `resources`. No request is answered before the first offer."""
        if resources is self._offered:
            return
        first = self._offered is None
        previous = self._offered or self._before or _NOTHING
        self._offered, self._settled = resources, False
        changed = changes(previous, resources)
        for kind in TYPES:
            self._hold(kind, changed.get(kind, ()), previous)
            self._merge_held(kind)
        for kind, subscription in self._subscriptions.items():
            subscription.touch(self._content[kind] if first else changed.get(kind, ()))
            if first:
                self._share.count(kind, subscription.names, subscription.initial_versions, self._content[kind])
                self._hold_claimed(subscription)
        self._warming = {name for name in self._warming if name in resources.of(CDS)}
        if self._only not in (None, CDS):
            self._before = None

    def retry_rejected(self) -> int:
        """Allow rejected resources to be sent once more, and return their number."""
        self._settled = False
        return sum(subscription.retry_rejected() for subscription in self._subscriptions.values())

    def _hold(self, kind: str, changed: Collection[str], previous: Resources) -> None:
        if kind not in self._held:
            return
        held, now = self._held[kind], self._offered_of(kind)
        subscription = self._subscriptions.get(kind)
        for name in changed:
            if name in now:
                held.pop(name, None)
                continue
            used = subscription.held_by_client(name) if subscription else None
            if kind in (CDS, RDS):
                used = self._used(kind, name, used)
            else:
                used = used or previous.of(kind)[name]
            self._hold_used(kind, name, used)

    def _used(self, kind: str, name: str, held_by_client: Resource | None) -> Resource | None:
        """Return the resource that the client uses.

        Until its first ACK on this stream, it may still use the resource from its last stream.
        """
        subscription = self._subscriptions.get(kind)
        if held_by_client or self._before is None or (subscription and subscription.acked_once):
            return held_by_client
        return self._before.of(kind).get(name)

    def _hold_used(self, kind: str, name: str, used: Resource | None) -> None:
        subscription = self._subscriptions.get(kind)
        if used or (subscription and name in subscription.initial_versions):
            self._held[kind][name] = _Held(used)
        else:
            self._held[kind].pop(name, None)

    def _hold_accepted(self, rejected: Collection[str]) -> None:
        """Keep the accepted version of each rejected cluster that will be removed."""
        clusters = self._subscriptions[CDS]
        held = [name for name in rejected if name in self._held[CDS]]
        for name in held:
            self._hold_used(CDS, name, self._used(CDS, name, clusters.held_by_client(name)))
        self._merge_held(CDS)
        clusters.touch(held)

    def _hold_claimed(self, subscription: Subscription) -> None:
        """Hold the resources that a delta client claims but that no longer exist: they may still be in use."""
        held = self._held.get(subscription.type_url)
        if held is None or self._offered is None:
            return
        content = self._content[subscription.type_url]
        for name in subscription.initial_versions:
            if name not in content and name not in held:
                held[name] = _Held(None)

    def _merge_held(self, kind: str) -> None:
        held = {name: each.resource for name, each in self._held.get(kind, {}).items() if each.resource}
        now = self._offered_of(kind)
        self._content[kind] = dict(sorted({**held, **now}.items())) if held else now

    def _offered_of(self, kind: str) -> Mapping[str, Resource]:
        return self._offered.of(kind) if self._offered else {}

    def last(self) -> Resources | None:
        """Return the resources that the client uses or may use, as `before` for its next stream."""
        if self._offered is None:
            return self._before
        used = {kind: self._in_use(kind) for kind in (CDS, RDS)}
        if all(used[kind] == self._content[kind] for kind in used) and not any(self._held.values()):
            return self._offered
        return Resources(self._content | used)

    def _in_use(self, kind: str) -> Mapping[str, Resource]:
        subscription = self._subscriptions.get(kind)
        before = self._before.of(kind) if self._before else {}
        if subscription is None:
            return before
        sent = {
            resource.name: resource for resource in (subscription.waiting.resources if subscription.waiting else ())
        }
        return {**sent, **(subscription.accepted if subscription.acked_once else before)}

    # ── Responses

    def respond(self, now: float) -> Response | None:
        """Return the next response that may be sent now, or None. The response counts as sent when it is returned."""
        if self._offered is None:
            return None
        while True:
            due = [(kind, subscription) for kind, subscription in self._subscriptions.items() if subscription.is_due]
            for kind, subscription in due:
                gated = kind in _GATED and self._is_gated(now)
                response = subscription.next(self._content[kind], self._held.get(kind, ()), gated=gated)
                if response:
                    if kind == CDS:
                        self._warm(response, subscription)
                    return response
            if not self._release(now):
                return None

    def _is_gated(self, now: float) -> bool:
        clusters, endpoints = self._subscriptions.get(CDS), self._subscriptions.get(EDS)
        if clusters is None:
            return False
        accepted = self._is_settled(CDS, clusters)
        if accepted and endpoints is None:
            return False
        warming = self._warming & self._offered_of(EDS).keys()
        if not accepted or endpoints is None or any(map(endpoints.covers, warming)):
            self._ask_until = None  # this waits for the client's ACK, not for its subscription
            return True
        return self._awaits_subscription(warming, now)

    def _awaits_subscription(self, warming: set[str], now: float) -> bool:
        """Return whether the client may still subscribe to the endpoints of these recently accepted clusters.

        Envoy subscribes before it accepts the clusters. Other clients may do so afterwards, and some never do.
        """
        if warming and self._ask_until is None:
            self._ask_until = now + _ASK_SECONDS
        if self._ask_until is not None and now < self._ask_until:
            return bool(warming)
        self._warming -= warming
        self._ask_until = None
        return False

    def _is_settled(self, kind: str, subscription: Subscription) -> bool:
        return subscription.is_settled(self._held.get(kind, {}))

    def _warm(self, response: Response, clusters: Subscription) -> None:
        """Send the endpoints of each new or changed cluster after it, even if they are unchanged."""
        changed = [cluster.name for cluster in response.resources if clusters.lacks(cluster)]
        self._warming.update(name for name in changed if name not in self._held[CDS])
        self._force(name for name in changed if name in self._content[EDS])

    def _force(self, clusters: Iterable[str]) -> None:
        """Send the endpoints of these clusters, even if the client already has them."""
        if endpoints := self._subscriptions.get(EDS):
            for name in clusters:
                endpoints.force(name)

    def _release(self, now: float) -> bool:
        """Remove the resources unused for `settle` seconds, and return whether that makes a response due."""
        self._update_settled(now)
        if not self._settled or not any(self._held.values()):
            return False
        gone = {
            kind: [
                name
                for name, each in held.items()
                if each.since is not None and each.since + self._settle_seconds <= now
            ]
            for kind, held in self._held.items()
        }
        for kind, names in gone.items():
            if names:
                self._remove(kind, names)
        return any(gone.values())

    def _remove(self, kind: str, names: Collection[str]) -> None:
        for name in names:
            del self._held[kind][name]
        self._merge_held(kind)
        if subscription := self._subscriptions.get(kind):
            subscription.touch(names)

    def _update_settled(self, now: float) -> None:
        """Update whether clusters, listeners and routes are all accepted.

        If all are accepted, held resources are unused.
        """
        self._settled = self._offered is not None and all(
            self._is_settled(kind, subscription)
            for kind in (CDS, LDS, RDS)
            if (subscription := self._subscriptions.get(kind))
        )
        if self._settled:
            for each in (each for held in self._held.values() for each in held.values() if each.since is None):
                each.since = now

    def due(self) -> float | None:
        """Return the time when a response may become due without any event, or None."""
        gated = (subscription for kind, subscription in self._subscriptions.items() if kind in _GATED)
        if self._ask_until is not None and any(subscription.is_due for subscription in gated):
            return self._ask_until
        if not self._settled:
            return None
        since = [each.since for held in self._held.values() for each in held.values() if each.since is not None]
        return min(since) + self._settle_seconds if since else None

    def status(self) -> tuple[TypeStatus, ...]:
        """Return the status of each type that is subscribed to."""
        return tuple(subscription.status(self._content.get(kind)) for kind, subscription in self._subscriptions.items())


_NOTHING = Resources({})
_CHANGES: WeakKeyDictionary[Resources, WeakKeyDictionary[Resources, Changes]] = WeakKeyDictionary()


def changes(before: Resources, after: Resources) -> Changes:
    """Map each type to its new, changed or removed names, omitting unchanged types. Computed once for all streams."""
    by_previous = _CHANGES.setdefault(after, WeakKeyDictionary())
    result = by_previous.get(before)
    if result is None:
        each = {kind: _differences(before.of(kind), after.of(kind)) for kind in TYPES}
        result = by_previous[before] = {kind: names for kind, names in each.items() if names}
    return result


def _differences(before: Mapping[str, Resource], after: Mapping[str, Resource]) -> frozenset[str]:
    new = {
        name
        for name, resource in after.items()
        if (old := before.get(name)) is not resource and (old is None or old.version != resource.version)
    }
    return frozenset(new | (before.keys() - after.keys()))
