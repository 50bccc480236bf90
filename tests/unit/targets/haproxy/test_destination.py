"""Which of the variables of lbctl's own are left out of a configuration: only those that no line reads in any way."""

from __future__ import annotations

import pytest

from lbctl.targets.haproxy.destination import POOL, ROUTE, unread


@pytest.mark.parametrize(
    "line",
    [
        "http-request set-header x-route %[var(txn.route)]",
        "http-request set-header x-route %[var(txn.route,-)]",
        'http-request set-header x-route %[var("txn.route")]',
        "http-request set-header x-route %[str(a),concat(,txn.route,)]",
    ],
)
def test_a_line_that_reads_a_variable_keeps_it(line: str) -> None:
    assert unread([line]) == (POOL,)


def test_a_line_that_sets_a_variable_or_names_another_one_does_not_read_it() -> None:
    lines = ["http-request set-var(txn.route) str(a)", "http-request set-var-fmt(txn.route_json) a", "str(my.txn.pool)"]
    assert unread(lines) == (ROUTE, POOL)
