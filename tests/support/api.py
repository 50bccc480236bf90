"""Documents of the API with usual values, and a fake control plane that returns them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from lbctl.api import openapi, schema
from lbctl.serve.api.dashboard import rows
from lbctl.serve.api.dashboard.service import DashboardService
from lbctl.serve.api.events import EventLog
from lbctl.serve.api.problems import Observed, problems
from lbctl.serve.metrics.instruments import Metrics
from lbctl.serve.picker.feed import Feed
from lbctl.serve.picker.tables import FleetMeasurements

THEN = "2026-01-01T00:00:00.000Z"
FILES = schema.FleetFiles(
    paths=("fleet/",), directory="/etc/lbctl", valid=True, read=THEN, refused=None, shrink=(), diagnostics=()
)
STATUS = schema.Status(
    version="1",
    since=THEN,
    ready=True,
    waiting=None,
    problems=(),
    replicas=schema.ReplicaCounts(0, {}, {}),
    dry_run=False,
    snapshot=None,
    fleet=FILES,
    served=None,
    restart=(),
    proxies={},
    unmatched=(),
    overrides=(),
    control=(),
    sources=schema.SourceCounts(0, 0, {}),
    names=(),
    listens=schema.Listens(None, None, None, None),
    picker=None,
    member=None,
)
ENVOY = schema.XdsProxy(
    node="edge-1",
    proxy="edge",
    kind="envoy",
    connected=True,
    since=THEN,
    state="SYNCED",
    reason="",
    version="v1",
    last_good="v1",
    confirmed=True,
    types=(),
    nacks=(),
    cluster="",
    region="",
    zone="",
    sub_zone="",
    envoy="1.40.0",
    peer="127.0.0.1:1",
    delta=False,
    reports_refused="",
)
DRIVEN = schema.DrivenProxy(
    node="ha",
    proxy="ha",
    kind="haproxy",
    connected=True,
    since=THEN,
    state="SYNCED",
    reason="",
    version="v1",
    last_good="v1",
    confirmed=True,
    types=(),
    nacks=(),
    reloads=0,
    leaving=0,
)
TYPE = schema.ResourceTypeStatus(
    type="cds",
    state="SYNCED",
    since=THEN,
    wildcard=True,
    names=0,
    offered="1111",
    acked="1111",
    pushed_at=THEN,
    acked_at=THEN,
    message="",
    nacked=(),
)
REPLICA = schema.Replica(
    name="a",
    address="10.0.0.1:1",
    region=None,
    zone=None,
    gpu=None,
    priority=0,
    capacity=1.0,
    state="in",
    state_reason="",
    state_since=None,
    weight=1.0,
    declared=0.0,
    share=0.0,
    acknowledged=None,
    observed=None,
    requests_per_second=None,
    errors=None,
    first_byte_p50=None,
    first_byte_p99=None,
    in_flight=None,
    idle=None,
    ramp=1.0,
    picker_ramp=1.0,
    drained=None,
    out=False,
    reasons=(),
)
ROLLOUT = schema.Rollout(
    route="chat",
    to="next",
    mode="timed",
    phase="waiting",
    step=1,
    steps=(schema.RolloutStep(5.0, 60.0),),
    percent=None,
    split={"stable": 100, "next": 0},
    since=THEN,
    next_at=None,
    reason=None,
    analysis=None,
)
ANALYSIS = schema.RolloutAnalysis(
    waits_for=None,
    new=schema.RolloutCounts(0, 0, None),
    old=schema.RolloutCounts(0, 0, None),
    failures=0,
    max_failures=2,
    verdicts={},
    evaluations=(),
)
ACKNOWLEDGED = schema.Acknowledged(0, 0, ())


def pool(name: str, *replicas: schema.Replica) -> schema.Pool:
    """Return the row of a pool with these replicas."""
    return schema.Pool(
        name, None, "http1", "round_robin", 600.0, None, None, None, None, picks=None, in_use=True, fail_open=False,
        failing=False, shedding=None, reporting=(), silent=(), unable={}, replicas=replicas,
    )  # fmt: skip


def status(**changes: Any) -> schema.Status:
    """Return `STATUS` with these fields changed, and with the problems that follow from them."""
    row = replace(STATUS, **changes)
    observed = Observed(row.waiting or "", row.fleet, picker=row.picker, dry_run=row.dry_run)
    return row if row.problems else replace(row, problems=problems(observed))


class Fleet:
    """A control plane without parts. It records the requested operations."""

    def __init__(self) -> None:
        self.waiting = ""
        self.summary = STATUS
        self.reloads: list[bool] = []
        self.broken = False
        self.counted = Metrics()
        self.events = EventLog()
        self.dashboard = DashboardService(self, self.events)
        self.read = schema.Signals(())
        self.listed: tuple[schema.Pool, ...] = (pool("chat"),)
        self.connected: tuple[schema.Proxy, ...] = (ENVOY,)

    def operation(self, name: str) -> Callable[..., Any]:
        return lambda *arguments: getattr(self, name)(*arguments)

    def healthz(self) -> schema.Probe:
        return schema.Probe("ok")

    def readyz(self) -> schema.Probe:
        return schema.Probe(self.waiting or "ok")

    def openapi(self) -> Mapping[str, Any]:
        return openapi.document()

    def status(self) -> schema.Status:
        if self.broken:
            raise RuntimeError("a secret of ours")
        return self.summary

    def proxies(self) -> schema.Proxies:
        return schema.Proxies(self.connected)

    def pools(self) -> schema.Pools:
        return schema.Pools(self.listed)

    history_seconds = 3600.0

    def live(self) -> Iterator[tuple[schema.LivePool, Sequence[schema.LiveReplica]] | None]:
        for pool in self.pools().pools:
            yield rows.pool(pool), [rows.replica(pool.name, item, {}) for item in pool.replicas]

    def fleet(self) -> schema.FleetSettings:
        return schema.FleetSettings({})

    def signals(self) -> schema.Signals:
        return self.read

    def decisions(self) -> schema.Decisions:
        return schema.Decisions(())

    async def explain_pick(self, request: schema.PickQuestion, actor: str) -> schema.PickExplanation:
        raise AssertionError("no test of this file explains picks")

    def picks(self) -> schema.Picks:
        return schema.Picks(None, (), ())

    @property
    def pick_feed(self) -> Feed:
        return Feed(lambda: FleetMeasurements(0.0))

    def overrides(self) -> schema.Overrides:
        return schema.Overrides(())

    def members(self) -> schema.Members:
        return schema.Members(None, None, ())

    def age(self) -> None:
        return None

    def member_requests(self) -> None:
        return None

    def forwards_to(self) -> None:
        return None

    def history(self) -> schema.History:
        return schema.History(())

    async def rollback(self, request: schema.RollbackRequest, actor: str) -> schema.RollbackResult:
        raise AssertionError("no test of this file rolls back")

    async def audit(self, query: Mapping[str, str]) -> schema.Audit:
        return schema.Audit(())

    def rollouts(self) -> schema.Rollouts:
        return schema.Rollouts(())

    def splits(self) -> Sequence[schema.LiveSplit]:
        return ()

    async def act_on_rollout(self, request: schema.RolloutRequest, actor: str) -> schema.RolloutResult:
        raise AssertionError("no test of this file acts on rollouts")

    async def put_override(self, request: schema.OverrideRequest, actor: str) -> schema.OverrideResult:
        raise AssertionError("no test of this file writes overrides")

    async def remove_override(self, request: schema.OverrideRemoval, actor: str) -> schema.RemovalResult:
        raise AssertionError("no test of this file writes overrides")

    def metrics(self) -> bytes:
        return self.counted.page()

    async def reload(self, request: schema.ReloadRequest, actor: str) -> schema.ReloadResult:
        self.reloads.append(request.allow_shrink)
        return schema.ReloadResult("unchanged", None, 0, None, ())
