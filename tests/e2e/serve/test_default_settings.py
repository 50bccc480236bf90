"""Deep health with the default settings of a fleet, on Envoy, HAProxy and nginx, in real time.

With shorter settings, `make test` has a wedged and a saturated engine in `test_live_envoy`, a wedged one behind HAProxy
and nginx in `test_live_beside`, and reserved memory in `tests/integration/control/test_health.py`. Tests that take
minutes are in `defaults`, for `make defaults`.
"""

from __future__ import annotations

import re
import time
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.processes.all_proxies import INTERVAL, STALLED_AFTER, Three, pool_by_default, source, three, until
from tests.support.processes.engines import Engine, engines
from tests.support.processes.exporters import Page
from tests.support.processes.http1 import Request
from tests.support.processes.waiting import at_rest, eventually

_T4 = """\
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0",modelName="Tesla T4"} 71
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",modelName="Tesla T4"} 100
# TYPE DCGM_FI_DEV_FB_FREE gauge
DCGM_FI_DEV_FB_FREE{gpu="0",modelName="Tesla T4"} 1510
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{gpu="0",modelName="Tesla T4"} 13590
"""
_OF_ANY_ENGINE = {
    "kind": "custom",
    "url": "http://{address}/metrics",
    "metric": "vllm:iteration_tokens_total_count",
    "signal": "progress",
    "unit": "count",
}
_TAKEN_OUT = re.compile(r'lbctl_replica_out\{pool="([^"]+)",(?:reason="[^"]*",)?replica="([^"]+)"')


@pytest.mark.nightly
def test_wedged_engine_gets_no_new_requests() -> None:
    """Its checks and its metrics still answer with 200."""
    with engines(*"abcd", slots=48) as members, three(pool_by_default(members)) as site:
        with site.load(6) as loads:
            time.sleep(2 * INTERVAL)
            members[0].wedged = True
            wedged = time.monotonic()
            try:
                until(wedged + STALLED_AFTER + 2 * INTERVAL)
                eventually(lambda: _out(site) == {("pool", "a")})
                requests = at_rest(lambda: members[0].requests)
                time.sleep(6)
                assert members[0].requests == requests
                assert _out(site) == {("pool", "a")}
                assert members[0].behaviour.health == 200
            finally:
                members[0].wedged = False
        for load in loads.values():
            load.load.assert_no_failure()


@pytest.mark.nightly
def test_reserved_memory_and_saturation_eject_no_engine() -> None:
    """The same page of GPU memory ejects an engine that reserves no memory, so it is read and below the limit."""
    with ExitStack() as stack:
        t4, full, other = (stack.enter_context(engines(*names, slots=4)) for names in ("abc", "de", "fgh"))
        page = stack.enter_context(Page("dcgm", _T4))
        dcgm = {"kind": "dcgm", "url": f"http://{page.address}/metrics"}
        pools = {
            "full": pool_by_default(full),
            "other": _with_limit(other, {"sources": [_OF_ANY_ENGINE, dcgm]}),
        }
        routes = {name: {"match": {"path_prefix": f"/{name}/"}, "pool": name} for name in pools}
        reserved = _with_limit(t4, {"sources": [source("{address}"), dcgm]})
        site = stack.enter_context(three(reserved, pools=pools, routes=routes))
        with site.load(4):
            crowd = [
                client.send_load(120, 16, Request("POST", "/full/v1/completions?n=100", timeout=90.0))
                for client in site.clients.values()
            ]
            eventually(lambda: min(item.in_flight for item in full) > 16)
            eventually(lambda: _out(site) == {("other", "f")})
            time.sleep(3 * INTERVAL)
            assert min(item.in_flight for item in full) > 16
            assert _out(site) == {("other", "f")}
            for engine in full:
                engine.slots = 64
        for each in crowd:
            each.result(90).assert_no_failure()


def _with_limit(members: list[Engine], telemetry: dict[str, Any]) -> dict[str, Any]:
    """Return a pool with a limit of free memory, whose first replica has its own `telemetry`."""
    pool = pool_by_default(members)
    pool["health"]["deep"] = {"min_free_memory": "2GiB"}
    pool["replicas"][0]["telemetry"] = telemetry
    return pool


def _out(site: Three) -> set[tuple[str, str]]:
    """Return (pool, replica) of those that deep health has ejected."""
    return {(match[1], match[2]) for series in site.control.metrics() if (match := _TAKEN_OUT.match(series))}
