"""Publishes the fleet of the files with the discovered replicas, as `control.compose` composes it.

Snapshots are built in a thread, and the caller makes sure that only one is built at a time. A snapshot that a proxy
would reject is never sent: the published fleet then stays as it is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

from lbctl.base.diagnostics import Diagnostic
from lbctl.control.compose import Composed, compose, weight_changes
from lbctl.control.loop_output import LoopOutput
from lbctl.control.overrides import Overrides
from lbctl.control.rollouts import Rollouts
from lbctl.ir.address import Address
from lbctl.ir.proxies import Proxy, xds_proxies
from lbctl.ir.snapshot import Snapshot, replica_counts
from lbctl.ir.topology import Topology
from lbctl.ir.weight import Weight
from lbctl.runtime import log
from lbctl.runtime.guard import Guard
from lbctl.serve.discovery.guard import accepted_answers, unresolved
from lbctl.serve.discovery.interface import Discovered
from lbctl.serve.discovery.own_listeners import OwnBinds
from lbctl.serve.discovery.service import DiscoveryService
from lbctl.serve.fleet.unsupported import unsupported_features
from lbctl.serve.metrics.instruments import Metrics
from lbctl.targets import target, xds_kinds
from lbctl.targets.key_hashes import HashOnly
from lbctl.targets.load import Loaded
from lbctl.targets.prepare import refused_keys
from lbctl.xds.build.snapshot_cache import Builder, CachedSnapshot, UnsoundError
from lbctl.xds.resource import SHORT, changed_names

Origin = Literal["files", "state", "history", "leader"]
_FIRST_ANSWER = 5.0
"""Seconds for which a new fleet waits until its names are resolved."""
_EMPTY_START = 20.0
"""Seconds for which the first fleet waits for a pool whose name has no answer: proxies may still have its replicas."""
_T = TypeVar("_T")
_MAX_NAMED = 5
"""The most changed resources that the log names."""


@dataclass(frozen=True, slots=True)
class PickerPlace:
    """Where the proxies of a fleet ask for replicas."""

    address: Address | None = None
    """Where the picker of this process listens; None where the fleet alone decides."""
    withheld: bool = False
    """Whether none may ask there: another process has the address, or no picker is started at it."""


@dataclass(frozen=True, slots=True)
class PublishedFleet:
    """A fleet as it is published to all proxies."""

    loaded: Loaded
    """The fleet as it was read."""
    origin: Origin
    """Whether the files or the state have it."""
    cached_snapshot: CachedSnapshot
    """The xDS resources that are built from `composed.snapshot`."""
    composed: Composed
    """The fleet with everything that acts on it."""
    unsupported: tuple[Diagnostic, ...]
    """Warnings about features of the fleet that its proxies cannot express."""
    refused_keys: Mapping[str, tuple[HashOnly, ...]]
    """Proxy → the API keys of its routes that it refuses, because the key file has only their hashes."""
    at: float
    """When this version was first published, in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class PublishResult:
    """What a publication has changed."""

    new: bool
    """Whether the version of the snapshot has changed."""
    changed: Mapping[str, int] = field(default_factory=dict)
    """Short resource type → number of changed resources that a proxy of the fleet gets."""
    names: tuple[str, ...] = ()
    """The changed resources as type/name; empty where there are too many for a log line."""
    weights: Mapping[str, Mapping[str, Weight]] = field(default_factory=dict)
    """Pool → replica → its new weight, for the replicas whose weight has changed."""


class Publisher:
    """Builds each fleet into a snapshot, and publishes it to the Envoys and to the subscribers."""

    def __init__(
        self,
        metrics: Metrics,
        drained: Mapping[tuple[str, str], float],
        driven: Callable[[Topology], tuple[Proxy, ...]] = lambda _: (),
        guard: Guard | None = None,
        now: Callable[[], float] = time.time,
        traffic_log: Callable[[Topology], Address | None] = lambda _: None,
        picker: Callable[[Topology], PickerPlace] = lambda _: PickerPlace(),
        binds: OwnBinds | None = None,
        picker_key: Callable[[Topology], str] = lambda _: "",
    ) -> None:
        """Start without a fleet.

        `drained`: (pool, replica) → when its drain began, from the saved state. `driven` returns the proxies of a fleet
        that have a driver. `traffic_log` returns where the proxies of a fleet send their traffic log,
        `picker` where they ask for replicas, `picker_key` the key of their questions that this process has made.
        `binds` is where this process listens, if the fleet does not decide.
        """
        self.accepted = Discovered()
        """The answers of discovery that count."""
        self.refused_answers: tuple[Diagnostic, ...] = ()
        """Why other answers do not count."""
        self.loop_output = LoopOutput()
        self.overrides: Overrides = ()
        self.rollouts: Rollouts = ()
        self.driven = driven
        self._traffic_log = traffic_log
        self._picker = picker
        self._picker_key = picker_key
        self._subscribers: list[tuple[str, Callable[[PublishedFleet], None]]] = []
        self._guard = guard or Guard()
        self.discovery = DiscoveryService(self._guard, binds=binds)
        self.served: PublishedFleet | None = None
        self.previous_snapshot: CachedSnapshot | None = None
        self.send: Callable[[CachedSnapshot], None] | None = None
        self._builder = Builder()
        self._metrics = metrics
        self.drained = drained
        self._own_drains = True
        self._now = now

    @property
    def topology(self) -> Topology | None:
        """The topology of the files that are served; None before the first."""
        return self.served.loaded.compiled.topology if self.served else None

    def open(self, send: Callable[[CachedSnapshot], None]) -> None:
        """Send each snapshot to the Envoys with `send` from now on, beginning with the published one."""
        self.send = send
        if self.served is not None:
            send(self.served.cached_snapshot)

    def subscribe(self, name: str, subscriber: Callable[[PublishedFleet], None]) -> None:
        """Call `subscriber` with each published fleet, after it was sent to the Envoys.

        An error of a subscriber is logged with its `name`, and the other subscribers are still called.
        """
        self._subscribers.append((name, subscriber))

    def set_loop_output(self, loop_output: LoopOutput) -> None:
        """Apply this output of the control loop with the next publication."""
        self.loop_output = loop_output

    def set_rollouts(self, states: Rollouts) -> None:
        """Use these states of rollouts from the next publication on."""
        self.rollouts = states

    def set_overrides(self, overrides: Overrides) -> None:
        """Apply these overrides of operators with the next publication."""
        self.overrides = overrides

    def set_drains(self, drains: Mapping[tuple[str, str], float]) -> None:
        """Use these times of drains, (pool, replica) → seconds since the epoch, from the next publication on."""
        self.drained, self._own_drains = drains, False

    def set_baseline(self, topology: Topology) -> None:
        """Compare new answers of discovery with the saved ones of this topology, which ran before."""
        self.discovery.follow(topology)
        self.accepted = self.discovery.current

    async def build_previous(self, loaded: Loaded) -> None:
        """Build the snapshot of the fleet that the previous process served, so that its version is known."""
        topology = self.accepted.apply(loaded.compiled.topology)
        key = self._picker_key(topology)
        snapshot = Snapshot(topology, secrets=loaded.secrets, addresses=self.accepted.hosts, own_picker_key=key)
        with suppress(UnsoundError):
            self.previous_snapshot = await asyncio.to_thread(
                self._builder.build, loaded, snapshot, xds_proxies(topology, xds_kinds()).all
            )

    async def serve(self, loaded: Loaded, origin: Origin, *, allow_shrink: bool = False) -> PublishResult:
        """Publish this fleet. Raises UnsoundError, and publishes nothing, where a proxy would reject it."""
        topology = loaded.compiled.topology
        self.discovery.follow(topology)
        try:
            await self._first_answers(topology)
            return await self._publish(loaded, origin, allow_shrink)
        except BaseException:
            if self.served is not None:
                self.discovery.follow(self.served.loaded.compiled.topology)
            raise

    async def refresh(self) -> PublishResult:
        """Publish the same fleet with the discovered replicas, overrides and weights of now. Raises UnsoundError."""
        served = self.served
        return await self._publish(served.loaded, served.origin, False) if served else PublishResult(new=False)

    def seconds_to_next_deadline(self) -> float | None:
        """Return the seconds until time alone changes the fleet; None where it does not."""
        now = self._now()
        deadline = self.served.composed.next_deadline(now) if self.served else None
        return None if deadline is None else deadline - now

    async def _first_answers(self, topology: Topology) -> None:
        """Wait for the first answers of discovery: longer for the first fleet, which proxies may already have."""
        deadline = asyncio.get_running_loop().time() + _EMPTY_START
        discovered = await self.discovery.first(_FIRST_ANSWER)
        while missing := unresolved(topology, discovered):
            if self.served is not None or asyncio.get_running_loop().time() > deadline:
                log.warn("pools whose name has no answer: they answer 503 until it has", pools=",".join(missing))
                return
            await asyncio.sleep(0.1)
            discovered = self.discovery.current

    async def _publish(self, loaded: Loaded, origin: Origin, allow_shrink: bool) -> PublishResult:
        topology = loaded.compiled.topology
        discovered = self.discovery.current
        max_shrink = 100.0 if allow_shrink else topology.control.max_shrink
        accepted, refused = accepted_answers(topology, self.accepted, discovered, max_shrink)
        started = time.perf_counter()
        places = self._traffic_log(topology), self._picker(topology)
        served, result = await _to_its_end(asyncio.to_thread(self._build, loaded, origin, accepted, *places))
        self._metrics.published(
            served.cached_snapshot.version, time.perf_counter() - started, replica_counts(served.composed.whole)
        )
        if self.send is not None:
            self.send(served.cached_snapshot)
        refused = tuple(map(loaded.compiled.sources.with_position, refused))
        log.findings(item for item in refused if item not in self.refused_answers)
        self.accepted, self.refused_answers, self.served = accepted, refused, served
        for name, subscriber in self._subscribers:
            self._guard.call(name, partial(subscriber, served))
        return result

    def _build(
        self, loaded: Loaded, origin: Origin, accepted: Discovered, traffic_log: Address | None, picker: PickerPlace
    ) -> tuple[PublishedFleet, PublishResult]:
        now, before = self._now(), self.served
        whole = accepted.apply(loaded.compiled.topology)
        fleet = Snapshot(
            whole, secrets=loaded.secrets, addresses=accepted.hosts, traffic_log=traffic_log,
            picker=picker.address, picker_withheld=picker.withheld, own_picker_key=self._picker_key(whole),
        )  # fmt: skip
        drained = before.composed.drains if before and self._own_drains else self.drained
        self._own_drains = True
        composed = compose(fleet, self.loop_output, self.overrides, drained, now, self.rollouts)
        snapshot, proxies = composed.snapshot, xds_proxies(whole, xds_kinds()).all
        cached = self._builder.build(loaded, snapshot, proxies)
        new = before is None or before.cached_snapshot.version != cached.version
        at = now if before is None or new else before.at
        changed = _changed_resources(before.cached_snapshot if before else None, cached, proxies) if new else set()
        if before and before.loaded is loaded:
            unsupported, refused = before.unsupported, before.refused_keys
        else:
            all_proxies = (*proxies, *self.driven(whole))
            unsupported = unsupported_features(loaded, snapshot, all_proxies)
            refused = {
                item.name: refused_keys(target(item.kind), loaded.compiled, item, snapshot) for item in all_proxies
            }
        weights = weight_changes(before.composed, composed) if before else {}
        return PublishedFleet(loaded, origin, cached, composed, unsupported, refused, at), _result(
            new, changed, weights
        )


async def _to_its_end(work: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of work in a thread. A cancellation waits for its end, so that no other runs beside it."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _changed_resources(
    before: CachedSnapshot | None, after: CachedSnapshot, proxies: Iterable[Proxy]
) -> set[tuple[str, str]]:
    """Return the changed resources as (short type, name)."""
    changed = set()
    for proxy in proxies:
        earlier = before.resources(proxy) if before else None
        changed |= changed_names(earlier, after.resources(proxy))
    return changed


def _result(new: bool, changed: set[tuple[str, str]], weights: Mapping[str, Mapping[str, Weight]]) -> PublishResult:
    counts = {short: count for short in SHORT.values() if (count := sum(kind == short for kind, _ in changed))}
    named = sorted(changed) if len(changed) <= _MAX_NAMED else []
    return PublishResult(new, counts, tuple(f"{kind}/{name}" for kind, name in named), weights)
