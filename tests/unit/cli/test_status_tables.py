"""The tables of `lbctl status`: what is not known of a proxy's traffic has its reason there."""

from __future__ import annotations

from dataclasses import replace

from lbctl.cli import status_tables
from tests.support import api

REASON = "reports are only taken by the Unix socket"


def test_a_proxy_whose_reports_are_not_taken_says_why() -> None:
    refused = status_tables.proxies((replace(api.ENVOY, reports_refused=REASON),), "table")
    assert f"its requests are not counted: {REASON}" in refused
    assert "not counted" not in status_tables.proxies((api.ENVOY,), "table")


def test_below_the_shares_stands_why_none_is_observed_once_for_all_pools() -> None:
    pools = tuple(replace(api.pool(name), unable={"edge-1": REASON}) for name in ("a", "b"))
    assert status_tables.pools(pools, "table").splitlines()[-1] == f"the requests of edge-1 are not counted: {REASON}"
    assert status_tables.pools(pools, "wide").count(REASON) == 1
