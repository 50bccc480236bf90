"""What a HAProxy has loaded stays the same while replicas come and go, so that nothing is reloaded."""

from __future__ import annotations

import pytest

from lbctl.ir.snapshot import Snapshot, View, view
from lbctl.targets.haproxy import TARGET, config_digest, quote
from tests.support.fleet import compiled

_FLEET = """
version: 1
listeners: {{public: {{bind: "127.0.0.1:8080"}}}}
routes: {{chat: {{match: {{path_prefix: /}}, pool: chat}}}}
pools:
  chat:
    balance: {{algorithm: {algorithm}}}
    {more}
    health: {{active: {{http: {{path: /health}}}}, load_shedding: {{min_healthy: 40%}}}}
    circuit_breaker: {{per_replica: {{max_requests: 100}}, max_requests: 600}}
    replicas: [{replicas}]
proxies: {{edge: {{kind: haproxy, runtime_api: /run/admin.sock{proxy}}}}}
"""


def rendered(first: int, last: int, algorithm: str = "pick", more: str = "", proxy: str = "") -> View:
    names = (f'{{name: r{number:02}, address: "10.0.0.{number}:8000"}}' for number in range(first, last + 1))
    text = _FLEET.format(algorithm=algorithm, more=more, proxy=proxy, replicas=", ".join(names))
    topology = compiled(text).topology
    return view(Snapshot(topology), topology.proxies[0])


def digest(shown: View) -> str:
    return config_digest.of(TARGET.render(shown))


@pytest.mark.parametrize("more", ["", "affinity: {cookie: lb}", "slow_start: {window: 10s}"])
@pytest.mark.parametrize("algorithm", ["pick", "least_request"])
def test_the_digest_does_not_follow_the_replicas(algorithm: str, more: str) -> None:
    few, many = rendered(7, 9, algorithm, more), rendered(1, 12, algorithm, more)
    assert digest(few) == digest(many)
    assert digest(few) != digest(rendered(7, 9, "random", more))


def test_a_pool_with_affinity_has_half_as_many_slots_again_and_at_least_four() -> None:
    sticky = "affinity: {cookie: lb}"
    for last, slots in ((3, 4), (12, 6)):
        text = TARGET.render(rendered(1, last, more=sticky)).main.text
        assert text.count("    server SLOT.chat.") == slots
        assert text.count("    server r") == last


@pytest.mark.parametrize(("written", "slots"), [("", 0), (", slots: 3", 3), (", slots: 0", 0)])
def test_other_pools_have_the_slots_that_the_fleet_names(written: str, slots: int) -> None:
    bundle = TARGET.render(rendered(1, 3, proxy=written))
    assert bundle.main.text.count("    server SLOT.chat.") == slots
    assert any(file.name == "slots.map" for file in bundle.files) == (slots > 0)


def test_no_character_leaves_a_lua_string() -> None:
    token = quote.lua('"]]\\\n\x00--é').text
    assert token == '"\\034\\093\\093\\092\\010\\000--\\195\\169"'
