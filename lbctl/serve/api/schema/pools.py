"""`GET /api/v1/pools` and `GET /api/v1/fleet`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lbctl.serve.api.schema.values import Timestamp


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica with everything that acts on it."""

    name: str
    """The name, unique in its pool."""
    address: str
    """Host and port, or a Unix socket."""
    region: str | None
    """The region; None where the fleet gives none."""
    zone: str | None
    """The zone; None where the fleet gives none."""
    gpu: str | None
    """The GPU's name; None where the fleet gives none."""
    priority: int
    """0 gets requests first; higher numbers stand by."""
    capacity: float
    """What it can carry, relative to the others of its pool."""
    weight: float
    """The published weight, on the scale of capacities."""
    share: float
    """Its part of the pool's requests, from 0 to 1."""
    ramp: float
    """The factor of slow start by lbctl, from 0 to 1: the lowest of all proxies that need it."""
    drained: Timestamp | None
    """When its drain began; None where it is not drained."""
    out: bool
    """Whether it is ejected by deep health, or removed since its drain deadline has passed."""
    reasons: tuple[str, ...]
    """Why it is out or drained, and which weight an operator holds."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool of replicas."""

    name: str
    """The name."""
    model: str | None
    """The model that it serves; None where the fleet names none."""
    protocol: str
    """The protocol to its replicas."""
    algorithm: str
    """The load balancing algorithm."""
    drain_deadline_seconds: float
    """Seconds that a drained replica keeps its requests."""
    replicas: tuple[Replica, ...]
    """All replicas, in the order of the fleet."""


@dataclass(frozen=True, slots=True)
class Pools:
    """The answer of `/api/v1/pools`."""

    pools: tuple[Pool, ...]
    """The pools, in the order of the fleet."""


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """The answer of `/api/v1/fleet`."""

    settings: Mapping[str, str]
    """Path in the YAML → value, of every setting of the files that are served, except replicas."""
