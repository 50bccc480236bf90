"""The variables and ACLs that a line of haproxy.cfg reads and sets; those that are read are rendered."""

from __future__ import annotations

import re

import pytest

from lbctl.targets.haproxy.quote import line, word
from tests.golden.cases import configurations

CONFIGURATIONS = configurations("haproxy")
VARIABLES = ("txn.authority", "txn.host", "txn.path", "txn.segments", "txn.route")
ACLS = ("routed", "chosen", "drawn")


@pytest.mark.parametrize(
    "text",
    [
        "http-request set-header x-route %[var(txn.route)]",
        "http-request set-header x-route %[var(txn.route,-)]",
        'http-request set-header x-route %[var("txn.route")]',
        "http-request set-header x-route %[str(a),concat(,txn.route,)]",
        "http-request set-header x-route '%[var(txn.route)]'",
        "acl routed var(txn.route) -m found",
        "http-request set-var(txn.a) var(txn.route)",
        "balance hash var(txn.route)",
    ],
)
def test_line_reads_the_variables_in_it(text: str) -> None:
    assert line(text).reads == {"txn.route"}


def test_line_reads_the_acls_of_its_condition() -> None:
    conditions = "m0 !routed { var(txn.pool) -m str -- chosen } || drawn"
    assert line("http-request return status 404 if", conditions).reads == {"m0", "routed", "drawn", "txn.pool"}


@pytest.mark.parametrize(
    "text", ["http-request set-var(txn.route) str(a)", "http-request set-var-fmt(txn.route_json) a", "str(my.txn.pool)"]
)
def test_line_that_sets_a_variable_does_not_read_it(text: str) -> None:
    assert not line(text).reads


def test_quoted_text_is_not_a_condition() -> None:
    answer = word("ask again if chosen's { drawn")
    assert line("http-request return status 503 string", answer, "if routed").reads == {"routed"}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("http-request set-var(txn.route) str(a)", "txn.route"),
        ("http-request set-var-fmt(txn.segments) '%[var(txn.path)]/'", "txn.segments"),
        ("http-after-response set-var(txn.status) status", "txn.status"),
        ("acl routed var(txn.route) -m found", "routed"),
        ("http-request set-header x 'set-var(txn.route)'", ""),
        ("server a 127.0.0.1:1", ""),
    ],
)
def test_line_sets_the_variable_or_the_acl_that_it_defines(text: str, name: str) -> None:
    assert line(text).sets == name


@pytest.mark.parametrize("case", CONFIGURATIONS)
def test_definitions_are_rendered_if_they_are_read(case: str) -> None:
    for section in CONFIGURATIONS[case].split("\nfrontend ")[1:]:
        frontend = section.partition("\nbackend ")[0]
        for name in VARIABLES:
            is_read, is_set = f"var({name})" in frontend, re.search(rf"set-var(-fmt)?\({name}\)", frontend)
            assert is_set or not is_read
        for name in ACLS:
            is_read = re.search(rf"(?<!acl) !?{name}(?![\w.])", frontend) is not None
            assert is_read == (f"acl {name} " in frontend)
