"""Rate limits of routes: a token bucket for each tenant, client or header value, in the memory of this Envoy.

All buckets belong to the route table, and each of Envoy's routes names the buckets that count its requests. A fleet
route becomes several Envoy routes, for hosts, pins and variants. If each of them had its own buckets, a client could
use the limit several times.

Requests that lack the counted property (such as the header or a tenant) are limited too: they all share one bucket.
Envoy's filters cannot limit concurrent requests; a route with such a limit has already been closed.
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
"""Maximum number of values that are counted separately. If there are more, the least recently used bucket is
dropped."""
_UNLIMITED = {"max_tokens": 2**32 - 1, "tokens_per_fill": {"value": 2**32 - 1}, "fill_interval": {"seconds": 1}}
"""A placeholder bucket for requests without a limit, because Envoy requires one."""
_LIMIT = "limit"
_OF = "of"
_WITHOUT = "-"
_RETRY = "limit retry after"
_RETRY_AFTER = {"key": "retry-after", "value": f"%METADATA(ROUTE:{NAMESPACE}:{_RETRY})%"}


def idle() -> local_rate_limit_pb2.LocalRateLimit:
    """Return the listener's filter, which has no limits unless a route table configures it."""
    return local_rate_limit_pb2.LocalRateLimit(stat_prefix="rate_limit")


def limited(routes: Sequence[Route]) -> local_rate_limit_pb2.LocalRateLimit:
    """Return the buckets of these routes. All limits of a route apply at the same time."""
    kinds = {_kind(number, item): item for route in routes for number, item in _rates(route)}
    return local_rate_limit_pb2.LocalRateLimit(
        stat_prefix="rate_limit",
        status={"code": "TooManyRequests"},
        token_bucket=_UNLIMITED,
        filter_enabled=_ALL,
        filter_enforced=_ALL,
        response_headers_to_add=[{"header": _RETRY_AFTER}],
        rate_limits=[{"actions": actions} for kind in sorted(kinds) for actions in _actions(kind, kinds[kind])],
        descriptors=[
            descriptor
            for route in routes
            for number, item in _rates(route)
            for descriptor in _descriptors(_name(route, number), item)
        ],
        max_dynamic_descriptors={"value": _BUCKETS},
        always_consume_default_token_bucket={"value": False},
    )


def marks(route: Route) -> dict[str, str]:
    """Return the route metadata with the bucket for each kind of limit, and the seconds until a retry."""
    counted = {_kind(number, item): _name(route, number) for number, item in _rates(route)}
    return {**counted, _RETRY: str(retry_after(route.rate_limits))} if counted else {}


def _rates(route: Route) -> Iterator[tuple[int, RateLimit]]:
    return ((number, item) for number, item in enumerate(route.rate_limits) if item.requests)


def _kind(number: int, limit: RateLimit) -> str:
    """Return the kind of a limit.

    It contains the limit's number, because a route may have several limits on one property.
    """
    return f"limit {number} by {limit.by} {limit.header}".rstrip()


def _name(route: Route, number: int) -> str:
    return f"{route.name}/{number}"


def _actions(kind: str, limit: RateLimit) -> list[list[dict[str, object]]]:
    """Return the rate limit actions of a kind; they skip routes without this kind of limit."""
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


def _descriptors(name: str, limit: RateLimit) -> Iterator[dict[str, object]]:
    """Yield a limit's buckets: one for each tenant with a separate rate, then one for every other value."""
    for tenant, own in limit.tenants:
        yield _descriptor(name, own, {"key": _OF, "value": tenant})
    of = {"key": "remote_address" if limit.by == "client_ip" else _OF}
    yield _descriptor(name, limit, *([of] if limit.by != "all" else []))


def _descriptor(name: str, limit: RateLimit, *of: dict[str, str]) -> dict[str, object]:
    entries = [{"key": _LIMIT, "value": name}, *of]
    bucket = {
        "max_tokens": max(1, limit.burst or limit.requests),
        "tokens_per_fill": {"value": limit.requests},
        "fill_interval": duration(limit.per),
    }
    return {"entries": entries, "token_bucket": bucket}
