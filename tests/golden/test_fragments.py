"""nginx fragments change nothing in the servers of the host, and their names do not collide with the host's names."""

from __future__ import annotations

import re

import pytest

from tests.golden.cases import configurations
from tests.golden.test_readable import without_own_lines

FRAGMENTS = {case: without_own_lines(text) for case, text in configurations("nginx").items() if "\nhttp {" not in text}
INHERITED = re.compile(r"^    (?!#|map |geo |split_clients |log_format |upstream |server |limit_\w+_zone |\s|\})\S+")
"""A directive in the http block of the host that all of its servers inherit."""
NAMES = re.compile(r"^ *(?:map \S.* (\$\S+) \{|geo (\S+) \{|upstream (\S+) \{|log_format (\S+)|.* zone=(\w+):)")


def test_there_are_fragments() -> None:
    assert {"fragment", "fragment-and-names-of-lbctl", "whole-contract-2"} <= FRAGMENTS.keys()


@pytest.mark.parametrize("case", FRAGMENTS)
def test_fragment_sets_nothing_that_other_servers_inherit(case: str) -> None:
    text = FRAGMENTS[case]
    assert [line for line in text.splitlines() if INHERITED.match(line)] == []
    assert "default_server" not in text
    listeners = text.count("\n    server {") - text.count(" stub_status;")
    for setting in ("server_tokens off;", "types { }", "underscores_in_headers off;", "proxy_intercept_errors off;"):
        assert text.count(f" {setting}") == listeners


@pytest.mark.parametrize("case", FRAGMENTS)
def test_each_name_of_a_fragment_has_the_prefix(case: str) -> None:
    matches = (NAMES.match(line) for line in FRAGMENTS[case].splitlines())
    names = [name for match in matches if match for name in match.groups() if name]
    assert len(names) > 20
    assert [name for name in names if not name.lstrip("$").startswith("lbctl_")] == []
    assert re.findall(r"(?<!\\)\$lb_\w*", FRAGMENTS[case]) == []
