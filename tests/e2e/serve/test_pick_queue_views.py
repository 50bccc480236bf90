"""A request that waits at the real picker is shown by the API, the commands and the metrics of `serve`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests

from lbctl.cli import run
from tests.support.processes.control import ControlPlane, controlling
from tests.support.processes.fleet import entry, fleet_of
from tests.support.processes.picker import key_of, picker_section
from tests.support.processes.ports import HOST
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually


def _queue(control: ControlPlane) -> Any:
    (pool,) = control.get("pools")["pools"]
    return pool["queue"]


def test_waiting_request_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    section = picker_section()
    bind = section["control"]["picker"]["bind"]
    url = f"http://{HOST}:{int(bind.rpartition(':')[2]) + 1}/pick/pool"
    with replicas("a") as (a,), ThreadPoolExecutor() as threads:
        pool = {
            "replicas": [entry(a)],
            "balance": {"algorithm": "pick"},
            "circuit_breaker": {"per_replica": {"max_requests": 1}},
            "queue": {"max_wait": "100s", "max_requests": 1},
        }
        with controlling(fleet_of(pool, **section)) as control:
            headers = {"x-lbctl-tenant": "acme", **key_of(control)}

            def status(query: str = "") -> int:
                return requests.get(url + query, headers=headers, timeout=100).status_code

            def is_picked() -> bool:
                try:
                    return status() == 200
                except requests.ConnectionError:
                    return False

            eventually(is_picked)
            waiting = threads.submit(status, "?wait=1")
            eventually(lambda: _queue(control) is not None and _queue(control)["tenants"] == {"acme": 1})
            assert status() == 403
            eventually(lambda: _queue(control)["refused_full"] == 1)
            assert control.metrics()['lbctl_queue_waiting{pool="pool",priority="normal"}'] == 1
            assert control.metric("lbctl_queue_refused_total") == 1
            explained = control.explain_pick({"pool": "pool", "session": None, "body": None, "tenant": "acme"})
            assert explained["queue"] == {"requests": 1, "flows": 1, "seconds": None, "rejected": True}
            assert run(["status", "pools", "--server", control.url]) == 0
            assert (
                "pool: 1 request waits for a replica (1 of tenant acme); 1 was rejected in the last minute: more than "
                "1 waited\n"
            ) in capsys.readouterr().out
            assert not waiting.done()
        assert waiting.result(60) == 204, "the picker ends"
