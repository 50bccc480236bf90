"""For any input from clients, HAProxy and nginx forward it unchanged, the picker responds, and no pick stays open."""

from __future__ import annotations

import gzip
import json

import pytest

from tests.support.processes.fleet import entry
from tests.support.processes.http1 import Request
from tests.support.processes.picker import picked
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually

JSON = ("content-type", "application/json")
BODIES = {
    "no JSON": b"\x00\xff{",
    "compressed": gzip.compress(json.dumps({"prompt": "x" * 5000}).encode()),
    "nested": b'{"messages":' * 100 + b"1" + b"}" * 100,
    "brackets": b"[" * 100_000,
    "10 MB": json.dumps({"prompt": "x" * 10_000_000}).encode(),
    "a session of control characters": json.dumps({"prompt_cache_key": "\x00\r\n\x1b\x7f", "prompt": "x"}).encode(),
    "a session of 200 kB": json.dumps({"prompt_cache_key": "k" * 200_000}).encode(),
}
SESSIONS = {
    "of control characters": "\x01\x1b\x7f",
    "not of ASCII": "ä\xff",
    "of 6 kB": "k" * 6_000,
    "with quotes": '"\\',
}


@pytest.mark.parametrize("kind", ["haproxy", "nginx"])
def test_malformed_requests_are_forwarded_and_each_pick_ends(kind: str) -> None:
    with (
        replicas("a", "b") as two,
        picked(kind, {"replicas": list(map(entry, two)), "balance": {"algorithm": "pick"}}) as (
            control,
            client,
        ),
    ):
        eventually(lambda: client.post("/").ok and control.metric("lbctl_pick_decisions_total") > 0)
        for name, body in BODIES.items():
            for chunked in (False, True):
                response = client.post("/", body, [JSON], chunked=chunked)
                assert (response.status, name, chunked) == (200, name, chunked)
                assert len(response.json["body"]) == len(body)
        for name, session in SESSIONS.items():
            answer = client.request("POST", "/", [JSON, ("x-session-id", session)], b"{}")
            assert answer.status in (200, 400), f"{name}: {answer.status}"
        load = client.load(40, 4, Request("POST", "/", (JSON,), b'{"prompt": "x"}'))
        load.assert_no_failure()
        eventually(lambda: control.metric("lbctl_pick_open") == 0.0)
        reasons = {reason for pool in control.get("picks")["pools"] for reason in pool["decisions"]}
        assert "error" not in reasons
