"""Reports and explanations of a picker in which requests wait for a replica."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from lbctl.ir.pools import QueuePolicy
from lbctl.pick.table import Candidate, PoolTable
from lbctl.picker import reports, wire
from lbctl.picker.child_link import explanation_line, report
from lbctl.picker.messages import Caller, PickerQuestion
from lbctl.picker.reports import PickerReport
from lbctl.picker.service import PickService
from lbctl.picker.statistics import TenantWaits
from tests.unit.picker.test_service import POLICY

QUEUE = QueuePolicy(10_000, max_requests=25)


def _table(queue: QueuePolicy | None) -> PoolTable:
    return PoolTable("chat", replace(POLICY, queue=queue), (Candidate("a", "10.0.0.1:80", limit=1),))


def _full(queue: QueuePolicy = QUEUE) -> tuple[PickService, str]:
    """Return a picker whose only replica is full, and the id of the request at the replica."""
    service = PickService(lambda: 100.0, Random(1))
    service.set_table("chat", _table(queue))
    picked = service.pick(_question())
    assert picked.names == ("a",)
    return service, picked.id


def _question(tenant: str = "") -> PickerQuestion:
    return PickerQuestion(Caller("chat", tenant=tenant), {}, b"{}", 2)


def _wait(service: PickService, *tenants: str) -> list[str]:
    """Let a request of each of these tenants wait, and return the ids of the requests."""
    ids = []
    for tenant in tenants:
        assert service.pick(_question(tenant)).must_wait
        ids.append(service.wait(_question(tenant), lambda _answer: None))
    return ids


def _report(service: PickService) -> PickerReport:
    return reports.report_of(wire.parse(report(service)))


def _explained(service: PickService, tenant: str) -> Any:
    question = wire.parse(wire.question(_question(tenant), 1))
    return wire.parse(explanation_line(service, question))["explanation"]


def test_report_has_the_waiting_requests() -> None:
    service, _ = _full()
    _wait(service, "acme", "acme", "zeta", "")
    found = _report(service)
    assert found.queues["chat"].waiting == {"high": 0, "normal": 4, "low": 0}
    assert found.waiting_tenants == {"chat": {"acme": 2, "zeta": 1}}


def test_report_names_at_most_20_waiting_tenants() -> None:
    service, _ = _full()
    _wait(service, "t0", *(f"t{number}" for number in range(23)))
    tenants = _report(service).waiting_tenants["chat"]
    assert (tenants["t0"], tenants["other"], len(tenants)) == (2, 3, 21)


def test_report_counts_released_left_and_rejected_requests() -> None:
    service, running = _full(replace(QUEUE, max_requests=2))
    _, left = _wait(service, "acme", "zeta")
    assert service.pick(_question()).refused
    service.finished(left)
    service.finished(running)
    counts = _report(service).queues["chat"]
    assert (counts.refused_full, counts.refused_late, counts.left) == (1, 0, 1)
    assert (counts.waits.counts[0], counts.tenants) == (1, {"acme": TenantWaits(1, 0.0)})
    assert sum(counts.waiting.values()) == 0


def test_only_pools_with_a_queue_are_reported() -> None:
    service = PickService(lambda: 100.0, Random(1))
    for queue in (None, QUEUE, None, QUEUE):
        service.set_table("chat", _table(queue))
        assert ("chat" in _report(service).queues) == (queue is not None)
    service.set_table("chat", None)
    assert _report(service).queues == {}


def test_explanation_has_the_place_in_the_queue() -> None:
    service, _ = _full()
    first = _explained(service, "acme")
    assert first["sentence"] == "No replica has room: the request would wait at the head of the queue."
    _wait(service, "acme", "acme", "zeta")
    shown = _explained(service, "acme")
    assert shown["sentence"] == "No replica has room: the request would wait behind 3 requests of 2 tenants."
    assert shown["queue"] == {"requests": 3, "flows": 2, "seconds": None, "rejected": False}
    assert (shown["reason"], shown["choices"]) == ("full", [])
    assert shown["candidates"][0]["reason"] == "at its limit of 1 requests"


def test_explanation_has_the_reason_to_wait_for_a_free_place() -> None:
    service = PickService(lambda: 100.0, Random(1))
    service.set_table("chat", replace(_table(QUEUE), candidates=(Candidate("a", "10.0.0.1:80", limit=64),)))
    load = service._decider.books.load("chat", "a")
    load.reading(99.8)
    load._backlog.first_byte(load._backlog.add(1000, 99.9), 100.0)
    load._backlog.add(3000, 100.0)
    shown = _explained(service, "acme")
    assert shown["sentence"].startswith("Every replica with room still has prompts to compute: the request would wait")
    assert (shown["choices"], shown["reason"]) == ([], "full")
    assert shown["candidates"][0]["reason"] == "still has to compute about 3000 prompt tokens"


def test_explanation_of_a_full_queue_is_a_rejection() -> None:
    service, _ = _full(replace(QUEUE, max_requests=1))
    _wait(service, "acme")
    shown = _explained(service, "zeta")
    assert shown["sentence"] == "No replica has room, and the queue is full (1): the request would be rejected."
    assert shown["queue"]["rejected"] is True


def test_free_replica_is_explained_as_without_a_queue() -> None:
    service, running = _full()
    service.finished(running)
    shown = _explained(service, "acme")
    assert (shown["choices"], shown["queue"]) == (["a"], None)
