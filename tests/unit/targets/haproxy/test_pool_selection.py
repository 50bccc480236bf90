"""The variables that are left out of a configuration: only those that no line reads."""

from __future__ import annotations

import pytest

from lbctl.targets.haproxy.pool_selection import POOL, ROUTE, unread


@pytest.mark.parametrize(
    "line",
    [
        "http-request set-header x-route %[var(txn.route)]",
        "http-request set-header x-route %[var(txn.route,-)]",
        'http-request set-header x-route %[var("txn.route")]',
        "http-request set-header x-route %[str(a),concat(,txn.route,)]",
    ],
)
def test_variable_that_a_line_reads_is_kept(line: str) -> None:
    assert unread([line]) == (POOL,)


def test_line_that_sets_a_variable_does_not_read_it() -> None:
    lines = ["http-request set-var(txn.route) str(a)", "http-request set-var-fmt(txn.route_json) a", "str(my.txn.pool)"]
    assert unread(lines) == (ROUTE, POOL)
