"""The systems of the comparison with peers: equal health checks and limits for all that have them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from tests.benchmarks.peers import by_hand, routers
from tests.benchmarks.peers.cases import CASES
from tests.benchmarks.peers.replicas import Member
from tests.benchmarks.peers.started import Started
from tests.benchmarks.peers.systems import _TENANT_LIMITS, lbctl_pool, of
from tests.benchmarks.peers.workloads import TENANT_LIMIT

_MEMBERS = [Member("r0", 18001, 19001, 1.2, 12), Member("r1", 18002, 19002, 0.6, 6)]


@pytest.mark.parametrize("hashed", [False, True])
def test_manual_proxies_have_the_same_health_checks(hashed: bool) -> None:
    haproxy = by_hand.haproxy(8080, _MEMBERS, hashed=hashed)
    assert "default-server inter 2s fall 3 rise 2\n" in haproxy
    assert "timeout check 1s\n" in haproxy
    (cluster,) = yaml.safe_load(by_hand.envoy(8080, _MEMBERS, hashed=hashed))["static_resources"]["clusters"]
    assert cluster["health_checks"] == [
        {
            "timeout": "1s", "interval": "2s", "no_traffic_interval": "2s", "unhealthy_threshold": 3,
            "healthy_threshold": 2, "http_health_check": {"path": "/health"},
        }
    ]  # fmt: skip


@pytest.mark.parametrize("way", ["static", "pick", "queue"])
def test_lbctl_has_the_same_health_checks(way: str) -> None:
    assert lbctl_pool(_MEMBERS, way)["health"]["active"] == {
        "http": {"path": "/health"}, "interval": "2s", "timeout": "1s", "unhealthy_threshold": 3,
        "healthy_threshold": 2,
    }  # fmt: skip


def test_routers_have_the_same_health_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[Sequence[str]] = []

    @contextmanager
    def running(command: Sequence[str], port: int, *_: Any) -> Iterator[Started]:
        commands.append(command)
        yield Started(port, [])

    monkeypatch.setattr(routers, "_running", running)
    with routers.smg(_MEMBERS, "cache_aware"), routers.vllm_router(_MEMBERS, "kv_aware"):
        smg, vllm_router = (" ".join(command) for command in commands)
    for command in (smg, vllm_router):
        assert "--health-check-interval-secs 2 --health-check-timeout-secs 1" in command
        assert "--health-failure-threshold 3 --health-success-threshold 2" in command
    assert smg.endswith("--policy cache_aware --load-monitor-interval 1")
    assert "--kv-event-source http://127.0.0.1:18002=tcp://127.0.0.1:19002" in vllm_router


def test_each_name_has_one_text() -> None:
    texts: dict[str, set[str]] = {}
    for each in (each for case in CASES for each in of(case)):
        texts.setdefault(each.name, set()).add(each.settings)
    assert all(len(found) == 1 for found in texts.values())
    assert all(each in texts for each in ("lbctl pick, nginx", "lbctl pick, nginx, queue", "lbctl static, nginx"))


def test_lbctl_limits_tenants_as_the_manual_nginx_does() -> None:
    (limit,) = _TENANT_LIMITS["rate_limit"]
    assert f"rate={limit['rate'].replace('/', 'r/')};" in by_hand.nginx(8080, _MEMBERS, limit=TENANT_LIMIT)
    assert f"burst={limit['burst']} " in by_hand.nginx(8080, _MEMBERS, limit=TENANT_LIMIT)
