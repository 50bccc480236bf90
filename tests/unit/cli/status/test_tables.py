"""The tables of `lbctl status` show why the traffic of a proxy is unknown."""

from __future__ import annotations

from msgspec.structs import replace

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
