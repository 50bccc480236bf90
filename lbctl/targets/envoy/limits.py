"""Rate limits of routes: one token bucket for each tenant, client or header value, in this Envoy's own memory.

All buckets stand with the table of routes, and each of Envoy's routes names those that it is counted in. Of one route
of the fleet Envoy has several, for hosts, pins and variants; with buckets of their own a client would have as many
limits as it finds ways.

A request that says nothing of what is counted (no such header, no tenant) does not slip past: all of those share one
bucket. Limits of requests at once are none of Envoy's filters' business; such a route is closed before it gets here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from envoy.extensions.filters.http.local_ratelimit.v3 import local_rate_limit_pb2

from lbctl.ir.routes import RateLimit, Route, retry_after
from lbctl.targets.envoy import auth
from lbctl.targets.envoy.protos import duration
from lbctl.targets.envoy.sources import NAMESPACE

FILTER = "envoy.filters.http.local_ratelimit"
_ALL = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}
_BUCKETS = 10_000
"""Values that are counted apart; beyond, the one that was seen longest ago is forgotten."""
_UNLIMITED = {"max_tokens": 2**32 - 1, "tokens_per_fill": {"value": 2**32 - 1}, "fill_interval": {"seconds": 1}}
"""Envoy wants a bucket for what no limit counts."""
_LIMIT = "limit"
_OF = "of"
_WITHOUT = "-"
_RETRY = "limit retry after"
_RETRY_AFTER = {"key": "retry-after", "value": f"%METADATA(ROUTE:{NAMESPACE}:{_RETRY})%"}


def idle() -> local_rate_limit_pb2.LocalRateLimit:
    """The listener's filter: counts nothing unless its routes say what."""
    return local_rate_limit_pb2.LocalRateLimit(stat_prefix="rate_limit")


def limited(routes: Sequence[Route]) -> local_rate_limit_pb2.LocalRateLimit:
    """The buckets of these routes. All limits of a route hold at once."""
    kinds = {_kind(number, item): item for route in routes for number, item in _rates(route)}
    return local_rate_limit_pb2.LocalRateLimit(
        stat_prefix="rate_limit",
        status={"code": "TooManyRequests"},
        token_bucket=_UNLIMITED,
        filter_enabled=_ALL,
        filter_enforced=_ALL,
        response_headers_to_add=[{"header": _RETRY_AFTER}],
        rate_limits=[{"actions": actions} for kind in sorted(kinds) for actions in _actions(kind, kinds[kind])],
        descriptors=[_descriptor(_name(route, number), item) for route in routes for number, item in _rates(route)],
        max_dynamic_descriptors={"value": _BUCKETS},
        always_consume_default_token_bucket={"value": False},
    )


def marks(route: Route) -> dict[str, str]:
    """For the metadata of Envoy's routes: what is counted of a request, and in which bucket."""
    counted = {_kind(number, item): _name(route, number) for number, item in _rates(route)}
    return {**counted, _RETRY: str(retry_after(route.rate_limits))} if counted else {}


def _rates(route: Route) -> Iterator[tuple[int, RateLimit]]:
    return ((number, item) for number, item in enumerate(route.rate_limits) if item.requests)


def _kind(number: int, limit: RateLimit) -> str:
    """A route may have several limits of a kind."""
    return f"limit {number} by {limit.by} {limit.header}".rstrip()


def _name(route: Route, number: int) -> str:
    return f"{route.name}/{number}"


def _actions(kind: str, limit: RateLimit) -> list[list[dict[str, object]]]:
    """A route without a limit of this kind is not counted by it."""
    key = {"key": NAMESPACE, "path": [{"key": kind}]}
    first: dict[str, object] = {"metadata": {"descriptor_key": _LIMIT, "metadata_key": key, "source": "ROUTE_ENTRY"}}
    if limit.by == "all":
        return [[first]]
    if limit.by == "client_ip":
        return [[first, {"remote_address": {}}]]
    if limit.by == "tenant":
        return [[first, _tenant()]]
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


def _tenant() -> dict[str, object]:
    key = {"key": NAMESPACE, "path": [{"key": auth.TENANT}]}
    return {"metadata": {"descriptor_key": _OF, "metadata_key": key, "default_value": _WITHOUT}}


def _descriptor(name: str, limit: RateLimit) -> dict[str, object]:
    entries = [{"key": _LIMIT, "value": name}]
    if limit.by != "all":
        entries.append({"key": "remote_address" if limit.by == "client_ip" else _OF})
    bucket = {
        "max_tokens": max(1, limit.burst or limit.requests),
        "tokens_per_fill": {"value": limit.requests},
        "fill_interval": duration(limit.per),
    }
    return {"entries": entries, "token_bucket": bucket}
