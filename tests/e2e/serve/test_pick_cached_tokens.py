"""The tokens that the picker expects in caches are compared with the tokens that engines find there."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.processes.control import ControlPlane
from tests.support.processes.engines import Engine, engines
from tests.support.processes.fleet import entry
from tests.support.processes.http1 import Request
from tests.support.processes.picker import picked
from tests.support.processes.waiting import eventually

_PICK = {"algorithm": "pick", "pick": {"timeout": "20s", "prefix": "off", "session": ["x-session-id"]}}
_HITS = 'vllm:prefix_cache_hits_total{{model_name="m"}} {}\n'


def _turn(number: int) -> Request:
    """Return a turn of one of 16 sessions, with a prompt of about 1,000 tokens."""
    headers = (("content-type", "application/json"), ("x-session-id", f"s{number % 16}"))
    return Request("POST", "/v1/chat/completions?n=2", headers, b'{"prompt": "%s"}' % (b"word " * 800))


def _cached(control: ControlPlane) -> dict[str, Any]:
    (pool,) = control.get("pools")["pools"]
    return {"pool": pool["cached"], **{row["name"]: row["cached"] for row in pool["replicas"]}}


@pytest.mark.slow
def test_status_compares_expected_with_found_cached_tokens() -> None:
    with engines("a", "b") as members:
        a: Engine = members[0]
        a.more = _HITS.format(70_000)
        pool = {
            "replicas": [entry(item) for item in members],
            "balance": _PICK,
            "telemetry": {"interval": "1s", "sources": [{"kind": "vllm", "url": "http://{host}:{port}/metrics"}]},
        }
        with picked("haproxy", pool) as (control, client):
            eventually(lambda: (_cached(control)["a"] or {}).get("found") == 0)
            assert _cached(control)["b"]["found"] is None
            client.load(160, 4, _turn).assert_no_failure()
            a.more = _HITS.format(70_000 + 600)
            eventually(lambda: _cached(control)["a"]["found"] == 600)
            cached = _cached(control)
            row = cached["a"]
            assert row["expected"] > 10_000, "each of its sessions had ten turns"
            assert row["ratio"] == pytest.approx(600 / row["expected"], abs=1e-4)
            assert row["sources"] == {"device": 600}
            assert "session key" in row["advice"]
            assert cached["pool"] == row, "only replicas whose engines report cached tokens count"
            assert (cached["b"]["found"], cached["b"]["ratio"]) == (None, None)
            (picks,) = control.get("picks")["pools"]
            assert picks["cached_by_replica"]["a"]["found"] == 600
            metrics = control.metrics()
            assert metrics['lbctl_pick_found_cached_tokens_total{pool="pool",replica="a",source="device"}'] == 600
            assert metrics['lbctl_pick_cached_tokens_ratio{pool="pool",replica="a"}'] < 0.1


@pytest.mark.slow
def test_prompt_lengths_are_learned_from_counters() -> None:
    with engines("a", "b") as members:
        pool = {
            "replicas": [entry(item) for item in members],
            "balance": _PICK,
            "telemetry": {"interval": "1s", "sources": [{"kind": "vllm", "url": "http://{host}:{port}/metrics"}]},
        }
        with picked("haproxy", pool) as (control, client):
            assert control.get("picks")["pools"] == []

            def factors() -> dict[str, float]:
                client.load(40, 4, _turn).assert_no_failure()
                pools = control.get("picks")["pools"]  # empty until the first report of the picker
                return (pools[0]["length_factors"] if pools else None) or {}

            eventually(lambda: factors().get("ascii", 1.0) < 0.9)
            assert factors()["other"] == factors()["parts"] == 1.0, "a prompt has 50 tokens, and its body 4,000 bytes"
