"""Figures of the picker are shown only while it runs and for pools that it picks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

from lbctl.control.compose import compose
from lbctl.control.loop_output import LoopOutput
from lbctl.ir.snapshot import Snapshot
from lbctl.picker.reports import PickerReport
from lbctl.picker.statistics import QueueStatistics
from lbctl.serve.api import pick_rows
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.picker.cached_tokens import CacheUse
from lbctl.serve.picker.manager import PickerManager
from lbctl.serve.picker.tables import FleetMeasurements
from tests.support.fleet import compiled
from tests.support.fleets import fleet_text, pool, replica

_USES = {"chat": {"a": CacheUse(900, 800, {"device": 800})}}


def _manager(suspect: Callable[[Mapping[str, frozenset[str]]], None] = lambda _: None) -> PickerManager:
    """Return the manager of a picker that has reported now."""
    manager = PickerManager(
        lambda: FleetMeasurements(0.0), lambda: None, lambda _: None, dict, suspect,
        own_key=str, memory=lambda: None, bind=None, dry_run=False, insecure=False,
    )  # fmt: skip
    manager.caches.recent = _USES
    manager.alone.report = PickerReport(reasons=(("chat", "least", 3),))
    manager.alone.heard = time.monotonic()
    return manager


def test_cached_tokens_are_unknown_while_the_picker_hangs() -> None:
    manager = _manager()
    assert manager.recent_cached() == _USES
    (row,) = pick_rows.picks(manager).pools
    assert row.cached_by_replica.keys() == {"a"}
    manager.alone.heard = time.monotonic() - 60
    assert manager.recent_cached() == {}
    (row,) = pick_rows.picks(manager).pools
    assert (row.cached, row.cached_by_replica) == (None, {}), "unknown, as before the first comparison"


def test_cached_tokens_of_pools_that_are_not_picked_are_dropped() -> None:
    manager = _manager()
    topology = compiled(fleet_text(pools={"chat": pool(replica("a", "10.0.0.1:80"))})).topology
    composed = compose(Snapshot(topology), LoopOutput(), (), {}, 1_000.0)
    manager.use_fleet(cast(PublishedFleet, SimpleNamespace(composed=composed)))
    assert manager.recent_cached() == {}


def _with_queue() -> PublishedFleet:
    balance, queue = {"algorithm": "pick"}, {"max_wait": "10s"}
    text = fleet_text(pools={"chat": pool(replica("a", "10.0.0.1:80"), balance=balance, queue=queue)})
    composed = compose(Snapshot(compiled(text).topology), LoopOutput(), (), {}, 1_000.0)
    return cast(PublishedFleet, SimpleNamespace(composed=composed))


def test_queues_are_unknown_while_the_picker_hangs() -> None:
    manager = _manager()
    assert manager.recent_queues() == {}, "no pool has a queue"
    manager.use_fleet(_with_queue())
    manager.feed.update()
    (idle,) = pick_rows.picks(manager).pools
    assert idle.queue is not None
    assert (idle.queue.waiting, idle.queue.max_wait_seconds) == (0, 10.0)
    queues = {"chat": QueueStatistics({"high": 0, "normal": 2, "low": 0})}
    report = replace(manager.report, queues=queues, waiting_tenants={"chat": {"acme": 2}})
    manager.alone.report = report
    manager.queues.reported(1, report)
    (row,) = pick_rows.picks(manager).pools
    assert row.queue is not None
    assert (row.queue.waiting, row.queue.tenants) == (2, {"acme": 2})
    manager.alone.heard = time.monotonic() - 60
    (row,) = pick_rows.picks(manager).pools
    assert row.queue is None


def test_hung_standalone_picker_is_the_reason() -> None:
    manager = _manager()
    manager.alone.heard, manager.alone.problem = time.monotonic() - 60, "the picker hangs"
    manager._occupied = "process 7 uses 127.0.0.1:18001"
    assert manager.reason == "the picker hangs"


def test_only_replicas_of_picked_pools_are_suspected() -> None:
    """An `lbctl picker` may have other tables, for example from another fleet."""
    suspected: list[Mapping[str, frozenset[str]]] = []
    manager = _manager(suspected.append)
    manager.use_fleet(_with_queue())
    manager.feed.update()
    manager._reported(PickerReport(stalled={"chat": ["a"], "other": ["b"]}))
    assert suspected == [{"chat": frozenset({"a"})}]
