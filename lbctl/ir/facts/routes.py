"""The facts of a route: what it matches, where it leads, how a request is treated on the way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lbctl.ir import routes as r
from lbctl.ir.facts.words import Fact, each, percent, time, under
from lbctl.ir.listeners import Rule

_KEYS = {"exact": "path", "regex": "path_regex", "prefix": "path_prefix"}
_UNITS = {1_000: "s", 60_000: "m", 3_600_000: "h"}


def match(rules: list[Rule]) -> Iterator[Fact]:
    if not rules:
        return
    first = rules[0]
    yield ("match", "hosts"), tuple(sorted(rule.host for rule in rules if rule.host)) or "any"
    yield ("match", _KEYS[first.path.kind]), first.path.value
    yield ("match", "methods"), first.methods or "any"
    yield from under("match", under("headers", each(first.headers)))
    yield ("match", "model"), first.models or "any"


def route(item: r.Route) -> Iterator[Fact]:
    yield ("listeners",), item.listeners
    if isinstance(item.action, r.Respond):
        yield ("respond", "status"), item.action.status
        yield ("respond", "body"), repr(item.action.body)
    elif isinstance(item.action, r.Redirect):
        yield ("respond", "redirect"), item.action.scheme
    else:
        yield from _choice(item.action)
    yield from _way(item)
    yield from under("headers", under("request", _headers(item.request_headers)))
    yield from under("headers", under("response", _headers(item.response_headers)))


def _choice(action: r.Forward) -> Iterator[Fact]:
    total = sum(share.weight for share in action.shares)
    if len(action.shares) == 1:
        yield ("pool",), action.shares[0].pool
    else:
        for share in action.shares:
            yield ("split", share.pool), percent(100 * share.weight / total)
    for place, pin in enumerate(action.pins):
        yield ("pin", place), f"{pin.kind} {pin.name} equals {pin.value!r}: {pin.pool}"
    if action.sticky:
        yield ("sticky_split", action.sticky.kind), action.sticky.name
        yield ("sticky_split", "ttl"), time(action.sticky.ttl)
    if action.mirror:
        yield ("mirror", "pool"), action.mirror.pool
        yield ("mirror", "percent"), percent(action.mirror.percent)
    yield ("fallback",), action.fallback or "none"


def _way(item: r.Route) -> Iterator[Fact]:
    if item.rewrite:
        yield ("rewrite", "path_prefix"), item.rewrite.path_prefix
        yield ("rewrite", "host"), item.rewrite.host
    yield ("queue_priority",), item.queue_priority
    yield ("websocket",), item.websocket
    yield ("timeouts", "request"), time(item.request_timeout)
    yield ("timeouts", "idle"), time(item.idle_timeout)
    yield from under("retry", _retry(item.retry))
    yield from under("rate_limit", _limits(item.rate_limits))
    if item.auth:
        yield from under("auth", _auth(item.auth))
    yield ("regions",), item.regions or "any"
    if item.rollout:
        yield from under("rollout", _rollout(item.rollout))


def _retry(item: r.Retry) -> Iterator[Fact]:
    yield ("attempts",), item.attempts
    yield ("when",), item.when
    yield ("idempotent",), item.idempotent
    yield ("budget",), "none" if item.budget is None else percent(item.budget)
    yield ("backoff", "base"), time(item.backoff.base)
    yield ("backoff", "max"), time(item.backoff.max)


def _limits(limits: Iterable[r.RateLimit]) -> Iterator[Fact]:
    """All of them hold: their order says nothing."""
    for place, words in enumerate(sorted(map(_limit, limits))):
        yield (place,), words


def _limit(item: r.RateLimit) -> str:
    by = f"header {item.header}" if item.by == "header" else item.by
    if item.concurrent:
        return f"by {by}: {item.concurrent} at once"
    return f"by {by}: {item.requests}/{_UNITS.get(item.per, time(item.per))}, burst {item.burst}"


def _auth(item: r.Auth) -> Iterator[Fact]:
    if item.api_keys:
        yield ("api_keys", "file"), item.api_keys.file
        yield ("api_keys", "header"), item.api_keys.header
    if item.jwt:
        yield ("jwt", "issuer"), item.jwt.issuer
        yield ("jwt", "jwks_file"), item.jwt.jwks_file
        yield ("jwt", "audiences"), tuple(sorted(item.jwt.audiences)) or "any"
        yield ("jwt", "tenant_claim"), item.jwt.tenant_claim
    yield ("forward_tenant",), item.forward_tenant
    yield ("forward_credentials",), item.forward_credentials


def _headers(item: r.HeaderRules) -> Iterator[Fact]:
    yield from under("set", each(item.set))
    yield ("remove",), item.remove or None


def _rollout(item: r.Rollout) -> Iterator[Fact]:
    yield ("to",), item.to
    yield ("mode",), item.mode
    for place, step in enumerate(item.steps):
        hold = "" if step.hold is None else f", hold {time(step.hold)}"
        yield ("steps", place), f"{percent(step.percent)}{hold}"
    if item.analysis:
        yield from under("analysis", _analysis(item.analysis))


def _analysis(item: r.Analysis) -> Iterator[Fact]:
    yield ("interval",), time(item.interval)
    yield ("min_requests",), item.min_requests
    yield ("max_error_rate",), "unlimited" if item.max_error_rate is None else percent(item.max_error_rate)
    if item.latency_metric:
        yield ("max_latency",), f"{item.latency_metric} {item.latency_percentile} × {item.latency_ratio:.12g}"
    yield ("failures",), item.failures
    yield ("on_failure",), item.on_failure
