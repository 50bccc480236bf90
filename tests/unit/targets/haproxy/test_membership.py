"""The digest of a loaded configuration stays the same while replicas come and go, so that HAProxy is not reloaded."""

from __future__ import annotations

import pytest

from lbctl.ir.snapshot import Snapshot, view
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
proxies: {{edge: {{kind: haproxy, runtime_api: /run/admin.sock}}}}
"""


def digest(first: int, last: int, algorithm: str, more: str) -> str:
    """Return the digest for the replicas from number `first` to number `last`."""
    names = (f'{{name: r{number:02}, address: "10.0.0.{number}:8000"}}' for number in range(first, last + 1))
    text = _FLEET.format(algorithm=algorithm, more=more, replicas=", ".join(names))
    topology = compiled(text).topology
    return config_digest.of(TARGET.render(view(Snapshot(topology), topology.proxies[0])))


@pytest.mark.parametrize("more", ["", "affinity: {cookie: lb}", "slow_start: {window: 10s}"])
@pytest.mark.parametrize("algorithm", ["pick", "least_request"])
def test_digest_is_independent_of_the_replicas(algorithm: str, more: str) -> None:
    assert digest(7, 9, algorithm, more) == digest(1, 12, algorithm, more)
    assert digest(7, 9, algorithm, more) != digest(7, 9, "random", more)


def test_lua_string_escapes_special_characters() -> None:
    token = quote.lua('"]]\\\n\x00--é').text
    assert token == '"\\034\\093\\093\\092\\010\\000--\\195\\169"'
