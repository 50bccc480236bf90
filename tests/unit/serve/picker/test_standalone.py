"""The report of an `lbctl picker` that an operator has started."""

from __future__ import annotations

import asyncio
import json

import pytest

from lbctl.ir.address import Address
from lbctl.serve.picker.standalone import PickerAlone

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


def test_incomplete_report_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    report = {key: value for key, value in _EARLIER.items() if key != "open"}
    assert _read(monkeypatch, report).heard is None
