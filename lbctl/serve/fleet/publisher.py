"""Composes a fleet's inputs, builds the proxies' configuration, and publishes it.

Snapshots are built in a thread; the caller ensures that only one is built at a time. A snapshot that a proxy would
reject is never sent, and the published fleet then remains unchanged.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from lbctl.base.diagnostics import Diagnostic
from lbctl.control.compose import Composed, compose, weight_changes
from lbctl.ir.proxies import Proxy, xds_proxies
from lbctl.ir.snapshot import Snapshot, replica_counts
from lbctl.ir.topology import Topology
from lbctl.ir.weight import Weight
from lbctl.runtime import log
from lbctl.runtime.guard import Guard
from lbctl.serve.discovery.guard import accepted_answers
from lbctl.serve.discovery.interface import Discovered
from lbctl.serve.fleet.inputs import FleetInputs, Origin
from lbctl.serve.fleet.unsupported import unsupported_features
from lbctl.serve.metrics.instruments import Metrics
from lbctl.targets import target, xds_kinds
from lbctl.targets.key_hashes import HashOnly
from lbctl.targets.load import Loaded
from lbctl.targets.prepare import refused_keys
from lbctl.xds.build.snapshot_cache import Builder, CachedSnapshot, UnsoundError
from lbctl.xds.resource import SHORT, changed_names

_T = TypeVar("_T")
_MAX_NAMED = 5
"""Maximum number of changed resources listed in a log line."""


@dataclass(frozen=True, slots=True)
class PublishedFleet:
    """A fleet as published to all proxies."""

    loaded: Loaded
    """The fleet as it was read."""
    inputs: FleetInputs
    """All inputs from which the fleet was composed."""
    accepted: Discovered
    """The accepted discovery answers."""
    refused_answers: tuple[Diagnostic, ...]
    """Reason why other answers were not accepted."""
    cached_snapshot: CachedSnapshot
    """The xDS resources built from `composed.snapshot`."""
    composed: Composed
    """The fleet with all overrides, ejections and drains applied."""
    unsupported: tuple[Diagnostic, ...]
    """Warnings about fleet features that its proxies cannot express."""
    refused_keys: Mapping[str, tuple[HashOnly, ...]]
    """Maps each proxy to the API keys of its routes that it rejects because the key file contains only their hashes."""
    at: float
    """Time at which this version was first published, in seconds since the epoch."""

    @property
    def origin(self) -> Origin:
        """The origin of the fleet's files."""
        return self.inputs.origin


@dataclass(frozen=True, slots=True)
class PublishResult:
    """The changes made by a publication."""

    new: bool
    """Whether the snapshot's version has changed."""
    changed: Mapping[str, int] = field(default_factory=dict)
    """Maps each short resource type to the number of changed resources sent to any of the fleet's proxies."""
    names: tuple[str, ...] = ()
    """The changed resources as type/name; empty if there are too many for a log line."""
    weights: Mapping[str, Mapping[str, Weight]] = field(default_factory=dict)
    """Maps each pool and replica whose weight has changed to its new weight."""


class Publisher:
    """Builds a snapshot of each fleet, and publishes it to the Envoys and the subscribers."""

    def __init__(
        self,
        metrics: Metrics,
        driven: Callable[[Topology], tuple[Proxy, ...]] = lambda _: (),
        guard: Guard | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Start without a fleet. `driven` returns a fleet's proxies that have a driver."""
        self._driven = driven
        self._subscribers: list[tuple[str, Callable[[PublishedFleet], None]]] = []
        self._guard = guard or Guard()
        self._served: PublishedFleet | None = None
        self._send: Callable[[CachedSnapshot], None] | None = None
        self._builder = Builder()
        self._metrics = metrics
        self._now = now

    @property
    def served(self) -> PublishedFleet | None:
        """The published fleet; None before the first one."""
        return self._served

    @property
    def sends(self) -> bool:
        """Whether Envoys get the published fleet. They do not get it in a dry run or before the first fleet."""
        return self._send is not None

    def open(self, send: Callable[[CachedSnapshot], None]) -> None:
        """From now on, send each snapshot to the Envoys with `send`, starting with the published one."""
        self._send = send
        if self._served is not None:
            send(self._served.cached_snapshot)

    def subscribe(self, name: str, subscriber: Callable[[PublishedFleet], None]) -> None:
        """Call `subscriber` with each published fleet after it has been sent to the Envoys.

        An error in a subscriber is logged with its `name`, and the remaining subscribers are still called.
        """
        self._subscribers.append((name, subscriber))

    async def build(self, loaded: Loaded, discovered: Discovered, key: str) -> CachedSnapshot | None:
        """Build the snapshot for a fleet published by an earlier process, so that its version is known.

        `key` is the key for picker requests. Return None if a proxy would reject it.
        """
        topology = discovered.apply(loaded.compiled.topology)
        snapshot = Snapshot(topology, secrets=loaded.secrets, addresses=discovered.hosts, own_picker_key=key)
        with suppress(UnsoundError):
            return await asyncio.to_thread(
                self._builder.build, loaded, snapshot, xds_proxies(topology, xds_kinds()).all
            )
        return None

    async def publish(self, inputs: FleetInputs, *, allow_shrink: bool = False) -> PublishResult | None:
        """Publish the fleet composed from these inputs; return None if only notes have changed and nothing was built.

        If a proxy would reject the result, nothing is published and UnsoundError is raised. `allow_shrink`: accept any
        loss of discovered replicas.
        """
        loaded, before = inputs.loaded, self._served
        assert loaded is not None, "a fleet was read"
        if before is not None and inputs.composes_like(before.inputs):
            self._served = replace(before, inputs=inputs)
            return None
        topology = loaded.compiled.topology
        earlier_answers = before.accepted if before else inputs.baseline
        max_shrink = 100.0 if allow_shrink else topology.control.max_shrink
        accepted, problems = accepted_answers(topology, earlier_answers, inputs.discovered, max_shrink)
        refused = tuple(map(loaded.compiled.sources.with_position, problems))
        started = time.perf_counter()
        served, result = await _to_its_end(asyncio.to_thread(self._build, loaded, inputs, accepted, refused))
        self._metrics.published(
            served.cached_snapshot.version, time.perf_counter() - started, replica_counts(served.composed.whole)
        )
        if self._send is not None:
            self._send(served.cached_snapshot)
        log.findings(item for item in refused if before is None or item not in before.refused_answers)
        self._served = served
        for name, subscriber in self._subscribers:
            self._guard.call(name, partial(subscriber, served))
        return result

    def _build(
        self, loaded: Loaded, inputs: FleetInputs, accepted: Discovered, refused_answers: tuple[Diagnostic, ...]
    ) -> tuple[PublishedFleet, PublishResult]:
        now, before = self._now(), self._served
        whole = accepted.apply(loaded.compiled.topology)
        fleet = Snapshot(
            whole, secrets=loaded.secrets, addresses=accepted.hosts, traffic_log=inputs.traffic_log,
            picker=inputs.picker.address, picker_withheld=inputs.picker.withheld, own_picker_key=inputs.picker.key,
        )  # fmt: skip
        drained = before.composed.drains if before and before.inputs.drains is inputs.drains else inputs.drains
        composed = compose(fleet, inputs.decisions, inputs.overrides, drained, now, inputs.rollouts)
        snapshot, proxies = composed.snapshot, xds_proxies(whole, xds_kinds()).all
        cached = self._builder.build(loaded, snapshot, proxies)
        new = before is None or before.cached_snapshot.version != cached.version
        at = now if before is None or new else before.at
        changed = _changed_resources(before.cached_snapshot if before else None, cached, proxies) if new else set()
        if before and before.loaded is loaded:
            unsupported, refused = before.unsupported, before.refused_keys
        else:
            all_proxies = (*proxies, *self._driven(whole))
            unsupported = unsupported_features(loaded, snapshot, all_proxies)
            refused = {
                item.name: refused_keys(target(item.kind), loaded.compiled, item, snapshot) for item in all_proxies
            }
        weights = weight_changes(before.composed, composed) if before else {}
        fleet_now = PublishedFleet(
            loaded, inputs, accepted, refused_answers, cached, composed, unsupported, refused, at
        )
        return fleet_now, _result(new, changed, weights)


async def _to_its_end(work: Coroutine[Any, Any, _T]) -> _T:
    """Run work in a thread and return its result.

    If cancelled, wait for the work to finish, so that no other work starts in the meantime.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _changed_resources(
    before: CachedSnapshot | None, after: CachedSnapshot, proxies: Iterable[Proxy]
) -> set[tuple[str, str]]:
    """Return the changed resources as (short type, name) pairs."""
    changed = set()
    for proxy in proxies:
        earlier = before.resources(proxy) if before else None
        changed |= changed_names(earlier, after.resources(proxy))
    return changed


def _result(new: bool, changed: set[tuple[str, str]], weights: Mapping[str, Mapping[str, Weight]]) -> PublishResult:
    counts = {short: count for short in SHORT.values() if (count := sum(kind == short for kind, _ in changed))}
    named = sorted(changed) if len(changed) <= _MAX_NAMED else []
    return PublishResult(new, counts, tuple(f"{kind}/{name}" for kind, name in named), weights)
