"""Resolves routes, which define how requests are handled, and checks every reference."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from urllib.parse import urlsplit

from lbctl.base.diagnostics import Path, show
from lbctl.compile.context import Context
from lbctl.compile.convert import as_int, group_by, maybe, networks, pairs, prefix
from lbctl.compile.headers import is_reserved
from lbctl.ir import routes as ir
from lbctl.ir.address import Address
from lbctl.ir.pools import TokenLimit
from lbctl.model import route as model

Action = ir.Forward | ir.Respond | ir.Redirect


def routes(ctx: Context) -> tuple[ir.Route, ...]:
    """Resolve all routes."""
    names = (ctx.source.names("pools"), ctx.source.names("listeners"), ctx.fleet.listeners)
    inputs = tuple(map("\n".join, names))  # strings, because they are compared for each route
    return tuple(
        ctx.resolved(("routes", name), route, inputs, partial(_route, name=name, route=route))
        for name, route in sorted(ctx.fleet.routes.items())
    )


def _route(ctx: Context, name: str, route: model.Route) -> ir.Route:
    path = ("routes", name)
    action = _action(ctx, path, route)
    _check(ctx, path, route, action)
    return ir.Route(
        name=name,
        action=action,
        listeners=_listeners(ctx, path, route),
        rewrite=maybe(route.rewrite, lambda item: ir.Rewrite(maybe(item.path_prefix, prefix), item.host)),
        queue_priority=route.queue_priority,
        websocket=route.websocket,
        request_timeout=as_int(route.timeouts.request),
        attempt_timeout=_attempt(ctx, path, route.timeouts),
        idle_timeout=int(route.timeouts.idle),
        retry=_retry(ctx, path, route.retry),
        rate_limits=tuple(_limit(limit) for limit in route.rate_limit if limit.prompt_tokens is None),
        prompt_limits=_prompt_limits(ctx, name, route),
        allow_from=networks(route.allow_from),
        deny_from=networks(route.deny_from),
        auth=maybe(route.auth, _auth),
        logged=route.access_log == "on",
        request_headers=_headers(route.headers.request),
        response_headers=_headers(route.headers.response),
        regions=tuple(sorted(set(route.regions))),
        rollout=maybe(route.rollout, _rollout),
    )


def _attempt(ctx: Context, path: Path, timeouts: model.RouteTimeouts) -> int | None:
    """Resolve the timeout for one attempt. Reports LB165 if it exceeds the timeout for the whole request."""
    attempt, request = timeouts.attempt, timeouts.request
    if attempt is not None and request is not None and attempt >= request:
        message = f"an attempt can take {attempt}, but the whole request times out after {request}"
        ctx.error(
            "LB165",
            message,
            (*path, "timeouts", "attempt"),
            "set an attempt timeout that is shorter than the request timeout",
        )
    return as_int(attempt)


def _listeners(ctx: Context, path: Path, route: model.Route) -> tuple[str, ...]:
    listeners = ctx.fleet.listeners
    if route.listeners is None:
        return tuple(sorted(listeners))
    for index, name in enumerate(route.listeners):
        ctx.check_name("LB102", "listener", name, ctx.source.names("listeners"), (*path, "listeners", index))
    return tuple(sorted(set(route.listeners) & set(listeners)))


def _action(ctx: Context, path: Path, route: model.Route) -> Action:
    if route.respond is not None:
        return _respond(route.respond)
    return ir.Forward(
        shares=_shares(ctx, path, route),
        pins=tuple(_pin(ctx, (*path, "pin", index), pin) for index, pin in enumerate(route.pin)),
        sticky=maybe(route.sticky_split, _sticky),
        mirror=_mirror(ctx, path, route.mirror),
        fallback=route.fallback if _check_pool(ctx, route.fallback, (*path, "fallback")) else None,
    )


def _respond(section: model.Respond) -> ir.Respond | ir.Redirect:
    if section.redirect is not None:
        return ir.Redirect(section.redirect)
    if section.models:
        return ir.Respond(200, content_type="application/json", lists_models=True)
    kind = "application/json" if _is_json(section.body) else "text/plain; charset=utf-8"
    return ir.Respond(section.status or 200, section.body, kind)


def _is_json(body: str) -> bool:
    try:
        return isinstance(json.loads(body), dict | list)
    except ValueError:
        return False


def _shares(ctx: Context, path: Path, route: model.Route) -> tuple[ir.Share, ...]:
    if route.pool is not None:
        _check_pool(ctx, route.pool, (*path, "pool"))
        return (ir.Share(route.pool, 1),)
    split = route.split or {}
    for pool in split:
        _check_pool(ctx, pool, (*path, "split", pool), key=True)
    if not sum(split.values()):
        ctx.error(
            "LB207",
            "the weights of the split sum to zero",
            (*path, "split"),
            "set at least one weight above zero",
            key=True,
        )
    return tuple(ir.Share(pool, weight) for pool, weight in sorted(split.items()))


def _check_pool(ctx: Context, name: str | None, path: Path, key: bool = False) -> bool:
    return name is not None and ctx.check_name("LB101", "pool", name, ctx.source.names("pools"), path, key)


def _pin(ctx: Context, path: Path, pin: model.Pin) -> ir.Pin:
    _check_pool(ctx, pin.pool, (*path, "pool"))
    if pin.header is not None:
        return ir.Pin("header", pin.header, pin.equals, pin.pool)
    return ir.Pin("cookie", pin.cookie or "", pin.equals, pin.pool)


def _sticky(section: model.StickySplit) -> ir.StickySplit:
    if section.cookie is not None:
        return ir.StickySplit("cookie", section.cookie, int(section.ttl))
    return ir.StickySplit("header", section.header or "", int(section.ttl))


def _mirror(ctx: Context, path: Path, section: model.Mirror | None) -> ir.Mirror | None:
    if section is None or not _check_pool(ctx, section.pool, (*path, "mirror", "pool")):
        return None
    return ir.Mirror(section.pool, float(section.percent))


def _retry(ctx: Context, path: Path, section: model.Retry) -> ir.Retry:
    order = ("connect_failure", "refused_stream", "reset_before_request", "replica_busy")
    retries_busy = "replica_busy" in section.when
    if "busy_statuses" in section.model_fields_set and not retries_busy:
        message = "busy_statuses is set without replica_busy, so no status is retried"
        ctx.error("LB155", message, (*path, "retry", "busy_statuses"), "add replica_busy to `when`", key=True)
    return ir.Retry(
        attempts=section.attempts,
        when=tuple(condition for condition in order if condition in section.when),
        busy_statuses=tuple(sorted(set(section.busy_statuses))) if retries_busy else (),
        idempotent=section.idempotent,
        budget=None if section.budget is None else float(section.budget),
        backoff=_backoff(ctx, (*path, "retry", "backoff"), section.backoff),
    )


def _backoff(ctx: Context, path: Path, section: model.Backoff) -> ir.Backoff:
    """Resolve the delays between retries.

    If only one of the two values is set, the default for the other adapts to it.
    """
    base, longest, written = int(section.base), int(section.max), section.model_fields_set
    if base <= longest:
        return ir.Backoff(base, longest)
    if written == {"base", "max"}:
        message = f"the delay before the first retry is {section.base}, which is longer than the maximum delay"
        ctx.error("LB305", message, (*path, "max"), f"set at least {section.base}")
    return ir.Backoff(base, base) if "base" in written else ir.Backoff(longest, longest)


def _limit(section: model.RateLimit) -> ir.RateLimit:
    by, header = group_by(section.by)
    requests = section.rate.requests if section.rate else 0
    return ir.RateLimit(
        by=by,  # type: ignore[arg-type]
        header=header,
        requests=requests,
        per=section.rate.per if section.rate else 0,
        burst=section.burst or requests,
        concurrent=section.concurrent or 0,
        tenant_rates=tuple(
            ir.TenantRate(name, rate.requests, rate.per) for name, rate in sorted(section.tenants.items())
        ),
    )


def _prompt_limits(ctx: Context, name: str, route: model.Route) -> tuple[TokenLimit, ...]:
    """Resolve the prompt-token limits. Equal limits count only once, because each limit is charged for every prompt.

    Reports LB119 for a header that belongs to the proxy or controls the message: proxies cannot send it to the picker.
    """
    limits = set[TokenLimit]()
    for index, section in enumerate(route.rate_limit):
        rate = section.prompt_tokens
        if rate is None:
            continue
        by, header = group_by(section.by)
        if header and is_reserved(header):
            message = f"{header} is a message-framing header or a header of the proxy itself"
            path = ("routes", name, "rate_limit", index, "by", "header")
            ctx.error("LB119", message, path, "use another header")
        limits.add(TokenLimit(name, by, rate.tokens, rate.per, header))  # type: ignore[arg-type]
    return tuple(sorted(limits))


def _headers(section: model.HeaderRules) -> ir.HeaderRules:
    return ir.HeaderRules(pairs(section.set), tuple(sorted(set(section.remove))))


def _rollout(section: model.Rollout) -> ir.Rollout:
    steps = tuple(ir.RolloutStep(float(step.percent), as_int(step.hold)) for step in section.steps)
    return ir.Rollout(section.to, section.mode, steps, maybe(section.analysis, _analysis))


def _analysis(section: model.Analysis) -> ir.Analysis:
    latency = section.max_latency or model.MaxLatency()
    return ir.Analysis(
        interval=int(section.interval),
        min_requests=section.min_requests,
        max_error_rate=float(section.max_error_rate),
        latency_metric=latency.metric if section.max_latency else None,
        latency_percentile=latency.percentile,
        latency_ratio=latency.ratio,
        failures=section.failures,
        on_failure=section.on_failure,
        metrics=tuple(
            ir.AnalysisMetric(item.name, item.source, item.query, item.max_ratio)
            for item in sorted(section.metrics, key=lambda item: item.name)
        ),
    )


def _auth(section: model.Auth) -> ir.Auth:
    return ir.Auth(
        api_keys=maybe(section.api_keys, _api_keys) or maybe(section.basic, _basic),
        jwt=maybe(section.jwt, _jwt),
        external=maybe(section.external, _external),
        forward_tenant=section.forward_tenant,
        forward_credentials=section.forward_credentials,
    )


def _api_keys(section: model.ApiKeys) -> ir.ApiKeys:
    names = [section.header] if section.header is not None else section.headers
    return ir.ApiKeys(section.file, tuple(dict.fromkeys(names)), section.websocket_protocol)


def _basic(section: model.Basic) -> ir.ApiKeys:
    """Return the users as API keys. The key is the string after `Basic ` in the header, and the user is its tenant."""
    return ir.ApiKeys(section.file, realm=section.realm)


def _external(section: model.External) -> ir.External:
    url = urlsplit(section.url)
    return ir.External(
        address=Address(url.hostname or "", url.port or 80),
        path=url.path or "/",
        timeout=int(section.timeout),
        send=tuple(sorted(set(section.send))),
        accept=tuple(sorted(set(section.accept))),
        tenant_header=section.tenant_header,
    )


def _jwt(section: model.Jwt) -> ir.Jwt:
    return ir.Jwt(section.issuer, section.jwks_file, tuple(section.audiences), section.tenant_claim)


def _check(ctx: Context, path: Path, route: model.Route, action: Action) -> None:
    """Report combinations of settings that are meaningless."""
    if isinstance(action, ir.Forward):
        _check_forward(ctx, path, route, action)
        return
    for key in ("pin", "sticky_split", "mirror", "fallback", "rewrite", "rollout"):
        if key in route.model_fields_set:
            ctx.error("LB106", f"{key} has no effect if the proxy itself responds", (*path, key), key=True)
    for key in ("rate_limit",) if route.respond is not None and route.respond.models else ("auth", "rate_limit"):
        if getattr(route, key):
            ctx.warn(
                "LB106", f"{key} has no effect if the proxy itself responds: all clients get the response", (*path, key)
            )


def _check_forward(ctx: Context, path: Path, route: model.Route, action: ir.Forward) -> None:
    shared = [share.pool for share in action.shares]
    if route.sticky_split is not None and len(shared) < 2:
        ctx.error("LB107", "a sticky split needs a split with at least two pools", (*path, "sticky_split"), key=True)
    if action.fallback in {*shared, *(pin.pool for pin in action.pins)}:
        ctx.error("LB108", "the fallback is one of the route's own pools", (*path, "fallback"), "use another pool")
    if route.rewrite is not None and route.rewrite.path_prefix is not None and route.match.path_prefix is None:
        ctx.error("LB109", "rewrite.path_prefix needs match.path_prefix", (*path, "rewrite", "path_prefix"))
    _check_tenant(ctx, path, route)
    if route.rollout is not None and route.rollout.to not in shared:
        ctx.error("LB701", "the rollout's pool is not in the split", (*path, "rollout", "to"), _one_of(shared))
    _check_metrics(ctx, (*path, "rollout", "analysis", "metrics"), route.rollout)


def _check_metrics(ctx: Context, path: Path, rollout: model.Rollout | None) -> None:
    metrics = rollout.analysis.metrics if rollout and rollout.analysis else []
    for index, metric in enumerate(metrics):
        if "{pool}" not in metric.query:
            message = "the query does not contain {pool}, so it would compare a value with itself"
            ctx.error("LB705", message, (*path, index, "query"), 'for example rate(flagged_total{pool="{pool}"}[1m])')
        if "{" in metric.source:
            message = "the source of a comparison must be a single server, without variables for a replica"
            ctx.error("LB705", message, (*path, index, "source"), "for example http://prometheus:9090")
        if metric.name in {item.name for item in metrics[:index]}:
            ctx.error(
                "LB705", f"two metrics have the name {show(metric.name)}", (*path, index, "name"), "use another name"
            )


def _check_tenant(ctx: Context, path: Path, route: model.Route) -> None:
    for index, limit in enumerate(route.rate_limit):
        if limit.tenants and (limit.by != "tenant" or limit.rate is None):
            message = "per-tenant rates need `by: tenant` and a `rate` for all other tenants"
            ctx.error("LB509", message, (*path, "rate_limit", index, "tenants"), "{by: tenant, rate: 5/s}", key=True)
    if all(limit.by != "tenant" for limit in route.rate_limit):
        return
    if route.auth is None:
        ctx.error(
            "LB506",
            "a per-tenant limit needs `auth`, but the route has no `auth`",
            (*path, "rate_limit"),
            "add `auth`",
            key=True,
        )
    elif route.auth.external is not None and route.auth.external.tenant_header is None:
        message = "a per-tenant limit needs a tenant, but none of the service's response headers is set as the tenant"
        ctx.error("LB506", message, (*path, "auth", "external"), "tenant_header: NAME", key=True)
    elif route.auth.jwt is not None and route.auth.api_keys is None and route.auth.jwt.tenant_claim is None:
        message = (
            "a per-tenant limit needs a tenant, but no token claim is set as the tenant, so all requests would "
            "be rejected"
        )
        ctx.error("LB506", message, (*path, "auth", "jwt"), "tenant_claim: NAME", key=True)


def _one_of(names: Iterable[str]) -> str:
    return f"one of {', '.join(sorted(names))}"
