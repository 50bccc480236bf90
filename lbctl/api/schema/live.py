"""`GET /api/v1/live` and `GET /api/v1/series`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lbctl.api.schema.rollouts import Rollout
from lbctl.api.schema.status import Status
from lbctl.api.schema.values import Timestamp

SeriesMetric = Literal[
    "state", "observed", "share", "requests_per_second", "in_flight", "queue", "kv_cache", "gpu_utilisation",
    "temperature",
]  # fmt: skip
"""What the dashboard keeps a history of."""


@dataclass(frozen=True, slots=True)
class LiveReplica:
    """A replica at this moment, on one row: what it is given, what it gets, and how full it is."""

    pool: str
    """The pool."""
    name: str
    """The name, unique in its pool."""
    address: str
    """Host and port, or a Unix socket."""
    gpu: str | None
    """The GPU's name; None where the fleet gives none."""
    zone: str | None
    """The zone; None where the fleet gives none."""
    state: str
    """`in`, or what keeps it from its full share, as in `Replica`."""
    reason: str
    """Why it is in this state; empty for `in`."""
    since: Timestamp | None
    """When it came into this state; None where it is in it since before lbctl started."""
    capacity: float
    """What it can carry, relative to the others of its pool."""
    weight: float
    """The published weight, on the scale of capacities."""
    declared: float | None
    """Its share of the pool's requests by the files alone, from 0 to 1."""
    share: float
    """Its decided share of the pool's requests, from 0 to 1."""
    acknowledged: float | None
    """Its share in the snapshot that all connected proxies have; None where none is connected."""
    observed: float | None
    """Its share of the last minute's requests by the proxies' own counters; None where they report none."""
    requests_per_second: float | None
    """Requests a second over the last minute; None where no proxy reports them."""
    errors: float | None
    """The part of the last minute's requests that failed, from 0 to 1; None without reported requests."""
    first_byte_p50: float | None
    """Seconds until the first byte of half of the answers of the last minute; None where no proxy reports them."""
    first_byte_p99: float | None
    """The same of 99 % of the answers."""
    in_flight: int | None
    """Requests in flight; None where no proxy reports them."""
    queue: float | None
    """Requests that wait in the engine; None without a fresh signal."""
    kv_cache: float | None
    """The used part of the key-value cache, from 0 to 1; None without a fresh signal."""
    gpu_utilisation: float | None
    """The part of the time in which the GPU was busy, from 0 to 1; None without a fresh signal."""
    temperature: float | None
    """Degrees Celsius of the hottest GPU; None without a fresh signal."""


@dataclass(frozen=True, slots=True)
class LivePool:
    """A pool without its replicas."""

    name: str
    """The name."""
    model: str | None
    """The model that it serves; None where the fleet names none."""
    algorithm: str
    """The load balancing algorithm."""
    replicas: int
    """The number of its replicas."""
    requests_per_second: float | None
    """Requests a second over the last minute; None where no proxy reports them."""
    errors: float | None
    """The part of the last minute's requests that failed, from 0 to 1; None without reported requests."""
    first_byte_p50: float | None
    """Seconds until the first byte of half of the answers of the last minute; None where no proxy reports them."""
    first_byte_p99: float | None
    """The same of 99 % of the answers."""
    picked: float | None
    """The part of the last minute's requests that were picked, from 0 to 1; None where that is unknown."""
    silent: tuple[str, ...]
    """The proxies that may send to this pool and report no counts."""


@dataclass(frozen=True, slots=True)
class LiveProxy:
    """A proxy, without its resource types."""

    node: str
    """The node id of an Envoy, the name of any other proxy."""
    proxy: str | None
    """The name in `proxies` of the fleet; None for a node that is none of them."""
    kind: str
    """As in `Proxies`."""
    connected: bool
    """Whether it is connected now."""
    since: Timestamp
    """When the connection, or the last attempt, began."""
    state: str
    """As in `Proxies`."""
    reason: str
    """Why it is not in sync; empty where it is."""
    version: str
    """The version last sent; empty before."""
    last_good: str
    """The version that it last accepted as a whole; empty before."""
    detail: str
    """The version of an Envoy, or how many reloads a driven proxy has had."""


@dataclass(frozen=True, slots=True)
class LiveSplit:
    """The split of a route that forwards to several pools."""

    route: str
    """The route."""
    shares: Mapping[str, int]
    """Pool → its share in the published fleet, relative to the others."""


@dataclass(frozen=True, slots=True)
class ReplicaName:
    """Which replica is meant."""

    pool: str
    """The pool."""
    name: str
    """The name in the pool."""


@dataclass(frozen=True, slots=True)
class Live:
    """What has changed since the frame before, or everything."""

    frame: int
    """The number of the frame; it grows by 1 with each change."""
    complete: bool
    """Whether the frame holds everything: what a client has from earlier frames no longer counts."""
    at: Timestamp
    """The time of the frame on the server's clock."""
    status: Status | None
    """What is served, with an `age` of 0 in its snapshot; None where it has not changed."""
    pools: tuple[LivePool, ...] | None
    """All pools; None where they have not changed."""
    replicas: tuple[LiveReplica, ...]
    """The replicas that have changed."""
    gone: tuple[ReplicaName, ...]
    """The replicas that are no longer there."""
    proxies: tuple[LiveProxy, ...] | None
    """All proxies; None where none has changed."""
    rollouts: tuple[Rollout, ...] | None
    """All rollouts; None where none has changed."""
    splits: tuple[LiveSplit, ...] | None
    """All splits; None where none has changed."""


@dataclass(frozen=True, slots=True)
class ReplicaSeries:
    """The history of one replica."""

    replica: str
    """The replica."""
    values: tuple[float | None, ...]
    """A value for each of `times`; None where it was unknown. `state` is the index in `states`."""


@dataclass(frozen=True, slots=True)
class Series:
    """The history of one metric of a pool."""

    pool: str
    """The pool."""
    metric: SeriesMetric
    """The metric."""
    states: tuple[str, ...]
    """The states in the order of their numbers, for the metric `state`; empty for others."""
    times: tuple[float, ...]
    """Seconds since the epoch, the oldest first."""
    total: tuple[float | None, ...]
    """The pool's own values, without `replica`: the sum of requests, the mean of a ratio or a temperature, the number
    of replicas in the state `in`. Empty where replicas are asked for."""
    replicas: tuple[ReplicaSeries, ...]
    """The replicas that were asked for, in the order of the fleet."""
