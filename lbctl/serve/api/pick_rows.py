"""Rows of the API about the picker, from its state and its newest report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lbctl.api import schema
from lbctl.api.codec import decode
from lbctl.pick.asked import request_of
from lbctl.runtime.errors import BadRequestError, NotSavedError
from lbctl.serve.api.status_rows import timestamp, when
from lbctl.serve.picker.manager import PickerManager

_MAX_BODY_BYTES = 1 << 53
"""The longest body that a question may claim: a larger number is none that JavaScript knows exactly."""


def picks(picker: PickerManager) -> schema.Picks:
    """Return `GET /api/v1/picks`."""
    return schema.Picks(status(picker), tuple(_pools(picker)), tuple(map(_sample, picker.samples)))


async def explain(picker: PickerManager, question: schema.PickQuestion) -> schema.PickExplanation:
    """Ask the running picker about a request. Raises BadRequestError, and NotSavedError where no picker answers."""
    table = picker.feed.tables.get(question.pool)
    if table is None:
        raise BadRequestError(f"no pool {question.pool!r} has the algorithm pick")
    given = (question.body or "").encode()
    try:
        headers, content = request_of(table.policy, question.session, given)
    except ValueError as error:
        raise BadRequestError(f"the pool {question.pool!r}: {error}") from None
    length = len(content) if question.body_bytes is None else question.body_bytes
    if not 0 <= length <= _MAX_BODY_BYTES:
        raise BadRequestError(f"body_bytes: a length from 0 to {_MAX_BODY_BYTES}")
    answer = await picker.explain({
        "pool": question.pool,
        "headers": headers,
        "body": content.decode(),
        "length": max(len(content), length),
        "place": [question.region, question.zone],
        "tenant": question.tenant or "",
    })  # fmt: skip
    if answer is None or answer["explanation"] is None:
        raise NotSavedError("the picker of this control plane does not run, or has no table of the pool yet")
    return decode(schema.PickExplanation, {"pool": question.pool, **answer["explanation"]})


def status(picker: PickerManager) -> schema.PickerStatus | None:
    """Return the status of the process; None where no pool needs it."""
    if picker.bind is None:
        return None
    state = picker.state
    return schema.PickerStatus(
        listens=str(picker.bind),
        running=picker.running,
        alone=picker.alone.heard is not None,
        since=when(picker.alone.since or state.since),
        starts=state.starts,
        reason=picker.reason or None,
        open=int(picker.report.get("open", 0)),
        following=picker.feed.subscribers,
    )


def _pools(picker: PickerManager) -> Iterator[schema.PickedPool]:
    report = picker.report
    decisions: dict[str, dict[str, int]] = {}
    for pool, reason, count in report.get("reasons", ()):
        decisions.setdefault(pool, {})[reason] = count
    hits = picker.feed.cache_hits()
    for pool, counts in sorted(decisions.items()):
        total = sum(counts.values())
        _, seconds = report["times"].get(pool, ([], 0.0))
        mean = round(seconds / total, 7) if total else None
        finished = report["finished"].get(pool, 0)
        yield schema.PickedPool(pool, dict(sorted(counts.items())), finished, mean, hits.get(pool, {}))


def _sample(values: Any) -> schema.PickSample:
    return schema.PickSample(**{**values, "at": timestamp(values["at"])})
