"""A route's settings: its conditions, its destination, and how its requests are handled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lbctl.base.quantities import TokenRate
from lbctl.base.urls import digest, with_digests
from lbctl.ir import routes as r
from lbctl.ir.listeners import Rule
from lbctl.ir.pools import TokenLimit
from lbctl.ir.secrets import shown_value
from lbctl.ir.settings.format import Setting, duration, entries, nested, percent
from lbctl.ir.shares import of_pools
from lbctl.ir.written_credentials import is_credential_pin

_KEYS = {"exact": "path", "regex": "path_regex", "prefix": "path_prefix"}
_LISTENERS = "as the listener"
_UNITS = {1_000: "s", 60_000: "m", 3_600_000: "h"}


def match(rules: list[Rule]) -> Iterator[Setting]:
    """Yield the conditions in the route's rules, which differ only in their hosts."""
    if not rules:
        return
    first = rules[0]
    yield ("match", "hosts"), tuple(sorted(rule.host for rule in rules if rule.host)) or "any"
    yield ("match", _KEYS[first.path.kind]), first.path.value
    yield ("match", "methods"), first.methods or "any"
    yield from nested("match", nested("headers", _header_values(first.headers)))
    yield ("match", "model"), first.models or "any"


def route(route: r.Route) -> Iterator[Setting]:
    """Yield the route's settings without its conditions."""
    yield ("listeners",), route.listeners
    if isinstance(route.action, r.Respond):
        yield ("respond", "status"), route.action.status
        yield ("respond", "body"), "models" if route.action.lists_models else repr(route.action.body)
    elif isinstance(route.action, r.Redirect):
        yield ("respond", "redirect"), route.action.scheme
    else:
        yield from _destination(route.action)
    yield from _handling(route)
    yield ("access_log",), "on" if route.logged else "off"
    yield from nested("headers", nested("request", _headers(route.request_headers)))
    yield from nested("headers", nested("response", _headers(route.response_headers)))


def _destination(action: r.Forward) -> Iterator[Setting]:
    shares = of_pools(action)
    if len(action.shares) == 1:
        yield ("pool",), action.shares[0].pool
    else:
        for share in action.shares:
            yield ("split", share.pool), percent(100 * shares.get(share.pool, 0.0))
    for index, pin in enumerate(action.pins):
        value = digest(pin.value) if is_credential_pin(pin) else repr(pin.value)
        yield ("pin", index), f"{pin.kind} {pin.name} equals {value}: {pin.pool}"
    if action.sticky:
        yield ("sticky_split", action.sticky.kind), action.sticky.name
        yield ("sticky_split", "ttl"), duration(action.sticky.ttl)
    if action.mirror:
        yield ("mirror", "pool"), action.mirror.pool
        yield ("mirror", "percent"), percent(action.mirror.percent)
    yield ("fallback",), action.fallback or "none"


def _handling(route: r.Route) -> Iterator[Setting]:
    if route.rewrite:
        yield ("rewrite", "path_prefix"), route.rewrite.path_prefix
        yield ("rewrite", "host"), route.rewrite.host
    yield ("queue_priority",), route.queue_priority
    yield ("websocket",), route.websocket
    yield ("timeouts", "request"), duration(route.request_timeout)
    if route.attempt_timeout is not None:
        yield ("timeouts", "attempt"), duration(route.attempt_timeout)
    yield ("timeouts", "idle"), duration(route.idle_timeout)
    yield from nested("retry", _retry(route.retry))
    yield from nested("rate_limit", _limits(route))
    yield ("allow_from",), _LISTENERS if route.allow_from is None else route.allow_from
    yield ("deny_from",), _LISTENERS if route.deny_from is None else route.deny_from
    if route.auth:
        yield from nested("auth", _auth(route.auth))
    yield ("regions",), route.regions or "any"
    if route.rollout:
        yield from nested("rollout", _rollout(route.rollout))


def _retry(retry: r.Retry) -> Iterator[Setting]:
    yield ("attempts",), retry.attempts
    yield ("when",), retry.when
    if retry.busy_statuses:
        yield ("busy_statuses",), retry.busy_statuses
    yield ("idempotent",), retry.idempotent
    yield ("budget",), "none" if retry.budget is None else percent(retry.budget)
    yield ("backoff", "base"), duration(retry.backoff.base)
    yield ("backoff", "max"), duration(retry.backoff.max)


def _limits(route: r.Route) -> Iterator[Setting]:
    """Yield the limits, sorted, because all of them apply and their order has no meaning."""
    prompt_limits = sorted(map(_prompt_limit_text, route.prompt_limits))
    for index, text in enumerate((*sorted(map(limit_text, route.rate_limits)), *prompt_limits)):
        yield (index,), text


def limit_text(limit: r.RateLimit) -> str:
    """Format a limit as human-readable text."""
    by = _by(limit)
    if limit.concurrent:
        return f"by {by}: {limit.concurrent} at once"
    tenants = "".join(f", {tenant} {_rate(own)}" for tenant, own in limit.tenants)
    return f"by {by}: {_rate(limit)}, burst {limit.burst}{tenants}"


def _prompt_limit_text(limit: TokenLimit) -> str:
    return f"by {_by(limit)}: {TokenRate(limit.tokens, limit.period)} prompt tokens"


def _by(limit: r.RateLimit | TokenLimit) -> str:
    return f"header {limit.header}" if limit.by == "header" else limit.by


def _rate(limit: r.RateLimit) -> str:
    return f"{limit.requests}/{_UNITS.get(limit.per, duration(limit.per))}"


def _auth(auth: r.Auth) -> Iterator[Setting]:
    if auth.api_keys and auth.api_keys.realm is not None:
        yield ("basic", "file"), auth.api_keys.file
        yield ("basic", "realm"), auth.api_keys.realm
        yield ("basic", "header"), auth.api_keys.headers[0]
        yield ("basic", "websocket_protocol"), auth.api_keys.websocket_protocol or None
    elif auth.api_keys:
        yield ("api_keys", "file"), auth.api_keys.file
        yield ("api_keys", "headers"), auth.api_keys.headers
        yield ("api_keys", "websocket_protocol"), auth.api_keys.websocket_protocol
    if auth.jwt:
        yield ("jwt", "issuer"), auth.jwt.issuer
        yield ("jwt", "jwks_file"), auth.jwt.jwks_file
        yield ("jwt", "audiences"), tuple(sorted(auth.jwt.audiences)) or "any"
        yield ("jwt", "tenant_claim"), auth.jwt.tenant_claim
    if auth.external:
        yield ("external", "url"), f"http://{auth.external.address}{auth.external.path}"
        yield ("external", "timeout"), duration(auth.external.timeout)
        yield ("external", "send"), auth.external.send or "nothing"
        yield ("external", "accept"), auth.external.accept or "nothing"
        yield ("external", "tenant_header"), auth.external.tenant_header
    yield ("forward_tenant",), auth.forward_tenant
    yield ("forward_credentials",), auth.forward_credentials


def _headers(rules: r.HeaderRules) -> Iterator[Setting]:
    yield from nested("set", _header_values(rules.set))
    yield ("remove",), rules.remove or None


def _header_values(headers: Iterable[tuple[str, str]]) -> Iterator[Setting]:
    """Yield the headers. Values that contain credentials are replaced by their digests."""
    return entries((name, shown_value(name, value)) for name, value in headers)


def _rollout(rollout: r.Rollout) -> Iterator[Setting]:
    yield ("to",), rollout.to
    yield ("mode",), rollout.mode
    for index, step in enumerate(rollout.steps):
        hold = "" if step.hold is None else f", hold {duration(step.hold)}"
        yield ("steps", index), f"{percent(step.percent)}{hold}"
    if rollout.analysis:
        yield from nested("analysis", _analysis(rollout.analysis))


def _analysis(analysis: r.Analysis) -> Iterator[Setting]:
    yield ("interval",), duration(analysis.interval)
    yield ("min_requests",), analysis.min_requests
    yield ("max_error_rate",), "unlimited" if analysis.max_error_rate is None else percent(analysis.max_error_rate)
    if analysis.latency_metric:
        yield (
            ("max_latency",),
            f"{analysis.latency_metric} {analysis.latency_percentile} × {analysis.latency_ratio:.12g}",
        )
    yield ("failures",), analysis.failures
    yield ("on_failure",), analysis.on_failure
    for metric in analysis.metrics:
        yield ("metrics", metric.name), f"{metric.query} of {with_digests(metric.source)} × {metric.max_ratio:.12g}"
