"""The headers that only a trusted peer may send: the groups say the same as the whole expression."""

from __future__ import annotations

import re

from lbctl.targets import client_headers


def test_the_groups_match_what_the_whole_expression_matches() -> None:
    names = [*client_headers.CLAIMS, "x-forwarded-for", "x_real_ip", "x-real-ip-2", "accept", "x-team"]
    groups = [re.compile(group) for group in client_headers.claim_groups(["x-team"])]
    whole = re.compile(client_headers.claims(["x-team"]))
    for name in names:
        assert any(group.match(name) for group in groups) == bool(whole.match(name)), name


def test_each_group_is_short_enough_for_an_envoy_without_runtime_settings() -> None:
    """Envoy counts the instructions of RE2, by default at most 100: one for a character, a few for each alternative."""
    for group in client_headers.claim_groups(["x-a-header-of-the-fleet-with-a-long-name"]):
        assert len(group.replace("[-_]", "--")) + group.count("|") <= 100
