"""API rows about the picker, from its state and its newest report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from lbctl.api import schema
from lbctl.ir.locality import Place
from lbctl.ir.routes import Route
from lbctl.pick.explain import explained_request, tenant_routes
from lbctl.picker.messages import Caller, PickerQuestion
from lbctl.picker.statistics import DecisionSample
from lbctl.runtime.errors import BadRequestError, NotSavedError
from lbctl.serve.api.cached_rows import cached_row, cached_total
from lbctl.serve.api.queue_rows import queue_row
from lbctl.serve.api.status_rows import timestamp, when
from lbctl.serve.picker.manager import PickerManager

_MAX_BODY_BYTES = 1 << 53
"""Maximum body length in a query. The limit is needed because JavaScript cannot represent larger integers exactly."""


def picks(picker: PickerManager) -> schema.Picks:
    """Return `GET /api/v1/picks`."""
    return schema.Picks(status(picker), tuple(_pools(picker)), tuple(map(_sample, picker.samples)))


async def explain(
    picker: PickerManager, question: schema.PickQuestion, routes: Iterable[Route]
) -> schema.PickExplanation:
    """Query the running picker for the replica that a request would get.

    `routes` are the fleet's routes. Raises BadRequestError, and NotSavedError if no picker responds.
    """
    table = picker.feed.tables.get(question.pool)
    if table is None:
        raise BadRequestError(f"there is no pool {question.pool!r} with the algorithm pick")
    given = (question.body or "").encode()
    try:
        headers, content = explained_request(table.policy, question.session, given)
    except ValueError as error:
        raise BadRequestError(f"the pool {question.pool!r}: {error}") from None
    length = len(content) if question.body_bytes is None else question.body_bytes
    if not 0 <= length <= _MAX_BODY_BYTES:
        raise BadRequestError(f"body_bytes must be a whole number from 0 to {_MAX_BODY_BYTES}")
    place = Place(question.region, question.zone)
    caller = Caller(question.pool, place=place, tenant=question.tenant or "", priority=question.priority)
    asked = PickerQuestion(caller, headers, content, max(len(content), length))
    explanation = await picker.explain(question.pool, asked)
    if explanation is None:
        raise NotSavedError("the picker of this control plane is not running or has not received the pool yet")
    return replace(explanation, tenant_routes=tenant_routes(routes, question.pool))


def status(picker: PickerManager) -> schema.PickerStatus | None:
    """Return the status of the picker process; None if no pool needs a picker."""
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
        open=picker.report.open,
        following=picker.feed.subscribers,
        unsaved=picker.report.unsaved or None,
    )


def _pools(picker: PickerManager) -> Iterator[schema.PickedPool]:
    report = picker.report
    decisions: dict[str, dict[str, int]] = {}
    for pool, reason, count in report.reasons:
        decisions.setdefault(pool, {})[reason] = count
    hits, cached, queues = picker.feed.cache_hits(), picker.recent_cached(), picker.recent_queues()
    for pool, counts in sorted(decisions.items()):
        total = sum(counts.values())
        seconds = report.times[pool].total if pool in report.times else 0.0
        mean = round(seconds / total, 7) if total else None
        finished = report.finished.get(pool, 0)
        uses = cached.get(pool, {})
        learned = report.lengths.get(pool)
        yield schema.PickedPool(
            pool, dict(sorted(counts.items())), finished, mean, hits.get(pool, {}),
            cached_total(uses.values()) if uses else None,
            {name: cached_row(use) for name, use in uses.items()},
            {name: round(factor, 3) for name, factor in learned._asdict().items()} if learned else None,
            queue_row(queues[pool]) if pool in queues else None,
        )  # fmt: skip


def _sample(item: DecisionSample) -> schema.PickSample:
    return schema.PickSample(
        at=timestamp(item.at),
        pool=item.pool,
        replica=item.replica,
        reason=item.reason,
        seconds=item.seconds,
        session=item.session,
        blocks=item.blocks,
        tokens=item.tokens,
        proxy=item.proxy,
    )
