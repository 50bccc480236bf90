"""The audit log as the API shows it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lbctl.api import schema
from lbctl.runtime.errors import BadRequestError, NotSavedError
from lbctl.serve.api import operations
from lbctl.store.interface import StoreError
from lbctl.store.records import ChainedAuditRecord

RECORDS = tuple(ChainedAuditRecord(number, "", "alice", "drain", "", "", "") for number in (1, 2, 3))


class Log:
    def __init__(self, problem: str = "") -> None:
        self.problem = problem

    async def records(self) -> tuple[ChainedAuditRecord, ...]:
        if self.problem:
            raise StoreError(self.problem)
        return RECORDS


def audit(log: Log, **query: str) -> schema.Audit:
    state: Any = SimpleNamespace(audit=log)
    return asyncio.run(operations.audit(state, query))


def test_newest_records_of_the_audit_log_are_returned() -> None:
    assert [item.number for item in audit(Log()).records] == [1, 2, 3]
    newest = audit(Log(), last="2").records
    assert [(item.number, item.hash) for item in newest] == [(item.number, item.hash) for item in RECORDS[1:]]


@pytest.mark.parametrize("last", ["", "0", "-1", "x", "5001", "²", "9" * 5000])
def test_number_of_records_has_bounds(last: str) -> None:
    with pytest.raises(BadRequestError, match="last must be a whole number from 1 to 5000"):
        audit(Log(), last=last)


def test_store_that_cannot_be_read_is_reported() -> None:
    with pytest.raises(NotSavedError, match="the audit log cannot be read: it is away"):
        audit(Log("it is away"))
