"""Every document that the HTTP API returns, accepts and streams, as frozen structs.

The server encodes these types and the commands decode them. The OpenAPI document and docs/reference/http-api.md are
generated from them. A field has the same name in the JSON object (`field(name=…)` if Python reserves the name). Its
docstring is its description. The module imports msgspec and the standard library alone, so that commands start fast.

Rules for all documents: A field is always present. None is JSON's null, and the docstring explains when a field is
null. A `Timestamp` is ISO 8601 in UTC with milliseconds. Durations and ages are in seconds. A client ignores fields and
enum values that it does not know, because new ones may be added.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from lbctl.api.fields import AnyOf, Number, OneOf, Timestamp

# ── Types of values that several documents share ──────────────────────────────────────────────────────────────────────


OverrideKind = OneOf["drain", "weight", "freeze", "split"]
ReloadOutcome = OneOf["published", "unchanged", "invalid", "refused", "unsound", "rolled_back"]
Severity = OneOf["error", "warning", "note"]
Origin = OneOf["files", "state", "history", "leader"]
ProblemSeverity = OneOf["critical", "warning"]
HistoryAction = OneOf["files", "reload", "rollback"]
RolloutMode = OneOf["manual", "timed", "analysis"]
ClosedReason = OneOf["shutdown", "slow"]


# ── Probes and errors ─────────────────────────────────────────────────────────────────────────────────────────────────


class Probe(Struct, frozen=True):
    """The response to a probe of the process."""

    status: str
    """`ok`, or the reason why the process is not ready."""


class Error(Struct, frozen=True):
    """Every response with a status of 400 or above, except from `/readyz`."""

    error: str
    """Description of the problem."""


# ── `GET /api/v1/status` and the values that other documents share with it ────────────────────────────────────────────


class Diagnostic(Struct, frozen=True):
    """An error, a warning or a note about the files, or about settings that a proxy cannot express."""

    code: str
    """`LB` and three digits; `lbctl rule CODE` explains it."""
    severity: Severity
    """The severity; files with an error are not published."""
    message: str
    """The problem."""
    hint: str | None
    """How to fix it; None if the message already states it."""
    path: str | None
    """The path of the value in the YAML, for example `pools.chat.replicas[0]`; None if it is not about a value."""
    file: str | None
    """The file; None if it is not about a file."""
    line: int | None
    """The line, from 1; None if it is about the file as a whole."""
    column: int | None
    """The column, from 1; None if it is about the file as a whole."""
    text: str
    """The line that the commands print: position, severity, code, path, message and hint."""


class Snapshot(Struct, frozen=True):
    """The fleet that is published to the proxies."""

    version: str
    """The version that proxies acknowledge. The same content has the same version."""
    at: Timestamp
    """When this version was published."""
    age: Number
    """Seconds since `at`."""
    origin: Origin = field(name="from")
    """`files`: the files on disk. `state`: the last valid fleet from the state, because the files are not valid.
    `history`: an earlier fleet, after a rollback. `leader`: the leader's fleet."""
    pools: int
    """The number of pools."""
    replicas: int
    """The number of replicas, including drained, ejected and removed ones."""


class FleetFiles(Struct, frozen=True):
    """The result of the last read of the fleet's files."""

    paths: tuple[str, ...]
    """The files and directories of the command line."""
    directory: str
    """The working directory of the process, to which `paths` are relative; empty if the directory was deleted."""
    valid: bool
    """Whether the files are published."""
    read: Timestamp | None
    """When the files were last read; None before the first read has ended."""
    refused: str | None
    """The reason why the files are not published; None if they are."""
    shrink: tuple[Diagnostic, ...]
    """Removals of replicas or keys that are withheld until `lbctl reload --allow-shrink`."""
    diagnostics: tuple[Diagnostic, ...]
    """All diagnostics of the last read."""


class Rollback(Struct, frozen=True):
    """An active rollback: an earlier fleet is published until the files change."""

    ignored: str
    """The digest of the files that are ignored."""
    since: Timestamp
    """When it was requested."""
    author: str
    """The name of the token with which it was requested."""
    reason: str | None
    """The operator's reason; None if none was given."""


class ServedFiles(Struct, frozen=True):
    """The files that are published."""

    digest: str
    """The digest of the YAML files: SHA-256 of their names and contents, in hexadecimal."""
    since: Timestamp
    """When they were published; `lbctl history` lists earlier ones."""
    commit: str | None
    """The git commit that they were read from; None if they are not in a git checkout."""
    dirty: bool
    """Whether they differ from the commit."""
    rollback: Rollback | None
    """The rollback that published these files in place of the files on disk; None if there is no rollback."""


class UnmatchedNode(Struct, frozen=True):
    """A connected Envoy that gets no configuration."""

    node: str
    """The node id that it sent."""
    reason: str
    """The reason why it gets no configuration."""


class Override(Struct, frozen=True):
    """A manual override by an operator. It takes precedence over the files and the control loop."""

    kind: OverrideKind
    """`drain` and `weight` apply to a replica, `freeze` to the weights of a pool, `split` to a route."""
    pool: str
    """The pool; empty for `split`."""
    replica: str | None
    """The replica; None for `freeze` and `split`."""
    value: Number | None
    """The weight, on the scale of capacities; None for other kinds."""
    route: str | None
    """The route of a `split`; None for other kinds."""
    shares: Mapping[str, int]
    """Pool → its share of the route's requests, relative to the others; empty for other kinds than `split`."""
    reason: str | None
    """The operator's reason; None if none was given."""
    author: str | None
    """The name of the token that was used to set it; None if an earlier version of lbctl set it."""
    since: Timestamp | None
    """When it was set."""
    until: Timestamp | None
    """When it expires; None if it lasts until an operator removes it."""


class PoolControl(Struct, frozen=True):
    """How the control loop treats one pool with telemetry."""

    pool: str
    """The pool."""
    strategy: str
    """The weighting strategy, with its name in `weighting.strategy`."""
    mode: str
    """`acting`: signals change weights. `frozen`: too many replicas look bad at once, and weights stay. `blind`: too
    many replicas have no fresh sample, and weights return to the capacities. `held`: an operator has frozen the
    pool."""
    reason: str | None
    """The reason why the mode is not `acting`; None if it is."""
    out: Mapping[str, tuple[str, ...]]
    """Ejected replica → reasons of deep health for the ejection."""
    floor: Mapping[str, tuple[str, ...]]
    """Replica at the minimum weight → reasons."""


class SourceCounts(Struct, frozen=True):
    """Number of telemetry sources of all replicas."""

    total: int
    """The number of sources."""
    failing: int
    """The number of sources whose last scrape failed."""
    pools: Mapping[str, int]
    """Pool → its number of failing sources; pools without failing sources are absent."""


class DiscoveredName(Struct, frozen=True):
    """A DNS name that is resolved for the fleet, or a Kubernetes service that is watched."""

    name: str
    """The name; for a service with the prefix `kubernetes` and its namespace."""
    resolvers: tuple[str, ...]
    """The resolvers that are used; empty: the system's resolvers."""
    pools: tuple[str, ...]
    """The pools that take replicas from it."""
    addresses: tuple[str, ...]
    """The addresses in the last valid answer."""
    refused: tuple[str, ...]
    """Addresses of the answer that are not used."""
    left_out: int
    """How many addresses exceed the largest `max_replicas`."""
    answered: Timestamp | None
    """When the last valid answer arrived; None: never."""
    error: str | None
    """The reason why the last query failed; None if it succeeded."""
    failed: Timestamp | None
    """When a query last failed; None: never."""


class Listens(Struct, frozen=True):
    """Addresses of the process, and its state directory."""

    xds: str | None
    """The address for Envoys; None until the first fleet is published."""
    xds_socket: str | None
    """The Unix socket for Envoys on this machine; None if there is none."""
    api: str | None
    """The address of this API."""
    state: str | None
    """The state directory; None in a dry run, which saves nothing."""


class MemberStatus(Struct, frozen=True):
    """This process as a member of a control plane."""

    name: str
    """Its name."""
    role: str
    """`leader`, `follower`, or `isolated`: the last leader, which cannot reach the store."""
    leader: str | None
    """The leader; null if it is unknown."""
    age: Number | None
    """Seconds since it received the leader's last heartbeat: the maximal age of the state that it shows; null in the
    leader."""


ProblemKind = OneOf[
    "not_ready", "files", "pool_down", "pool_shedding", "pool_failing", "no_proxy", "proxy", "picker",
    "picker_unasked", "shrink", "rollout_waiting", "store", "pool_errors", "replica_down", "replica_errors",
    "replica_unknown", "replica_starting", "picks_missed", "metrics", "proxy_gone", "rollout_failed", "state",
    "proxy_unconfirmed", "keys_refused",
]  # fmt: skip


class Problem(Struct, frozen=True):
    """A current problem."""

    severity: ProblemSeverity
    """`critical`: requests fail, or the configuration in the files is not in effect. `lbctl status --check` then
    fails."""
    kind: ProblemKind
    """The kind of problem."""
    subject: str
    """The pool, POOL/REPLICA, proxy or route that is affected; empty if it is the control plane."""
    text: str
    """Description of the problem, as a sentence."""
    command: str
    """The command to run next."""


class ReplicaCounts(Struct, frozen=True):
    """Number of replicas of the fleet by state."""

    total: int
    """The number of all replicas."""
    states: Mapping[str, int]
    """State → number of replicas."""
    away: Mapping[str, tuple[str, ...]]
    """State other than `in`, `ramping`, `slow` and `hot` → its replicas as POOL/REPLICA, at most ten."""


class Status(Struct, frozen=True):
    """The state of this control plane."""

    version: str
    """The running version of lbctl."""
    since: Timestamp
    """When the process started."""
    ready: bool
    """Whether a complete fleet is published to proxies."""
    waiting: str | None
    """The reason why it is not ready; None if it is."""
    problems: tuple[Problem, ...]
    """Current problems, the most severe first."""
    replicas: ReplicaCounts
    """The replicas of the published fleet."""
    dry_run: bool
    """Whether nothing is sent to proxies."""
    snapshot: Snapshot | None
    """The published fleet; None before the first one."""
    fleet: FleetFiles
    """The files on disk."""
    served: ServedFiles | None
    """The published files, which may be earlier ones; None before the first fleet."""
    restart: tuple[str, ...]
    """The keys of `control` that have changed in the files and take effect only at the next start."""
    proxies: Mapping[str, int]
    """State → the number of proxies in it."""
    unmatched: tuple[UnmatchedNode, ...]
    """Connected Envoys that get no configuration."""
    overrides: tuple[Override, ...]
    """The active overrides."""
    control: tuple[PoolControl, ...]
    """The control loop's state for each pool with telemetry."""
    sources: SourceCounts
    """Number of telemetry sources."""
    names: tuple[DiscoveredName, ...]
    """DNS names and Kubernetes services of the fleet."""
    listens: Listens
    """Addresses and paths of this process."""
    picker: PickerStatus | None
    """The picker; None if no pool needs it."""
    member: MemberStatus | None
    """This process as a member of its control plane; None if there are no other members."""


# ── Overrides and reload ──────────────────────────────────────────────────────────────────────────────────────────────


class Overrides(Struct, frozen=True):
    """The answer of `GET /api/v1/overrides`."""

    overrides: tuple[Override, ...]
    """The active overrides."""


class OverrideRequest(Struct, frozen=True):
    """The body of `POST /api/v1/overrides`."""

    kind: OverrideKind
    """The kind of override."""
    pool: str = ""
    """The pool; empty for `split`."""
    replica: str | None = None
    """The replica; None for `freeze` and `split`."""
    value: Number | None = None
    """The weight, above 0 on the scale of capacities; for `weight` alone."""
    route: str | None = None
    """The route; for `split` alone."""
    shares: Mapping[str, int] | None = None
    """Pool → its share, a whole number from 0, for each pool of the route's split; for `split` alone."""
    reason: str | None = None
    """The reason; at most 200 characters are kept."""
    ttl: Number | None = None
    """Seconds until it expires; None: it lasts until an operator removes it."""


class OverrideRemoval(Struct, frozen=True):
    """The body of `DELETE /api/v1/overrides`."""

    kind: OverrideKind
    """The kind of override."""
    pool: str = ""
    """The pool; empty for `split`."""
    replica: str | None = None
    """The replica; None for `freeze` and `split`."""
    route: str | None = None
    """The route; for `split` alone."""


class OverrideResult(Struct, frozen=True):
    """The answer of `POST /api/v1/overrides`."""

    override: Override
    """The new override."""
    snapshot: Snapshot | None
    """The published fleet with the override; None before the first fleet."""
    warnings: tuple[str, ...] = ()
    """Side effects and other problems: pools without an available replica, and files that are not published."""


class RemovalResult(Struct, frozen=True):
    """The answer of `DELETE /api/v1/overrides`."""

    removed: bool
    """Whether there was such an override."""
    snapshot: Snapshot | None
    """The published fleet without the override; None before the first fleet."""
    warnings: tuple[str, ...] = ()
    """Side effects and other problems: pools without an available replica, and files that are not published."""


class ReloadRequest(Struct, frozen=True):
    """The body of `POST /api/v1/reload`."""

    allow_shrink: bool = False
    """Whether to publish the files even if they remove more replicas or keys than `control.max_shrink` allows."""


class ReloadResult(Struct, frozen=True):
    """The answer of `POST /api/v1/reload`."""

    result: ReloadOutcome
    """`published`, `unchanged`, `invalid` (errors), `refused` (too many replicas or keys removed), `unsound` (a proxy
    would reject it), or `rolled_back` (the files have not changed since a rollback, which stays active)."""
    refused: str | None
    """The reason why the files are not published; None if they are."""
    offered_again: int
    """Number of rejected resources that are sent to Envoys once more."""
    snapshot: Snapshot | None
    """The published fleet; None before the first one."""
    diagnostics: tuple[Diagnostic, ...]
    """All diagnostics of the read."""


# ── `GET /api/v1/history` and `POST /api/v1/rollback` ─────────────────────────────────────────────────────────────────


class HistoryEntry(Struct, frozen=True):
    """A fleet that was published."""

    digest: str
    """The digest of its YAML files: SHA-256 of their names and contents, in hexadecimal."""
    at: Timestamp
    """When it was published."""
    current: bool
    """Whether it is the fleet that is published now."""
    commit: str | None
    """The git commit that its files were read from; None if they were not in a git checkout."""
    dirty: bool
    """Whether the files differed from the commit."""
    action: HistoryAction
    """The cause: a change of the files, `lbctl reload`, or `lbctl rollback`."""
    actor: str
    """The name of the token that was used; `lbctl` for a change of the files."""
    reason: str | None
    """The operator's reason; None if none was given."""
    version: str
    """The version of the first snapshot that was built from it."""
    pools: int
    """The number of its pools."""
    replicas: int
    """The number of its replicas, including the ones that were discovered at that time."""


class History(Struct, frozen=True):
    """The answer of `GET /api/v1/history`."""

    entries: tuple[HistoryEntry, ...]
    """At most the newest 20, the oldest first; fewer if their files are large."""


class RollbackRequest(Struct, frozen=True):
    """The body of `POST /api/v1/rollback`."""

    digest: str | None = None
    """The digest of an entry of the history, or its first characters (4 or more); None: the newest fleet before the
    current one."""
    allow_shrink: bool = False
    """Whether to publish it even if it removes more replicas or keys than `control.max_shrink` allows."""
    reason: str | None = None
    """The reason; at most 200 characters are kept."""


class RollbackResult(Struct, frozen=True):
    """The answer of `POST /api/v1/rollback`."""

    result: ReloadOutcome
    """`rolled_back`; `published` or `unchanged` if the earlier fleet equals the files; or the reason why nothing has
    changed: `invalid`, `refused`, `unsound`."""
    refused: str | None
    """The reason why the earlier fleet is not published; None if it is."""
    digest: str
    """The digest of the earlier fleet."""
    snapshot: Snapshot | None
    """The published fleet."""
    diagnostics: tuple[Diagnostic, ...]
    """All diagnostics of the earlier fleet."""


# ── `GET` and `POST /api/v1/rollouts` ─────────────────────────────────────────────────────────────────────────────────


RolloutAction = OneOf["start", "promote", "pause", "resume", "set", "abort"]
RolloutPhase = OneOf["waiting", "progressing", "paused", "promoted", "aborted", "rolled_back", "superseded"]
RolloutVerdict = OneOf["good", "bad", "inconclusive"]


class RolloutStep(Struct, frozen=True):
    """One step of a rollout."""

    percent: Number
    """The share of the target pool."""
    hold: Number | None
    """Seconds until the next step at the earliest; None if an operator has to promote it."""


class RolloutCounts(Struct, frozen=True):
    """Requests to one side of a rollout, as counted by the proxies."""

    requests: int
    """Requests that have ended."""
    errors: int
    """Failed requests: a status of 500 or above, or a connection that failed or broke."""
    rate: Number | None
    """The error rate, from 0 to 1; None without requests."""


class RolloutMetric(Struct, frozen=True):
    """The values of a latency or of a PromQL metric in one evaluation."""

    name: str
    """Its name in the file; for a latency the measurement and the percentile, for example `first_byte p95`."""
    new: Number | None
    """The value of the target pool, for a latency in milliseconds; None if there is none."""
    old: Number | None
    """The value of the other pools, in the same unit; None if there is none."""
    ratio: Number | None
    """`new` divided by `old`; None if that is not a number."""
    max_ratio: Number
    """The maximal ratio for the verdict `good`."""
    verdict: RolloutVerdict
    """The verdict on this metric alone."""
    problem: str | None
    """The reason why the verdict is `inconclusive`; None for other verdicts."""


class RolloutEvaluation(Struct, frozen=True):
    """The verdict of the analysis on one interval, with its numbers."""

    at: Timestamp
    """When."""
    step: int
    """The number of the step, from 1."""
    verdict: RolloutVerdict
    """`good`: enough requests, and not worse than the other pools. `bad`: significantly worse. `inconclusive`: not
    enough data; neither the step nor the rollout ends."""
    reason: str | None
    """The reason why the verdict is not `good`; None if it is."""
    new: RolloutCounts
    """The target pool. An interval with too few requests is joined with the next one."""
    old: RolloutCounts
    """The other pools of the split together."""
    metrics: tuple[RolloutMetric, ...]
    """The latency, then the PromQL metrics by name; empty where the other pools get no requests at this step."""


class RolloutAnalysis(Struct, frozen=True):
    """The evidence of a rollout in the mode `analysis`."""

    waits_for: str | None
    """The condition that the step waits for in addition to its hold; None if there is none, or if no step is active."""
    new: RolloutCounts
    """The target pool since the step began or was resumed."""
    old: RolloutCounts
    """The other pools since then."""
    failures: int
    """Bad evaluations in a row."""
    max_failures: int
    """Number of bad evaluations in a row that ends or pauses the rollout."""
    verdicts: Mapping[RolloutVerdict, int]
    """Verdict → number of evaluations of this rollout."""
    evaluations: tuple[RolloutEvaluation, ...]
    """The last evaluations, the oldest first."""


class Rollout(Struct, frozen=True):
    """The state of a route's rollout."""

    route: str
    """The route."""
    to: str
    """The target pool, to which the traffic moves."""
    mode: RolloutMode
    """`manual`: an operator ends each step. `timed`: a step ends after its hold. `analysis`: a step ends after its hold
    if evaluations are good."""
    phase: RolloutPhase
    """`waiting`: it has not begun. `progressing`: a step is active. `paused`: the share stays. `promoted`: all steps
    are done. `aborted`: the split in the files applies again. `rolled_back`: the same, because the verdict on the
    target pool was bad, or the pool has no available replica. `superseded`: the files have another split, or another
    model for an old pool, and their split applies."""
    step: int
    """The number of the current step, from 1."""
    steps: tuple[RolloutStep, ...]
    """All steps."""
    percent: Number | None
    """The current share of the target pool; None if the rollout does not decide the split."""
    split: Mapping[str, int]
    """Pool → its current share, relative to the others, in the file's format."""
    since: Timestamp | None
    """When the current step or phase began."""
    next_at: Timestamp | None
    """When the current step ends at the earliest; None if an operator has to end it, and while its hold is paused."""
    reason: str | None
    """The reason of the last action by an operator or the analysis; None if there is none."""
    analysis: RolloutAnalysis | None
    """The evidence; None in the modes `manual` and `timed`."""
    held_by: str | None = None
    """Author and reason of a `split` override, which replaces the split of the rollout; None without such an
    override."""
    hold_waits_for: str | None = None
    """The reason why the hold of the current step is paused; None while it runs, and without a hold."""
    unavailable: str | None = None
    """The reason why the target pool has no available replica, which blocks the rollout; None if it has one, if an
    operator has allowed it, and after the end."""
    observed: Number | None = None
    """The target pool's share of the last minute's requests to the pools of the split, from 0 to 1. Proxies count them,
    including requests of other routes to these pools. None without reported requests."""


class Rollouts(Struct, frozen=True):
    """The answer of `GET /api/v1/rollouts`."""

    rollouts: tuple[Rollout, ...]
    """The rollouts of the published fleet, sorted by route."""


class RolloutRequest(Struct, frozen=True):
    """The body of `POST /api/v1/rollouts`."""

    route: str
    """The route."""
    action: RolloutAction
    """The action. `set` needs `percent`."""
    percent: Number | None = None
    """The share of the target pool, from 0 to 100; for `set` alone."""
    reason: str | None = None
    """The reason; at most 200 characters are kept."""
    allow_unavailable: bool | None = None
    """Whether the rollout may continue without an available replica in the target pool. It applies until the rollout is
    started again."""


class RolloutResult(Struct, frozen=True):
    """The answer of `POST /api/v1/rollouts`."""

    rollout: Rollout
    """The rollout after the action."""
    warnings: tuple[str, ...] = ()
    """Side effects and other problems: pools without an available replica, and files that are not published."""


# ── `GET /api/v1/members` ─────────────────────────────────────────────────────────────────────────────────────────────


class Member(Struct, frozen=True):
    """A member of the control plane, by its last heartbeat."""

    name: str
    """Its name."""
    self: bool
    """Whether it is the member that returned this response."""
    role: str
    """`leader`, `follower`, or `isolated`: the last leader, which cannot reach the store."""
    epoch: int
    """The epoch in which it leads, or the epoch of the leader that it follows."""
    api: str | None
    """The URL of its API; null while it does not listen."""
    xds: str | None
    """The address for Envoys; null while it does not listen."""
    version: str
    """Its version of lbctl."""
    snapshot: str
    """The version of the fleet that it publishes."""
    digest: str
    """The digest of the files on its disk, without `control`."""
    in_step: bool
    """Whether it publishes the same fleet as the leader."""
    files_differ: bool
    """Whether its files differ from the leader's; it then publishes the leader's."""
    lag: Number | None
    """Seconds since it received the leader's last heartbeat; null in the leader."""
    clock: Number
    """Clock offset: seconds by which the leader's clock is ahead."""
    latency: Number | None
    """Response time of the store for the last request, in seconds; null before the first one."""
    problem: str | None
    """The reason why it cannot use the store; null if it can."""
    pools: tuple[str, ...]
    """The pools whose replicas it scrapes, as known to the member that returned this response."""
    at: Timestamp
    """The time of the heartbeat, by its own clock."""


class Members(Struct, frozen=True):
    """The answer of `GET /api/v1/members`."""

    store: str | None
    """The store of the members; null for a single control plane with a state directory."""
    leader: str | None
    """The leader; null if it is unknown."""
    members: tuple[Member, ...]
    """The members, by name."""


# ── `GET /api/v1/proxies` ─────────────────────────────────────────────────────────────────────────────────────────────


class ResourceTypeStatus(Struct, frozen=True):
    """The state of one xDS resource type in one Envoy."""

    type: str
    """The short name of the type: `cds`, `eds`, `lds`, `rds`, `sds`."""
    state: str
    """`SYNCED`, `WAITING` (it requested a resource that does not exist), `STALE` (an update is due or sent, but not yet
    accepted), `NACKED`."""
    since: Timestamp | None
    """When this state began."""
    wildcard: bool
    """Whether the Envoy requests all resources of the type."""
    names: int
    """The number of resources that it requests by name."""
    offered: str
    """The version last sent; empty before."""
    acked: str
    """The version last accepted; empty before."""
    pushed_at: Timestamp | None
    """When a response was last sent; None: never."""
    acked_at: Timestamp | None
    """When a response was last accepted; None: never."""
    message: str
    """The Envoy's error message if the state is NACKED; otherwise empty."""
    nacked: tuple[str, ...]
    """The names of the resources that it rejects."""


class NackRecord(Struct, frozen=True):
    """A rejection by an Envoy."""

    at: Timestamp
    """When it arrived."""
    type: str
    """The short name of the resource type."""
    version: str
    """The version that was rejected."""
    names: tuple[str, ...]
    """The resources that were rejected."""
    message: str
    """The Envoy's error message."""
    findings: tuple[str, ...]
    """One line for each resource: its position in the YAML and its error."""


class _ProxyStatus(Struct, frozen=True):
    """Fields of all proxies."""

    node: str
    """The node id of an Envoy, the name of any other proxy."""
    proxy: str | None
    """The name in `proxies` of the fleet; None for a node that is not in `proxies`."""
    kind: str
    """`envoy`, `haproxy`, `nginx`, or `reader` for `lbctl xds get|watch`."""
    connected: bool
    """Whether it is connected now."""
    since: Timestamp
    """When the connection, or the last attempt, began. For a proxy that is GONE: when it disconnected."""
    state: str
    """The worst state of its types, or `REFUSED` (it gets no updates), or `GONE` (it has disconnected). For HAProxy and
    nginx: `SYNCED`, `WAITING`, `FAILING` or `NOT DRIVEN`."""
    reason: str
    """The reason why it is not in sync; empty if it is, or if `types` has the reason."""
    version: str
    """The version last sent; empty before."""
    last_good: str
    """The last version that it accepted completely; empty before the first one."""
    confirmed: bool
    """Whether it counts as a proxy of the fleet: it has a client certificate, uses the Unix socket, is driven, or has
    accepted a fleet over this connection. Any user of the machine can connect to a port on loopback."""
    types: tuple[ResourceTypeStatus, ...]
    """A row for each xDS type; empty for HAProxy and nginx."""
    nacks: tuple[NackRecord, ...]
    """The last rejections, the newest first."""


class XdsProxy(_ProxyStatus, frozen=True):
    """An Envoy or an `lbctl xds` command, by its xDS streams."""

    cluster: str
    """The cluster of its node."""
    region: str
    """The region of its node; empty if it does not send one."""
    zone: str
    """The zone of its node; empty if it does not send one."""
    sub_zone: str
    """The sub-zone of its node; empty if it does not send one."""
    envoy: str
    """Its version; empty if it does not send one."""
    peer: str
    """The address that it connected from."""
    delta: bool
    """Whether it uses delta xDS."""
    reports_refused: str
    """The reason why its traffic reports are rejected; empty if they are accepted, or if it sends none."""


class DrivenProxy(_ProxyStatus, frozen=True):
    """A HAProxy or nginx that lbctl drives on the same machine."""

    reloads: int
    """Number of reloads that lbctl has caused."""
    leaving: int
    """Number of replicas that are being removed and still have requests."""


Proxy = AnyOf[XdsProxy, DrivenProxy]


class Proxies(Struct, frozen=True):
    """The answer of `/api/v1/proxies`."""

    proxies: tuple[Proxy, ...]
    """Envoys by node id, then the driven proxies by name. A disconnected Envoy stays listed for an hour."""


# ── `GET /api/v1/pools` and `GET /api/v1/fleet` ───────────────────────────────────────────────────────────────────────


ReplicaState = OneOf[
    "in", "ramping", "slow", "hot", "unknown", "starting", "down", "ejected", "draining", "drained", "removed",
]  # fmt: skip


class Replica(Struct, frozen=True):
    """A replica with its state, weights, shares and traffic."""

    name: str
    """The name, unique in its pool."""
    address: str
    """Host and port, or a Unix socket."""
    region: str | None
    """The region; None if the fleet has none."""
    zone: str | None
    """The zone; None if the fleet has none."""
    gpu: str | None
    """The GPU's name; None if the fleet has none."""
    priority: int
    """The priority: replicas with 0 get requests first, and higher numbers are reserves."""
    capacity: Number
    """Its capacity, relative to the other replicas of the pool."""
    state: ReplicaState
    """`in`: it gets its share. `ramping`: its weight rises after it has joined or recovered. `slow`: its weight is
    clearly below its capacity, because it is slower than its peers. `hot`: its weight is clearly below its capacity,
    because it is fuller or hotter. `unknown`: it gets requests, but no report shows whether it is reachable, or none of
    them is answered. `starting`: a proxy sends it no requests until its first active checks have passed, and none has
    failed. `down`: an active check fails, or lbctl cannot connect to it. `ejected`: deep health or a proxy's passive
    check keeps requests away. `draining`: drained, but with requests in flight, or not yet in all proxies. `drained`:
    drained in all proxies and without requests in flight. `removed`: its drain deadline has passed, and no proxy has
    it."""
    state_reason: str
    """The reason for this state, as a sentence that names the check or the proxy; empty for `in`."""
    state_since: Timestamp | None
    """When this state began; None if it began before lbctl started."""
    weight: Number
    """The published weight, on the scale of capacities."""
    declared: Number
    """Its share of the pool's requests by the files alone (capacities and drains), from 0 to 1."""
    share: Number
    """Its decided share of the pool's requests, from 0 to 1: the mean over the proxies. It includes measured weights,
    drains, and the active checks and slow start that lbctl does for proxies without them."""
    acknowledged: Number | None
    """Its share in the newest fleet that all connected proxies have applied; None if one of them has no fleet yet."""
    observed: Number | None
    """Its share of the pool's requests in the last minute, as counted by the proxies; None without reported
    requests."""
    requests_per_second: Number | None
    """Requests per second in the last minute; None if no proxy reports counts."""
    errors: Number | None
    """Error rate in the last minute, from 0 to 1. An error is a status of 500 or above, or an incomplete response. None
    without reported requests."""
    first_byte_p50: Number | None
    """Time to first byte in the last minute, 50th percentile, in seconds; None if no proxy reports it."""
    first_byte_p99: Number | None
    """Time to first byte in the last minute, 99th percentile, in seconds; None if no proxy reports it."""
    in_flight: int | None
    """Requests in flight, summed over the proxies that report them; None if no proxy does."""
    idle: bool | None
    """Whether it is drained and has no requests in flight, by reports since all connected proxies applied the drain.
    None if it is not drained, or if a proxy does not report requests in flight."""
    ramp: Number
    """The slow-start factor that lbctl applies, from 0 to 1: the lowest of all proxies that need it."""
    picker_ramp: Number
    """The slow-start factor in the picker, from 0 to 1."""
    drained: Timestamp | None
    """When its drain began; None if it is not drained."""
    out: bool
    """Whether deep health has ejected it, or it was removed after its drain deadline."""
    reasons: tuple[str, ...]
    """Reasons why it is out, down or drained, and the weight of an override."""


class RecentPicks(Struct, frozen=True):
    """Requests of a pool with the algorithm `pick` in the last minute."""

    requests: int
    """Requests that proxies have reported."""
    picked: int
    """Finished requests whose replica the picker chose."""
    missed: int
    """Minimum number of requests that were balanced by `otherwise` without a pick. Proxies may report requests ten
    seconds late."""
    in_flight: int
    """Picked requests that have not ended."""
    share: Number | None
    """Share of the requests that were picked, from 0 to 1; None without reported requests."""


class Pool(Struct, frozen=True):
    """A pool of replicas."""

    name: str
    """The name."""
    model: str | None
    """The model that it serves; None if the fleet has none."""
    protocol: str
    """The protocol to its replicas."""
    algorithm: str
    """The load balancing algorithm."""
    drain_deadline_seconds: Number
    """Seconds for which a drained replica keeps its requests."""
    requests_per_second: Number | None
    """Requests per second in the last minute; None if no proxy reports counts."""
    errors: Number | None
    """Error rate in the last minute, from 0 to 1, including requests that proxies refused; None without reported
    requests."""
    first_byte_p50: Number | None
    """Time to first byte in the last minute, 50th percentile, in seconds; None if no proxy reports it."""
    first_byte_p99: Number | None
    """Time to first byte in the last minute, 99th percentile, in seconds; None if no proxy reports it."""
    picks: RecentPicks | None
    """Recent picks; None without the algorithm `pick`, and if pickers of other control planes pick for this pool
    too."""
    in_use: bool
    """Whether a route sends requests to it."""
    fail_open: bool
    """Whether it gets requests although the active checks of all its replicas fail."""
    failing: bool
    """Whether all requests (at least three) of the last seconds failed. If there were fewer than three: of the last
    minute."""
    shedding: str | None
    """The reason why proxies refuse its requests (`load_shedding`); None if they do not."""
    reporting: tuple[str, ...]
    """Proxies that report counts for the replicas of this pool: Envoys by node id, others by name."""
    silent: tuple[str, ...]
    """Proxies that may send requests to this pool but do not report counts. An Envoy without a connected node is listed
    by name."""
    unable: Mapping[str, str]
    """Proxy of `silent` that cannot report → reason: a setting that is missing in `proxies`, or why its reports are
    rejected."""
    replicas: tuple[Replica, ...]
    """All replicas, in the order of the fleet."""


class Pools(Struct, frozen=True):
    """The answer of `/api/v1/pools`."""

    pools: tuple[Pool, ...]
    """The pools, in the order of the fleet."""


class FleetSettings(Struct, frozen=True):
    """The answer of `/api/v1/fleet`."""

    settings: Mapping[str, str]
    """Path in the YAML → value, for every setting of the published files except replicas."""


# ── `GET /api/v1/signals` ─────────────────────────────────────────────────────────────────────────────────────────────


class Signal(Struct, frozen=True):
    """A signal of a replica."""

    value: Number
    """The value."""
    unit: str
    """The unit."""
    age: Number
    """Seconds since it was read."""
    source: str
    """The kind of the source that it was read from."""
    fresh: bool
    """Whether it is younger than `stale_after` and is therefore used."""


class RefusedMetric(Struct, frozen=True):
    """A metric of a page that was rejected."""

    metric: str
    """The name of the metric."""
    reason: str
    """The reason for the rejection."""


class Source(Struct, frozen=True):
    """A telemetry source of a replica, after its last scrape."""

    kind: str
    """The kind, with its name in `telemetry.sources`."""
    url: str
    """The URL, without the values of its query."""
    ok: bool
    """Whether the last scrape returned samples."""
    age: Number | None
    """Seconds since it last returned samples; None: never."""
    reason: str | None
    """Short name of the reason why the last scrape failed; None if it succeeded."""
    message: str | None
    """Description of the failure; None if the last scrape succeeded."""
    bytes: int
    """The size of the page."""
    seconds: Number
    """The duration of the scrape."""
    refused: tuple[RefusedMetric, ...]
    """Rejected metrics of the page."""


class ReplicaSignals(Struct, frozen=True):
    """Signals and telemetry sources of a replica."""

    pool: str
    """The pool."""
    replica: str
    """The replica."""
    stale_after: Number
    """Seconds after which a signal is no longer used."""
    signals: Mapping[str, Signal]
    """Name → signal."""
    sources: tuple[Source, ...]
    """The sources, in the order of the fleet."""


class Signals(Struct, frozen=True):
    """The answer of `/api/v1/signals`."""

    signals: tuple[ReplicaSignals, ...]
    """A row for each replica of each pool with telemetry."""


# ── `GET /api/v1/decisions` ───────────────────────────────────────────────────────────────────────────────────────────


class DecisionSignal(Struct, frozen=True):
    """A signal that was used for a decision."""

    value: Number
    """The value."""
    unit: str
    """The unit."""
    age: Number
    """Seconds since it was read."""


class Acknowledged(Struct, frozen=True):
    """Number of proxies that have the published version."""

    proxies: int
    """Number of proxies that should have it."""
    have_it: int
    """Number of proxies that have accepted it."""
    waiting: tuple[str, ...]
    """Nodes that have not accepted it yet."""


class Decision(Struct, frozen=True):
    """All values that lead from a replica's signals to its weight in the proxies."""

    pool: str
    """The pool."""
    replica: str
    """The replica."""
    strategy: str
    """The weighting strategy."""
    mode: str
    """The mode of the pool, as in `PoolControl`."""
    mode_words: str | None
    """The reason why the mode is not `acting`; None if it is."""
    capacity: Number
    """The capacity of the replica."""
    signals: Mapping[str, DecisionSignal]
    """Name → signal, including stale ones."""
    sampled_by: str | None
    """The member of the control plane that scraped the signals; None if it is the member that returned this response,
    or if there are no signals."""
    age: Number | None
    """Seconds since the last sample; None: never."""
    evidence_age: Number | None
    """Age of the evidence for the estimate, in seconds; None without evidence."""
    speed: Number | None
    """Speed per capacity, comparable only within the pool; None without evidence, and for `composite`."""
    load: Number | None
    """Load per capacity, comparable only within the pool; None without evidence, and for other strategies."""
    normalised: Number
    """The natural logarithm of its speed or load, relative to the upper median of its peers."""
    across_types: Number
    """The natural logarithm of the median of its GPU type, relative to the median of the pool."""
    proposed: Number | None
    """The weight that the strategy proposes, as a factor of the capacity; None if it proposes none."""
    wished: Number | None
    """Deprecated: the old name of `proposed`, until version 1.1."""
    clamped: Number
    """The factor within floor and ceiling, or the factor that health and stale samples impose."""
    limited: Number
    """The factor after the step limits."""
    damped: Number
    """Deprecated: the old name of `limited`, until version 1.1."""
    beyond_deadband: Number
    """The factor after the deadband, which is the decided factor."""
    decided: Number
    """The decided weight, on the scale of capacities."""
    published: Number
    """The published weight: the override's if there is one, otherwise the decided weight."""
    sent: Number
    """Deprecated: the old name of `published`, until version 1.1."""
    room: Number
    """The requests in flight that the replica should carry, relative to its peers, on the scale of capacities."""
    of_peers_speed: Number
    """The factor of the weight for the measured speed, relative to replicas with the same GPU."""
    held: Number
    """The factor of the weight for everything other than room and speed: a floor, a trial, a limited step or a ramp."""
    share: Number
    """Its share of the pool's requests, from 0 to 1."""
    quantised: Mapping[str, int]
    """Kind of proxy → its integer weight. The key is `kind name` if proxies of a kind differ. A proxy is absent if it
    sends no new requests to the replica."""
    notes: tuple[str, ...]
    """Notes on proxies whose load balancing does not follow the weight."""
    ramp: Number
    """The slow-start factor that lbctl applies, from 0 to 1: the lowest of all proxies that need it."""
    picker_ramp: Number
    """The slow-start factor in the picker, from 0 to 1."""
    verdict: str
    """The verdict of deep health: `in`, `floor` or `out`."""
    reasons: tuple[str, ...]
    """Reasons for the verdict, and missing signals."""
    overrides: tuple[Override, ...]
    """Overrides for the replica or its pool."""
    acknowledged: Acknowledged
    """Proxies that have the published version."""


class Decisions(Struct, frozen=True):
    """The answer of `/api/v1/decisions`."""

    decisions: tuple[Decision, ...]
    """A row for each replica of each pool with telemetry."""


# ── `GET /api/v1/picks`: the picker of this control plane, the numbers of its decisions, and samples of them ──────────


class PickerStatus(Struct, frozen=True):
    """The process that picks replicas for the pools with `algorithm: pick`."""

    listens: str
    """The address for gRPC; HTTP uses the next port."""
    running: bool
    """Whether the process runs and has reported within 3 seconds."""
    alone: bool
    """Whether it is an `lbctl picker` that this control plane did not start."""
    since: Timestamp | None
    """When the process was started, even if it hangs; None if there is no process."""
    starts: int
    """Number of times that it was started."""
    reason: str | None
    """The reason why it does not run; None while it runs or starts."""
    open: int
    """The number of picked requests that are still in flight."""
    following: int
    """Number of pickers that get the tables of this control plane, including pickers on other machines."""


class PickedPool(Struct, frozen=True):
    """The decisions for one pool since the picker's process was started."""

    pool: str
    """The pool."""
    decisions: Mapping[str, int]
    """Reason → the number of decisions."""
    finished: int
    """The number of picked requests that have ended."""
    mean_seconds: Number | None
    """Mean duration of a decision, in seconds; None before the first one."""
    cache_hits: Mapping[str, Number]
    """Replica → share of prompt tokens that its engine found in its prefix cache; absent if unknown."""


class PickSample(Struct, frozen=True):
    """One decision. It contains no data from the client."""

    at: Timestamp
    """When it was made."""
    pool: str
    """The pool."""
    replica: str | None
    """The replica that was picked; None if no replica was."""
    reason: str
    """The reason for this choice, as one word."""
    seconds: Number
    """The duration of the decision."""
    session: bool
    """Whether the request names a session."""
    blocks: int
    """The number of blocks of its prompt that were looked up."""
    tokens: Number
    """The estimated length of its prompt."""
    proxy: str
    """The proxy that sent the pick request; empty if it did not send its name."""


class Picks(Struct, frozen=True):
    """The picker, its counts and samples of its decisions."""

    picker: PickerStatus | None
    """The picker's process; None if no pool needs it."""
    pools: tuple[PickedPool, ...]
    """The pools with decisions, by name."""
    samples: tuple[PickSample, ...]
    """Samples of decisions, at most ten a second and the last 500, the oldest first."""


# ── `POST /api/v1/picks/explain`: the replica that a request would get now, and the scores of all replicas ────────────


class PickQuestion(Struct, frozen=True):
    """A request as a client would send it. It is not stored."""

    pool: str
    """The pool."""
    session: str | None
    """The value of the pool's first session key; None: the request has none."""
    body: str | None
    """The beginning of the body; None: the request has none."""
    body_bytes: int | None = None
    """The length of the whole body in bytes; None: `body` is complete."""
    region: str | None = None
    """The region of the proxy; None: it has none."""
    zone: str | None = None
    """The zone of the proxy; None: it has none."""
    tenant: str | None = None
    """The tenant that sends the request; None: the route knows no tenant."""


class PickRequest(Struct, frozen=True):
    """The parts of a request that the picker uses."""

    session: str | None
    """Its session; None: it has none."""
    body_bytes: int
    """The length of its body."""
    prompt_tokens: Number
    """The estimated number of tokens in its prompt."""
    model: str | None
    """The model in the request; None: it has none."""
    adapter: str | None
    """The adapter in the request; None: it has none."""
    blocks: int
    """Number of blocks of the prompt's prefix that can be looked up."""
    session_key: str | None = None
    """The session key that the request has: a header, or a field of the body such as $.user. None: it has no
    session."""


class PickCandidate(Struct, frozen=True):
    """One replica in a decision."""

    name: str
    """The name of the replica."""
    address: str
    """The replica's address."""
    eligible: bool
    """Whether the request may be sent to it."""
    reason: str
    """The reason why it is not eligible; empty if it is."""
    rate: Number | None
    """Its speed relative to the other replicas, including slow start; None if it is not eligible."""
    ramp: Number
    """The slow-start factor in `rate`, from 0 to 1."""
    work: Number | None
    """The work in flight, in tokens; None if it is not eligible."""
    cached: Number | None
    """Number of the request's tokens that are probably in its cache; None if unknown."""
    counted: bool
    """Whether its cache is taken into account, because its load is within the bound."""
    wait: Number | None
    """The expected wait without the cache: the work divided by the rate, plus the request's own tokens divided by the
    rate without slow start. None if it is not eligible."""


class PickExplanation(Struct, frozen=True):
    """The decision that the picker would make now."""

    pool: str
    """The pool."""
    sentence: str
    """The choice and its reason, as a sentence."""
    reason: str
    """The reason, as one word."""
    choices: tuple[str, ...]
    """The replicas from which one would be chosen at random; usually one."""
    request: PickRequest
    """The parts of the request that were used."""
    candidates: tuple[PickCandidate, ...]
    """All replicas of the pool, the best first."""


# ── `GET /api/v1/audit` ───────────────────────────────────────────────────────────────────────────────────────────────


class AuditRecord(Struct, frozen=True):
    """One action and its actor."""

    number: int
    """The number of the record, from 1 and without gaps."""
    at: Timestamp
    """When it was done."""
    actor: str
    """The name of the token that was used; `lbctl` for actions of the control plane itself."""
    action: str
    """The action, for example `drain`, `end drain`, `rollout promote`, `reload`, `publish`."""
    subject: str
    """The target of the action: a pool, a replica, a route, or the version of a fleet."""
    reason: str
    """The operator's reason; empty if none was given."""
    previous: str
    """The hash of the record before it; empty for the first."""
    hash: str
    """SHA-256 of the fields above, as a JSON array in this order without spaces, in hexadecimal."""


class Audit(Struct, frozen=True):
    """The kept records of the audit log."""

    records: tuple[AuditRecord, ...]
    """At most 5,000 records, the oldest first. If older ones were deleted, `previous` of the first record is the hash
    of a deleted one."""


# ── The events of `GET /api/v1/events` ────────────────────────────────────────────────────────────────────────────────


class Published(Struct, frozen=True):
    """A new version was published, or weights have changed."""

    at: Timestamp
    """When."""
    version: str
    """The version that is published now."""
    cause: str
    """The cause: `the files`, `the state`, `a rollback`, `discovery`, `an override`, a drain's deadline or the control
    loop."""
    changed: Mapping[str, int]
    """Short name of the xDS type → number of resources that were added, changed or removed."""
    names: tuple[str, ...]
    """Names of these resources as `type/name` if they are few; otherwise empty."""
    weights: Mapping[str, Mapping[str, Number]]
    """Pool → replica → its new weight, for the first replicas whose weight has changed."""
    more_weights: int
    """Number of further changed weights that `weights` does not list; `/api/v1/pools` has all."""


class OverridesChanged(Struct, frozen=True):
    """Overrides were added, replaced or removed, or have expired."""

    at: Timestamp
    """When."""
    added: tuple[Override, ...]
    """New overrides, including replacements of earlier ones."""
    removed: tuple[Override, ...]
    """Overrides that were removed or replaced, or that have expired."""


class Reloaded(Struct, frozen=True):
    """The files were read."""

    at: Timestamp
    """When."""
    result: ReloadOutcome
    """As in `ReloadResult`."""
    refused: str | None
    """The reason why the files are not published; None if they are."""
    errors: int
    """The number of errors; `/api/v1/status` has them."""
    warnings: int
    """The number of warnings; `/api/v1/status` has them."""


class RolloutChanged(Struct, frozen=True):
    """The phase or step of a rollout has changed, or its analysis has evaluated an interval."""

    at: Timestamp
    """When."""
    route: str
    """The route."""
    phase: RolloutPhase
    """The current phase."""
    step: int
    """The number of the current step, from 1."""
    percent: Number | None
    """The current share of the target pool; None if the rollout does not decide the split."""
    reason: str | None
    """The reason of the last action by an operator or the analysis; None if there is none."""
    evaluation: RolloutEvaluation | None
    """The new evaluation; None if there is none."""


class RolledBack(Struct, frozen=True):
    """An earlier fleet was published. It stays until the files change."""

    at: Timestamp
    """When."""
    digest: str
    """The digest of the earlier fleet, as `/api/v1/history` lists it."""
    author: str
    """The name of the token that was used."""
    reason: str | None
    """The operator's reason; None if none was given."""


class RoleChanged(Struct, frozen=True):
    """The role of this member of the control plane has changed."""

    at: Timestamp
    """When."""
    member: str
    """Its name."""
    role: str
    """`leader`, `follower` or `isolated`."""
    epoch: int
    """The epoch in which it leads or last led."""


class StoreChanged(Struct, frozen=True):
    """The store of the control plane has become unreachable for this member, or reachable again."""

    at: Timestamp
    """When."""
    member: str
    """The name of this member."""
    up: bool
    """Whether it is reachable."""
    reason: str | None
    """The reason why it cannot be used; null if it can."""


class FilesDiffer(Struct, frozen=True):
    """The files of other members differ from the leader's."""

    at: Timestamp
    """When."""
    members: tuple[str, ...]
    """Names of these members; empty if all members have the same files again."""


class PoolsShared(Struct, frozen=True):
    """The assignment of pools to the members that scrape them has changed."""

    at: Timestamp
    """When."""
    members: tuple[str, ...]
    """The members among whom the pools are shared."""
    pools: tuple[str, ...]
    """The pools that this member scrapes from now on."""


class TaskFailed(Struct, frozen=True):
    """A task of the control plane has failed. It is restarted, or called again at the next publication.

    The log contains the reason.
    """

    at: Timestamp
    """When."""
    task: str
    """The name of the task, as in the metric `lbctl_task_failures_total`."""


class Missed(Struct, frozen=True):
    """Events after `Last-Event-ID` are lost: read the state again."""

    oldest: int
    """The id of the oldest event that is still kept, or of the next event if none is kept."""


class Closed(Struct, frozen=True):
    """The last event of a stream that the server closes."""

    reason: ClosedReason
    """`shutdown`: the process ends. `slow`: the client did not read the events fast enough."""


Event = (
    Published | OverridesChanged | Reloaded | RolloutChanged | RolledBack | RoleChanged | StoreChanged | FilesDiffer
    | PoolsShared | TaskFailed | Missed | Closed
)  # fmt: skip
EVENTS: Mapping[str, type[Event]] = {
    "published": Published,
    "overrides": OverridesChanged,
    "reload": Reloaded,
    "rollout": RolloutChanged,
    "rollback": RolledBack,
    "role": RoleChanged,
    "store": StoreChanged,
    "files_differ": FilesDiffer,
    "pools": PoolsShared,
    "task_failed": TaskFailed,
    "missed": Missed,
    "closed": Closed,
}
"""Name of a server-sent event → the type of its data."""


# ── `GET /api/v1/live` and `GET /api/v1/series` ───────────────────────────────────────────────────────────────────────


SeriesMetric = OneOf[
    "state", "observed", "share", "requests_per_second", "in_flight", "queue", "kv_cache", "gpu_utilisation",
    "temperature",
]  # fmt: skip
"""Metrics for which the dashboard keeps a history."""


class LiveReplica(Struct, frozen=True):
    """The current state, shares, traffic and load of a replica, as one row."""

    pool: str
    """The pool."""
    name: str
    """The name, unique in its pool."""
    address: str
    """Host and port, or a Unix socket."""
    gpu: str | None
    """The GPU's name; None if the fleet has none."""
    zone: str | None
    """The zone; None if the fleet has none."""
    state: str
    """`in`, or the state that keeps it from its full share, as in `Replica`."""
    reason: str
    """The reason for this state; empty for `in`."""
    since: Timestamp | None
    """When this state began; None if it began before lbctl started."""
    capacity: Number
    """Its capacity, relative to the other replicas of the pool."""
    weight: Number
    """The published weight, on the scale of capacities."""
    declared: Number | None
    """Its share of the pool's requests by the files alone, from 0 to 1; None if unknown."""
    share: Number
    """Its decided share of the pool's requests, from 0 to 1."""
    acknowledged: Number | None
    """Its share in the fleet that all connected proxies have applied; None if no proxy is connected."""
    observed: Number | None
    """Its share of the last minute's requests by the proxies' counters; None without reported requests."""
    requests_per_second: Number | None
    """Requests per second in the last minute; None if no proxy reports counts."""
    errors: Number | None
    """Error rate in the last minute, from 0 to 1; None without reported requests."""
    first_byte_p50: Number | None
    """Time to first byte in the last minute, 50th percentile, in seconds; None if no proxy reports it."""
    first_byte_p99: Number | None
    """Time to first byte in the last minute, 99th percentile, in seconds; None if no proxy reports it."""
    in_flight: int | None
    """Requests in flight; None if no proxy reports them."""
    queue: Number | None
    """Requests that wait in the engine; None without a fresh signal."""
    kv_cache: Number | None
    """Utilisation of the key-value cache, from 0 to 1; None without a fresh signal."""
    gpu_utilisation: Number | None
    """GPU utilisation, from 0 to 1; None without a fresh signal."""
    temperature: Number | None
    """Temperature of the hottest GPU, in degrees Celsius; None without a fresh signal."""


class LivePool(Struct, frozen=True):
    """A pool without its replicas."""

    name: str
    """The name."""
    model: str | None
    """The model that it serves; None if the fleet has none."""
    algorithm: str
    """The load balancing algorithm."""
    replicas: int
    """The number of its replicas."""
    requests_per_second: Number | None
    """Requests per second in the last minute; None if no proxy reports counts."""
    errors: Number | None
    """Error rate in the last minute, from 0 to 1; None without reported requests."""
    first_byte_p50: Number | None
    """Time to first byte in the last minute, 50th percentile, in seconds; None if no proxy reports it."""
    first_byte_p99: Number | None
    """Time to first byte in the last minute, 99th percentile, in seconds; None if no proxy reports it."""
    picked: Number | None
    """Share of the last minute's requests that were picked, from 0 to 1; None if unknown."""
    silent: tuple[str, ...]
    """Proxies that may send requests to this pool but do not report counts."""


class LiveProxy(Struct, frozen=True):
    """A proxy, without its resource types."""

    node: str
    """The node id of an Envoy, the name of any other proxy."""
    proxy: str | None
    """The name in `proxies` of the fleet; None for a node that is not in `proxies`."""
    kind: str
    """As in `Proxies`."""
    connected: bool
    """Whether it is connected now."""
    since: Timestamp
    """When the connection, or the last attempt, began."""
    state: str
    """As in `Proxies`."""
    reason: str
    """The reason why it is not in sync; empty if it is."""
    version: str
    """The version last sent; empty before."""
    last_good: str
    """The last version that it accepted completely; empty before the first one."""
    detail: str
    """The version of an Envoy, or the number of reloads of a driven proxy."""


class LiveSplit(Struct, frozen=True):
    """The split of a route that forwards to several pools."""

    route: str
    """The route."""
    shares: Mapping[str, int]
    """Pool → its share in the published fleet, relative to the others."""


class ReplicaName(Struct, frozen=True):
    """A reference to a replica."""

    pool: str
    """The pool."""
    name: str
    """The name in the pool."""


class Live(Struct, frozen=True):
    """Everything, or the changes since the previous frame."""

    frame: int
    """The number of the frame; it grows by 1 with each change."""
    complete: bool
    """Whether the frame contains everything. The client then discards the data of earlier frames."""
    at: Timestamp
    """The time of the frame on the server's clock."""
    status: Status | None
    """The status, with an `age` of 0 in its snapshot; None if it has not changed."""
    pools: tuple[LivePool, ...] | None
    """All pools; None if none has changed."""
    replicas: tuple[LiveReplica, ...]
    """The replicas that have changed."""
    gone: tuple[ReplicaName, ...]
    """Replicas that no longer exist."""
    proxies: tuple[LiveProxy, ...] | None
    """All proxies; None if none has changed."""
    rollouts: tuple[Rollout, ...] | None
    """All rollouts; None if none has changed."""
    splits: tuple[LiveSplit, ...] | None
    """All splits; None if none has changed."""


class ReplicaSeries(Struct, frozen=True):
    """The history of one replica."""

    replica: str
    """The replica."""
    values: tuple[Number | None, ...]
    """A value for each of `times`; None if it was unknown. For the metric `state`, the value is an index in
    `states`."""


class Series(Struct, frozen=True):
    """The history of one metric of a pool."""

    pool: str
    """The pool."""
    metric: SeriesMetric
    """The metric."""
    states: tuple[str, ...]
    """The states by index, for the metric `state`; empty for other metrics."""
    times: tuple[Number, ...]
    """Seconds since the epoch, the oldest first."""
    total: tuple[Number | None, ...]
    """Values of the whole pool, if the request has no `replica`: the sum of requests, the mean of a ratio or a
    temperature, the number of replicas in the state `in`. Empty if the request has a `replica`."""
    replicas: tuple[ReplicaSeries, ...]
    """The requested replicas, in the order of the fleet."""
