"""Rate limits of a route: one token bucket for each tenant, client or header value, in this Envoy's own memory.

A request that says nothing of what is counted (no such header, no tenant) does not slip past: all of those share one
bucket. Limits of requests at once are none of Envoy's filters' business; such a route is closed before it gets here.
"""

from __future__ import annotations

from collections.abc import Sequence

from envoy.extensions.filters.http.local_ratelimit.v3 import local_rate_limit_pb2

from lbctl.ir.routes import Auth, RateLimit
from lbctl.targets.envoy import auth as tenants
from lbctl.targets.envoy.wire import duration, header_option

FILTER = "envoy.filters.http.local_ratelimit"
_ALL = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}
_BUCKETS = 10_000
"""Values that are counted apart; beyond, the one that was seen longest ago is forgotten."""
_UNLIMITED = {"max_tokens": 2**32 - 1, "tokens_per_fill": {"value": 2**32 - 1}, "fill_interval": {"seconds": 1}}
"""Envoy wants a bucket for what no limit counts; every request of such a route is counted by all of its limits."""
_OF = "of"
_WITHOUT = "-"


def idle() -> local_rate_limit_pb2.LocalRateLimit:
    """The listener's filter: counts nothing unless a route says what."""
    return local_rate_limit_pb2.LocalRateLimit(stat_prefix="rate_limit")


def limited(limits: Sequence[RateLimit], auth: Auth | None) -> local_rate_limit_pb2.LocalRateLimit:
    """All of a route's limits hold at once."""
    rates = [(f"limit{number}", item) for number, item in enumerate(limits) if item.requests]
    return local_rate_limit_pb2.LocalRateLimit(
        stat_prefix="rate_limit",
        status={"code": "TooManyRequests"},
        token_bucket=_UNLIMITED,
        filter_enabled=_ALL,
        filter_enforced=_ALL,
        response_headers_to_add=[header_option("retry-after", "1")],
        rate_limits=[{"actions": actions} for name, item in rates for actions in _actions(name, item, auth)],
        descriptors=[_descriptor(name, item) for name, item in rates],
        max_dynamic_descriptors={"value": _BUCKETS},
        always_consume_default_token_bucket={"value": False},
    )


def _actions(name: str, limit: RateLimit, auth: Auth | None) -> list[list[dict[str, object]]]:
    first: dict[str, object] = {"generic_key": {"descriptor_key": name, "descriptor_value": "on"}}
    if limit.by == "all":
        return [[first]]
    if limit.by == "client_ip":
        return [[first, {"remote_address": {}}]]
    if limit.by == "tenant":
        return [[first, _tenant(auth)]]
    present: dict[str, object] = {"request_headers": {"header_name": limit.header, "descriptor_key": _OF}}
    absent: dict[str, object] = {
        "header_value_match": {
            "descriptor_key": _OF,
            "descriptor_value": _WITHOUT,
            "expect_match": {"value": False},
            "headers": [{"name": limit.header, "present_match": True}],
        }
    }
    return [[first, present], [first, absent]]


def _tenant(auth: Auth | None) -> dict[str, object]:
    claim = auth.jwt.tenant_claim if auth and auth.jwt else None
    path = [{"key": tenants.PAYLOAD}, {"key": claim or _WITHOUT}]
    key = {"key": tenants.FILTER, "path": path}
    return {"metadata": {"descriptor_key": _OF, "metadata_key": key, "default_value": _WITHOUT}}


def _descriptor(name: str, limit: RateLimit) -> dict[str, object]:
    entries = [{"key": name, "value": "on"}]
    if limit.by != "all":
        entries.append({"key": "remote_address" if limit.by == "client_ip" else _OF})
    bucket = {
        "max_tokens": max(1, limit.burst or limit.requests),
        "tokens_per_fill": {"value": limit.requests},
        "fill_interval": duration(limit.per),
    }
    return {"entries": entries, "token_bucket": bucket}
