"""Every document that the HTTP API answers, takes and streams, as frozen dataclasses.

The server encodes these types, the commands decode them, and the OpenAPI document and docs/api.md are generated from
them: a field is a field of the JSON object with the same name (`field(metadata={"json": …})` where Python reserves it),
its docstring is its description. The module imports the standard library alone, so that commands stay quick to start.

Rules that hold everywhere: a field is always present; None is JSON's null and its docstring says when; a `Timestamp` is
ISO 8601 in UTC with milliseconds; durations and ages are seconds. A client ignores fields and enum values that it does
not know: both may be added.
"""

from __future__ import annotations

from lbctl.serve.api.schema.audit import Audit, AuditRecord
from lbctl.serve.api.schema.decisions import Acknowledged, Decision, Decisions, DecisionSignal
from lbctl.serve.api.schema.events import (
    EVENTS,
    Closed,
    Event,
    Missed,
    OverridesChanged,
    Published,
    Reloaded,
    RoleChanged,
    RolledBack,
    RolloutChanged,
    TaskFailed,
)
from lbctl.serve.api.schema.explained_picks import PickCandidate, PickExplanation, PickQuestion, PickRequest
from lbctl.serve.api.schema.history import History, HistoryEntry, RollbackRequest, RollbackResult
from lbctl.serve.api.schema.live import (
    Live,
    LivePool,
    LiveProxy,
    LiveReplica,
    LiveSplit,
    ReplicaName,
    ReplicaSeries,
    Series,
    SeriesMetric,
)
from lbctl.serve.api.schema.members import Member, Members
from lbctl.serve.api.schema.operations import (
    OverrideRemoval,
    OverrideRequest,
    OverrideResult,
    Overrides,
    ReloadRequest,
    ReloadResult,
    RemovalResult,
)
from lbctl.serve.api.schema.picks import PickedPool, PickerStatus, Picks, PickSample
from lbctl.serve.api.schema.pools import FleetSettings, Pool, Pools, Replica, ReplicaState
from lbctl.serve.api.schema.probes import Error, Probe
from lbctl.serve.api.schema.proxies import DrivenProxy, NackRecord, Proxies, Proxy, ResourceTypeStatus, XdsProxy
from lbctl.serve.api.schema.rollouts import (
    Rollout,
    RolloutAction,
    RolloutAnalysis,
    RolloutCounts,
    RolloutEvaluation,
    RolloutMetric,
    RolloutPhase,
    RolloutRequest,
    RolloutResult,
    Rollouts,
    RolloutStep,
    RolloutVerdict,
)
from lbctl.serve.api.schema.signals import RefusedMetric, ReplicaSignals, Signal, Signals, Source
from lbctl.serve.api.schema.status import (
    Diagnostic,
    DiscoveredName,
    FleetFiles,
    Listens,
    Override,
    PoolControl,
    Rollback,
    ServedFiles,
    Snapshot,
    SourceCounts,
    Status,
    UnmatchedNode,
)
from lbctl.serve.api.schema.values import OverrideKind, ReloadOutcome, Timestamp

__all__ = [
    "EVENTS",
    "Acknowledged",
    "Audit",
    "AuditRecord",
    "Closed",
    "Decision",
    "DecisionSignal",
    "Decisions",
    "Diagnostic",
    "DiscoveredName",
    "DrivenProxy",
    "Error",
    "Event",
    "FleetFiles",
    "FleetSettings",
    "History",
    "HistoryEntry",
    "Listens",
    "Live",
    "LivePool",
    "LiveProxy",
    "LiveReplica",
    "LiveSplit",
    "Member",
    "Members",
    "Missed",
    "NackRecord",
    "Override",
    "OverrideKind",
    "OverrideRemoval",
    "OverrideRequest",
    "OverrideResult",
    "Overrides",
    "OverridesChanged",
    "PickCandidate",
    "PickExplanation",
    "PickQuestion",
    "PickRequest",
    "PickSample",
    "PickedPool",
    "PickerStatus",
    "Picks",
    "Pool",
    "PoolControl",
    "Pools",
    "Probe",
    "Proxies",
    "Proxy",
    "Published",
    "RefusedMetric",
    "ReloadOutcome",
    "ReloadRequest",
    "ReloadResult",
    "Reloaded",
    "RemovalResult",
    "Replica",
    "ReplicaName",
    "ReplicaSeries",
    "ReplicaSignals",
    "ReplicaState",
    "ResourceTypeStatus",
    "RoleChanged",
    "Rollback",
    "RollbackRequest",
    "RollbackResult",
    "RolledBack",
    "Rollout",
    "RolloutAction",
    "RolloutAnalysis",
    "RolloutChanged",
    "RolloutCounts",
    "RolloutEvaluation",
    "RolloutMetric",
    "RolloutPhase",
    "RolloutRequest",
    "RolloutResult",
    "RolloutStep",
    "RolloutVerdict",
    "Rollouts",
    "Series",
    "SeriesMetric",
    "ServedFiles",
    "Signal",
    "Signals",
    "Snapshot",
    "Source",
    "SourceCounts",
    "Status",
    "TaskFailed",
    "Timestamp",
    "UnmatchedNode",
    "XdsProxy",
]
