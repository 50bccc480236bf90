"""`GET /api/v1/pools` and `GET /api/v1/fleet`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lbctl.api.schema.values import Timestamp
from lbctl.control.fitness import StateName

ReplicaState = StateName


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
    """0 gets requests first; higher numbers are reserves."""
    capacity: float
    """What it can carry, relative to the others of its pool."""
    state: ReplicaState
    """`in`: it gets its share. `ramping`: its weight rises after it has joined or come back. `slow`: its
    weight is clearly below its capacity, since it is slower than its peers. `hot`: so, since it is fuller or hotter.
    `unknown`: it gets requests, and nothing shows whether it can be reached, or none of them is answered. `starting`: a
    proxy sends it nothing until its first active checks have passed, and none has failed. `down`: an active check
    fails, or lbctl cannot connect to it. `ejected`: deep health or a proxy's passive check keeps requests away.
    `draining`: drained, with requests in flight, or not by all proxies yet. `drained`: drained. `removed`: its drain
    deadline has passed, no proxy has it."""
    state_reason: str
    """Why it is in this state, as a sentence that names the check or the proxy; empty for `in`."""
    state_since: Timestamp | None
    """When it came into this state; None where it is in it since before lbctl started."""
    weight: float
    """The published weight, on the scale of capacities."""
    declared: float
    """Its part of the pool's requests by the files alone, their capacities and drains, from 0 to 1."""
    share: float
    """Its part of the pool's requests as decided, from 0 to 1: the mean over the proxies, with measured weights,
    drains, and what lbctl does for a proxy that lacks it (active checks, slow start)."""
    acknowledged: float | None
    """The same part by the newest fleet that all connected proxies have; None where one of them has none yet."""
    observed: float | None
    """Its part of the pool's requests in the last minute, as the proxies count them; None without reported requests."""
    requests_per_second: float | None
    """Requests in the last minute, per second; None where no proxy reports any counts."""
    errors: float | None
    """The part of its requests in the last minute that failed, from 0 to 1: a status of 500 or more, or no whole
    answer. None without reported requests."""
    first_byte_p50: float | None
    """Seconds until the first byte of half of the answers of the last minute; None where no proxy reports them."""
    first_byte_p99: float | None
    """The same of 99 % of the answers."""
    in_flight: int | None
    """Requests that it has now, of the proxies that report them; None where none does."""
    idle: bool | None
    """Whether it is drained and has no requests in flight, by reports since all connected proxies have applied the
    drain; None where it is not drained, or where not all of them report requests in flight."""
    ramp: float
    """The factor of slow start by lbctl, from 0 to 1: the lowest of all proxies that need it."""
    picker_ramp: float
    """The factor of slow start that the picker counts, from 0 to 1."""
    drained: Timestamp | None
    """When its drain began; None where it is not drained."""
    out: bool
    """Whether it is ejected by deep health, or removed since its drain deadline has passed."""
    reasons: tuple[str, ...]
    """Why it is out, down or drained, and which weight an operator holds."""


@dataclass(frozen=True, slots=True)
class RecentPicks:
    """The requests of a picked pool in the last minute."""

    requests: int
    """Those that proxies have reported."""
    picked: int
    """Those that the picker has picked and that have ended."""
    missed: int
    """At least so many went without a pick, by `otherwise`; proxies may report requests ten seconds late."""
    in_flight: int
    """Picked requests that have not ended."""
    share: float | None
    """The part of the requests that were picked, from 0 to 1; None without reported requests."""


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
    requests_per_second: float | None
    """Requests in the last minute, per second; None where no proxy reports any counts."""
    errors: float | None
    """The part of its requests in the last minute that failed, from 0 to 1, those included that proxies refused
    themselves; None without reported requests."""
    first_byte_p50: float | None
    """Seconds until the first byte of half of the answers of the last minute; None where no proxy reports them."""
    first_byte_p99: float | None
    """The same of 99 % of the answers."""
    picks: RecentPicks | None
    """Its picks; None without the algorithm `pick`, and where pickers that this control plane does not run pick too."""
    in_use: bool
    """Whether a route sends requests to it."""
    fail_open: bool
    """Whether it gets requests although the active checks of all its replicas fail."""
    failing: bool
    """Whether all requests of the last seconds failed, three or more; where there were fewer, of the last minute."""
    shedding: str | None
    """Why proxies refuse its requests by `load_shedding`; None where they do not."""
    reporting: tuple[str, ...]
    """The proxies that report counts of this pool's replicas: Envoys by node id, the others by name."""
    silent: tuple[str, ...]
    """The proxies that may send to this pool and report nothing; an Envoy without a connected node by its name."""
    unable: Mapping[str, str]
    """Those of `silent` that cannot report → why: what their entry in `proxies` lacks, or why reports are not taken."""
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
