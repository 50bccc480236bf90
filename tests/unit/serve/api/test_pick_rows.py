"""The API's rows about picks contain the values that the picker reports, field by field."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from lbctl.api import codec, schema
from lbctl.pick import explain
from lbctl.picker import statistics


@pytest.mark.parametrize(
    ("reported", "shown"),
    [(explain.CandidateRow, schema.PickCandidate), (statistics.DecisionSample, schema.PickSample)],
)
def test_row_has_the_fields_of_the_picker_report(reported: Any, shown: Any) -> None:
    assert [item.name for item in codec.fields(shown)] == [item.name for item in fields(reported)]
