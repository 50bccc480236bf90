"""The events of `GET /api/v1/events`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lbctl.api.schema.rollouts import RolloutEvaluation, RolloutPhase
from lbctl.api.schema.status import Override
from lbctl.api.schema.values import ReloadOutcome, Timestamp


@dataclass(frozen=True, slots=True)
class Published:
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
class RolloutChanged:
    """A rollout has moved, or its analysis has evaluated an interval."""

    at: Timestamp
    """When."""
    route: str
    """The route."""
    phase: RolloutPhase
    """The phase now."""
    step: int
    """The number of the step now, from 1."""
    percent: float | None
    """The share of the target pool now; None where the rollout does not decide the split."""
    reason: str | None
    """Why somebody, or the analysis, acted on it last; None without a reason."""
    evaluation: RolloutEvaluation | None
    """The new evaluation; None where there is none."""


@dataclass(frozen=True, slots=True)
class RolledBack:
    """An earlier fleet is served from now on, until the files change."""

    at: Timestamp
    """When."""
    digest: str
    """The digest of the earlier fleet, as `/api/v1/history` lists it."""
    author: str
    """The name of the token that was used."""
    reason: str | None
    """Why, in the operator's words; None where none was given."""


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """This member of the control plane has another role."""

    at: Timestamp
    """When."""
    member: str
    """Its name."""
    role: str
    """`leader`, `follower` or `isolated`."""
    epoch: int
    """The epoch in which it leads or has led last."""


@dataclass(frozen=True, slots=True)
class StoreChanged:
    """The store of the control plane no longer answers this member, or answers it again."""

    at: Timestamp
    """When."""
    member: str
    """The name of this member."""
    up: bool
    """Whether it answers."""
    reason: str | None
    """Why it cannot be used; null where it can."""


@dataclass(frozen=True, slots=True)
class FilesDiffer:
    """Other members have files that are not the leader's."""

    at: Timestamp
    """When."""
    members: tuple[str, ...]
    """Their names; none: all members have the same files again."""


@dataclass(frozen=True, slots=True)
class PoolsShared:
    """Pools are scraped by other members than before."""

    at: Timestamp
    """When."""
    members: tuple[str, ...]
    """The members among whom the pools are shared."""
    pools: tuple[str, ...]
    """The pools that this member scrapes from now on."""


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """A task of the control plane has failed. It starts again, or is called again with the next publication.

    The log says why.
    """

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
