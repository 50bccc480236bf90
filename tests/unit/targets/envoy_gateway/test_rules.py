"""The order of rules, as Envoy Gateway compares them."""

from __future__ import annotations

import pytest

from tests.unit.targets.envoy_gateway.rendering import fleet, rendering


@pytest.mark.parametrize(
    ("first", "second", "codes"),
    [
        ('path_regex: "/v[12]/.*"', 'path_regex: "/v[1-9]+/models"', ["LB420"]),
        ('path_regex: "/v[1-9]+/models"', 'path_regex: "/v[12]/.*"', []),
        ('path_regex: "/v[12]/.*"', "path_prefix: /v1/models/of/a/tenant", []),
    ],
)
def test_longer_expressions_come_first(first: str, second: str, codes: list[str]) -> None:
    routes = f"routes: {{a: {{match: {{{first}}}, pool: p}}, b: {{match: {{{second}}}, pool: p}}}}"
    assert rendering(fleet(routes=routes))[1] == codes
