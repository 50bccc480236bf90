"""Every document that the HTTP API returns, accepts and streams, as frozen structs.

The server encodes these types and the commands decode them. The OpenAPI document and docs/reference/http-api.md are
generated from them. A field has the same name in the JSON object (`field(name=…)` if Python reserves the name). A
field's docstring is also its description in the API document. The module imports only msgspec and the standard library,
so that commands start fast.

Rules for all documents: A field is always present. None is JSON's null, and the docstring explains when a field is
null. A `Timestamp` is ISO 8601 in UTC with milliseconds. Durations and ages are in seconds. A client ignores unknown
fields and enum values, because new ones may be added.
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
QueuePriority = OneOf["high", "normal", "low"]


# ── Probes and errors ─────────────────────────────────────────────────────────────────────────────────────────────────


class Probe(Struct, frozen=True):
    """The response to a probe of the process."""

    status: str
    """`ok`, or the reason why the process is not ready."""


class Error(Struct, frozen=True):
    """The body of every response with status 400 or above, except responses from `/readyz`."""

    error: str
    """A description of the problem."""


# ── `GET /api/v1/status` and the values that other documents share with it ────────────────────────────────────────────


class Diagnostic(Struct, frozen=True):
    """An error, warning or note about the files, or about settings that a proxy does not support."""

    code: str
    """The problem's code, which consists of `LB` and three digits. `lbctl rule CODE` explains it."""
    severity: Severity
    """The severity. lbctl does not publish files that contain an error."""
    message: str
    """A description of the problem."""
    hint: str | None
    """How to fix the problem; null if the message already states it."""
    path: str | None
    """The path of the value in the YAML, for example `pools.chat.replicas[0]`; null if the problem does not concern a
    value."""
    file: str | None
    """The file; null if the problem does not concern a file."""
    line: int | None
    """The line number, from 1; null if the problem concerns the entire file."""
    column: int | None
    """The column number, from 1; null if the problem concerns the entire file."""
    text: str
    """The line that lbctl commands print: position, severity, code, path, message and hint."""


class Snapshot(Struct, frozen=True):
    """The fleet published to the proxies."""

    version: str
    """The version that proxies acknowledge. Fleets with the same content have the same version."""
    at: Timestamp
    """The time at which this version was published."""
    age: Number
    """Seconds since `at`."""
    origin: Origin = field(name="from")
    """The origin of the fleet. `files`: the fleet comes from the files on disk. `state`: the fleet is the last valid
    fleet in the saved state, because the files are invalid. `history`: the fleet is an earlier one, after a rollback.
    `leader`: the fleet comes from the leader."""
    pools: int
    """The number of pools."""
    replicas: int
    """The number of replicas, including drained, ejected and removed replicas."""


class FleetFiles(Struct, frozen=True):
    """The result of the most recent read of the fleet's files."""

    paths: tuple[str, ...]
    """The files and directories given on the command line."""
    directory: str
    """The working directory of the process, to which `paths` are relative; empty if the directory has been deleted."""
    valid: bool
    """Whether the files are published."""
    read: Timestamp | None
    """The time at which the files were last read; null until the first read has finished."""
    refused: str | None
    """The reason why the files are not published; null if they are published."""
    shrink: tuple[Diagnostic, ...]
    """Removals of replicas or keys that lbctl withholds until you run `lbctl reload --allow-shrink`."""
    diagnostics: tuple[Diagnostic, ...]
    """All diagnostics from the last read of the files."""


class Rollback(Struct, frozen=True):
    """An active rollback, during which an earlier fleet is published until the files change."""

    ignored: str
    """The digest of the files on disk, which are ignored during the rollback."""
    since: Timestamp
    """The time at which the rollback was requested."""
    author: str
    """The name of the token that was used to request the rollback."""
    reason: str | None
    """The reason given by the operator; null if none was given."""


class ServedFiles(Struct, frozen=True):
    """The published files."""

    digest: str
    """The digest of the YAML files, which is the hexadecimal SHA-256 hash of their names and contents."""
    since: Timestamp
    """The time at which the files were published. `lbctl history` lists earlier files."""
    commit: str | None
    """The git commit from which the files were read; null if they are not in a git checkout."""
    dirty: bool
    """Whether the files differ from the commit."""
    rollback: Rollback | None
    """The rollback that published these files instead of the files on disk; null if no rollback is active."""


class UnmatchedNode(Struct, frozen=True):
    """A connected Envoy that receives no configuration."""

    node: str
    """The node ID sent by the Envoy."""
    reason: str
    """The reason why the Envoy receives no configuration."""


class Override(Struct, frozen=True):
    """A manual override by an operator. An override takes precedence over the files and the control loop."""

    kind: OverrideKind
    """The kind of override. The kinds `drain` and `weight` apply to a replica, `freeze` applies to the weights of a
    pool, and `split` applies to a route."""
    pool: str
    """The pool; empty for `split`."""
    replica: str | None
    """The replica; null for `freeze` and `split`."""
    value: Number | None
    """The weight, on the same scale as capacities; null for other kinds."""
    route: str | None
    """The route of a `split` override; null for other kinds."""
    shares: Mapping[str, int]
    """Maps each pool to its share of the route's requests, relative to the other pools; empty unless the kind is
    `split`."""
    reason: str | None
    """The reason given by the operator; null if none was given."""
    author: str | None
    """The name of the token that was used to set the override; null if an earlier version of lbctl set it."""
    since: Timestamp | None
    """The time at which the override was set."""
    until: Timestamp | None
    """The time at which the override expires; null if it lasts until an operator removes it."""


class PoolControl(Struct, frozen=True):
    """The state of the control loop for a pool that has telemetry."""

    pool: str
    """The pool."""
    strategy: str
    """The weighting strategy, as named in `weighting.strategy`."""
    mode: str
    """The mode of the control loop. `acting`: signals change the weights. `frozen`: too many replicas appear unhealthy
    at once, so the weights do not change. `blind`: too many replicas have no recent sample, so the weights return to
    the capacities. `held`: an operator has frozen the pool."""
    reason: str | None
    """The reason why the mode is not `acting`; null if the mode is `acting`."""
    out: Mapping[str, tuple[str, ...]]
    """Maps each replica ejected by the deep health check to the reasons for its ejection."""
    floor: Mapping[str, tuple[str, ...]]
    """Maps each replica at the minimum weight to the reasons for that weight."""


class SourceCounts(Struct, frozen=True):
    """The number of telemetry sources across all replicas."""

    total: int
    """The number of sources."""
    failing: int
    """The number of sources whose last scrape failed."""
    pools: Mapping[str, int]
    """Maps each pool to the number of its failing sources. Pools without failing sources are absent."""


class DiscoveredName(Struct, frozen=True):
    """A DNS name that lbctl resolves for the fleet, or a Kubernetes service that it watches."""

    name: str
    """The DNS name, or the service name with the prefix `kubernetes` and its namespace."""
    resolvers: tuple[str, ...]
    """The DNS resolvers in use; empty if lbctl uses the system's resolvers."""
    pools: tuple[str, ...]
    """The pools that discover replicas through this name."""
    addresses: tuple[str, ...]
    """The addresses in the last valid response."""
    refused: tuple[str, ...]
    """Addresses in the response that lbctl does not use."""
    left_out: int
    """The number of addresses beyond the largest `max_replicas`."""
    answered: Timestamp | None
    """The time at which the last valid response arrived; null if none has arrived."""
    error: str | None
    """The reason why the last query failed; null if it succeeded."""
    failed: Timestamp | None
    """The time of the last failed query; null if no query has failed."""


class Listens(Struct, frozen=True):
    """The addresses on which this process listens, and its state directory."""

    xds: str | None
    """The address to which Envoys connect; null until the first fleet is published."""
    xds_socket: str | None
    """The Unix socket for Envoys on this machine; null if there is none."""
    api: str | None
    """The address of this API."""
    state: str | None
    """The state directory; null in a dry run, which saves nothing."""


class MemberStatus(Struct, frozen=True):
    """This process as a member of a control plane."""

    name: str
    """The member's name."""
    role: str
    """The member's role, which is `leader`, `follower`, or `isolated` if the member was the last leader and cannot
    reach the store."""
    leader: str | None
    """The leader's name; null if it is unknown."""
    age: Number | None
    """Seconds since this member received the leader's last heartbeat; the state that it returns is at most this old.
    Null for the leader."""


ProblemKind = OneOf[
    "not_ready", "files", "pool_down", "pool_shedding", "pool_failing", "no_proxy", "proxy", "picker",
    "picker_unasked", "shrink", "rollout_waiting", "store", "pool_errors", "replica_down", "replica_errors",
    "replica_unknown", "replica_starting", "picks_missed", "metrics", "proxy_gone", "rollout_failed", "state",
    "proxy_unconfirmed", "keys_refused", "replica_stalled",
]  # fmt: skip


class Problem(Struct, frozen=True):
    """A current problem."""

    severity: ProblemSeverity
    """The severity. A problem is `critical` if requests are failing or if the configuration in the files is not in
    effect. `lbctl status --check` fails if there is a critical problem."""
    kind: ProblemKind
    """The kind of problem."""
    subject: str
    """The affected pool, replica (as POOL/REPLICA), proxy or route; empty if the problem concerns the control plane."""
    text: str
    """A description of the problem, as a sentence."""
    command: str
    """The command to run next."""


class ReplicaCounts(Struct, frozen=True):
    """The number of replicas in the fleet, by state."""

    total: int
    """The total number of replicas."""
    states: Mapping[str, int]
    """Maps each state to the number of replicas in it."""
    away: Mapping[str, tuple[str, ...]]
    """Maps each state other than `in`, `ramping`, `slow` and `hot` to the replicas in it, as POOL/REPLICA. At most ten
    replicas are listed per state."""


class Status(Struct, frozen=True):
    """The state of this control plane."""

    version: str
    """The running version of lbctl."""
    since: Timestamp
    """The time at which the process started."""
    ready: bool
    """Whether a complete fleet is published to proxies."""
    waiting: str | None
    """The reason why the control plane is not ready; null if it is ready."""
    problems: tuple[Problem, ...]
    """The current problems, most severe first."""
    replicas: ReplicaCounts
    """The replicas of the published fleet."""
    dry_run: bool
    """Whether the process is running as a dry run, which does not send anything to proxies."""
    snapshot: Snapshot | None
    """The published fleet; null until the first fleet is published."""
    fleet: FleetFiles
    """The files on disk."""
    served: ServedFiles | None
    """The published files, which may be older than the files on disk; null until the first fleet is published."""
    restart: tuple[str, ...]
    """The `control` keys that have changed in the files but take effect only after a restart."""
    proxies: Mapping[str, int]
    """Maps each state to the number of proxies in it."""
    unmatched: tuple[UnmatchedNode, ...]
    """Connected Envoys that receive no configuration."""
    overrides: tuple[Override, ...]
    """The active overrides."""
    control: tuple[PoolControl, ...]
    """The state of the control loop for each pool that has telemetry."""
    sources: SourceCounts
    """The number of telemetry sources."""
    names: tuple[DiscoveredName, ...]
    """The DNS names and Kubernetes services that the fleet uses."""
    listens: Listens
    """The addresses and paths of this process."""
    picker: PickerStatus | None
    """The picker; null if no pool needs one."""
    member: MemberStatus | None
    """This process as a member of its control plane; null if there are no other members."""


# ── Overrides and reload ──────────────────────────────────────────────────────────────────────────────────────────────


class Overrides(Struct, frozen=True):
    """The response to `GET /api/v1/overrides`."""

    overrides: tuple[Override, ...]
    """The active overrides."""


class OverrideRequest(Struct, frozen=True):
    """The request body of `POST /api/v1/overrides`."""

    kind: OverrideKind
    """The kind of override."""
    pool: str = ""
    """The pool; empty for `split`."""
    replica: str | None = None
    """The replica; null for `freeze` and `split`."""
    value: Number | None = None
    """The weight, greater than 0 and on the same scale as capacities. Only for `weight`."""
    route: str | None = None
    """The route. Only for `split`."""
    shares: Mapping[str, int] | None = None
    """Maps each pool of the route's split to its share, an integer of 0 or more. Only for `split`."""
    reason: str | None = None
    """The reason for the change, truncated to 200 characters."""
    ttl: Number | None = None
    """Seconds until the override expires; null if it lasts until an operator removes it."""


class OverrideRemoval(Struct, frozen=True):
    """The request body of `DELETE /api/v1/overrides`."""

    kind: OverrideKind
    """The kind of override."""
    pool: str = ""
    """The pool; empty for `split`."""
    replica: str | None = None
    """The replica; null for `freeze` and `split`."""
    route: str | None = None
    """The route. Only for `split`."""


class OverrideResult(Struct, frozen=True):
    """The response to `POST /api/v1/overrides`."""

    override: Override
    """The new override."""
    snapshot: Snapshot | None
    """The published fleet with the override; null until the first fleet is published."""
    warnings: tuple[str, ...] = ()
    """Warnings about side effects and other problems, such as pools without an available replica and files that are not
    published."""


class RemovalResult(Struct, frozen=True):
    """The response to `DELETE /api/v1/overrides`."""

    removed: bool
    """Whether the override existed."""
    snapshot: Snapshot | None
    """The published fleet without the override; null until the first fleet is published."""
    warnings: tuple[str, ...] = ()
    """Warnings about side effects and other problems, such as pools without an available replica and files that are not
    published."""


class ReloadRequest(Struct, frozen=True):
    """The request body of `POST /api/v1/reload`."""

    allow_shrink: bool = False
    """Whether to publish the files even if they remove more replicas or keys than `control.max_shrink` allows."""


class ReloadResult(Struct, frozen=True):
    """The response to `POST /api/v1/reload`."""

    result: ReloadOutcome
    """The result, for example `published` or `unchanged`. `invalid`: the files contain errors. `refused`: the files
    remove too many replicas or keys. `unsound`: a proxy would reject the configuration. `rolled_back`: the files have
    not changed since a rollback, so the rollback remains in effect."""
    refused: str | None
    """The reason why the files are not published; null if they are published."""
    offered_again: int
    """The number of rejected resources being resent to Envoys."""
    snapshot: Snapshot | None
    """The published fleet; null until the first fleet is published."""
    diagnostics: tuple[Diagnostic, ...]
    """All diagnostics from this read of the files."""


# ── `GET /api/v1/history` and `POST /api/v1/rollback` ─────────────────────────────────────────────────────────────────


class HistoryEntry(Struct, frozen=True):
    """A fleet that was published."""

    digest: str
    """The digest of the fleet's YAML files: the SHA-256 hash of their names and contents, in hexadecimal."""
    at: Timestamp
    """The time at which the fleet was published."""
    current: bool
    """Whether this fleet is currently published."""
    commit: str | None
    """The git commit from which the files were read; null if they were not in a git checkout."""
    dirty: bool
    """Whether the files differed from the commit."""
    action: HistoryAction
    """The cause of the publication: a change to the files, `lbctl reload`, or `lbctl rollback`."""
    actor: str
    """The name of the token that was used; `lbctl` if the files changed."""
    reason: str | None
    """The reason given by the operator; null if none was given."""
    version: str
    """The version of the first snapshot built from this fleet."""
    pools: int
    """The number of pools."""
    replicas: int
    """The number of replicas, including replicas discovered at the time."""


class History(Struct, frozen=True):
    """The response to `GET /api/v1/history`."""

    entries: tuple[HistoryEntry, ...]
    """Up to 20 of the most recent entries, oldest first. The number of entries is smaller if the files are large."""


class RollbackRequest(Struct, frozen=True):
    """The request body of `POST /api/v1/rollback`."""

    digest: str | None = None
    """The digest of a history entry, or at least its first 4 characters; null selects the fleet published
    immediately before the current one."""
    allow_shrink: bool = False
    """Whether to publish the fleet even if it removes more replicas or keys than `control.max_shrink` allows."""
    reason: str | None = None
    """The reason for the change, truncated to 200 characters."""


class RollbackResult(Struct, frozen=True):
    """The response to `POST /api/v1/rollback`."""

    result: ReloadOutcome
    """The result, which is `rolled_back` if the earlier fleet was published. If the earlier fleet equals the files on
    disk, the result is `published` or `unchanged`. The results `invalid`, `refused` and `unsound` indicate why nothing
    has changed."""
    refused: str | None
    """The reason why the earlier fleet is not published; null if it is published."""
    digest: str
    """The digest of the earlier fleet."""
    snapshot: Snapshot | None
    """The published fleet."""
    diagnostics: tuple[Diagnostic, ...]
    """All diagnostics for the earlier fleet."""


# ── `GET` and `POST /api/v1/rollouts` ─────────────────────────────────────────────────────────────────────────────────


RolloutAction = OneOf["start", "promote", "pause", "resume", "set", "abort"]
RolloutPhase = OneOf["waiting", "progressing", "paused", "promoted", "aborted", "rolled_back", "superseded"]
RolloutVerdict = OneOf["good", "bad", "inconclusive"]


class RolloutStep(Struct, frozen=True):
    """One step of a rollout."""

    percent: Number
    """The target pool's share, in percent."""
    hold: Number | None
    """The minimum duration of the step in seconds; null if an operator must promote the rollout to the next step."""


class RolloutCounts(Struct, frozen=True):
    """Requests to the target pool or to the other pools of a rollout, as counted by the proxies."""

    requests: int
    """The number of finished requests."""
    errors: int
    """The number of failed requests, which are requests that got a status of 500 or above, or whose connection failed
    or broke."""
    rate: Number | None
    """The error rate, from 0 to 1; null if there are no requests."""


class RolloutMetric(Struct, frozen=True):
    """The values of a latency or PromQL metric in one evaluation."""

    name: str
    """The metric's name in the file. For a latency, the name consists of the measurement and the percentile, for
    example `first_byte p95`."""
    new: Number | None
    """The value for the target pool; null if there is none. Latencies are in milliseconds."""
    old: Number | None
    """The value for the other pools, in the same unit; null if there is none."""
    ratio: Number | None
    """The ratio of `new` to `old`; null if it is not a number."""
    max_ratio: Number
    """The maximum ratio for a `good` verdict."""
    verdict: RolloutVerdict
    """The verdict for this metric alone."""
    problem: str | None
    """The reason why the verdict is `inconclusive`; null for other verdicts."""


class RolloutEvaluation(Struct, frozen=True):
    """The analysis verdict for one interval, with the figures it is based on."""

    at: Timestamp
    """The time of the event."""
    step: int
    """The step number, from 1."""
    verdict: RolloutVerdict
    """The verdict. `good`: there are enough requests, and the target pool is not worse than the other pools. `bad`: the
    target pool is significantly worse. `inconclusive`: there is not enough data, so neither the step nor the rollout
    ends."""
    reason: str | None
    """The reason why the verdict is not `good`; null if it is `good`."""
    new: RolloutCounts
    """Requests to the target pool. An interval with too few requests is merged with the next interval."""
    old: RolloutCounts
    """Requests to all other pools in the split."""
    metrics: tuple[RolloutMetric, ...]
    """The latency, followed by the PromQL metrics in order of their names; empty if the other pools receive no requests
    in this step."""


class RolloutAnalysis(Struct, frozen=True):
    """The evidence collected by a rollout in `analysis` mode."""

    waits_for: str | None
    """The condition that must be met, in addition to the hold, before the step ends; null if there is no such condition
    or no active step."""
    new: RolloutCounts
    """Requests to the target pool since the step began or was resumed."""
    old: RolloutCounts
    """Requests to the other pools in the same period."""
    failures: int
    """The number of consecutive bad evaluations."""
    max_failures: int
    """The number of consecutive bad evaluations after which the rollout ends or pauses."""
    verdicts: Mapping[RolloutVerdict, int]
    """Maps each verdict to the number of the rollout's evaluations with this verdict."""
    evaluations: tuple[RolloutEvaluation, ...]
    """The most recent evaluations, oldest first."""


class Rollout(Struct, frozen=True):
    """The state of a route's rollout."""

    route: str
    """The route."""
    to: str
    """The target pool, to which the rollout shifts traffic."""
    mode: RolloutMode
    """The mode, which is `manual` (an operator ends each step), `timed` (a step ends after its hold) or `analysis` (a
    step ends after its hold if evaluations pass)."""
    phase: RolloutPhase
    """The phase. `waiting`: the rollout has not started. `progressing`: a step is active. `paused`: the share does not
    change. `promoted`: all steps are complete. `aborted`: the split in the files applies again. `rolled_back`: the
    split in the files applies again, because the verdict for the target pool was bad or the pool has no available
    replica. `superseded`: the files define a different split, or a different model for an old pool, so the split in the
    files applies."""
    step: int
    """The number of the current step, from 1."""
    steps: tuple[RolloutStep, ...]
    """All steps of the rollout."""
    percent: Number | None
    """The target pool's current share of requests, in percent; null if the rollout does not control the split."""
    split: Mapping[str, int]
    """Maps each pool to its current share, relative to the other pools, in the format of the fleet file."""
    since: Timestamp | None
    """The time at which the current step or phase began."""
    next_at: Timestamp | None
    """The earliest time at which the current step can end; null if an operator must end the step, or while its hold is
    paused."""
    reason: str | None
    """The reason for the last action by an operator or the analysis; null if there is none."""
    analysis: RolloutAnalysis | None
    """The evidence from the analysis; null in the `manual` and `timed` modes."""
    held_by: str | None = None
    """The author of and reason for a `split` override that takes precedence over the rollout's split; null if no such
    override is set."""
    hold_waits_for: str | None = None
    """The reason why the current step's hold is paused; null if the hold is running or the step has no hold."""
    unavailable: str | None = None
    """The reason why the target pool has no available replica, which blocks the rollout. Null if a replica is
    available, if an operator has allowed the rollout to continue, or if the rollout has ended."""
    observed: Number | None = None
    """The target pool's share of all requests to the pools in the split in the last minute, from 0 to 1. The proxies
    count the requests, including requests that other routes forward to these pools. Null if no requests are
    reported."""


class Rollouts(Struct, frozen=True):
    """The response to `GET /api/v1/rollouts`."""

    rollouts: tuple[Rollout, ...]
    """The rollouts of the published fleet, sorted by route."""


class RolloutRequest(Struct, frozen=True):
    """The request body of `POST /api/v1/rollouts`."""

    route: str
    """The route."""
    action: RolloutAction
    """The action. The action `set` needs `percent`."""
    percent: Number | None = None
    """The target pool's share, from 0 to 100. Only for `set`."""
    reason: str | None = None
    """The reason for the change, truncated to 200 characters."""
    allow_unavailable: bool | None = None
    """Whether the rollout may continue without an available replica in the target pool. This setting applies until the
    rollout is started again."""


class RolloutResult(Struct, frozen=True):
    """The response to `POST /api/v1/rollouts`."""

    rollout: Rollout
    """The rollout after the action."""
    warnings: tuple[str, ...] = ()
    """Warnings about side effects and other problems, such as pools without an available replica and files that are not
    published."""


# ── `GET /api/v1/members` ─────────────────────────────────────────────────────────────────────────────────────────────


class Member(Struct, frozen=True):
    """A member of the control plane, as of its last heartbeat."""

    name: str
    """The member's name."""
    self: bool
    """Whether this is the member that returned the response."""
    role: str
    """The member's role, which is `leader`, `follower`, or `isolated` if the member was the last leader and cannot
    reach the store."""
    epoch: int
    """The epoch in which the member is the leader, or the epoch of the leader that it follows."""
    api: str | None
    """The URL of the member's API; null while the API is not listening."""
    xds: str | None
    """The address to which Envoys connect; null while the member is not listening for them."""
    version: str
    """The member's lbctl version."""
    snapshot: str
    """The version of the fleet that the member publishes."""
    digest: str
    """The digest of the files on the member's disk, excluding `control`."""
    in_step: bool
    """Whether the member publishes the same fleet as the leader."""
    files_differ: bool
    """Whether the member's files differ from the leader's. If they differ, the member publishes the leader's files."""
    lag: Number | None
    """Seconds since the member received the leader's last heartbeat; null for the leader."""
    clock: Number
    """The number of seconds by which the leader's clock is ahead of the member's clock."""
    latency: Number | None
    """The store's response time for the most recent request, in seconds; null before the first request."""
    problem: str | None
    """The reason why the member cannot use the store; null if it can."""
    pools: tuple[str, ...]
    """The pools whose replicas the member scrapes, according to the member that returned this response."""
    at: Timestamp
    """The time of the heartbeat, according to the member's own clock."""


class Members(Struct, frozen=True):
    """The response to `GET /api/v1/members`."""

    store: str | None
    """The members' store; null for a single control plane with a state directory."""
    leader: str | None
    """The leader's name; null if it is unknown."""
    members: tuple[Member, ...]
    """The members, sorted by name."""


# ── `GET /api/v1/proxies` ─────────────────────────────────────────────────────────────────────────────────────────────


class ResourceTypeStatus(Struct, frozen=True):
    """The state of one xDS resource type in one Envoy."""

    type: str
    """The short name of the type, which is `cds`, `eds`, `lds`, `rds` or `sds`."""
    state: str
    """The state, which is `SYNCED`, `WAITING` (the Envoy requested a resource that does not exist), `STALE` (an update
    is due, or sent but not accepted yet) or `NACKED` (the Envoy rejected an update)."""
    since: Timestamp | None
    """The time at which this state began."""
    wildcard: bool
    """Whether the Envoy requests all resources of the type."""
    names: int
    """The number of resources that the Envoy requests by name."""
    offered: str
    """The version that was last sent; empty if no version has been sent."""
    acked: str
    """The version that was last accepted; empty if no version has been accepted."""
    pushed_at: Timestamp | None
    """The time at which a response was last sent; null if no response has been sent."""
    acked_at: Timestamp | None
    """The time at which a response was last accepted; null if no response has been accepted."""
    message: str
    """The Envoy's error message if the state is NACKED; otherwise empty."""
    nacked: tuple[str, ...]
    """The names of the resources that the Envoy has rejected."""


class NackRecord(Struct, frozen=True):
    """A rejection by an Envoy."""

    at: Timestamp
    """The time at which the rejection was received."""
    type: str
    """The short name of the resource type."""
    version: str
    """The version that was rejected."""
    names: tuple[str, ...]
    """The resources that were rejected."""
    message: str
    """The Envoy's error message."""
    findings: tuple[str, ...]
    """One line per rejected resource, with its position in the YAML and the error."""


class _ProxyStatus(Struct, frozen=True):
    """Fields common to all proxies."""

    node: str
    """The node ID of an Envoy, or the name of any other proxy."""
    proxy: str | None
    """The proxy's name in `proxies`; null if the node is not listed in `proxies`."""
    kind: str
    """The kind of proxy: `envoy`, `haproxy`, `nginx`, or `reader` (the `lbctl xds get` and `lbctl xds watch`
    commands)."""
    connected: bool
    """Whether the proxy is currently connected."""
    since: Timestamp
    """The time at which the current connection or the last connection attempt began. If the state is `GONE`: the time
    at which the proxy disconnected."""
    state: str
    """For Envoy, the worst state of the resource types, or `REFUSED` (the Envoy receives no updates), or `GONE` (it has
    disconnected). For HAProxy and nginx, `SYNCED`, `WAITING`, `FAILING` or `NOT DRIVEN`. An Envoy that may use rendered
    files is `NOT DRIVEN` until it connects."""
    reason: str
    """The reason why the proxy is not in sync; empty if it is in sync, or if `types` contains the reason."""
    version: str
    """The version that was last sent; empty if no version has been sent."""
    last_good: str
    """The last version that the proxy fully accepted; empty if it has not accepted any version."""
    confirmed: bool
    """Whether the proxy counts as one of the fleet's proxies. It counts if it has a client certificate, uses the Unix
    socket, is driven by lbctl, or has accepted a fleet over this connection. This check is necessary because any user
    on the machine can connect to a loopback port."""
    types: tuple[ResourceTypeStatus, ...]
    """The state of each xDS resource type; empty for HAProxy and nginx."""
    nacks: tuple[NackRecord, ...]
    """The most recent rejections, newest first."""


class XdsProxy(_ProxyStatus, frozen=True):
    """An Envoy or an `lbctl xds` command, identified by its xDS streams."""

    cluster: str
    """The cluster name of the Envoy node."""
    region: str
    """The region of the Envoy node; empty if the Envoy does not send one."""
    zone: str
    """The zone of the Envoy node; empty if the Envoy does not send one."""
    sub_zone: str
    """The sub-zone of the Envoy node; empty if the Envoy does not send one."""
    envoy: str
    """The Envoy's version; empty if the Envoy does not send a version."""
    peer: str
    """The address from which the Envoy connected."""
    delta: bool
    """Whether the Envoy uses delta xDS."""
    reports_refused: str
    """The reason why the Envoy's traffic reports are rejected; empty if they are accepted, or if it sends no
    reports."""


class DrivenProxy(_ProxyStatus, frozen=True):
    """An HAProxy or nginx that lbctl drives on the same machine, or a proxy that is `NOT DRIVEN`."""

    reloads: int
    """The number of reloads that lbctl has triggered."""
    leaving: int
    """The number of replicas that are being removed but still have requests."""


Proxy = AnyOf[XdsProxy, DrivenProxy]


class Proxies(Struct, frozen=True):
    """The response to `GET /api/v1/proxies`."""

    proxies: tuple[Proxy, ...]
    """The Envoys, sorted by node ID, followed by the driven proxies, sorted by name. A disconnected Envoy remains
    listed for one hour."""


# ── `GET /api/v1/pools` and `GET /api/v1/fleet` ───────────────────────────────────────────────────────────────────────


ReplicaState = OneOf[
    "in", "ramping", "slow", "hot", "unknown", "starting", "down", "ejected", "asleep", "draining", "drained",
    "removed",
]  # fmt: skip


class CachedTokens(Struct, frozen=True):
    """Prompt tokens found in engine caches in the last five minutes, or since the comparison began."""

    expected: int
    """The number of tokens that the pickers expected to find in the caches. For a pool, only replicas whose engines
    report cached tokens count, if any engine does."""
    found: int | None
    """The number of tokens that the engines found in their caches; null if no engine has current counts,
    for example because another member of the control plane is the leader."""
    sources: Mapping[str, int]
    """Maps each source to the number of tokens found there: `device`, `host`, `disk` or `external`. A source is absent
    if no engine reports it."""
    ratio: Number | None
    """`found` divided by `expected`; null if `found` is null or `expected` is 0. It can exceed 1, because engines also
    cache their responses and requests that were not picked."""
    advice: str | None
    """The likely causes of a low ratio; null if the ratio is not low."""
    seconds: int | None = None
    """The duration of the counted period, in seconds: about 300, or less after a restart or missing counts. For a pool,
    the longest period among its replicas. Null if it is unknown."""


class Replica(Struct, frozen=True):
    """A replica with its state, weights, shares and traffic."""

    name: str
    """The replica's name, which is unique in its pool."""
    address: str
    """The replica's address: host and port, or a Unix socket."""
    region: str | None
    """The replica's region; null if the fleet does not specify one."""
    zone: str | None
    """The replica's zone; null if the fleet does not specify one."""
    gpu: str | None
    """The GPU's name; null if the fleet does not specify one."""
    priority: int
    """The priority. Replicas with priority 0 receive requests first; replicas with higher numbers are in reserve."""
    capacity: Number
    """The replica's capacity, relative to the other replicas in the pool."""
    state: ReplicaState
    """The state. `in`: the replica receives its share of requests. `ramping`: the weight is rising after the replica
    has joined or recovered, or is at the floor because the replica is on trial or has probably stalled. `slow`: the
    weight is clearly below the capacity because the replica is slower than its peers. `hot`: the weight is clearly
    below the capacity because the replica is more heavily loaded or hotter than its peers. `unknown`: the replica
    receives requests, but no report shows whether it is reachable, or none of the requests is being answered.
    `starting`: a proxy is not sending requests until the first active checks have passed, and no check has failed.
    `down`: an active check is failing, or lbctl cannot connect to the replica. `ejected`: the deep health check or a
    proxy's passive check is keeping traffic off the replica. `draining`: the replica is drained but still has requests
    in flight, or some proxies have not applied the drain yet. `drained`: all proxies have applied the drain, and no
    requests are in flight. `removed`: the drain deadline has passed, and no proxy is using the replica."""
    state_reason: str
    """The reason for this state, as a sentence that names the check or the proxy; empty if the state is `in`."""
    state_since: Timestamp | None
    """The time at which this state began; null if it began before lbctl started."""
    weight: Number
    """The published weight, on the same scale as capacities."""
    declared: Number
    """The replica's share of the pool's requests based on the files alone (capacities and drains), from 0 to 1."""
    share: Number
    """The decided share of the pool's requests, from 0 to 1, averaged over the proxies. The share takes into account
    measured weights, drains, and the active checks and slow start that lbctl provides for proxies that lack them."""
    acknowledged: Number | None
    """The replica's share in the newest fleet that all connected proxies have applied; null if a proxy has not received
    a fleet yet."""
    observed: Number | None
    """The replica's share of the pool's requests in the last minute, as counted by the proxies; null if no requests are
    reported."""
    requests_per_second: Number | None
    """Requests per second in the last minute; null if no proxy reports counts."""
    errors: Number | None
    """The error rate in the last minute, from 0 to 1; null if no requests are reported. A response counts as an error
    if its status is 500 or above, or if it is incomplete."""
    first_byte_p50: Number | None
    """The 50th percentile of the time to first byte in the last minute, in seconds; null if no proxy reports it."""
    first_byte_p99: Number | None
    """The 99th percentile of the time to first byte in the last minute, in seconds; null if no proxy reports it."""
    in_flight: int | None
    """The number of requests in flight, summed over all proxies that report it; null if no proxy reports it."""
    idle: bool | None
    """Whether the replica is drained and has no requests in flight, according to reports since all connected proxies
    applied the drain. Null if the replica is not drained, or if a proxy does not report requests in flight."""
    ramp: Number
    """The slow-start factor that lbctl applies, from 0 to 1: the lowest factor among all proxies that need it."""
    picker_ramp: Number
    """The slow-start factor in the picker, from 0 to 1."""
    drained: Timestamp | None
    """The time at which the drain began; null if the replica is not drained."""
    out: bool
    """Whether the deep health check has ejected the replica, or the replica was removed after its drain deadline."""
    reasons: tuple[str, ...]
    """The reasons why the replica is out, down or drained, and the weight set by an override."""
    cached: CachedTokens | None = None
    """Expected and found tokens in the engine's caches; null if the pool's algorithm is not `pick`, before the
    first comparison, and while the picker is not running."""


class RecentPicks(Struct, frozen=True):
    """Requests in the last minute to a pool with `algorithm: pick`."""

    requests: int
    """The number of requests reported by proxies."""
    picked: int
    """The number of finished requests whose replica was chosen by the picker."""
    missed: int
    """The minimum number of requests that were balanced by `otherwise` instead of the picker. Proxies may report
    requests up to ten seconds late."""
    in_flight: int
    """The number of picked requests that have not finished."""
    share: Number | None
    """The share of requests whose replica was chosen by the picker, from 0 to 1; null if no requests are reported."""


class QueueWaits(Struct, frozen=True):
    """A tenant's requests that were assigned a replica after waiting, in the last minute."""

    requests: int
    """The number of requests."""
    mean_seconds: Number
    """The mean waiting time, in seconds."""


class PoolQueue(Struct, frozen=True):
    """The requests waiting at this control plane's picker because all of the pool's replicas are full.

    The number of waiting requests is current. All other counts cover the last minute.
    """

    max_requests: int
    """The maximum number of waiting requests."""
    max_wait_seconds: Number
    """The time after which a waiting request is rejected, in seconds."""
    waiting: int
    """The number of waiting requests."""
    priorities: Mapping[str, int]
    """Maps each priority (`high`, `normal` and `low`) to the number of its waiting requests."""
    tenants: Mapping[str, int]
    """Maps the 20 tenants with the most waiting requests to the number of these requests. Other tenants are counted as
    `other`. Requests without a tenant are not included."""
    released: int
    """The number of requests that were assigned a replica after waiting."""
    mean_wait_seconds: Number | None
    """The mean waiting time of these requests, in seconds; null if there were none."""
    waits: Mapping[str, QueueWaits]
    """Maps each tenant to the waits of its requests. The picker counts at most 20 tenants per pool individually. Other
    tenants are counted as `other`."""
    refused_full: int
    """The number of requests that were rejected because `max_requests` requests were already waiting."""
    refused_late: int
    """The number of requests that were rejected because they had waited for `max_wait_seconds`."""
    left: int
    """The number of requests whose clients disconnected while waiting."""


class Pool(Struct, frozen=True):
    """A pool of replicas."""

    name: str
    """The name of the pool."""
    model: str | None
    """The model that the pool serves; null if the fleet does not specify one."""
    protocol: str
    """The protocol that proxies use to connect to the replicas."""
    algorithm: str
    """The load balancing algorithm."""
    drain_deadline_seconds: Number
    """The number of seconds that a drained replica has to finish its requests."""
    requests_per_second: Number | None
    """Requests per second in the last minute; null if no proxy reports counts."""
    errors: Number | None
    """The error rate in the last minute, from 0 to 1, including requests that proxies refused; null if no requests are
    reported."""
    first_byte_p50: Number | None
    """The 50th percentile of the time to first byte in the last minute, in seconds; null if no proxy reports it."""
    first_byte_p99: Number | None
    """The 99th percentile of the time to first byte in the last minute, in seconds; null if no proxy reports it."""
    picks: RecentPicks | None
    """Requests and picks in the last minute. Null if the algorithm is not `pick`, or if other control planes' pickers
    also choose replicas for this pool."""
    in_use: bool
    """Whether a route sends requests to the pool."""
    fail_open: bool
    """Whether the pool receives requests even though the active checks of all its replicas are failing."""
    failing: bool
    """Whether all requests in the last few seconds failed. If there were fewer than three requests, the last minute
    is used instead."""
    shedding: str | None
    """The reason why proxies are refusing requests to the pool (`load_shedding`); null if they are not."""
    reporting: tuple[str, ...]
    """The proxies that report counts for this pool's replicas. Envoys are listed by node ID, and other proxies by
    name."""
    silent: tuple[str, ...]
    """The proxies that can send requests to this pool but do not report counts. An Envoy without a connected node is
    listed by name."""
    unable: Mapping[str, str]
    """Maps each proxy in `silent` that cannot report to the reason: a setting that is missing in `proxies`, or the
    reason why its reports are rejected."""
    replicas: tuple[Replica, ...]
    """All replicas, in the order of the fleet file."""
    cached: CachedTokens | None = None
    """Expected and found tokens in the engines' caches; null if the algorithm is not `pick`, before the first
    comparison, and while the picker is not running."""
    queue: PoolQueue | None = None
    """Requests waiting at the picker; null if the pool has no queue, and while the picker is not running."""


class Pools(Struct, frozen=True):
    """The response to `GET /api/v1/pools`."""

    pools: tuple[Pool, ...]
    """The pools, in the order of the fleet file."""


class FleetSettings(Struct, frozen=True):
    """The response to `GET /api/v1/fleet`."""

    settings: Mapping[str, str]
    """Maps the YAML path of each setting in the published files, except replicas, to its value."""


# ── `GET /api/v1/signals` ─────────────────────────────────────────────────────────────────────────────────────────────


class Signal(Struct, frozen=True):
    """One of a replica's signals."""

    value: Number
    """The value."""
    unit: str
    """The unit."""
    age: Number
    """Seconds since the value was measured."""
    source: str
    """The kind of source that provided the value."""
    fresh: bool
    """Whether the value is newer than `stale_after` and is therefore used."""


class RefusedMetric(Struct, frozen=True):
    """A metric that lbctl rejected while scraping a page."""

    metric: str
    """The metric's name."""
    reason: str
    """The reason for the rejection."""


class Source(Struct, frozen=True):
    """A replica's telemetry source, as of its last scrape."""

    kind: str
    """The kind of source, as named in `telemetry.sources`."""
    url: str
    """The URL, without the values of its query parameters."""
    ok: bool
    """Whether the last scrape returned samples."""
    age: Number | None
    """Seconds since the source last returned samples; null if it has not returned any."""
    reason: str | None
    """A short name for the reason why the last scrape failed; null if it succeeded."""
    message: str | None
    """A description of the failure; null if the last scrape succeeded."""
    bytes: int
    """The size of the scraped page, in bytes."""
    seconds: Number
    """The duration of the scrape, in seconds."""
    refused: tuple[RefusedMetric, ...]
    """The metrics on the page that lbctl rejected."""


class ReplicaSignals(Struct, frozen=True):
    """A replica's signals and telemetry sources."""

    pool: str
    """The pool."""
    replica: str
    """The replica."""
    stale_after: Number
    """Seconds after which a signal is no longer used."""
    signals: Mapping[str, Signal]
    """Maps each signal name to the signal."""
    sources: tuple[Source, ...]
    """The sources, in the order of the fleet file."""


class Signals(Struct, frozen=True):
    """The response to `GET /api/v1/signals`."""

    signals: tuple[ReplicaSignals, ...]
    """One entry per replica, for every pool that has telemetry."""


# ── `GET /api/v1/decisions` ───────────────────────────────────────────────────────────────────────────────────────────


class DecisionSignal(Struct, frozen=True):
    """A signal that was used for a decision."""

    value: Number
    """The value."""
    unit: str
    """The unit."""
    age: Number
    """Seconds since the value was measured."""


class Acknowledged(Struct, frozen=True):
    """The number of proxies that have accepted the published version."""

    proxies: int
    """The number of proxies that should have the published version."""
    have_it: int
    """The number of proxies that have accepted the published version."""
    waiting: tuple[str, ...]
    """The nodes that have not yet accepted the published version."""


class Decision(Struct, frozen=True):
    """All values that a replica's weight in the proxies is derived from, beginning with its signals."""

    pool: str
    """The pool."""
    replica: str
    """The replica."""
    strategy: str
    """The weighting strategy."""
    mode: str
    """The pool's mode, as in `PoolControl`."""
    mode_words: str | None
    """The reason why the mode is not `acting`; null if the mode is `acting`."""
    capacity: Number
    """The replica's capacity."""
    signals: Mapping[str, DecisionSignal]
    """Maps each signal name to the signal, including stale signals."""
    sampled_by: str | None
    """The control plane member that scraped the signals; null if it is the member that returned this response,
    or if there are no signals."""
    age: Number | None
    """Seconds since the last sample; null if there is no sample."""
    evidence_age: Number | None
    """The age of the evidence for the estimate, in seconds; null if there is no evidence."""
    speed: Number | None
    """The speed divided by the capacity, comparable only within the pool; null if there is no evidence, or if the
    strategy is `composite`."""
    load: Number | None
    """The load divided by the capacity, comparable only within the pool; null if there is no evidence, or if the
    strategy is not `composite`."""
    normalised: Number
    """The natural logarithm of the replica's speed or load, relative to the upper median of its peers."""
    across_types: Number
    """The natural logarithm of the replica's GPU type's median, relative to the pool's median."""
    proposed: Number | None
    """The weight that the strategy proposes, as a multiple of the capacity; null if the strategy does not propose a
    weight."""
    wished: Number | None
    """Deprecated: the old name of `proposed`, which will be removed in version 1.1."""
    clamped: Number
    """The weight factor, limited to the range between floor and ceiling, or the factor imposed by health or by stale
    samples."""
    limited: Number
    """The weight factor after the step limits are applied."""
    damped: Number
    """Deprecated: the old name of `limited`, which will be removed in version 1.1."""
    beyond_deadband: Number
    """The weight factor after the deadband is applied, which is the decided factor."""
    decided: Number
    """The decided weight, on the same scale as capacities."""
    published: Number
    """The published weight: the weight set by an override if there is one, and the decided weight otherwise."""
    sent: Number
    """Deprecated: the old name of `published`, which will be removed in version 1.1."""
    room: Number
    """The number of requests in flight that the replica should have, relative to its peers, on the same scale as
    capacities."""
    of_peers_speed: Number
    """The part of the weight factor that results from the measured speed, relative to replicas with the same GPU."""
    held: Number
    """The part of the weight factor that results from anything other than room and speed: a floor, a trial, a limited
    step or a ramp."""
    share: Number
    """The replica's share of the pool's requests, from 0 to 1."""
    quantised: Mapping[str, int]
    """Maps each kind of proxy to the integer weight in its configuration. If proxies of the same kind have different
    weights, the key is `kind name`. A proxy is absent if it does not send new requests to the replica."""
    notes: tuple[str, ...]
    """Notes about proxies whose load balancing does not follow the weight."""
    ramp: Number
    """The slow-start factor that lbctl applies, from 0 to 1: the lowest factor among all proxies that need it."""
    picker_ramp: Number
    """The slow-start factor in the picker, from 0 to 1."""
    verdict: str
    """The deep health check's verdict, which is `in`, `floor`, `out` or `asleep`."""
    reasons: tuple[str, ...]
    """The reasons for the verdict, and any missing signals."""
    overrides: tuple[Override, ...]
    """The overrides for the replica or its pool."""
    acknowledged: Acknowledged
    """The proxies that have accepted the published version."""


class Decisions(Struct, frozen=True):
    """The response to `GET /api/v1/decisions`."""

    decisions: tuple[Decision, ...]
    """One entry per replica, for every pool that has telemetry."""


# ── `GET /api/v1/picks`: the picker of this control plane, the numbers of its decisions, and samples of them ──────────


class PickerStatus(Struct, frozen=True):
    """The process that chooses replicas for pools with `algorithm: pick`."""

    listens: str
    """The address for gRPC. HTTP uses the next higher port."""
    running: bool
    """Whether the process is running and has reported within the last 3 seconds."""
    alone: bool
    """Whether the picker is an `lbctl picker` process that this control plane did not start."""
    since: Timestamp | None
    """The time at which the process was started, even if the process hangs; null if there is no process."""
    starts: int
    """The number of times the process has been started."""
    reason: str | None
    """The reason why the process is not running; null while it is running or starting."""
    open: int
    """The number of picked requests that are still in flight."""
    following: int
    """The number of pickers that receive this control plane's tables, including pickers on other machines."""
    unsaved: str | None = None
    """The reason why the picker cannot save which replica served each session or prompt; null if it can."""


class PickedPool(Struct, frozen=True):
    """The picker's decisions for one pool since the picker was started."""

    pool: str
    """The pool."""
    decisions: Mapping[str, int]
    """Maps each reason to the number of decisions made for it."""
    finished: int
    """The number of picked requests that have finished."""
    mean_seconds: Number | None
    """The mean duration of a decision, in seconds; null before the first decision."""
    cache_hits: Mapping[str, Number]
    """Maps each replica to the share of prompt tokens that its engine found in its prefix cache. A replica is absent if
    the share is unknown."""
    cached: CachedTokens | None = None
    """Expected and found tokens in all engines' caches; null before the first comparison and while the picker is
    not running."""
    cached_by_replica: Mapping[str, CachedTokens] = {}
    """Maps each replica to the expected and found tokens in its engine's caches."""
    length_factors: Mapping[str, Number] | None = None
    """The factors by which the picker multiplies its estimates of prompt lengths, learned from the engines' prompt
    token counters. The keys are ascii (ASCII characters, and bodies that are not read), han (Chinese characters,
    also in Japanese text), other (all other characters) and parts (message parts without text, for example images).
    Null until the picker has compared four prompts with the counters."""
    queue: PoolQueue | None = None
    """Requests waiting at the picker; null if the pool has no queue, and while the picker is not running."""


class PickSample(Struct, frozen=True):
    """A decision made by the picker. The sample does not contain client data."""

    at: Timestamp
    """The time of the decision."""
    pool: str
    """The pool."""
    replica: str | None
    """The replica chosen by the picker; null if it did not choose a replica."""
    reason: str
    """The reason for the choice, as a single word."""
    seconds: Number
    """The duration of the decision, in seconds."""
    session: bool
    """Whether the request names a session."""
    blocks: int
    """The number of blocks in the request's prompt that were looked up."""
    tokens: Number
    """The estimated length of the request's prompt, in tokens."""
    proxy: str
    """The proxy that sent the pick request; empty if the proxy did not send its name."""


class Picks(Struct, frozen=True):
    """The picker, its counts, and samples of its decisions."""

    picker: PickerStatus | None
    """The picker process; null if no pool needs one."""
    pools: tuple[PickedPool, ...]
    """The pools for which the picker has made decisions, sorted by name."""
    samples: tuple[PickSample, ...]
    """The last 500 sampled decisions, oldest first. At most ten decisions per second are sampled."""


# ── `POST /api/v1/picks/explain`: the replica that a request would get now, and the scores of all replicas ────────────


class PickQuestion(Struct, frozen=True, omit_defaults=True):  # older servers reject new fields
    """A request as a client would send it. lbctl does not store the request."""

    pool: str
    """The pool."""
    session: str | None
    """The value of the pool's first session key; null if the request has no session."""
    body: str | None
    """The beginning of the request body; null if the request has no body."""
    body_bytes: int | None = None
    """The length of the entire body, in bytes; null if `body` is complete."""
    region: str | None = None
    """The proxy's region; null if the proxy has no region."""
    zone: str | None = None
    """The proxy's zone; null if the proxy has no zone."""
    tenant: str | None = None
    """The tenant that sends the request; null if the route does not identify tenants."""
    priority: QueuePriority = "normal"
    """The priority of the request in the pool's queue: the priority set by its route, or the priority that its tenant
    may set in a header."""


class PickRequest(Struct, frozen=True):
    """The parts of a request that the picker uses."""

    session: str | None
    """The request's session; null if it has none."""
    body_bytes: int
    """The length of the request body, in bytes."""
    prompt_tokens: Number
    """The estimated number of tokens in the request's prompt."""
    model: str | None
    """The model named in the request; null if the request does not name a model."""
    adapter: str | None
    """The adapter named in the request; null if the request does not name an adapter."""
    blocks: int
    """The number of blocks in the prompt prefix that can be looked up."""
    session_key: str | None = None
    """The session key in the request: a header, or a body field such as $.user; null if the request has
    no session."""
    length_factor: Number = 1.0
    """The learned factor that prompt_tokens already includes. Divide prompt_tokens by this factor to get the original
    estimate."""


class PickCandidate(Struct, frozen=True):
    """A replica that the picker considered in a decision."""

    name: str
    """The name of the replica."""
    address: str
    """The replica's address."""
    eligible: bool
    """Whether the request may be sent to the replica."""
    reason: str
    """The reason why the replica is not eligible; empty if it is eligible."""
    rate: Number | None
    """The speed of the replica relative to the other replicas, including slow start; null if the replica is not
    eligible."""
    ramp: Number
    """The slow-start factor in `rate`, from 0 to 1."""
    work: Number | None
    """The work in flight on the replica, in tokens; null if the replica is not eligible."""
    cached: Number | None
    """The number of the request's tokens that are probably in the replica's cache; null if unknown."""
    counted: bool
    """Whether the replica's cache is taken into account, which is the case if the replica's load is within the
    bound."""
    wait: Number | None
    """The expected wait without the cache: the work divided by the rate, plus the request's own tokens divided by the
    rate without slow start. Null if the replica is not eligible."""


class PickQueuePosition(Struct, frozen=True):
    """The request's place in the pool's queue."""

    requests: int
    """The number of requests that would be assigned a replica before it."""
    flows: int
    """The number of tenants, clients or header values (as set in `queue.by`) to which these requests belong."""
    seconds: Number | None
    """The estimated wait, in seconds; null if no request has left the queue in the last minute."""
    rejected: bool
    """Whether the request would be rejected instead, because too many requests are waiting."""


class PickExplanation(Struct, frozen=True):
    """The decision that the picker would currently make for the request."""

    pool: str
    """The pool."""
    sentence: str
    """The choice and its reason, as a sentence."""
    reason: str
    """The reason for the choice, as a single word."""
    choices: tuple[str, ...]
    """The replicas from which the picker would choose at random; usually only one."""
    request: PickRequest
    """The parts of the request that the picker used."""
    candidates: tuple[PickCandidate, ...]
    """All replicas of the pool, best first."""
    queue: PickQueuePosition | None = None
    """The position in the queue; null if the request would not have to wait."""
    tenant_routes: tuple[str, ...] = ()
    """Routes to the pool that identify tenants. The sessions and prompts of their requests belong to the tenant, so the
    query must name the tenant."""


# ── `GET /api/v1/audit` ───────────────────────────────────────────────────────────────────────────────────────────────


class AuditRecord(Struct, frozen=True):
    """An action and its actor."""

    number: int
    """The record's number. Records are numbered from 1, without gaps."""
    at: Timestamp
    """The time of the action."""
    actor: str
    """The name of the token that was used; `lbctl` for actions by the control plane itself."""
    action: str
    """The action, for example `drain`, `end drain`, `rollout promote`, `reload`, `publish`."""
    subject: str
    """The target of the action: a pool, a replica, a route, or the version of a fleet."""
    reason: str
    """The reason given by the operator; empty if none was given."""
    previous: str
    """The hash of the previous record; empty for the first record."""
    hash: str
    """The hexadecimal SHA-256 hash of the fields above, encoded as a JSON array in this order without spaces."""


class Audit(Struct, frozen=True):
    """The records in the audit log."""

    records: tuple[AuditRecord, ...]
    """Up to 5,000 records, oldest first. If older records were deleted, `previous` of the first record is the hash of a
    deleted record."""


# ── The events of `GET /api/v1/events` ────────────────────────────────────────────────────────────────────────────────


class Published(Struct, frozen=True):
    """A new version was published, or weights changed."""

    at: Timestamp
    """The time of the event."""
    version: str
    """The version that is now published."""
    cause: str
    """The cause of the publication, which is `the files`, `the state`, `a rollback`, `discovery`, `an override`, the
    deadline of a drain, or the control loop."""
    changed: Mapping[str, int]
    """Maps the short name of each xDS type to the number of its resources that were added, changed or removed."""
    names: tuple[str, ...]
    """The names of these resources, as `type/name`; empty if there are many."""
    weights: Mapping[str, Mapping[str, Number]]
    """Maps each pool to its replicas and their new weights. The map contains only the first replicas whose weight has
    changed."""
    more_weights: int
    """The number of changed weights that are not listed in `weights`. `GET /api/v1/pools` lists all weights."""


class OverridesChanged(Struct, frozen=True):
    """Overrides were added, replaced or removed, or expired."""

    at: Timestamp
    """The time of the event."""
    added: tuple[Override, ...]
    """New overrides, including overrides that replace earlier ones."""
    removed: tuple[Override, ...]
    """Overrides that were removed or replaced, or that expired."""


class Reloaded(Struct, frozen=True):
    """The fleet files were read."""

    at: Timestamp
    """The time of the event."""
    result: ReloadOutcome
    """The result, as in `ReloadResult`."""
    refused: str | None
    """The reason why the files are not published; null if they are published."""
    errors: int
    """The number of errors. `GET /api/v1/status` lists them."""
    warnings: int
    """The number of warnings. `GET /api/v1/status` lists them."""


class RolloutChanged(Struct, frozen=True):
    """A rollout's phase or step has changed, or its analysis has evaluated an interval."""

    at: Timestamp
    """The time of the event."""
    route: str
    """The route."""
    phase: RolloutPhase
    """The current phase."""
    step: int
    """The number of the current step, from 1."""
    percent: Number | None
    """The current share of the target pool, in percent; null if the rollout does not control the split."""
    reason: str | None
    """The reason for the last action by an operator or the analysis; null if there is none."""
    evaluation: RolloutEvaluation | None
    """The new evaluation; null if there is none."""


class RolledBack(Struct, frozen=True):
    """An earlier fleet was published. It stays published until the files change."""

    at: Timestamp
    """The time of the event."""
    digest: str
    """The digest of the earlier fleet, as listed by `/api/v1/history`."""
    author: str
    """The name of the token that was used."""
    reason: str | None
    """The reason given by the operator; null if none was given."""


class RoleChanged(Struct, frozen=True):
    """This control plane member's role has changed."""

    at: Timestamp
    """The time of the event."""
    member: str
    """The member's name."""
    role: str
    """The new role, which is `leader`, `follower` or `isolated`."""
    epoch: int
    """The epoch in which the member is, or last was, the leader."""


class StoreChanged(Struct, frozen=True):
    """The control plane's store has become unreachable for this member, or reachable again."""

    at: Timestamp
    """The time of the event."""
    member: str
    """The name of this member."""
    up: bool
    """Whether the store is reachable."""
    reason: str | None
    """The reason why the store cannot be used; null if it can be used."""


class FilesDiffer(Struct, frozen=True):
    """Other members' files differ from the leader's."""

    at: Timestamp
    """The time of the event."""
    members: tuple[str, ...]
    """The names of these members; empty if all members have the same files again."""


class PoolsShared(Struct, frozen=True):
    """The assignment of pools to the members that scrape them changed."""

    at: Timestamp
    """The time of the event."""
    members: tuple[str, ...]
    """The members to which the pools are assigned."""
    pools: tuple[str, ...]
    """The pools that this member now scrapes."""


class TaskFailed(Struct, frozen=True):
    """One of the control plane's tasks has failed. The task is restarted, or runs again at the next publication.

    The log contains the reason for the failure.
    """

    at: Timestamp
    """The time of the event."""
    task: str
    """The name of the task, as in the metric `lbctl_task_failures_total`."""


class Missed(Struct, frozen=True):
    """Events after `Last-Event-ID` have been lost, so the client must fetch the state again."""

    oldest: int
    """The ID of the oldest event that is still stored, or of the next event if none is stored."""


class Closed(Struct, frozen=True):
    """The last event of a stream that the server closes."""

    reason: ClosedReason
    """The reason, which is `shutdown` (the process is stopping) or `slow` (the client did not read the events fast
    enough)."""


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
"""Maps the name of each server-sent event to the type of its data."""


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
    """The replica's name, which is unique in its pool."""
    address: str
    """The replica's address: host and port, or a Unix socket."""
    gpu: str | None
    """The GPU's name; null if the fleet does not specify one."""
    zone: str | None
    """The replica's zone; null if the fleet does not specify one."""
    state: str
    """The replica's state, which is `in` or the state that keeps the replica from getting its full share, as
    in `Replica`."""
    reason: str
    """The reason for this state; empty if the state is `in`."""
    since: Timestamp | None
    """The time at which this state began; null if it began before lbctl started."""
    capacity: Number
    """The replica's capacity, relative to the other replicas in the pool."""
    weight: Number
    """The published weight, on the same scale as capacities."""
    declared: Number | None
    """The replica's share of the pool's requests based on the files alone, from 0 to 1; null if unknown."""
    share: Number
    """The decided share of the pool's requests, from 0 to 1."""
    acknowledged: Number | None
    """The replica's share in the fleet that all connected proxies have applied; null if no proxy is connected."""
    observed: Number | None
    """The replica's share of the pool's requests in the last minute, as counted by the proxies; null if no requests are
    reported."""
    requests_per_second: Number | None
    """Requests per second in the last minute; null if no proxy reports counts."""
    errors: Number | None
    """The error rate in the last minute, from 0 to 1; null if no requests are reported."""
    first_byte_p50: Number | None
    """The 50th percentile of the time to first byte in the last minute, in seconds; null if no proxy reports it."""
    first_byte_p99: Number | None
    """The 99th percentile of the time to first byte in the last minute, in seconds; null if no proxy reports it."""
    in_flight: int | None
    """The number of requests in flight; null if no proxy reports it."""
    queue: Number | None
    """The number of requests waiting in the engine; null if there is no recent signal."""
    kv_cache: Number | None
    """The utilisation of the key-value cache, from 0 to 1; null if there is no recent signal."""
    gpu_utilisation: Number | None
    """The GPU utilisation, from 0 to 1; null if there is no recent signal."""
    temperature: Number | None
    """The temperature of the hottest GPU, in degrees Celsius; null if there is no recent signal."""
    cached_expected: int | None
    """The same value as `expected` in `CachedTokens`; null if it is unknown."""
    cached_found: int | None
    """The same value as `found` in `CachedTokens`; null if it is unknown."""


class LivePool(Struct, frozen=True):
    """A pool without its replicas."""

    name: str
    """The name of the pool."""
    model: str | None
    """The model that the pool serves; null if the fleet does not specify one."""
    algorithm: str
    """The load balancing algorithm."""
    replicas: int
    """The number of replicas in the pool."""
    requests_per_second: Number | None
    """Requests per second in the last minute; null if no proxy reports counts."""
    errors: Number | None
    """The error rate in the last minute, from 0 to 1; null if no requests are reported."""
    first_byte_p50: Number | None
    """The 50th percentile of the time to first byte in the last minute, in seconds; null if no proxy reports it."""
    first_byte_p99: Number | None
    """The 99th percentile of the time to first byte in the last minute, in seconds; null if no proxy reports it."""
    picked: Number | None
    """The share of requests in the last minute whose replica was chosen by the picker, from 0 to 1; null if unknown."""
    silent: tuple[str, ...]
    """The proxies that can send requests to this pool but do not report counts."""
    cached: CachedTokens | None
    """Expected and found tokens in the engines' caches; null if unknown."""
    queue: PoolQueue | None = None
    """Requests waiting at the picker; null if the pool has no queue, and while the picker is not running."""


class LiveProxy(Struct, frozen=True):
    """A proxy, without its resource types."""

    node: str
    """The node ID of an Envoy, or the name of any other proxy."""
    proxy: str | None
    """The proxy's name in `proxies`; null if the node is not listed in `proxies`."""
    kind: str
    """The proxy's type, as in `Proxies`."""
    connected: bool
    """Whether the proxy is currently connected."""
    since: Timestamp
    """The time at which the current connection or the last connection attempt began."""
    state: str
    """The proxy's state, as in `Proxies`."""
    reason: str
    """The reason why the proxy is not in sync; empty if it is in sync."""
    version: str
    """The version that was last sent; empty if no version has been sent."""
    last_good: str
    """The last version that the proxy accepted completely; empty if it has not accepted any version."""
    detail: str
    """An Envoy's version, or the number of reloads of a driven proxy."""


class LiveSplit(Struct, frozen=True):
    """The split on a route that forwards to several pools."""

    route: str
    """The route."""
    shares: Mapping[str, int]
    """Maps each pool to its share in the published fleet, relative to the other pools."""


class ReplicaName(Struct, frozen=True):
    """A reference to a replica."""

    pool: str
    """The pool."""
    name: str
    """The replica's name in the pool."""


class Live(Struct, frozen=True):
    """A frame with all data, or with the changes since the previous frame."""

    frame: int
    """The number of the frame, which increases by 1 with each change."""
    complete: bool
    """Whether the frame contains all data. If it does, the client discards the data from earlier frames."""
    at: Timestamp
    """The time of the frame, according to the server's clock."""
    status: Status | None
    """The status, with an `age` of 0 in its snapshot; null if the status has not changed."""
    pools: tuple[LivePool, ...] | None
    """All pools; null if no pool has changed."""
    replicas: tuple[LiveReplica, ...]
    """The replicas that have changed."""
    gone: tuple[ReplicaName, ...]
    """The replicas that no longer exist."""
    proxies: tuple[LiveProxy, ...] | None
    """All proxies; null if no proxy has changed."""
    rollouts: tuple[Rollout, ...] | None
    """All rollouts; null if no rollout has changed."""
    splits: tuple[LiveSplit, ...] | None
    """All splits; null if no split has changed."""


class ReplicaSeries(Struct, frozen=True):
    """The history of one replica."""

    replica: str
    """The replica."""
    values: tuple[Number | None, ...]
    """One value for each entry in `times`; null if the value was unknown. For the metric `state`, each value is an
    index into `states`."""


class Series(Struct, frozen=True):
    """The history of one metric of a pool."""

    pool: str
    """The pool."""
    metric: SeriesMetric
    """The metric."""
    states: tuple[str, ...]
    """The states by index, if the metric is `state`; empty for other metrics."""
    times: tuple[Number, ...]
    """The times of the values, in seconds since the Unix epoch, oldest first."""
    total: tuple[Number | None, ...]
    """The values for the whole pool if the request does not specify `replica`: the sum of requests, the mean of a ratio
    or a temperature, or the number of replicas in the `in` state. Empty if the request specifies `replica`."""
    replicas: tuple[ReplicaSeries, ...]
    """The requested replicas, in the order of the fleet file."""
