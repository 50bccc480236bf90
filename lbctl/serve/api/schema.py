"""Every document that the HTTP API answers, takes and streams, as frozen dataclasses.

The server encodes these types, the commands decode them, and the OpenAPI document and docs/api.md are generated from
them: a field is a field of the JSON object with the same name (`field(metadata={"json": …})` where Python reserves it),
its docstring is its description. The module imports the standard library alone, so that commands stay quick to start.

Rules that hold everywhere: a field is always present; None is JSON's null and its docstring says when; a `Timestamp` is
ISO 8601 in UTC with milliseconds; durations and ages are seconds. A client ignores fields and enum values that it does
not know: both may be added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

Timestamp = Annotated[str, "date-time"]
"""ISO 8601 in UTC with milliseconds, as 2026-01-31T12:00:00.000Z."""
OverrideKind = Literal["drain", "weight", "freeze"]
ReloadOutcome = Literal["published", "unchanged", "invalid", "refused", "unsound"]


# ── Probes and errors ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Probe:
    """The answer to a probe of the process."""

    status: str
    """`ok`, or why the process is not ready."""


@dataclass(frozen=True, slots=True)
class Error:
    """Every answer with a status of 400 or above, except that of `/readyz`."""

    error: str
    """What is wrong, for people."""


# ── Status ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """An error, a warning or a note about the files or about what the proxies cannot express of them."""

    code: str
    """`LB` and three digits; `lbctl rule CODE` explains it."""
    severity: Literal["error", "warning", "note"]
    """An error keeps the files from being served."""
    message: str
    """What is wrong."""
    hint: str | None
    """What would be right; None where the message says it."""
    path: str | None
    """The path of the value in the YAML, as `pools.chat.replicas[0]`; None where it is about no value."""
    file: str | None
    """The file; None where it is about none."""
    line: int | None
    """The line, from 1; None where it is about the file as a whole."""
    column: int | None
    """The column, from 1; None where it is about the file as a whole."""
    text: str
    """The line that the commands print: position, severity, code, path, message and hint."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The fleet that is published to the proxies."""

    version: str
    """The version that proxies acknowledge; the same content has the same version."""
    at: Timestamp
    """Since when this version is published."""
    age: float
    """Seconds since `at`."""
    origin: Literal["files", "state"] = field(metadata={"json": "from"})
    """`files`, or `state` while the files cannot be served and the last good fleet of the state is."""
    pools: int
    """The number of pools."""
    replicas: int
    """The number of replicas, with those that are drained, ejected or removed."""


@dataclass(frozen=True, slots=True)
class FleetFiles:
    """The result of the last read of the fleet's files."""

    paths: tuple[str, ...]
    """The files and directories of the command line."""
    valid: bool
    """Whether the files are served."""
    read: Timestamp | None
    """When the files were last read; None before the first read has ended."""
    refused: str | None
    """Why the files are not served; None where they are."""
    shrink: tuple[Diagnostic, ...]
    """Losses of replicas or keys that wait for `lbctl reload --allow-shrink`."""
    diagnostics: tuple[Diagnostic, ...]
    """Everything that the last read reported."""


@dataclass(frozen=True, slots=True)
class UnmatchedNode:
    """An Envoy that is connected and is given nothing."""

    node: str
    """The node id that it sent."""
    reason: str
    """Why it is given nothing."""


@dataclass(frozen=True, slots=True)
class Override:
    """What an operator holds by hand, over the files and over the control loop."""

    kind: OverrideKind
    """`drain` and `weight` are about a replica, `freeze` is about the weights of a pool."""
    pool: str
    """The pool."""
    replica: str | None
    """The replica; None for `freeze`."""
    value: float | None
    """The weight, on the scale of capacities; None for other kinds."""
    reason: str | None
    """Why, in the operator's words; None where none was given."""
    since: Timestamp | None
    """When it was set."""
    until: Timestamp | None
    """When it ends by itself; None where somebody has to remove it."""


@dataclass(frozen=True, slots=True)
class PoolControl:
    """How the control loop treats one pool with telemetry."""

    pool: str
    """The pool."""
    strategy: str
    """The weighting strategy, as `weighting.strategy` names it."""
    mode: str
    """`acting`: signals move weights. `frozen`: too many replicas look bad at once, and weights stay. `blind`: too many
    have no fresh sample, and weights return to the capacities. `held`: an operator has frozen the pool."""
    words: str | None
    """Why the mode is not `acting`; None while it is."""
    out: Mapping[str, tuple[str, ...]]
    """Ejected replica → why deep health has ejected it."""
    floor: Mapping[str, tuple[str, ...]]
    """Replica kept at the floor weight → why."""


@dataclass(frozen=True, slots=True)
class SourceCounts:
    """Sources of telemetry, over all replicas that are watched."""

    total: int
    """The number of sources."""
    failing: int
    """The number whose last scrape failed."""
    pools: Mapping[str, int]
    """Pool → its failing sources; a pool without any is absent."""


@dataclass(frozen=True, slots=True)
class DiscoveredName:
    """A DNS name that is resolved for the fleet."""

    name: str
    """The name."""
    resolvers: tuple[str, ...]
    """The resolvers that are asked; empty: the system's."""
    pools: tuple[str, ...]
    """The pools that take replicas from it."""
    addresses: tuple[str, ...]
    """The addresses of the last good answer."""
    refused: tuple[str, ...]
    """Addresses of the answer that are not used."""
    left_out: int
    """How many addresses exceed the largest `max_replicas`."""
    answered: Timestamp | None
    """When the last good answer came; None: never."""
    error: str | None
    """Why the last question failed; None where it did not."""
    failed: Timestamp | None
    """When a question last failed; None: never."""


@dataclass(frozen=True, slots=True)
class Listens:
    """Where the process listens, and where it keeps its state."""

    xds: str | None
    """The address for Envoys; None until the first fleet can be served."""
    xds_socket: str | None
    """The Unix socket for Envoys of this machine; None without one."""
    api: str | None
    """The address of this API."""
    state: str | None
    """The state directory; None in a dry run, which keeps nothing."""


@dataclass(frozen=True, slots=True)
class Status:
    """What this control plane serves, and what it waits for."""

    version: str
    """The version of lbctl that runs."""
    since: Timestamp
    """When the process started."""
    ready: bool
    """Whether proxies are answered with a complete fleet."""
    waiting: str | None
    """Why it is not ready; None when it is."""
    dry_run: bool
    """Whether nothing is sent to proxies."""
    snapshot: Snapshot | None
    """What is published; None before the first fleet."""
    fleet: FleetFiles
    """The files."""
    restart: tuple[str, ...]
    """The keys of `control` that have changed in the files and are taken at the next start alone."""
    proxies: Mapping[str, int]
    """State → the number of proxies in it."""
    unmatched: tuple[UnmatchedNode, ...]
    """Envoys that are given nothing."""
    overrides: tuple[Override, ...]
    """What operators hold."""
    control: tuple[PoolControl, ...]
    """The pools with telemetry."""
    sources: SourceCounts
    """Sources of telemetry."""
    names: tuple[DiscoveredName, ...]
    """DNS names of the fleet."""
    listens: Listens
    """Addresses and paths of this process."""


# ── Proxies ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ResourceTypeStatus:
    """What one Envoy has of one xDS resource type."""

    type: str
    """The short name of the type: `cds`, `eds`, `lds`, `rds`, `sds`."""
    state: str
    """`SYNCED`, `WAITING` (it asked for what does not exist), `STALE` (sent or due, not yet accepted), `NACKED`."""
    since: Timestamp | None
    """When the type came into this state."""
    wildcard: bool
    """Whether the Envoy asks for all resources of the type."""
    names: int
    """The number of resources that it asks for by name."""
    offered: str
    """The version last sent; empty before."""
    acked: str
    """The version last accepted; empty before."""
    pushed_at: Timestamp | None
    """When a response was last sent; None: never."""
    acked_at: Timestamp | None
    """When a response was last accepted; None: never."""
    message: str
    """The Envoy's error while it is NACKED; otherwise empty."""
    nacked: tuple[str, ...]
    """The names of the resources that it rejects."""


@dataclass(frozen=True, slots=True)
class NackRecord:
    """A rejection by an Envoy."""

    at: Timestamp
    """When it came."""
    type: str
    """The short name of the resource type."""
    version: str
    """The version that was rejected."""
    names: tuple[str, ...]
    """The resources that were rejected."""
    message: str
    """The Envoy's error."""
    findings: tuple[str, ...]
    """The error for each resource at its place in the YAML, as one line each."""


@dataclass(frozen=True, slots=True)
class _ProxyStatus:
    """What is common to all proxies."""

    node: str
    """The node id of an Envoy, the name of any other proxy."""
    proxy: str | None
    """The name in `proxies` of the fleet; None for a node that is none of them."""
    kind: str
    """`envoy`, `haproxy`, `nginx`, or `reader` for `lbctl xds get|watch`."""
    connected: bool
    """Whether it is connected now."""
    since: Timestamp
    """When the connection, or the last attempt, began."""
    state: str
    """The worst state of its types, or `REFUSED` (it is given nothing new), `GONE` (it has left); for HAProxy and nginx
    `SYNCED`, `WAITING`, `FAILING` or `NOT DRIVEN`."""
    reason: str
    """Why it is not in sync; empty where it is or where its types say it."""
    version: str
    """The version last sent; empty before."""
    last_good: str
    """The version that it last accepted as a whole; empty before."""
    types: tuple[ResourceTypeStatus, ...]
    """A row for each xDS type; empty for HAProxy and nginx."""
    nacks: tuple[NackRecord, ...]
    """The last rejections, the newest first."""


@dataclass(frozen=True, slots=True)
class XdsProxy(_ProxyStatus):
    """An Envoy, or a reader, as its xDS streams show it."""

    cluster: str
    """The cluster of its node."""
    region: str
    """The region of its node; empty where it sends none."""
    zone: str
    """The zone of its node; empty where it sends none."""
    sub_zone: str
    """The sub-zone of its node; empty where it sends none."""
    envoy: str
    """Its version; empty where it sends none."""
    peer: str
    """The address that it connected from."""
    delta: bool
    """Whether it speaks delta xDS."""


@dataclass(frozen=True, slots=True)
class DrivenProxy(_ProxyStatus):
    """A HAProxy or nginx that lbctl drives on its own machine."""

    reloads: int
    """How many reloads lbctl has caused."""
    leaving: int
    """Replicas that are to be removed and still have requests."""


Proxy = XdsProxy | DrivenProxy


@dataclass(frozen=True, slots=True)
class Proxies:
    """The answer of `/api/v1/proxies`."""

    proxies: tuple[Proxy, ...]
    """Envoys by node id, then the driven proxies by name; an Envoy that has left stays for an hour."""


# ── Pools ────────────────────────────────────────────────────────────────────────────────────────────────────────────


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


# ── Signals ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal of a replica."""

    value: float
    """The value."""
    unit: str
    """The unit."""
    age: float
    """Seconds since it was read."""
    source: str
    """The kind of the source that it was read from."""
    fresh: bool
    """Whether it is younger than `stale_after`, and counts."""


@dataclass(frozen=True, slots=True)
class RefusedMetric:
    """A metric of a page that gave no sample."""

    metric: str
    """The name of the metric."""
    reason: str
    """Why it was refused."""


@dataclass(frozen=True, slots=True)
class Source:
    """A source of telemetry of a replica, as the last scrape left it."""

    kind: str
    """The kind, as `telemetry.sources` names it."""
    url: str
    """The URL, without the values of its query."""
    ok: bool
    """Whether the last scrape gave samples."""
    age: float | None
    """Seconds since it last gave samples; None: never."""
    reason: str | None
    """A short name for why the last scrape failed; None where it did not."""
    words: str | None
    """The same for people; None where it did not fail."""
    bytes: int
    """The size of the page."""
    seconds: float
    """The time that the scrape took."""
    refused: tuple[RefusedMetric, ...]
    """Metrics of the page that gave no sample."""


@dataclass(frozen=True, slots=True)
class ReplicaSignals:
    """What is read of a replica."""

    pool: str
    """The pool."""
    replica: str
    """The replica."""
    stale_after: float
    """Seconds after which a signal no longer counts."""
    signals: Mapping[str, Signal]
    """Name → signal."""
    sources: tuple[Source, ...]
    """The sources, in the order of the fleet."""


@dataclass(frozen=True, slots=True)
class Signals:
    """The answer of `/api/v1/signals`."""

    signals: tuple[ReplicaSignals, ...]
    """A row for each replica of each pool with telemetry."""


# ── Decisions ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class DecisionSignal:
    """A signal that a decision was made from."""

    value: float
    """The value."""
    unit: str
    """The unit."""
    age: float
    """Seconds since it was read."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Which proxies have the published version."""

    proxies: int
    """How many proxies should have it."""
    have_it: int
    """How many have accepted it."""
    waiting: tuple[str, ...]
    """The nodes that have not."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Every number between a replica's signals and its weight in the proxies."""

    pool: str
    """The pool."""
    replica: str
    """The replica."""
    strategy: str
    """The weighting strategy."""
    mode: str
    """The mode of the pool, as in `PoolControl`."""
    mode_words: str | None
    """Why the mode is not `acting`; None while it is."""
    capacity: float
    """The capacity of the replica."""
    signals: Mapping[str, DecisionSignal]
    """Name → signal, with those that are stale."""
    age: float | None
    """Seconds since the last sample; None: there never was one."""
    evidence_age: float | None
    """Seconds since the evidence that the estimate rests on; None without evidence."""
    speed: float | None
    """Speed per capacity, comparable within the pool alone; None without evidence and for `composite`."""
    load: float | None
    """Load per capacity, comparable within the pool alone; None without evidence and for other strategies."""
    normalised: float
    """The natural logarithm of speed or load against the upper median of its peers."""
    across_types: float
    """The natural logarithm of that of its GPU type against the pool's."""
    wished: float | None
    """The part of the capacity that the strategy asks for; None where it asks for nothing."""
    clamped: float
    """The same within floor and ceiling, or what health and staleness make of it."""
    damped: float
    """The same after bounded steps."""
    beyond_deadband: float
    """The same after the deadband: the part of the capacity that was decided."""
    decided: float
    """The weight that was decided, on the scale of capacities."""
    sent: float
    """The weight that is published: an operator's where one is held."""
    room: float
    """The part of the weight that is room."""
    of_peers_speed: float
    """The part of the weight that is speed, relative to its peers."""
    held: float
    """The factor that keeps the weight back."""
    share: float
    """Its part of the pool's requests, from 0 to 1."""
    quantised: Mapping[str, int]
    """Kind of proxy → the integer weight there. `kind name` where proxies of a kind differ; absent where the replica
    gets nothing new."""
    notes: tuple[str, ...]
    """Where a proxy's balancing does not follow the weight."""
    ramp: float
    """The factor of slow start by lbctl, from 0 to 1."""
    verdict: str
    """What deep health says: `in`, `floor` or `out`."""
    words: tuple[str, ...]
    """Why, and what is missing of its signals."""
    overrides: tuple[Override, ...]
    """Overrides about the replica or its pool."""
    acknowledged: Acknowledged
    """Which proxies have the published version."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """The answer of `/api/v1/decisions`."""

    decisions: tuple[Decision, ...]
    """A row for each replica of each pool with telemetry."""


# ── Overrides and reload ─────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Overrides:
    """The answer of `GET /api/v1/overrides`."""

    overrides: tuple[Override, ...]
    """What operators hold."""


@dataclass(frozen=True, slots=True)
class OverrideRequest:
    """The body of `POST /api/v1/overrides`."""

    kind: OverrideKind
    """What to hold."""
    pool: str
    """The pool."""
    replica: str | None = None
    """The replica; None for `freeze`."""
    value: float | None = None
    """The weight, above 0 on the scale of capacities; for `weight` alone."""
    reason: str | None = None
    """Why; at most 200 characters are kept."""
    ttl: float | None = None
    """Seconds after which it ends by itself; None: somebody has to remove it."""


@dataclass(frozen=True, slots=True)
class OverrideRemoval:
    """The body of `DELETE /api/v1/overrides`."""

    kind: OverrideKind
    """What is held."""
    pool: str
    """The pool."""
    replica: str | None = None
    """The replica; None for `freeze`."""


@dataclass(frozen=True, slots=True)
class OverrideResult:
    """The answer of `POST /api/v1/overrides`."""

    override: Override
    """The override as it is held from now on."""
    snapshot: Snapshot | None
    """What is published with it; None before the first fleet."""


@dataclass(frozen=True, slots=True)
class RemovalResult:
    """The answer of `DELETE /api/v1/overrides`."""

    removed: bool
    """Whether there was such an override."""
    snapshot: Snapshot | None
    """What is published without it; None before the first fleet."""


@dataclass(frozen=True, slots=True)
class ReloadRequest:
    """The body of `POST /api/v1/reload`."""

    allow_shrink: bool = False
    """Whether to serve the files even where they lose more replicas or keys than `control.max_shrink` allows."""


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """The answer of `POST /api/v1/reload`."""

    result: ReloadOutcome
    """`published`, `unchanged`, `invalid` (errors), `refused` (too large a loss), or
    `unsound` (a proxy would reject it)."""
    refused: str | None
    """Why the files are not served; None where they are."""
    offered_again: int
    """How many resources that Envoys had rejected are sent to them once more."""
    snapshot: Snapshot | None
    """What is published now; None before the first fleet."""
    diagnostics: tuple[Diagnostic, ...]
    """Everything that the read reported."""


# ── Events ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Published:
    """A new version is published, or weights have moved."""

    at: Timestamp
    """When."""
    version: str
    """The version that is published now."""
    cause: str
    """What caused it: `the files`, `the state`, `discovery`, `an override`, a drain's deadline or the control loop."""
    changed: Mapping[str, int]
    """Short name of the xDS type → the number of resources that are added, changed or removed."""
    names: tuple[str, ...]
    """Their names as `type/name` where they are few; otherwise empty."""
    weights: Mapping[str, Mapping[str, float]]
    """Pool → replica → its new weight, of the first replicas that had another one."""
    more_weights: int
    """How many more weights have moved than `weights` lists; `/api/v1/pools` has all."""


@dataclass(frozen=True, slots=True)
class OverridesChanged:
    """Operators hold something else than before, or an override has ended."""

    at: Timestamp
    """When."""
    added: tuple[Override, ...]
    """New overrides, also those in the place of earlier ones about the same."""
    removed: tuple[Override, ...]
    """Overrides that were removed or replaced, or that have ended."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The files were read."""

    at: Timestamp
    """When."""
    result: ReloadOutcome
    """As in `ReloadResult`."""
    refused: str | None
    """Why the files are not served; None where they are."""
    errors: int
    """The number of errors; `/api/v1/status` has them."""
    warnings: int
    """The number of warnings; `/api/v1/status` has them."""


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """A task of the control plane has failed; it starts again, and the log says why."""

    at: Timestamp
    """When."""
    task: str
    """The name of the task, as in the metric `lbctl_task_failures_total`."""


@dataclass(frozen=True, slots=True)
class Missed:
    """Events between `Last-Event-ID` and the next one are lost: read the state again."""

    oldest: int
    """The id of the oldest event that is still kept, or of the next one where none is."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The last event of a stream that the server ends."""

    reason: Literal["shutdown", "slow"]
    """`shutdown`: the process ends. `slow`: the client did not read as fast as events came."""


Event = Published | OverridesChanged | Reloaded | TaskFailed | Missed | Closed
EVENTS: Mapping[str, type[Event]] = {
    "published": Published,
    "overrides": OverridesChanged,
    "reload": Reloaded,
    "task_failed": TaskFailed,
    "missed": Missed,
    "closed": Closed,
}
"""Name of a server-sent event → the type of its data."""
