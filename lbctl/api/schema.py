"""Every document that the HTTP API answers, takes and streams, as frozen structs.

The server encodes these types and the commands decode them. The OpenAPI document and docs/reference/http-api.md are
generated from them. A field is a field of the JSON object with the same name (`field(name=…)` where Python reserves
it), and its docstring is its description. The module imports msgspec and the standard library alone, so that commands
start fast.

Rules that hold everywhere: a field is always present; None is JSON's null and its docstring says when; a `Timestamp` is
ISO 8601 in UTC with milliseconds; durations and ages are seconds. A client ignores fields and enum values that it does
not know: both may be added.
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
    """The answer to a probe of the process."""

    status: str
    """`ok`, or why the process is not ready."""


class Error(Struct, frozen=True):
    """Every answer with a status of 400 or above, except that of `/readyz`."""

    error: str
    """What is wrong, for people."""


# ── `GET /api/v1/status` and the values that other documents share with it ────────────────────────────────────────────


class Diagnostic(Struct, frozen=True):
    """An error, a warning or a note about the files or about what the proxies cannot express of them."""

    code: str
    """`LB` and three digits; `lbctl rule CODE` explains it."""
    severity: Severity
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


class Snapshot(Struct, frozen=True):
    """The fleet that is published to the proxies."""

    version: str
    """The version that proxies acknowledge; the same content has the same version."""
    at: Timestamp
    """Since when this version is published."""
    age: Number
    """Seconds since `at`."""
    origin: Origin = field(name="from")
    """`files`; `state` while the files cannot be served and the last good fleet of the state is; `history` after a
    rollback."""
    pools: int
    """The number of pools."""
    replicas: int
    """The number of replicas, with those that are drained, ejected or removed."""


class FleetFiles(Struct, frozen=True):
    """The result of the last read of the fleet's files."""

    paths: tuple[str, ...]
    """The files and directories of the command line."""
    directory: str
    """The working directory of the process, in which relative `paths` are; empty where it is deleted."""
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


class Rollback(Struct, frozen=True):
    """A rollback that is in force: an earlier fleet is served until the files change."""

    ignored: str
    """The digest of the files that are ignored."""
    since: Timestamp
    """When it was requested."""
    author: str
    """The name of the token with which it was requested."""
    reason: str | None
    """Why, in the operator's words; None where none was given."""


class ServedFiles(Struct, frozen=True):
    """The files that are served."""

    digest: str
    """The digest of the YAML files: SHA-256 of their names and contents, in hexadecimal."""
    since: Timestamp
    """Since when they are served; `lbctl history` has the ones before."""
    commit: str | None
    """The git commit that they were read from; None where they are in no git checkout."""
    dirty: bool
    """Whether they differ from the commit."""
    rollback: Rollback | None
    """The rollback because of which these are served, and not the files on disk; None without one."""


class UnmatchedNode(Struct, frozen=True):
    """An Envoy that is connected and is given nothing."""

    node: str
    """The node id that it sent."""
    reason: str
    """Why it is given nothing."""


class Override(Struct, frozen=True):
    """What an operator holds by hand, over the files and over the control loop."""

    kind: OverrideKind
    """`drain` and `weight` are about a replica, `freeze` is about the weights of a pool, `split` about a
    route."""
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
    """Why, in the operator's words; None where none was given."""
    author: str | None
    """The name of the token with which it was set; None where an earlier version set it."""
    since: Timestamp | None
    """When it was set."""
    until: Timestamp | None
    """When it ends by itself; None where somebody has to remove it."""


class PoolControl(Struct, frozen=True):
    """How the control loop treats one pool with telemetry."""

    pool: str
    """The pool."""
    strategy: str
    """The weighting strategy, as `weighting.strategy` names it."""
    mode: str
    """`acting`: signals move weights. `frozen`: too many replicas look bad at once, and weights stay. `blind`: too many
    have no fresh sample, and weights return to the capacities. `held`: an operator has frozen the pool."""
    reason: str | None
    """Why the mode is not `acting`; None while it is."""
    out: Mapping[str, tuple[str, ...]]
    """Ejected replica → why deep health has ejected it."""
    floor: Mapping[str, tuple[str, ...]]
    """Replica kept at the floor weight → why."""


class SourceCounts(Struct, frozen=True):
    """Sources of telemetry, over all replicas that are watched."""

    total: int
    """The number of sources."""
    failing: int
    """The number whose last scrape failed."""
    pools: Mapping[str, int]
    """Pool → its failing sources; a pool without any is absent."""


class DiscoveredName(Struct, frozen=True):
    """A DNS name that is resolved for the fleet, or a Kubernetes service that is watched."""

    name: str
    """The name; that of a service has `kubernetes` and its namespace before it."""
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


class Listens(Struct, frozen=True):
    """Where the process listens, and where it keeps its state."""

    xds: str | None
    """The address for Envoys; None until the first fleet can be served."""
    xds_socket: str | None
    """The Unix socket for Envoys of this machine; None without one."""
    api: str | None
    """The address of this API."""
    state: str | None
    """The state directory; None in a dry run, which keeps nothing."""


class MemberStatus(Struct, frozen=True):
    """This process as a member of a control plane."""

    name: str
    """Its name."""
    role: str
    """`leader`, `follower`, or `isolated`: the last leader, whose store does not answer."""
    leader: str | None
    """The member that leads; null where none is known."""
    age: Number | None
    """Seconds since it has seen the leader's last sign of life, and so how old what it shows may be; null in the one
    that decides."""


ProblemKind = OneOf[
    "not_ready", "files", "pool_down", "pool_shedding", "pool_failing", "no_proxy", "proxy", "picker",
    "picker_unasked", "shrink", "rollout_waiting", "store", "pool_errors", "replica_down", "replica_errors",
    "replica_unknown", "replica_starting", "picks_missed", "metrics", "proxy_gone", "rollout_failed", "state",
    "proxy_unconfirmed", "keys_refused",
]  # fmt: skip


class Problem(Struct, frozen=True):
    """Something that is wrong now."""

    severity: ProblemSeverity
    """`critical`: requests fail, or what the files say is not in force. `lbctl status --check` then fails."""
    kind: ProblemKind
    """What is wrong, as one word."""
    subject: str
    """The pool, POOL/REPLICA, proxy or route that it is about; empty where it is about the control plane."""
    text: str
    """What is wrong, as a sentence."""
    command: str
    """The command to run next."""


class ReplicaCounts(Struct, frozen=True):
    """All replicas of the fleet by their states."""

    total: int
    """All of them."""
    states: Mapping[str, int]
    """State → how many are in it."""
    away: Mapping[str, tuple[str, ...]]
    """State, other than `in`, `ramping`, `slow` and `hot` → its replicas as POOL/REPLICA, at most ten."""


class Status(Struct, frozen=True):
    """What this control plane serves, and what it waits for."""

    version: str
    """The version of lbctl that runs."""
    since: Timestamp
    """When the process started."""
    ready: bool
    """Whether proxies are answered with a complete fleet."""
    waiting: str | None
    """Why it is not ready; None when it is."""
    problems: tuple[Problem, ...]
    """What is wrong now, the worst first."""
    replicas: ReplicaCounts
    """The replicas of the published fleet."""
    dry_run: bool
    """Whether nothing is sent to proxies."""
    snapshot: Snapshot | None
    """What is published; None before the first fleet."""
    fleet: FleetFiles
    """The files."""
    served: ServedFiles | None
    """The files that are served, which may be earlier ones; None before the first fleet."""
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
    """DNS names and Kubernetes services of the fleet."""
    listens: Listens
    """Addresses and paths of this process."""
    picker: PickerStatus | None
    """The picker of replicas; None where no pool needs it."""
    member: MemberStatus | None
    """This process among the members of its control plane; None where it is alone."""


# ── Overrides and reload ──────────────────────────────────────────────────────────────────────────────────────────────


class Overrides(Struct, frozen=True):
    """The answer of `GET /api/v1/overrides`."""

    overrides: tuple[Override, ...]
    """What operators hold."""


class OverrideRequest(Struct, frozen=True):
    """The body of `POST /api/v1/overrides`."""

    kind: OverrideKind
    """What to hold."""
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
    """Why; at most 200 characters are kept."""
    ttl: Number | None = None
    """Seconds after which it ends by itself; None: somebody has to remove it."""


class OverrideRemoval(Struct, frozen=True):
    """The body of `DELETE /api/v1/overrides`."""

    kind: OverrideKind
    """What is held."""
    pool: str = ""
    """The pool; empty for `split`."""
    replica: str | None = None
    """The replica; None for `freeze` and `split`."""
    route: str | None = None
    """The route; for `split` alone."""


class OverrideResult(Struct, frozen=True):
    """The answer of `POST /api/v1/overrides`."""

    override: Override
    """The override as it is held from now on."""
    snapshot: Snapshot | None
    """What is published with it; None before the first fleet."""
    warnings: tuple[str, ...] = ()
    """What else is to be known: pools without an available replica, and files that are not served."""


class RemovalResult(Struct, frozen=True):
    """The answer of `DELETE /api/v1/overrides`."""

    removed: bool
    """Whether there was such an override."""
    snapshot: Snapshot | None
    """What is published without it; None before the first fleet."""
    warnings: tuple[str, ...] = ()
    """What else is to be known: pools without an available replica, and files that are not served."""


class ReloadRequest(Struct, frozen=True):
    """The body of `POST /api/v1/reload`."""

    allow_shrink: bool = False
    """Whether to serve the files even where they lose more replicas or keys than `control.max_shrink` allows."""


class ReloadResult(Struct, frozen=True):
    """The answer of `POST /api/v1/reload`."""

    result: ReloadOutcome
    """`published`, `unchanged`, `invalid` (errors), `refused` (too large a loss), `unsound` (a proxy would reject it),
    or `rolled_back` (the files have not changed since a rollback, which stays in force)."""
    refused: str | None
    """Why the files are not served; None where they are."""
    offered_again: int
    """How many resources that Envoys had rejected are sent to them once more."""
    snapshot: Snapshot | None
    """What is published now; None before the first fleet."""
    diagnostics: tuple[Diagnostic, ...]
    """Everything that the read reported."""


# ── `GET /api/v1/history` and `POST /api/v1/rollback` ─────────────────────────────────────────────────────────────────


class HistoryEntry(Struct, frozen=True):
    """A fleet that was served."""

    digest: str
    """The digest of its YAML files: SHA-256 of their names and contents, in hexadecimal."""
    at: Timestamp
    """Since when it was served."""
    current: bool
    """Whether it is the fleet that is served now."""
    commit: str | None
    """The git commit that its files were read from; None where they were in no git checkout."""
    dirty: bool
    """Whether the files differed from the commit."""
    action: HistoryAction
    """What led to it: a change of the files, `lbctl reload`, or `lbctl rollback`."""
    actor: str
    """The name of the token that was used; `lbctl` for a change of the files."""
    reason: str | None
    """Why, in the operator's words; None where none was given."""
    version: str
    """The version of the first snapshot that was built from it."""
    pools: int
    """The number of its pools."""
    replicas: int
    """The number of its replicas, with those that were discovered at that time."""


class History(Struct, frozen=True):
    """The answer of `GET /api/v1/history`."""

    entries: tuple[HistoryEntry, ...]
    """The newest 20 at most, the oldest first; fewer where their files are large."""


class RollbackRequest(Struct, frozen=True):
    """The body of `POST /api/v1/rollback`."""

    digest: str | None = None
    """The digest of an entry of the history, or its first characters (4 or more); None: the newest fleet before the
    current one."""
    allow_shrink: bool = False
    """Whether to serve it even where it loses more replicas or keys than `control.max_shrink` allows."""
    reason: str | None = None
    """Why; at most 200 characters are kept."""


class RollbackResult(Struct, frozen=True):
    """The answer of `POST /api/v1/rollback`."""

    result: ReloadOutcome
    """`rolled_back`; `published` or `unchanged` where that fleet is the one of the files; or why nothing has changed:
    `invalid`, `refused`, `unsound`."""
    refused: str | None
    """Why the files, or the earlier fleet, are not served; None where they are."""
    digest: str
    """The digest of the earlier fleet."""
    snapshot: Snapshot | None
    """What is published now."""
    diagnostics: tuple[Diagnostic, ...]
    """Everything that reading the earlier fleet reported."""


# ── `GET` and `POST /api/v1/rollouts` ─────────────────────────────────────────────────────────────────────────────────


RolloutAction = OneOf["start", "promote", "pause", "resume", "set", "abort"]
RolloutPhase = OneOf["waiting", "progressing", "paused", "promoted", "aborted", "rolled_back", "superseded"]
RolloutVerdict = OneOf["good", "bad", "inconclusive"]


class RolloutStep(Struct, frozen=True):
    """One step of a rollout."""

    percent: Number
    """The share of the target pool."""
    hold: Number | None
    """Seconds until the next step at the earliest; None where somebody has to promote it."""


class RolloutCounts(Struct, frozen=True):
    """Requests of one side of a rollout, as the proxies have counted them."""

    requests: int
    """Requests that have ended."""
    errors: int
    """Those among them that failed: a status of 500 or more, or a connection that failed or broke."""
    rate: Number | None
    """The share of errors, from 0 to 1; None without requests."""


class RolloutMetric(Struct, frozen=True):
    """The values of a latency or of a PromQL metric in one evaluation."""

    name: str
    """Its name in the file; of a latency what is measured and the percentile, such as `first_byte p95`."""
    new: Number | None
    """The value of the target pool, of a latency in milliseconds; None where there is none."""
    old: Number | None
    """The value of the other pools; None where there is none."""
    ratio: Number | None
    """The first divided by the second; None where that is no number."""
    max_ratio: Number
    """The largest ratio that is good."""
    verdict: RolloutVerdict
    """The verdict on this metric alone."""
    problem: str | None
    """Why there is no verdict; None where there is one."""


class RolloutEvaluation(Struct, frozen=True):
    """The verdict of the analysis on one interval, with its numbers."""

    at: Timestamp
    """When."""
    step: int
    """The number of the step, from 1."""
    verdict: RolloutVerdict
    """`good`: enough requests, and not worse than the other pools. `bad`: worse beyond chance. `inconclusive`: too
    little is known, which neither ends a step nor the rollout."""
    reason: str | None
    """Why it is not good; None where it is."""
    new: RolloutCounts
    """The target pool. An interval with too few requests is joined with the next one."""
    old: RolloutCounts
    """The other pools of the split together."""
    metrics: tuple[RolloutMetric, ...]
    """The latency, then the PromQL metrics by name; empty where the other pools get no requests at this step."""


class RolloutAnalysis(Struct, frozen=True):
    """The evidence of a rollout in the mode `analysis`."""

    waits_for: str | None
    """What keeps the step from ending besides its hold; None where nothing does, or where no step is held."""
    new: RolloutCounts
    """The target pool since the step began or was resumed."""
    old: RolloutCounts
    """The other pools since then."""
    failures: int
    """Bad evaluations in a row."""
    max_failures: int
    """So many in a row end or pause the rollout."""
    verdicts: Mapping[RolloutVerdict, int]
    """Verdict → how many evaluations of this rollout had it."""
    evaluations: tuple[RolloutEvaluation, ...]
    """The last ones, the oldest first."""


class Rollout(Struct, frozen=True):
    """How far the rollout of one route is."""

    route: str
    """The route."""
    to: str
    """The pool that the traffic moves to."""
    mode: RolloutMode
    """What ends a step: an operator, its hold, or its hold with good evaluations."""
    phase: RolloutPhase
    """`waiting`: it has not begun. `progressing`: a step is held. `paused`: the share stays. `promoted`: all steps are
    done. `aborted`: the split of the files holds again. `rolled_back`: the same, because the analysis has found the
    target pool bad, or the pool has no available replica. `superseded`: the files have another split, or another model
    of an old pool, and their split holds."""
    step: int
    """The number of the current step, from 1."""
    steps: tuple[RolloutStep, ...]
    """All steps."""
    percent: Number | None
    """The current share of the target pool; None where the rollout does not decide the split."""
    split: Mapping[str, int]
    """Pool → its current share, relative to the others, as the file would have it."""
    since: Timestamp | None
    """When the current step or phase began."""
    next_at: Timestamp | None
    """When the current step ends by itself, at the earliest; None where somebody has to end it, and while the hold of
    the step is paused."""
    reason: str | None
    """Why somebody, or the analysis, acted on it last; None without a reason."""
    analysis: RolloutAnalysis | None
    """The evidence; None in the modes `manual` and `timed`."""
    held_by: str | None = None
    """Who holds the split of the route by hand, and why: it applies in place of that of the rollout. None where nobody
    does."""
    hold_waits_for: str | None = None
    """Why the hold of the current step is paused; None while it runs, and without a hold."""
    unavailable: str | None = None
    """Why the target pool has no available replica, so that the rollout does not move on; None where it has one, where
    an operator has allowed it, and after the end."""
    observed: Number | None = None
    """The target's part of the last minute's requests to the pools of the split, from 0 to 1, as the proxies count
    them, those of other routes to these pools included; None without reported requests."""


class Rollouts(Struct, frozen=True):
    """The answer of `GET /api/v1/rollouts`."""

    rollouts: tuple[Rollout, ...]
    """The rollouts of the served fleet, by route."""


class RolloutRequest(Struct, frozen=True):
    """The body of `POST /api/v1/rollouts`."""

    route: str
    """The route."""
    action: RolloutAction
    """What to do. `set` needs `percent`."""
    percent: Number | None = None
    """The share of the target pool, from 0 to 100; for `set` alone."""
    reason: str | None = None
    """Why; at most 200 characters are kept."""
    allow_unavailable: bool | None = None
    """Whether the rollout may go on without an available replica in the target pool, until it starts again."""


class RolloutResult(Struct, frozen=True):
    """The answer of `POST /api/v1/rollouts`."""

    rollout: Rollout
    """The rollout after the action."""
    warnings: tuple[str, ...] = ()
    """What else is to be known: pools without an available replica, and files that are not served."""


# ── `GET /api/v1/members` ─────────────────────────────────────────────────────────────────────────────────────────────


class Member(Struct, frozen=True):
    """A member of the control plane, as it has announced itself last."""

    name: str
    """Its name."""
    self: bool
    """Whether it is the member that answers."""
    role: str
    """`leader`, `follower`, or `isolated`: the last leader, whose store does not answer."""
    epoch: int
    """The epoch in which it leads, or whose decisions it follows."""
    api: str | None
    """The URL of its API; null while that is closed."""
    xds: str | None
    """The address for Envoys; null while that is closed."""
    version: str
    """Its version of lbctl."""
    snapshot: str
    """The version of the snapshot that it serves."""
    digest: str
    """The digest of the files on its disk, without `control`."""
    in_step: bool
    """Whether it serves what the leader serves."""
    files_differ: bool
    """Whether its files are not the leader's; the leader's are served then."""
    lag: Number | None
    """Seconds since it has seen the leader's last sign of life; null in the leader."""
    clock: Number
    """Seconds that the leader's clock is ahead of its own."""
    latency: Number | None
    """Seconds of the store's last answer; null before the first."""
    problem: str | None
    """Why it cannot use the store; null where it can."""
    pools: tuple[str, ...]
    """The pools whose replicas it scrapes, by the member that answers."""
    at: Timestamp
    """When it said so, by its own clock."""


class Members(Struct, frozen=True):
    """The answer of `GET /api/v1/members`."""

    store: str | None
    """The store of the members; null where there is one control plane with a state directory."""
    leader: str | None
    """The member that leads; null where none is known."""
    members: tuple[Member, ...]
    """The members, by name."""


# ── `GET /api/v1/proxies` ─────────────────────────────────────────────────────────────────────────────────────────────


class ResourceTypeStatus(Struct, frozen=True):
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


class NackRecord(Struct, frozen=True):
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


class _ProxyStatus(Struct, frozen=True):
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
    """When the connection, or the last attempt, began; of a proxy that is GONE, when it left."""
    state: str
    """The worst state of its types, or `REFUSED` (it is given nothing new), `GONE` (it has left); for HAProxy and nginx
    `SYNCED`, `WAITING`, `FAILING` or `NOT DRIVEN`."""
    reason: str
    """Why it is not in sync; empty where it is or where its types say it."""
    version: str
    """The version last sent; empty before."""
    last_good: str
    """The version that it last accepted as a whole; empty before."""
    confirmed: bool
    """Whether it counts as a proxy of the fleet: it has a client certificate, is connected by the Unix socket, is
    driven, or has accepted a fleet over this connection. Any user of the machine can connect to a port of loopback."""
    types: tuple[ResourceTypeStatus, ...]
    """A row for each xDS type; empty for HAProxy and nginx."""
    nacks: tuple[NackRecord, ...]
    """The last rejections, the newest first."""


class XdsProxy(_ProxyStatus, frozen=True):
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
    reports_refused: str
    """Why its reports of traffic are not taken; empty where they are, or where it sends none."""


class DrivenProxy(_ProxyStatus, frozen=True):
    """A HAProxy or nginx that lbctl drives on its own machine."""

    reloads: int
    """How many reloads lbctl has caused."""
    leaving: int
    """Replicas that are to be removed and still have requests."""


Proxy = AnyOf[XdsProxy, DrivenProxy]


class Proxies(Struct, frozen=True):
    """The answer of `/api/v1/proxies`."""

    proxies: tuple[Proxy, ...]
    """Envoys by node id, then the driven proxies by name; an Envoy that has left stays for an hour."""


# ── `GET /api/v1/pools` and `GET /api/v1/fleet` ───────────────────────────────────────────────────────────────────────


ReplicaState = OneOf[
    "in", "ramping", "slow", "hot", "unknown", "starting", "down", "ejected", "draining", "drained", "removed",
]  # fmt: skip


class Replica(Struct, frozen=True):
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
    capacity: Number
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
    weight: Number
    """The published weight, on the scale of capacities."""
    declared: Number
    """Its part of the pool's requests by the files alone, their capacities and drains, from 0 to 1."""
    share: Number
    """Its part of the pool's requests as decided, from 0 to 1: the mean over the proxies, with measured weights,
    drains, and what lbctl does for a proxy that lacks it (active checks, slow start)."""
    acknowledged: Number | None
    """The same part by the newest fleet that all connected proxies have; None where one of them has none yet."""
    observed: Number | None
    """Its part of the pool's requests in the last minute, as the proxies count them; None without reported requests."""
    requests_per_second: Number | None
    """Requests in the last minute, per second; None where no proxy reports any counts."""
    errors: Number | None
    """The part of its requests in the last minute that failed, from 0 to 1: a status of 500 or more, or no whole
    answer. None without reported requests."""
    first_byte_p50: Number | None
    """Seconds until the first byte of half of the answers of the last minute; None where no proxy reports them."""
    first_byte_p99: Number | None
    """The same of 99 % of the answers."""
    in_flight: int | None
    """Requests that it has now, of the proxies that report them; None where none does."""
    idle: bool | None
    """Whether it is drained and has no requests in flight, by reports since all connected proxies have applied the
    drain; None where it is not drained, or where not all of them report requests in flight."""
    ramp: Number
    """The factor of slow start by lbctl, from 0 to 1: the lowest of all proxies that need it."""
    picker_ramp: Number
    """The factor of slow start that the picker counts, from 0 to 1."""
    drained: Timestamp | None
    """When its drain began; None where it is not drained."""
    out: bool
    """Whether it is ejected by deep health, or removed since its drain deadline has passed."""
    reasons: tuple[str, ...]
    """Why it is out, down or drained, and which weight an operator holds."""


class RecentPicks(Struct, frozen=True):
    """The requests of a picked pool in the last minute."""

    requests: int
    """Those that proxies have reported."""
    picked: int
    """Those that the picker has picked and that have ended."""
    missed: int
    """At least so many went without a pick, by `otherwise`; proxies may report requests ten seconds late."""
    in_flight: int
    """Picked requests that have not ended."""
    share: Number | None
    """The part of the requests that were picked, from 0 to 1; None without reported requests."""


class Pool(Struct, frozen=True):
    """A pool of replicas."""

    name: str
    """The name."""
    model: str | None
    """The model that it serves; None where the fleet names none."""
    protocol: str
    """The protocol to its replicas."""
    algorithm: str
    """The load balancing algorithm."""
    drain_deadline_seconds: Number
    """Seconds that a drained replica keeps its requests."""
    requests_per_second: Number | None
    """Requests in the last minute, per second; None where no proxy reports any counts."""
    errors: Number | None
    """The part of its requests in the last minute that failed, from 0 to 1, those included that proxies refused
    themselves; None without reported requests."""
    first_byte_p50: Number | None
    """Seconds until the first byte of half of the answers of the last minute; None where no proxy reports them."""
    first_byte_p99: Number | None
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


class Pools(Struct, frozen=True):
    """The answer of `/api/v1/pools`."""

    pools: tuple[Pool, ...]
    """The pools, in the order of the fleet."""


class FleetSettings(Struct, frozen=True):
    """The answer of `/api/v1/fleet`."""

    settings: Mapping[str, str]
    """Path in the YAML → value, of every setting of the files that are served, except replicas."""


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
    """Whether it is younger than `stale_after`, and counts."""


class RefusedMetric(Struct, frozen=True):
    """A metric of a page that gave no sample."""

    metric: str
    """The name of the metric."""
    reason: str
    """Why it was refused."""


class Source(Struct, frozen=True):
    """A source of telemetry of a replica, as the last scrape left it."""

    kind: str
    """The kind, as `telemetry.sources` names it."""
    url: str
    """The URL, without the values of its query."""
    ok: bool
    """Whether the last scrape gave samples."""
    age: Number | None
    """Seconds since it last gave samples; None: never."""
    reason: str | None
    """A short name for why the last scrape failed; None where it did not."""
    message: str | None
    """The same for people; None where it did not fail."""
    bytes: int
    """The size of the page."""
    seconds: Number
    """The time that the scrape took."""
    refused: tuple[RefusedMetric, ...]
    """Metrics of the page that gave no sample."""


class ReplicaSignals(Struct, frozen=True):
    """What is read of a replica."""

    pool: str
    """The pool."""
    replica: str
    """The replica."""
    stale_after: Number
    """Seconds after which a signal no longer counts."""
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
    """A signal that a decision was made from."""

    value: Number
    """The value."""
    unit: str
    """The unit."""
    age: Number
    """Seconds since it was read."""


class Acknowledged(Struct, frozen=True):
    """Which proxies have the published version."""

    proxies: int
    """How many proxies should have it."""
    have_it: int
    """How many have accepted it."""
    waiting: tuple[str, ...]
    """The nodes that have not."""


class Decision(Struct, frozen=True):
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
    capacity: Number
    """The capacity of the replica."""
    signals: Mapping[str, DecisionSignal]
    """Name → signal, with those that are stale."""
    sampled_by: str | None
    """The member of the control plane that has scraped the signals; None: the one that answers, or there is none."""
    age: Number | None
    """Seconds since the last sample; None: there never was one."""
    evidence_age: Number | None
    """Seconds since the evidence that the estimate rests on; None without evidence."""
    speed: Number | None
    """Speed per capacity, comparable within the pool alone; None without evidence and for `composite`."""
    load: Number | None
    """Load per capacity, comparable within the pool alone; None without evidence and for other strategies."""
    normalised: Number
    """The natural logarithm of its speed or load, relative to the upper median of its peers."""
    across_types: Number
    """The natural logarithm of the median of its GPU type, relative to that of the pool."""
    proposed: Number | None
    """The proposal of the strategy, as a factor of the capacity; None where it proposes nothing."""
    wished: Number | None
    """Deprecated: the old name of `proposed`, until the next release."""
    clamped: Number
    """The factor within floor and ceiling, or the one that health and stale samples impose."""
    limited: Number
    """The factor after the limits on the size of a step."""
    damped: Number
    """Deprecated: the old name of `limited`, until the next release."""
    beyond_deadband: Number
    """The factor after the deadband: the decided one."""
    decided: Number
    """The decided weight, on the scale of capacities."""
    published: Number
    """The published weight: an operator's where there is an override."""
    sent: Number
    """Deprecated: the old name of `published`, until the next release."""
    room: Number
    """The requests in flight that the replica should carry, relative to its peers, on the scale of capacities."""
    of_peers_speed: Number
    """The factor of the weight for the measured speed, relative to replicas with the same GPU."""
    held: Number
    """The factor of the weight that is neither room nor speed: a floor, a trial, a limited step or a ramp."""
    share: Number
    """Its part of the pool's requests, from 0 to 1."""
    quantised: Mapping[str, int]
    """Kind of proxy → the integer weight there. `kind name` where proxies of a kind differ; absent where the replica
    gets nothing new."""
    notes: tuple[str, ...]
    """Where a proxy's balancing does not follow the weight."""
    ramp: Number
    """The factor of slow start by lbctl, from 0 to 1: the lowest of all proxies that need it."""
    picker_ramp: Number
    """The factor of slow start that the picker counts, from 0 to 1."""
    verdict: str
    """What deep health says: `in`, `floor` or `out`."""
    reasons: tuple[str, ...]
    """Why, and what is missing of its signals."""
    overrides: tuple[Override, ...]
    """Overrides about the replica or its pool."""
    acknowledged: Acknowledged
    """Which proxies have the published version."""


class Decisions(Struct, frozen=True):
    """The answer of `/api/v1/decisions`."""

    decisions: tuple[Decision, ...]
    """A row for each replica of each pool with telemetry."""


# ── `GET /api/v1/picks`: the picker of this control plane, what it has decided, and samples of its decisions ──────────


class PickerStatus(Struct, frozen=True):
    """The process that picks replicas for the pools with `algorithm: pick`."""

    listens: str
    """The address of gRPC; HTTP is on the next port."""
    running: bool
    """Whether the process runs and has reported within 3 seconds."""
    alone: bool
    """Whether it is an `lbctl picker` that somebody else has started at the address."""
    since: Timestamp | None
    """When the process was started, also one that hangs; None while there is none."""
    starts: int
    """How many times it was started."""
    reason: str | None
    """Why it does not run; None while it does, and while it starts."""
    open: int
    """The number of picked requests that have not ended."""
    following: int
    """How many pickers get the tables of this control plane, with those on other machines."""


class PickedPool(Struct, frozen=True):
    """The decisions about one pool since the picker's process was started."""

    pool: str
    """The pool."""
    decisions: Mapping[str, int]
    """Reason → the number of decisions."""
    finished: int
    """The number of picked requests that have ended."""
    mean_seconds: Number | None
    """How long a decision takes on average; None before the first."""
    cache_hits: Mapping[str, Number]
    """Replica → the part of prompt tokens that its engine found in its prefix cache; absent where that is unknown."""


class PickSample(Struct, frozen=True):
    """One decision. Nothing in it was sent by a client."""

    at: Timestamp
    """When it was taken."""
    pool: str
    """The pool."""
    replica: str | None
    """The replica that was picked; None where none was."""
    reason: str
    """Why this one, as one word."""
    seconds: Number
    """How long the decision took."""
    session: bool
    """Whether the request names a session."""
    blocks: int
    """The number of blocks of its prompt that were looked up."""
    tokens: Number
    """The estimated length of its prompt."""
    proxy: str
    """The proxy that asked; empty where it does not say."""


class Picks(Struct, frozen=True):
    """The picker, its counts and samples of its decisions."""

    picker: PickerStatus | None
    """The process; None where no pool needs it."""
    pools: tuple[PickedPool, ...]
    """The pools with decisions, by name."""
    samples: tuple[PickSample, ...]
    """Samples of decisions, at most ten a second and the last 500, the oldest first."""


# ── `POST /api/v1/picks/explain`: which replica a request would be given now, and what speaks for each ────────────────


class PickQuestion(Struct, frozen=True):
    """A request as a client would send it. Nothing of it is kept."""

    pool: str
    """The pool."""
    session: str | None
    """The value of the pool's first session key; None: the request has none."""
    body: str | None
    """The beginning of the body; None: the request has none."""
    body_bytes: int | None = None
    """The length of the whole body in bytes; None: it is given whole."""
    region: str | None = None
    """The region of the asking proxy; None: it has none."""
    zone: str | None = None
    """The zone of the asking proxy; None: it has none."""
    tenant: str | None = None
    """The tenant that sends the request; None: none that the route knows."""


class PickRequest(Struct, frozen=True):
    """What the picker reads of the request."""

    session: str | None
    """Its session; None: it has none."""
    body_bytes: int
    """The length of its body."""
    prompt_tokens: Number
    """The estimated tokens of its prompt."""
    model: str | None
    """The model that it names; None: none."""
    adapter: str | None
    """The adapter that it names; None: none."""
    blocks: int
    """Blocks of the prompt's beginning by which it can be recognised."""


class PickCandidate(Struct, frozen=True):
    """One replica in a decision."""

    name: str
    """The name of the replica."""
    address: str
    """Where it listens."""
    eligible: bool
    """Whether the request may go there."""
    reason: str
    """Why it may not; empty if it may."""
    rate: Number | None
    """What it can do relative to the others, slow start included; None if it is not eligible."""
    ramp: Number
    """The factor of slow start in `rate`, from 0 to 1."""
    work: Number | None
    """The work in flight there, in tokens; None if it is not eligible."""
    cached: Number | None
    """The request's tokens that its cache may hold; None if none are known."""
    counted: bool
    """Whether its cache counts: its load is within the bound."""
    wait: Number | None
    """The expected wait without the cache: the work divided by the rate, and the request's own tokens by the rate
    without slow start; None if it is not eligible."""


class PickExplanation(Struct, frozen=True):
    """The decision that the picker would make now."""

    pool: str
    """The pool."""
    sentence: str
    """What would be chosen and why."""
    reason: str
    """The reason, as one word."""
    choices: tuple[str, ...]
    """The replicas of which one would be chosen at random; usually one."""
    request: PickRequest
    """What was read of the request."""
    candidates: tuple[PickCandidate, ...]
    """Every replica of the pool, the best first."""


# ── `GET /api/v1/audit` ───────────────────────────────────────────────────────────────────────────────────────────────


class AuditRecord(Struct, frozen=True):
    """One action, and who did it."""

    number: int
    """The number of the record, from 1 and without gaps."""
    at: Timestamp
    """When it was done."""
    actor: str
    """The name of the token that was used; `lbctl` for what the control plane did by itself."""
    action: str
    """What was done, as `drain`, `end drain`, `rollout promote`, `reload`, `publish`."""
    subject: str
    """What it was done to: a pool, a replica, a route, or the version of a fleet."""
    reason: str
    """Why, in the operator's words; empty where none was given."""
    previous: str
    """The hash of the record before it; empty for the first."""
    hash: str
    """SHA-256 of the fields above, as a JSON array in this order without spaces, in hexadecimal."""


class Audit(Struct, frozen=True):
    """The kept records of the audit log."""

    records: tuple[AuditRecord, ...]
    """At most 5,000, the oldest first. Where older ones were deleted, the first has the `previous` of a deleted one."""


# ── The events of `GET /api/v1/events` ────────────────────────────────────────────────────────────────────────────────


class Published(Struct, frozen=True):
    """A new version is published, or weights have moved."""

    at: Timestamp
    """When."""
    version: str
    """The version that is published now."""
    cause: str
    """What caused it: `the files`, `the state`, `a rollback`, `discovery`, `an override`, a drain's deadline or the
    control loop."""
    changed: Mapping[str, int]
    """Short name of the xDS type → the number of resources that are added, changed or removed."""
    names: tuple[str, ...]
    """Their names as `type/name` where they are few; otherwise empty."""
    weights: Mapping[str, Mapping[str, Number]]
    """Pool → replica → its new weight, of the first replicas that had another one."""
    more_weights: int
    """How many more weights have moved than `weights` lists; `/api/v1/pools` has all."""


class OverridesChanged(Struct, frozen=True):
    """Operators hold something else than before, or an override has ended."""

    at: Timestamp
    """When."""
    added: tuple[Override, ...]
    """New overrides, also those in the place of earlier ones about the same."""
    removed: tuple[Override, ...]
    """Overrides that were removed or replaced, or that have ended."""


class Reloaded(Struct, frozen=True):
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


class RolloutChanged(Struct, frozen=True):
    """A rollout has moved, or its analysis has evaluated an interval."""

    at: Timestamp
    """When."""
    route: str
    """The route."""
    phase: RolloutPhase
    """The phase now."""
    step: int
    """The number of the step now, from 1."""
    percent: Number | None
    """The share of the target pool now; None where the rollout does not decide the split."""
    reason: str | None
    """Why somebody, or the analysis, acted on it last; None without a reason."""
    evaluation: RolloutEvaluation | None
    """The new evaluation; None where there is none."""


class RolledBack(Struct, frozen=True):
    """An earlier fleet is served from now on, until the files change."""

    at: Timestamp
    """When."""
    digest: str
    """The digest of the earlier fleet, as `/api/v1/history` lists it."""
    author: str
    """The name of the token that was used."""
    reason: str | None
    """Why, in the operator's words; None where none was given."""


class RoleChanged(Struct, frozen=True):
    """This member of the control plane has another role."""

    at: Timestamp
    """When."""
    member: str
    """Its name."""
    role: str
    """`leader`, `follower` or `isolated`."""
    epoch: int
    """The epoch in which it leads or has led last."""


class StoreChanged(Struct, frozen=True):
    """The store of the control plane no longer answers this member, or answers it again."""

    at: Timestamp
    """When."""
    member: str
    """The name of this member."""
    up: bool
    """Whether it answers."""
    reason: str | None
    """Why it cannot be used; null where it can."""


class FilesDiffer(Struct, frozen=True):
    """Other members have files that are not the leader's."""

    at: Timestamp
    """When."""
    members: tuple[str, ...]
    """Their names; none: all members have the same files again."""


class PoolsShared(Struct, frozen=True):
    """Pools are scraped by other members than before."""

    at: Timestamp
    """When."""
    members: tuple[str, ...]
    """The members among whom the pools are shared."""
    pools: tuple[str, ...]
    """The pools that this member scrapes from now on."""


class TaskFailed(Struct, frozen=True):
    """A task of the control plane has failed. It starts again, or is called again with the next publication.

    The log says why.
    """

    at: Timestamp
    """When."""
    task: str
    """The name of the task, as in the metric `lbctl_task_failures_total`."""


class Missed(Struct, frozen=True):
    """Events between `Last-Event-ID` and the next one are lost: read the state again."""

    oldest: int
    """The id of the oldest event that is still kept, or of the next one where none is."""


class Closed(Struct, frozen=True):
    """The last event of a stream that the server ends."""

    reason: ClosedReason
    """`shutdown`: the process ends. `slow`: the client did not read as fast as events came."""


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
"""What the dashboard keeps a history of."""


class LiveReplica(Struct, frozen=True):
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
    capacity: Number
    """What it can carry, relative to the others of its pool."""
    weight: Number
    """The published weight, on the scale of capacities."""
    declared: Number | None
    """Its share of the pool's requests by the files alone, from 0 to 1."""
    share: Number
    """Its decided share of the pool's requests, from 0 to 1."""
    acknowledged: Number | None
    """Its share in the snapshot that all connected proxies have; None where none is connected."""
    observed: Number | None
    """Its share of the last minute's requests by the proxies' own counters; None where they report none."""
    requests_per_second: Number | None
    """Requests a second over the last minute; None where no proxy reports them."""
    errors: Number | None
    """The part of the last minute's requests that failed, from 0 to 1; None without reported requests."""
    first_byte_p50: Number | None
    """Seconds until the first byte of half of the answers of the last minute; None where no proxy reports them."""
    first_byte_p99: Number | None
    """The same of 99 % of the answers."""
    in_flight: int | None
    """Requests in flight; None where no proxy reports them."""
    queue: Number | None
    """Requests that wait in the engine; None without a fresh signal."""
    kv_cache: Number | None
    """The used part of the key-value cache, from 0 to 1; None without a fresh signal."""
    gpu_utilisation: Number | None
    """The part of the time in which the GPU was busy, from 0 to 1; None without a fresh signal."""
    temperature: Number | None
    """Degrees Celsius of the hottest GPU; None without a fresh signal."""


class LivePool(Struct, frozen=True):
    """A pool without its replicas."""

    name: str
    """The name."""
    model: str | None
    """The model that it serves; None where the fleet names none."""
    algorithm: str
    """The load balancing algorithm."""
    replicas: int
    """The number of its replicas."""
    requests_per_second: Number | None
    """Requests a second over the last minute; None where no proxy reports them."""
    errors: Number | None
    """The part of the last minute's requests that failed, from 0 to 1; None without reported requests."""
    first_byte_p50: Number | None
    """Seconds until the first byte of half of the answers of the last minute; None where no proxy reports them."""
    first_byte_p99: Number | None
    """The same of 99 % of the answers."""
    picked: Number | None
    """The part of the last minute's requests that were picked, from 0 to 1; None where that is unknown."""
    silent: tuple[str, ...]
    """The proxies that may send to this pool and report no counts."""


class LiveProxy(Struct, frozen=True):
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


class LiveSplit(Struct, frozen=True):
    """The split of a route that forwards to several pools."""

    route: str
    """The route."""
    shares: Mapping[str, int]
    """Pool → its share in the published fleet, relative to the others."""


class ReplicaName(Struct, frozen=True):
    """Which replica is meant."""

    pool: str
    """The pool."""
    name: str
    """The name in the pool."""


class Live(Struct, frozen=True):
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


class ReplicaSeries(Struct, frozen=True):
    """The history of one replica."""

    replica: str
    """The replica."""
    values: tuple[Number | None, ...]
    """A value for each of `times`; None where it was unknown. `state` is the index in `states`."""


class Series(Struct, frozen=True):
    """The history of one metric of a pool."""

    pool: str
    """The pool."""
    metric: SeriesMetric
    """The metric."""
    states: tuple[str, ...]
    """The states in the order of their numbers, for the metric `state`; empty for others."""
    times: tuple[Number, ...]
    """Seconds since the epoch, the oldest first."""
    total: tuple[Number | None, ...]
    """The pool's own values, without `replica`: the sum of requests, the mean of a ratio or a temperature, the number
    of replicas in the state `in`. Empty where replicas are asked for."""
    replicas: tuple[ReplicaSeries, ...]
    """The replicas that were asked for, in the order of the fleet."""
