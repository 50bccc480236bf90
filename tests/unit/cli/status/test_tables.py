"""The tables of `lbctl status` show why the traffic of a proxy is unknown."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from lbctl.api import schema
from lbctl.cli.status import tables
from tests.support import api

REASON = "reports are accepted only over the Unix socket"


def test_proxy_with_refused_reports_has_the_reason() -> None:
    refused = tables.proxies((replace(api.ENVOY, reports_refused=REASON),), "table")
    assert f"its requests are not counted: {REASON}" in refused
    assert "not counted" not in tables.proxies((api.ENVOY,), "table")


def test_reason_for_missing_counts_is_shown_once_for_all_pools() -> None:
    pools = tuple(replace(api.pool(name), unable={"edge-1": REASON}) for name in ("a", "b"))
    assert tables.pools(pools, "table").splitlines()[-1] == f"the requests of edge-1 are not counted: {REASON}"
    assert tables.pools(pools, "wide").count(REASON) == 1


def _cached(cached: schema.CachedTokens | None) -> str:
    pool = replace(api.pool("chat", replace(api.REPLICA, cached=cached)), cached=cached)
    return tables.pools((pool,), "wide")


def test_pool_shows_expected_and_found_cached_tokens() -> None:
    sources = {"device": 90_000, "host": 10_000, "disk": 0}
    text = _cached(schema.CachedTokens(125_000, 100_000, sources, 0.8, None, 70))
    assert text.splitlines()[-1] == (
        "chat: engines found 80.0% of the 125,000 prompt tokens that the picker expected in caches in the last "
        "70s (90.0% device, 10.0% host)"
    )
    assert "CACHED" in text
    assert "80.0%" in text.splitlines()[1].split()
    low = _cached(schema.CachedTokens(125_000, 0, {}, 0.0, "evictions"))
    assert low.endswith("in the last 5 minutes. A low ratio has one of these causes: evictions")
    high = _cached(schema.CachedTokens(10_000, 40_000, {}, 4.0, None))
    assert high.endswith("engines also found tokens of requests that this picker did not count")
    early = _cached(schema.CachedTokens(125_000, 0, {"device": 5}, 0.0, None))
    assert early.endswith("(100.0% device)"), "an engine may count a source before the total"


def test_pool_shows_how_many_replicas_report_cached_tokens() -> None:
    counts = schema.CachedTokens(1000, 900, {}, 0.9, None)
    unknown = schema.CachedTokens(1000, None, {}, None, None)
    replicas = [replace(api.REPLICA, name=name, cached=item) for name, item in (("a", counts), ("b", unknown))]
    text = tables.pools((replace(api.pool("chat", *replicas), cached=counts),), "table")
    assert text.splitlines()[-1].endswith("; only 1 of 2 replicas have current counts")


def test_unreported_cached_tokens_are_unknown() -> None:
    text = _cached(schema.CachedTokens(125_000, None, {}, None, None))
    assert text.splitlines()[1].split().count("unknown") == 1
    line = text.splitlines()[-1]
    assert line.startswith("chat: engines found an unknown part of the 125,000 prompt tokens")
    assert line.endswith(
        ", because they report no current counts (see `lbctl status signals`; on a follower, ask the leader)"
    )
    assert "cached" not in _cached(schema.CachedTokens(0, 5, {}, None, None)), "nothing was expected"
    assert "cached" not in _cached(None)


QUEUE = schema.PoolQueue(
    max_requests=500, max_wait_seconds=10.0, waiting=12, priorities={"high": 2, "normal": 10, "low": 0},
    tenants={"zeta": 1, "acme": 3}, released=40, mean_wait_seconds=0.41,
    waits={"acme": schema.QueueWaits(30, 0.5), "zeta": schema.QueueWaits(10, 1.25)}, refused_full=4, refused_late=0,
    left=1,
)  # fmt: skip


def _queue(form: str = "table", **changes: Any) -> list[str]:
    """Return the lines about the queue of a pool."""
    pool = replace(api.pool("llama", api.REPLICA), queue=replace(QUEUE, **changes))
    return [line for line in tables.pools((pool,), form).splitlines() if line.startswith("llama: ")]


def test_pool_shows_waiting_and_rejected_requests() -> None:
    waiting = "llama: 12 requests wait for a replica (3 of tenant acme)"
    assert _queue() == [f"{waiting}; 4 were rejected in the last minute: more than 500 waited"]
    assert _queue(refused_full=0) == [waiting]
    assert _queue(waiting=1, tenants={}, refused_full=0) == ["llama: 1 request waits for a replica"]
    late = _queue(waiting=0, tenants={}, refused_full=0, refused_late=1)
    assert late == ["llama: 1 request was rejected in the last minute: the wait exceeded 10 s"]
    both = _queue(waiting=0, tenants={}, refused_late=2)
    assert both == [
        "llama: 6 requests were rejected in the last minute: more than 500 waited (4), the wait exceeded 10 s (2)"
    ]


def test_queue_without_waiting_or_rejected_requests_is_silent() -> None:
    assert _queue(waiting=0, tenants={}, refused_full=0) == []
    assert "llama: " not in tables.pools((api.pool("llama", api.REPLICA),), "wide"), "the pool has no queue"


def test_wide_format_shows_all_counts_of_a_queue() -> None:
    assert _queue("wide") == [
        (
            "llama: 12 requests wait for a replica (3 of tenant acme, 1 of tenant zeta, 2 with priority high, 10 with "
            "priority normal); 4 were rejected in the last minute: more than 500 waited; 40 got a replica in the last "
            "minute, after 410 ms (mean); 1 client left in the last minute"
        ),
        "llama: mean waits of tenants in the last minute (requests): acme 500 ms (30), zeta 1.25 s (10)",
    ]
    idle = _queue("wide", waiting=0, tenants={}, priorities={}, released=0, waits={}, refused_full=0, left=0)
    assert idle == ["llama: 0 requests wait for a replica"]
