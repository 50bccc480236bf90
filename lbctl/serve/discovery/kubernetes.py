"""The replica source for pools whose replicas are a Kubernetes service's endpoints or an InferencePool's pods.

Each service has one watch on its EndpointSlices, shared by its pools. Node and pod labels are watched only if a pool
needs them. Each namespace has one watch for its InferencePools, and each selector has one watch for its pods. If the
API server is unreachable or returns nothing, the last answer is kept. A service without slices, which has been deleted
or never existed, does not remove any replicas and is reported by `names()`. A deleted InferencePool keeps its last
selector and ports. Replicas whose pods are terminating are reported as `leaving`, so that their removal does not
require confirmation.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from lbctl.base.foreign_json import Shape, parse_object
from lbctl.ir.address import Address
from lbctl.ir.pools import KubernetesDiscovery, LabelSource, Replica
from lbctl.ir.topology import Topology
from lbctl.runtime.guard import Guard
from lbctl.runtime.net.kubernetes import kubeconfig
from lbctl.runtime.net.kubernetes.client import ApiClient
from lbctl.runtime.net.kubernetes.cluster import Cluster, in_cluster
from lbctl.runtime.net.kubernetes.collection import Collection, CollectionKey, Object
from lbctl.serve.discovery import endpoint_slices, inference_pool
from lbctl.serve.discovery.endpoints import Endpoint, Labels, replicas_of
from lbctl.serve.discovery.inference_pool import InferencePool
from lbctl.serve.discovery.interface import NameState, PoolAnswer

_WAIT_WITH_ANSWER = 0.5
"""Maximum number of seconds that `first` waits for a service that already has an earlier answer."""
_MAX_LEAVING = 8192
"""Maximum number of terminating endpoints remembered per watch."""
_ClusterKey = tuple[str | None, str | None]
"""The kubeconfig and its context."""
_WatchKey = tuple[_ClusterKey, CollectionKey]
_SHAPES: dict[str, dict[str, Shape]] = {
    "endpointslices": endpoint_slices.SHAPE,
    "inferencepools": inference_pool.POOL_SHAPE,
    "pods": inference_pool.POD_SHAPE,
}
"""Maps each resource to the fields of its objects that lbctl reads."""


def cluster_of(discovery: KubernetesDiscovery) -> Cluster:
    """Read the cluster's address and credentials. Raises ClusterError."""
    if discovery.kubeconfig_file is None:
        return in_cluster()
    return kubeconfig.read(Path(discovery.kubeconfig_file), discovery.context, control_files=discovery.control_files)


def needed_keys(discovery: KubernetesDiscovery) -> list[CollectionKey]:
    """Return the collections that the account must be allowed to list and watch, one per resource."""
    if discovery.service:
        return [_slices_key(discovery), *_labels_keys(discovery).values()]
    return [_pools_key(discovery), _pods_key(discovery), *_labels_keys(discovery).values()]


def _slices_key(discovery: KubernetesDiscovery) -> CollectionKey:
    """Return the collection that contains the service's EndpointSlices."""
    path = f"/apis/discovery.k8s.io/v1/namespaces/{discovery.namespace}/endpointslices"
    return CollectionKey(path, f"kubernetes.io/service-name={discovery.service}", items="endpoints")


def _pools_key(discovery: KubernetesDiscovery) -> CollectionKey:
    """Return the collection that contains the namespace's InferencePools."""
    return CollectionKey(f"/apis/inference.networking.k8s.io/v1/namespaces/{discovery.namespace}/inferencepools")


def _pods_key(discovery: KubernetesDiscovery, selector: str = "") -> CollectionKey:
    """Return the collection that contains the namespace's pods with these labels."""
    return CollectionKey(f"/api/v1/namespaces/{discovery.namespace}/pods", selector)


def _labels_keys(discovery: KubernetesDiscovery) -> dict[str, CollectionKey]:
    """Return the collections of nodes and pods (under the keys `node` and `pod`) whose labels the section uses.

    An InferencePool's pods are not included, because they are always listed with their labels.
    """
    paths = {"node": "/api/v1/nodes"}
    if discovery.service:
        paths["pod"] = f"/api/v1/namespaces/{discovery.namespace}/pods"
    sources = (discovery.gpu_from, discovery.zone_from)
    needed = {source.of for source in sources if isinstance(source, LabelSource)}
    return {of: CollectionKey(path, metadata_only=True) for of, path in paths.items() if of in needed}


@dataclass(slots=True)
class _PoolState:
    """A watched pool and its last answer."""

    discovery: KubernetesDiscovery
    answer: PoolAnswer
    inference_pool: InferencePool | None = None
    """The last valid InferencePool; None for a service, or if no valid one has been found yet."""
    problems: tuple[str, ...] = ()
    left_out: int = 0

    @property
    def members(self) -> CollectionKey | None:
        """The collection that contains the endpoints; None until the InferencePool is known."""
        if self.discovery.service:
            return _slices_key(self.discovery)
        return _pods_key(self.discovery, self.inference_pool.selector) if self.inference_pool else None

    @property
    def keys(self) -> list[CollectionKey]:
        """All collections that the pool currently needs."""
        pools = [] if self.discovery.service else [_pools_key(self.discovery)]
        members = [self.members] if self.members else []
        return [*pools, *members, *_labels_keys(self.discovery).values()]

    def endpoints(self, objects: Iterable[Object], problems: dict[str, None]) -> list[Endpoint]:
        """Return the endpoints in these objects from `members`.

        If there are none, the reason is added to `problems`.
        """
        if self.inference_pool is not None:
            return list(inference_pool.endpoints(self.inference_pool, objects))
        return endpoint_slices.endpoints(self.discovery.port, objects, problems)


@dataclass(slots=True)
class _Watched:
    """A watched collection and the pools that need it."""

    collection: Collection
    task: asyncio.Task[NoReturn]
    pools: list[_PoolState] = field(default_factory=list)
    """The pools whose endpoints are in the collection."""
    leaving: dict[str, None] = field(default_factory=dict)
    """Names of the terminating endpoints."""


class KubernetesSource:
    """A DiscoverySource for `discovery.kubernetes`."""

    def __init__(self, on_change: Callable[[], None], guard: Guard, now: Callable[[], float] = time.time) -> None:
        """Start without any pools. `on_change` is called when an answer may have changed."""
        self._on_change = on_change
        self._guard = guard
        self._now = now
        self._pools: dict[str, _PoolState] = {}
        self._clients: dict[_ClusterKey, ApiClient] = {}
        self._watched: dict[_WatchKey, _Watched] = {}
        self._seeds: dict[str, tuple[Replica, ...]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._is_stale = True

    def seed(self, saved: Mapping[str, Sequence[str]]) -> None:
        """Use saved answers for newly watched pools until the pools have been listed."""
        for key, texts in saved.items():
            if key.startswith("kubernetes:"):
                with suppress(ValueError, TypeError, KeyError):
                    self._seeds[key] = tuple(map(_restored, texts))

    def use_topology(self, topology: Topology) -> None:
        """Watch exactly the pools in this topology. Pools that were already watched keep their answers."""
        sections = {
            pool.name: pool.discovery for pool in topology.pools if isinstance(pool.discovery, KubernetesDiscovery)
        }
        before, self._pools = self._pools, {}
        for name, discovery in sections.items():
            previous = before.get(name)
            same = previous is not None and previous.discovery == discovery
            self._pools[name] = (
                previous if previous is not None and same else _PoolState(discovery, self._seeded(discovery))
            )
        self._follow()
        self._touch()

    async def first(self, timeout: float) -> None:
        """Wait until everything has been listed once, for at most half a second if all pools have an earlier answer."""
        has_answer = all(pool.answer.replicas is not None for pool in self._pools.values())
        with suppress(TimeoutError):
            async with asyncio.timeout(min(timeout, _WAIT_WITH_ANSWER) if has_answer else timeout):
                while waiting := [item for item in self._watched.values() if not item.collection.attempted.is_set()]:
                    await waiting[0].collection.attempted.wait()

    def answers(self) -> Mapping[str, PoolAnswer]:
        """Map each pool with `discovery.kubernetes` to its answer."""
        if self._is_stale:
            self._is_stale = False
            for pool in self._pools.values():
                self._update(pool)
        return {name: pool.answer for name, pool in self._pools.items()}

    def names(self) -> tuple[NameState, ...]:
        """Return the state of every watched service and InferencePool, sorted by pool."""
        answers = self.answers()
        return tuple(self._state(name, answers[name]) for name in sorted(self._pools))

    async def stop(self) -> None:
        """Stop all requests. The last answers remain in use."""
        tasks = [item.task for item in self._watched.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(client.close() for client in self._clients.values()), *self._closing)

    def _follow(self) -> None:
        """Read the InferencePools, and watch exactly the collections that the pools need."""
        for pool in self._pools.values():
            item = self._inference_pool(pool.discovery)
            pool.inference_pool = (inference_pool.read(item) if item else None) or pool.inference_pool
        wanted: dict[_WatchKey, KubernetesDiscovery] = {}
        members: dict[_WatchKey, list[_PoolState]] = {}
        for pool in self._pools.values():
            where = _cluster_key(pool.discovery)
            wanted |= {(where, key): pool.discovery for key in pool.keys}
            if pool.members is not None:
                members.setdefault((where, pool.members), []).append(pool)
        for key in self._watched.keys() - wanted.keys():
            self._watched.pop(key).task.cancel()
        for key, discovery in wanted.items():
            if key not in self._watched:
                self._start(key, discovery)
            self._watched[key].pools = members.get(key, [])
        for unused in self._clients.keys() - {cluster for cluster, _ in wanted}:
            self._close(self._clients.pop(unused))

    def _start(self, key: _WatchKey, discovery: KubernetesDiscovery) -> None:
        where, resource = key
        client = self._clients.setdefault(where, ApiClient(lambda: cluster_of(discovery)))

        def note(item: Object) -> None:
            _note_leaving(watched, item)

        shape = {} if resource.metadata_only else _SHAPES[resource.resource]
        changed = self._pools_changed if resource == _pools_key(discovery) else self._touch
        collection = Collection(client, resource, shape, changed, note, self._now)
        task = self._guard.start("Kubernetes watches", collection.follow, name=f"{resource.path} {resource.selector}")
        watched = self._watched[key] = _Watched(collection, task)

    def _close(self, client: ApiClient) -> None:
        task = asyncio.get_running_loop().create_task(client.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _touch(self) -> None:
        self._is_stale = True
        self._on_change()

    def _pools_changed(self) -> None:
        self._follow()
        self._touch()

    def _inference_pool(self, discovery: KubernetesDiscovery) -> Object | None:
        """Return the section's InferencePool; None if it does not exist or is not known yet."""
        watched = self._watched.get((_cluster_key(discovery), _pools_key(discovery)))
        return watched.collection.objects.get(f"{discovery.namespace}/{discovery.inference_pool}") if watched else None

    def _seeded(self, discovery: KubernetesDiscovery) -> PoolAnswer:
        key = _key(discovery)
        return PoolAnswer(self._seeds.get(key), key=key, saved=tuple(map(_saved, self._seeds.get(key, ()))))

    def _update(self, pool: _PoolState) -> None:
        """Compute a pool's answer.

        The answer does not change while the pool's endpoints are unknown, or if the service has no slices. If labels
        have not been listed yet, known replicas keep their GPU and zone.
        """
        where = _cluster_key(pool.discovery)
        if pool.members is None:
            return
        watched = self._watched[where, pool.members]
        objects = watched.collection.objects
        labels = {of: self._watched[where, key].collection for of, key in _labels_keys(pool.discovery).items()}
        if pool.inference_pool is not None:
            labels["pod"] = watched.collection
        waiting = any(not item.attempted.is_set() for item in labels.values())
        if not watched.collection.listed or waiting or (pool.discovery.service and not objects):
            return
        labels_of_objects = {name: _labels(item.objects.values()) for name, item in labels.items() if item.listed}
        problems: dict[str, None] = {}
        endpoints = pool.endpoints(objects.values(), problems)
        reading = replicas_of(pool.discovery, endpoints, labels_of_objects, pool.answer.replicas or ())
        replicas = pool.answer.replicas if pool.answer.replicas == reading.replicas else reading.replicas
        pool.problems, pool.left_out = (*problems, *reading.problems), reading.left_out
        pool.answer = PoolAnswer(
            replicas,
            watched.collection.answered,
            key=_key(pool.discovery),
            saved=tuple(map(_saved, reading.replicas)),
            leaving=frozenset(watched.leaving),
        )
        self._seeds[_key(pool.discovery)] = reading.replicas

    def _state(self, name: str, answer: PoolAnswer) -> NameState:
        pool = self._pools[name]
        where = _cluster_key(pool.discovery)
        collections = [self._watched[where, key].collection for key in pool.keys]
        errors = [item.error for item in collections if item.error]
        members = self._watched[where, pool.members].collection if pool.members else None
        errors += [*pool.problems, *self._missing(pool, collections[0], members)]
        return NameState(
            name=f"kubernetes {pool.discovery.reference}",
            resolvers=(),
            pools=(name,),
            addresses=tuple(str(item.address) for item in answer.replicas or ()),
            left_out=pool.left_out,
            answered=members.answered if members else None,
            error="; ".join(errors),
            failed=max((item.failed for item in collections if item.failed is not None), default=None),
        )

    def _missing(self, pool: _PoolState, first: Collection, members: Collection | None) -> Iterator[str]:
        """Yield the problem if a service has no slices, or if an InferencePool is missing or selects no pods.

        `first` contains either the slices or the InferencePools.
        """
        if not first.listed:
            return
        if pool.discovery.service:
            if not first.objects:
                yield "the service has no EndpointSlice: does it exist?"
            return
        item = self._inference_pool(pool.discovery)
        if item is None:
            yield "the InferencePool does not exist"
        elif inference_pool.read(item) is None:
            yield "the InferencePool has no selector or no target port"
        elif pool.inference_pool and members and members.listed and not members.objects:
            yield f"no pod has the labels {pool.inference_pool.selector}"


def _note_leaving(watched: _Watched, item: Object) -> None:
    """Remember an object's terminating endpoints, and forget those whose names are in use again."""
    for pool in watched.pools:
        for endpoint in pool.endpoints([item], {}):
            watched.leaving.pop(endpoint.name, None)
            if endpoint.terminating:
                watched.leaving[endpoint.name] = None
    while len(watched.leaving) > _MAX_LEAVING:
        del watched.leaving[next(iter(watched.leaving))]


def _cluster_key(discovery: KubernetesDiscovery) -> _ClusterKey:
    return discovery.kubeconfig_file, discovery.context


def _key(discovery: KubernetesDiscovery) -> str:
    """Return the answer's key in the saved state."""
    where = f"{discovery.kubeconfig or ''}:{discovery.context or ''}"
    return f"kubernetes:{where}:{discovery.reference}:{discovery.port}"


def _labels(objects: Iterable[Object]) -> Labels:
    metadata = [item.get("metadata", {}) for item in objects]
    return {item.get("name", ""): item.get("labels", {}) for item in metadata}


def _saved(replica: Replica) -> str:
    """Serialize a replica for the saved state."""
    fields: dict[str, Any] = {
        "name": replica.name, "host": replica.address.host, "port": replica.address.port, "capacity": replica.capacity,
        "drain": replica.drain, "zone": replica.zone, "gpu": replica.gpu,
    }  # fmt: skip
    return json.dumps({key: value for key, value in fields.items() if value not in (None, False)})


def _restored(text: str) -> Replica:
    """Parse a string returned by `_saved`. Raises ValueError, TypeError or KeyError for any other string."""
    fields = parse_object(text)
    address = Address(str(fields.pop("host")), int(fields.pop("port")))
    return Replica(address=address, **fields)
