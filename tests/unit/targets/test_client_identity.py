"""The headers that only a trusted peer may send: the groups match the same as the complete expression."""

from __future__ import annotations

import re

from lbctl.targets import client_identity


def test_groups_match_the_same_as_the_complete_expression() -> None:
    names = [*client_identity.CLAIMS, "x-forwarded-for", "x_real_ip", "x-real-ip-2", "accept", "x-team"]
    groups = [re.compile(group) for group in client_identity.claim_groups(["x-team"])]
    complete = re.compile(client_identity.claims(["x-team"]))
    for name in names:
        assert any(group.match(name) for group in groups) == bool(complete.match(name)), name


def test_each_group_fits_envoys_default_program_size() -> None:
    """Envoy counts the instructions of RE2, by default at most 100: one per character, a few per alternative."""
    for group in client_identity.claim_groups(["x-a-header-of-the-fleet-with-a-long-name"]):
        assert len(group.replace("[-_]", "--")) + group.count("|") <= 100
