"""The first line of `lbctl explain weight`, which compares a replica's share with its capacity and explains why."""

from __future__ import annotations

from datetime import datetime
from functools import partial

from lbctl.api import schema

_SAME = 0.01
"""Maximum difference between shares that count as equal."""
_LEFT = ("draining", "drained", "removed", "ejected", "asleep")
"""States in which a replica gets no new requests."""


_PICKED = "the picker chooses a replica for each request, based on sessions, caches and load"


def sentence(row: schema.Replica, pool: schema.Pool) -> str:
    """Return the sentence about a replica, based on the proxies' observations if available, or else on the decision.

    A removed replica gets no requests, even though the last minute may still include earlier requests.
    """
    gets = row.share if row.observed is None or (row.state in _LEFT and not row.share) else row.observed
    is_picked = pool.algorithm == "pick"
    differs = not is_picked and abs(gets - row.declared) >= _SAME
    text = f"{row.name} gets {_percent(gets)} of the pool's requests"
    text += f" instead of {_percent(row.declared)}" if differs else ""
    cause = row.state_reason or (_cause(row, gets) if differs or not row.declared else _PICKED if is_picked else "")
    return text + (f": {cause}{_since(row)}" if cause else ", according to its capacity")


def observed(row: schema.Replica, pool: schema.Pool) -> str:
    """Return the share that the proxies observed in the last minute, and the proxies that did not report."""
    silent = f"; not reported by {', '.join(map(partial(_silent, pool), pool.silent))}" if pool.silent else ""
    if not pool.reporting:
        return f"unknown: no proxy reports its traffic{silent}"
    share = "no requests" if row.observed is None else f"{row.observed * 100:.1f}% of the last minute's requests"
    rate = f", {row.requests_per_second:.3g} a second" if row.requests_per_second else ""
    return f"{share}{rate}, by {', '.join(pool.reporting)}{silent}"


def _silent(pool: schema.Pool, name: str) -> str:
    """Return the name of a proxy that does not report, with the reason if it cannot report."""
    reason = pool.unable.get(name)
    return f"{name} ({reason})" if reason else name


def _cause(row: schema.Replica, gets: float) -> str:
    """Return the reason why an available replica's share differs from its capacity."""
    if row.reasons:
        return "; ".join(row.reasons)
    if row.priority and not gets:
        return f"it is a reserve with priority {row.priority}"
    if abs(row.share - row.declared) >= _SAME:
        return f"other replicas get {'less' if gets > row.declared else 'more'}"
    return f"lbctl has set its share to {_percent(row.share)}"


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %" if share >= _SAME or not share else f"{share * 100:.1f} %"


def _since(row: schema.Replica) -> str:
    """Return the start in local time, including the date unless it is today."""
    if row.state_since is None or not row.state_reason:
        return ""
    then = datetime.fromisoformat(row.state_since).astimezone()
    today = then.date() == datetime.now(then.tzinfo).date()
    return f" since {then:%H:%M}" if today else f" since {then:%Y-%m-%d %H:%M}"
