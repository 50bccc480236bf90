"""`GET /api/v1/status` and the values that other documents share with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from lbctl.api.schema.picks import PickerStatus
from lbctl.api.schema.values import OverrideKind, Timestamp


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
    origin: Literal["files", "state", "history", "leader"] = field(metadata={"json": "from"})
    """`files`; `state` while the files cannot be served and the last good fleet of the state is; `history` after a
    rollback."""
    pools: int
    """The number of pools."""
    replicas: int
    """The number of replicas, with those that are drained, ejected or removed."""


@dataclass(frozen=True, slots=True)
class FleetFiles:
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


@dataclass(frozen=True, slots=True)
class Rollback:
    """A rollback that is in force: an earlier fleet is served until the files change."""

    ignored: str
    """The digest of the files that are ignored."""
    since: Timestamp
    """When it was requested."""
    author: str
    """The name of the token with which it was requested."""
    reason: str | None
    """Why, in the operator's words; None where none was given."""


@dataclass(frozen=True, slots=True)
class ServedFiles:
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
    """`drain` and `weight` are about a replica, `freeze` is about the weights of a pool, `split` about a
    route."""
    pool: str
    """The pool; empty for `split`."""
    replica: str | None
    """The replica; None for `freeze` and `split`."""
    value: float | None
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
    reason: str | None
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
class MemberStatus:
    """This process as a member of a control plane."""

    name: str
    """Its name."""
    role: str
    """`leader`, `follower`, or `isolated`: the last leader, whose store does not answer."""
    leader: str | None
    """The member that leads; null where none is known."""
    age: float | None
    """Seconds since it has seen the leader's last sign of life, and so how old what it shows may be; null in the one
    that decides."""


ProblemKind = Literal[
    "not_ready", "files", "pool_down", "pool_shedding", "pool_failing", "no_proxy", "proxy", "picker",
    "picker_unasked", "shrink", "rollout_waiting", "store", "pool_errors", "replica_down", "replica_errors",
    "replica_unknown", "replica_starting", "picks_missed", "metrics", "proxy_gone", "rollout_failed", "state",
    "proxy_unconfirmed", "keys_refused",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong now."""

    severity: Literal["critical", "warning"]
    """`critical`: requests fail, or what the files say is not in force. `lbctl status --check` then fails."""
    kind: ProblemKind
    """What is wrong, as one word."""
    subject: str
    """The pool, POOL/REPLICA, proxy or route that it is about; empty where it is about the control plane."""
    text: str
    """What is wrong, as a sentence."""
    command: str
    """The command to run next."""


@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """All replicas of the fleet by their states."""

    total: int
    """All of them."""
    states: Mapping[str, int]
    """State → how many are in it."""
    away: Mapping[str, tuple[str, ...]]
    """State, other than `in`, `ramping`, `slow` and `hot` → its replicas as POOL/REPLICA, at most ten."""


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
