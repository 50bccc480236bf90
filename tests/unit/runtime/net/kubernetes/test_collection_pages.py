"""A page of a list stays within the size limit of responses, even if nodes have many labels."""

from __future__ import annotations

import json
from typing import Any

from lbctl.base.foreign_json import parse_object
from lbctl.runtime.net.kubernetes.client import MAX_ANSWER_BYTES
from lbctl.runtime.net.kubernetes.collection import PAGES

_LABELS = 600
"""Twice as many as Node Feature Discovery and the GPU operator give a node."""


def _metadata(number: int) -> dict[str, Any]:
    """Return the metadata of a node, with the fields that each of two managers owns."""
    labels = {f"feature.node.kubernetes.io/cpu-cpuid.FEATURE-{label}": "true" for label in range(_LABELS)}
    owned = {"f:metadata": {"f:labels": {f"f:{name}": {} for name in labels}}}
    conditions = {f'k:{{"type":"Condition{each}"}}': {"f:message": {}, "f:status": {}} for each in range(20)}
    fields = [{"fieldsType": "FieldsV1", "fieldsV1": each} for each in (owned, {"f:status": conditions})]
    return {"metadata": {"name": f"node-{number}", "labels": labels, "managedFields": fields}}


def test_page_of_nodes_with_many_labels_is_read() -> None:
    page = json.dumps({"items": [_metadata(number) for number in range(int(PAGES[True]))]}).encode()
    assert len(page) < MAX_ANSWER_BYTES
    assert len(parse_object(page)["items"]) == int(PAGES[True])
