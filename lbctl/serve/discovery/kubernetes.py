"""The source for pools whose replicas are the endpoints of a Kubernetes service.

Each service has one watch of its EndpointSlices, which pools share; the labels of nodes and pods are watched only if a
pool needs them. If the API server is unreachable or returns nothing, the last answer is kept: a service without slices,
which was deleted or never existed, removes no replica, and `names()` reports it. Replicas whose pods terminate are
reported as `leaving`: their removal needs no confirmation.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from lbctl.base.foreign_json import parse_object
from lbctl.ir.address import Address
from lbctl.ir.pools import KubernetesDiscovery, LabelSource, Replica
from lbctl.ir.topology import Topology
from lbctl.runtime.guard import Guard
from lbctl.runtime.net.kubernetes import kubeconfig
from lbctl.runtime.net.kubernetes.client import ApiClient
from lbctl.runtime.net.kubernetes.cluster import Cluster, in_cluster
from lbctl.runtime.net.kubernetes.collection import Collection, CollectionKey, Object
from lbctl.serve.discovery.endpoint_slices import SHAPE, endpoints
from lbctl.serve.discovery.endpoints import Labels, replicas_of
from lbctl.serve.discovery.interface import NameState, PoolAnswer

_WAIT_WITH_ANSWER = 0.5
"""Seconds for which `first` waits for a service that already has an earlier answer."""
_MAX_LEAVING = 8192
"""Maximum number of names of terminating pods that are remembered for each service."""
_ClusterKey = tuple[str | None, str | None]
"""The kubeconfig and its context."""


def cluster_of(discovery: KubernetesDiscovery) -> Cluster:
    """Read the cluster's address and credentials. Raises ClusterError."""
    if discovery.kubeconfig_file is None:
        return in_cluster()
    return kubeconfig.read(Path(discovery.kubeconfig_file), discovery.context, control_files=discovery.control_files)


def slices_key(discovery: KubernetesDiscovery) -> CollectionKey:
    """Return the collection with the EndpointSlices of the service."""
    path = f"/apis/discovery.k8s.io/v1/namespaces/{discovery.namespace}/endpointslices"
    return CollectionKey(path, f"kubernetes.io/service-name={discovery.service}", items="endpoints")


def labels_keys(discovery: KubernetesDiscovery) -> dict[str, CollectionKey]:
    """Return `node` and `pod` → the collection, for those with labels in the section."""
    paths = {"node": "/api/v1/nodes", "pod": f"/api/v1/namespaces/{discovery.namespace}/pods"}
    sources = (discovery.gpu_from, discovery.zone_from)
    needed = {source.of for source in sources if isinstance(source, LabelSource)}
    return {of: CollectionKey(path, metadata_only=True) for of, path in paths.items() if of in needed}


@dataclass(slots=True)
class _Watched:
    """A collection that is watched for some pools."""

    collection: Collection
    task: asyncio.Task[NoReturn]
    leaving: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class _PoolState:
    """A watched pool with its last answer."""

    discovery: KubernetesDiscovery
    answer: PoolAnswer
    problems: tuple[str, ...] = ()
    left_out: int = 0


class KubernetesSource:
    """A DiscoverySource for `discovery.kubernetes`."""

    def __init__(self, on_change: Callable[[], None], guard: Guard, now: Callable[[], float] = time.time) -> None:
        """Start without services. `on_change` is called when an answer may have changed."""
        self._on_change = on_change
        self._guard = guard
        self._now = now
        self._pools: dict[str, _PoolState] = {}
        self._clients: dict[_ClusterKey, ApiClient] = {}
        self._watched: dict[tuple[_ClusterKey, CollectionKey], _Watched] = {}
        self._seeds: dict[str, tuple[Replica, ...]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._is_stale = True

    def seed(self, saved: Mapping[str, Sequence[str]]) -> None:
        """Use saved answers for newly watched services until they are listed."""
        for key, texts in saved.items():
            if key.startswith("kubernetes:"):
                with suppress(ValueError, TypeError, KeyError):
                    self._seeds[key] = tuple(map(_restored, texts))

    def use_topology(self, topology: Topology) -> None:
        """Watch exactly the services of this topology. A pool that was already watched keeps its answer."""
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
        wanted = {
            (_cluster_key(item), key): item
            for item in sections.values()
            for key in (slices_key(item), *labels_keys(item).values())
        }
        for key in self._watched.keys() - wanted.keys():
            self._watched.pop(key).task.cancel()
        for key, discovery in wanted.items():
            if key not in self._watched:
                self._start(key, discovery)
        for unused in self._clients.keys() - {cluster for cluster, _ in wanted}:
            self._close(self._clients.pop(unused))
        self._touch()

    async def first(self, timeout: float) -> None:
        """Wait until each service has been listed once, at most half a second for services with an earlier answer."""
        has_answer = all(pool.answer.replicas is not None for pool in self._pools.values())
        with suppress(TimeoutError):
            async with asyncio.timeout(min(timeout, _WAIT_WITH_ANSWER) if has_answer else timeout):
                for item in list(self._watched.values()):
                    await item.collection.attempted.wait()

    def answers(self) -> Mapping[str, PoolAnswer]:
        """Return pool → its answer, for the pools with `discovery.kubernetes`."""
        if self._is_stale:
            self._is_stale = False
            for pool in self._pools.values():
                self._update(pool)
        return {name: pool.answer for name, pool in self._pools.items()}

    def names(self) -> tuple[NameState, ...]:
        """Return the state of every watched service, sorted."""
        answers = self.answers()
        return tuple(self._state(name, answers[name]) for name in sorted(self._pools))

    async def stop(self) -> None:
        """Stop all requests. The last answers stay in use."""
        tasks = [item.task for item in self._watched.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(client.close() for client in self._clients.values()), *self._closing)

    def _start(self, key: tuple[_ClusterKey, CollectionKey], discovery: KubernetesDiscovery) -> None:
        where, resource = key
        client = self._clients.setdefault(where, ApiClient(lambda: cluster_of(discovery)))
        leaving: dict[str, None] = {}

        def note(item: Object) -> None:
            _note_leaving(leaving, discovery.port, item)

        is_slices = resource == slices_key(discovery)
        shape = SHAPE if is_slices else {}
        collection = Collection(client, resource, shape, self._touch, note if is_slices else _ignore, self._now)
        task = self._guard.start("Kubernetes watches", collection.follow, name=f"{resource.path} {resource.selector}")
        self._watched[key] = _Watched(collection, task, leaving)

    def _close(self, client: ApiClient) -> None:
        task = asyncio.get_running_loop().create_task(client.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _touch(self) -> None:
        self._is_stale = True
        self._on_change()

    def _seeded(self, discovery: KubernetesDiscovery) -> PoolAnswer:
        key = _key(discovery)
        return PoolAnswer(self._seeds.get(key), key=key, saved=tuple(map(_saved, self._seeds.get(key, ()))))

    def _collections(self, discovery: KubernetesDiscovery) -> tuple[_Watched, dict[str, Collection]]:
        where = _cluster_key(discovery)
        labels = {of: self._watched[where, key].collection for of, key in labels_keys(discovery).items()}
        return self._watched[where, slices_key(discovery)], labels

    def _update(self, pool: _PoolState) -> None:
        """Compute the answer of a pool. It stays unchanged until the slices are known, and while there are none.

        If labels could not be listed yet, known replicas keep their GPU and zone.
        """
        watched, labels = self._collections(pool.discovery)
        slices = watched.collection.objects
        waiting = any(not item.attempted.is_set() for item in labels.values())
        if not watched.collection.listed or waiting or not slices:
            return
        labels_of_objects = {name: _labels(item.objects.values()) for name, item in labels.items() if item.listed}
        problems: dict[str, None] = {}
        found = endpoints(pool.discovery.port, slices.values(), problems)
        reading = replicas_of(pool.discovery, found, labels_of_objects, pool.answer.replicas or ())
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
        watched, labels = self._collections(pool.discovery)
        service = f"{pool.discovery.namespace}/{pool.discovery.service}"
        collections = (watched.collection, *labels.values())
        errors = [item.error for item in collections if item.error] + list(pool.problems)
        if watched.collection.listed and not watched.collection.objects:
            errors.append("the service has no EndpointSlice: does it exist?")
        return NameState(
            name=f"kubernetes {service}",
            resolvers=(),
            pools=(name,),
            addresses=tuple(str(item.address) for item in answer.replicas or ()),
            left_out=pool.left_out,
            answered=watched.collection.answered,
            error="; ".join(errors),
            failed=max((item.failed for item in collections if item.failed is not None), default=None),
        )


def _ignore(_: Object) -> None:
    """Do nothing for a node or a pod: its labels are read from the copy."""


def _note_leaving(leaving: dict[str, None], port: str, item: Object) -> None:
    """Remember the terminating endpoints of a slice, and forget those whose name is in use again."""
    for endpoint in endpoints(port, [item], {}):
        leaving.pop(endpoint.name, None)
        if endpoint.terminating:
            leaving[endpoint.name] = None
    while len(leaving) > _MAX_LEAVING:
        del leaving[next(iter(leaving))]


def _cluster_key(discovery: KubernetesDiscovery) -> _ClusterKey:
    return discovery.kubeconfig_file, discovery.context


def _key(discovery: KubernetesDiscovery) -> str:
    """Return the key under which the state saves the answer."""
    where = f"{discovery.kubeconfig or ''}:{discovery.context or ''}"
    return f"kubernetes:{where}:{discovery.namespace}/{discovery.service}:{discovery.port}"


def _labels(objects: Iterable[Object]) -> Labels:
    metadata = [item.get("metadata", {}) for item in objects]
    return {item.get("name", ""): item.get("labels", {}) for item in metadata}


def _saved(replica: Replica) -> str:
    """Return a replica as text for the state."""
    fields: dict[str, Any] = {
        "name": replica.name, "host": replica.address.host, "port": replica.address.port, "capacity": replica.capacity,
        "drain": replica.drain, "zone": replica.zone, "gpu": replica.gpu,
    }  # fmt: skip
    return json.dumps({key: value for key, value in fields.items() if value not in (None, False)})


def _restored(text: str) -> Replica:
    """Parse a text of `_saved`. Raises ValueError, TypeError or KeyError for any other text."""
    fields = parse_object(text)
    address = Address(str(fields.pop("host")), int(fields.pop("port")))
    return Replica(address=address, **fields)
