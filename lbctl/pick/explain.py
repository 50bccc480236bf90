"""Explanation of a decision: the request's features, the factors of the decision for each replica, and the choice.

The explanation uses the decision's own functions, so that the two always agree.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from lbctl.ir.pools import PickPolicy, QueuePolicy
from lbctl.ir.routes import Forward, Route
from lbctl.pick.affinity import AffinityMemory
from lbctl.pick.books import Books
from lbctl.pick.decide import ADAPTER_TOKENS, Consideration, Reason, considered, pick, why_later, why_not
from lbctl.pick.features import Features
from lbctl.pick.table import Candidate, PoolTable
from lbctl.pick.waiting import Position


@dataclass(frozen=True, slots=True)
class CandidateRow:
    """One replica in a decision."""

    name: str
    """Name of the replica."""
    address: str
    """Address on which the replica listens."""
    eligible: bool
    """Whether the request may go to the replica."""
    reason: str
    """The reason why the request may not go to the replica; empty if it may."""
    rate: float | None
    """Rate of the replica relative to the others, including slow start; None if the replica is not eligible."""
    ramp: float
    """The factor of slow start in `rate`, from 0 to 1."""
    work: float | None
    """Work in flight at the replica, in tokens; None if it is not eligible."""
    cached: float | None
    """Number of the request's tokens that the replica's cache may contain; None if none are known."""
    counted: bool
    """Whether the replica's cache counts, because its load is within the bound."""
    wait: float | None
    """Expected wait without the cache; None if it is not eligible.

    The wait is the tokens in flight divided by the rate, plus the request's own tokens divided by the rate without slow
    start.
    """


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation of a decision."""

    sentence: str
    """The choice and its reason, as a sentence."""
    reason: Reason
    """The decision's reason; `full` if the request would have to wait or would be rejected."""
    choices: tuple[str, ...]
    """The replicas that the decision chooses from at random; usually only one."""
    features: Features
    """Features read from the request."""
    candidates: tuple[CandidateRow, ...]
    """All replicas of the pool, best first."""
    queue: Position | None = None
    """Place of the request in the pool's queue; None if it would not have to wait."""


class _First:
    """Random source that always selects the first of equal replicas; `explain` finds the others by their scores."""

    def random(self) -> float:
        return 0.0


def explain(features: Features, table: PoolTable, books: Books, affinity: AffinityMemory, now: float) -> Explanation:
    """Explain the decision that the picker would make now, without recording anything."""
    view = considered(features, table, books, affinity, now)
    if not isinstance(view, Consideration):
        rows = tuple(_refused(item, table, features, books, now) for item in table.candidates)
        return Explanation(_none_sentence(table), view, (), features, rows)
    tier, scores = view.tier, view.scores()
    result = pick(features, table, books, affinity, now, _First())
    equal = [name for name, score in zip(tier.names, scores, strict=True) if score == min(scores)]
    order = sorted(range(len(scores)), key=lambda index: (scores[index], tier.names[index]))
    rows = tuple(_row(view, index) for index in order)
    others = [item for item in table.candidates if item.name not in tier.places]
    refused = tuple(_refused(item, table, features, books, now) for item in others)
    sentence = _sentence(result.reason, equal, view) + _adapter_sentence(equal, view, scores, features, affinity, now)
    return Explanation(sentence, result.reason, tuple(equal), features, rows + refused)


def explain_wait(explanation: Explanation, position: Position, policy: QueuePolicy) -> Explanation:
    """Return the explanation for a request that would have to wait at this position in the pool's queue."""
    sentence = _queue_sentence(explanation.reason, position, policy)
    return replace(explanation, sentence=sentence, reason="full", choices=(), queue=position)


def tenant_routes(routes: Iterable[Route], pool: str) -> tuple[str, ...]:
    """Return the names of a pool's routes whose requests have a tenant."""
    return tuple(
        route.name
        for route in routes
        if isinstance(route.action, Forward) and pool in route.action.pools and route.auth and route.auth.names_tenant
    )


def document(explanation: Explanation) -> dict[str, object]:
    """Return the explanation as a JSON object."""
    features = explanation.features
    names = ("session", "session_key", "body_bytes", "prompt_tokens", "model", "adapter")
    request = {name: getattr(features, name) for name in names} | {"blocks": len(features.prefix)}
    estimate = sum(features.length)
    request["length_factor"] = round(features.prompt_tokens / estimate, 3) if estimate else 1.0
    return {
        "sentence": explanation.sentence,
        "reason": explanation.reason,
        "choices": list(explanation.choices),
        "request": request,
        "candidates": [asdict(item) for item in explanation.candidates],
        "queue": None if explanation.queue is None else explanation.queue._asdict(),
    }


def _row(view: Consideration, index: int) -> CandidateRow:
    candidate = view.tier.candidates[index]
    return CandidateRow(
        candidate.name,
        candidate.address,
        eligible=True,
        reason="",
        rate=view.rates[index],
        ramp=view.rates[index] / view.tier.rates[index],
        work=view.works[index],
        cached=view.saved.get(index),
        counted=index in view.credited,
        wait=view.waits[index],
    )


def _refused(candidate: Candidate, table: PoolTable, features: Features, books: Books, now: float) -> CandidateRow:
    reason = _refusal(candidate, table, features, books, now)
    return CandidateRow(candidate.name, candidate.address, False, reason, None, 1.0, None, None, False, None)


def _refusal(candidate: Candidate, table: PoolTable, features: Features, books: Books, now: float) -> str:
    if not candidate.fit:
        return candidate.reason or "not available"
    if candidate.weight <= 0:
        return "its weight is 0"
    if features.regions and candidate.region not in features.regions:
        return f"outside the route's regions ({', '.join(sorted(features.regions))})"
    refusal = why_not(candidate, features, table, books) or why_later(candidate, features, table, books, now)
    if refusal:
        return refusal
    priority, distance = table.rank(candidate, features.place)
    return f"reserve: priority {priority}" if priority else f"reserve: it is farther away (distance {distance})"


def _sentence(reason: Reason, equal: list[str], view: Consideration) -> str:
    several = len(equal) > 1
    subject = f"Any of {_listed(equal, 'or')}" if several else equal[0]
    verb = f"{subject} gets the request{', at random' if several else ''}:"
    credited = {view.tier.names[index] for index in view.credited}
    holders = [view.tier.names[index] for index in sorted(view.saved)]
    least = "they have the same expected wait" if several else "it has the least expected wait"
    they, theirs = ("they have", "their") if several else ("it has", "its")
    kept = "this session" if view.home in holders else "the longest prefix of this prompt"
    if several and 0 < len(credited & set(equal)) < len(equal):
        names = _listed([name for name in equal if name in credited], "and")
        return f"{verb} {names} may have {kept} in the cache, and the wait at the others is shorter by the same amount."
    match reason:
        case "session":
            return f"{verb} {they} served this session before, and {theirs} load is within the bound."
        case "prefix":
            return f"{verb} {they} seen the longest prefix of this prompt, and {theirs} load is within the bound."
        case "session_busy" | "prefix_busy":
            names = _listed(holders, "and")
            return f"{verb} {least}; {names} may have {kept} in the cache, but the load there outweighs that."
        case "session_gone":
            return f"{verb} {least}; the session's replica cannot get requests."
        case _:
            return f"{verb} no cache is known to help, and {least}."


def _listed(names: Sequence[str], last: str) -> str:
    """Join the names for use in a sentence: `a, b and c` if `last` is "and"."""
    return f"{', '.join(names[:-1])} {last} {names[-1]}" if len(names) > 1 else names[0]


def _adapter_sentence(
    chosen: list[str], view: Consideration, scores: Sequence[float], features: Features, affinity: AffinityMemory,
    now: float,
) -> str:  # fmt: skip
    """Return a sentence about the request's adapter if it made the difference; otherwise empty."""
    holders = affinity.with_adapter(features, now)
    if not holders:
        return ""
    loading = [
        0.0 if name in holders else ADAPTER_TOKENS / rate
        for name, rate in zip(view.tier.names, view.tier.rates, strict=True)
    ]
    without = [score - cost for score, cost in zip(scores, loading, strict=True)]
    least = min(without)
    best = {name for name, score in zip(view.tier.names, without, strict=True) if math.isclose(score, least)}
    if best <= set(chosen):
        return ""
    subject = "it has" if len(chosen) == 1 else "they have"
    return (
        f" The adapter {features.adapter} made the difference: {subject} had requests for it, and any other replica "
        f"would have to load it, which costs as much as {ADAPTER_TOKENS:g} tokens."
    )


def _none_sentence(table: PoolTable) -> str:
    if not table.candidates:
        return f"No replica gets the request: {table.pool} has no replicas, so the proxy uses `otherwise`."
    return f"No replica gets the request: no replica of {table.pool} can be picked, so the proxy uses `otherwise`."


def _queue_sentence(reason: Reason, position: Position, policy: QueuePolicy) -> str:
    match reason:
        case "none":
            why = "No replica has room"
        case "full":
            why = "Every replica with room still has prompts to compute"
        case _:
            why = "Replicas keep their room for requests that go first"
    if position.rejected:
        return f"{why}, and the queue is full ({policy.max_requests}): the request would be rejected."
    before = f"behind {_counted(position.requests, 'request')}{_of_flows(position.flows, policy)}"
    place = before if position.requests else "at the head of the queue"
    limit = policy.max_wait / 1000
    seconds = "" if position.seconds is None else f", about {max(position.seconds, 0.1):.1f} s"
    late = f", and be rejected after {limit:g} s" if position.seconds is not None and position.seconds > limit else ""
    return f"{why}: the request would wait {place}{seconds}{late}."


def _of_flows(count: int, policy: QueuePolicy) -> str:
    if policy.order == "fifo" or policy.by == "all":
        return ""
    if policy.by == "header":
        return f" with {_counted(count, 'value')} of {policy.header}"
    return f" of {_counted(count, 'tenant' if policy.by == 'tenant' else 'client')}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def explained_request(policy: PickPolicy, session: str | None, body: bytes) -> tuple[Mapping[str, list[str]], bytes]:
    """Return the headers and the body of a request whose first session key has the value `session`.

    A session key in the body is written only if `body` is empty; otherwise `body` stays as it is. Raises ValueError if
    the policy has no session keys.
    """
    if session is None:
        return {}, body
    if not policy.session:
        raise ValueError("no session keys are configured")
    key = policy.session[0]
    if key.header:
        return {key.header: [session]}, body
    return {}, body or json.dumps(_nested(key.body, session)).encode()


def _nested(path: str, value: str) -> object:
    nested: object = value
    for step in reversed(path.split(".")[1:]):
        nested = {step: nested}
    return nested
