"""The report of an `lbctl picker` that an operator has started."""

from __future__ import annotations

import asyncio
import json

import pytest

from lbctl.ir.address import Address
from lbctl.picker.statistics import WAIT_BOUNDS, TenantWaits
from lbctl.serve.picker.standalone import TIMEOUT, PickerAlone

_EARLIER = {
    "kind": "report", "reasons": [["chat", "least", 3]], "times": {}, "finished": {"chat": 3}, "lost": {}, "open": 2,
    "open_by_pool": {"chat": 2}, "sampled": 0, "samples": [],
}  # fmt: skip
"""A report of an earlier version."""


def _read(monkeypatch: pytest.MonkeyPatch, report: dict[str, object]) -> PickerAlone:
    async def answer(*_: object) -> bytes:
        return json.dumps(report).encode()

    monkeypatch.setattr(PickerAlone, "_answer", answer)
    picker = PickerAlone()
    asyncio.run(picker.look(Address("127.0.0.1", 18001), 1, ""))
    return picker


def test_report_of_an_earlier_version_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    picker = _read(monkeypatch, _EARLIER)
    assert picker.heard is not None
    assert (picker.report.open, picker.report.expected_cached, picker.report.unsaved) == (2, {}, "")


def test_failure_to_save_the_memory_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _read(monkeypatch, {**_EARLIER, "unsaved": "disk full"}).report.unsaved == "disk full"


def test_stalled_replicas_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _read(monkeypatch, {**_EARLIER, "stalled": {"chat": ["a"]}}).report.stalled == {"chat": ["a"]}
    assert _read(monkeypatch, {**_EARLIER, "stalled": {"chat": [1]}}).heard is None


_QUEUE = {
    "waiting": {"high": 0, "normal": 2, "low": 0}, "refused_full": 3, "refused_late": 4, "left": 5,
    "waits": [[1, *[0] * len(WAIT_BOUNDS)], 0.5], "tenants": {"acme": [1, 0.5]},
}  # fmt: skip


def test_queue_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    more = {"queues": {"chat": _QUEUE}, "waiting_tenants": {"chat": {"acme": 2}}}
    report = _read(monkeypatch, {**_EARLIER, **more}).report
    queue = report.queues["chat"]
    assert (queue.waiting["normal"], queue.refused_full, queue.refused_late, queue.left) == (2, 3, 4, 5)
    assert (sum(queue.waits.counts), queue.tenants) == (1, {"acme": TenantWaits(1, 0.5)})
    assert report.waiting_tenants == {"chat": {"acme": 2}}


@pytest.mark.parametrize(
    "change",
    [
        {"left": None}, {"left": "5"}, {"waiting": {"high": 0.5}}, {"waits": [[1], 0.5]}, {"waits": 1},
        {"waits": [[1, *[0] * len(WAIT_BOUNDS)], "x"]}, {"tenants": {"acme": [1]}}, {"tenants": {"acme": ["1", 0.5]}},
    ],
)  # fmt: skip
def test_invalid_queue_is_rejected(change: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    assert _read(monkeypatch, {**_EARLIER, "queues": {"chat": {**_QUEUE, **change}}}).heard is None


def test_incomplete_report_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    report = {key: value for key, value in _EARLIER.items() if key != "open"}
    assert _read(monkeypatch, report).heard is None


def test_hung_picker_is_reported_as_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(*_: object) -> bytes:
        raise TimeoutError

    monkeypatch.setattr(PickerAlone, "_answer", answer)
    picker = PickerAlone()
    assert not asyncio.run(picker.look(Address("127.0.0.1", 18001), 7, ""))
    assert picker.problem == f"the picker hangs: `lbctl picker` (process 7) does not answer within {TIMEOUT:g} s"
    picker.forget()
    assert picker.problem == ""
