"""The real picker limits prompt tokens for each kind of proxy, in a pool without a queue."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import requests

from tests.support.fleets import Fleet
from tests.support.processes.client import Client
from tests.support.processes.fleet import entry
from tests.support.processes.http1 import Response
from tests.support.processes.lbctl_process import PICKER_MAY_HANG, short_pauses
from tests.support.processes.picker import KINDS, PICK, picked
from tests.support.processes.ports import HOST
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_LIMITS = {"teams": {"header": "x-team"}, "clients": "client_ip", "open": None}
"""Route → `by` of its limit of 100 prompt tokens per hour; None: no limit."""
_PROMPT = json.dumps({"messages": [{"role": "user", "content": "one two three four " * 200}]}).encode()
"""A body with a prompt of several hundred tokens."""


@dataclass(frozen=True, slots=True)
class _Site:
    client: Client
    replica: Replica

    def send(self, path: str, team: str = "a") -> Response:
        return self.client.post(path, _PROMPT, [("content-type", "application/json"), ("x-team", team)])


@pytest.fixture(scope="module", params=KINDS)
def site(request: pytest.FixtureRequest) -> Iterator[_Site]:
    routes: Fleet = {name: {"match": {"path_prefix": f"/{name}"}, "pool": "pool"} for name in _LIMITS}
    for name, by in _LIMITS.items():
        if by is not None:
            routes[name]["rate_limit"] = [{"by": by, "prompt_tokens": "100/h"}]
    with short_pauses(PICKER_MAY_HANG), replicas("a") as (a,):
        pool = {"replicas": [entry(a)], "balance": PICK}
        with picked(request.param, pool, routes=routes) as (control, client):
            port = int(control.status["picker"]["listens"].rpartition(":")[2]) + 1
            eventually(lambda: client.get("/open/").ok and _decisions(port) > 0)
            yield _Site(client, a)


def _decisions(port: int) -> float:
    lines = requests.get(f"http://{HOST}:{port}/metrics", timeout=30).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("lbctl_pick_decisions_total"))


def test_prompts_above_the_limit_get_429_by_header(site: _Site) -> None:
    assert site.send("/teams/first").ok
    site.replica.forget()
    refused = site.send("/teams/second")
    assert (refused.status, refused.json["error"]["type"]) == (429, "rate_limited")
    (seconds,) = refused.header_list("retry-after")
    assert int(seconds) > 3600, "the first prompt has used the tokens of several hours"
    assert refused.header("x-lbctl-refused") is None
    assert site.send("/teams/other", team="b").ok
    assert [seen.path for seen in site.replica.seen] == ["/teams/other"]


def test_prompts_above_the_limit_get_429_by_client(site: _Site) -> None:
    assert [site.send("/clients/", team).status for team in ("a", "b")] == [200, 429]


def test_prompts_of_other_routes_are_not_limited(site: _Site) -> None:
    assert [site.send("/open/").status for _ in range(3)] == [200] * 3


def test_prompt_that_leaves_its_pool_in_nginx_is_charged_once() -> None:
    """The prompt exceeds the whole budget, so a second charge would reject it."""
    limit = [{"by": "all", "prompt_tokens": "100/h"}]
    with short_pauses(PICKER_MAY_HANG), replicas("a", "b") as (a, b):
        pool, spare = ({"replicas": [entry(item)], "balance": PICK} for item in (a, b))
        routes: Fleet = {"open": {"match": {"path_prefix": "/open"}, "pool": "pool"}}
        route = {"fallback": "spare", "rate_limit": limit}
        with picked("nginx", pool, route=route, routes=routes, pools={"spare": spare}) as (control, client):
            port = int(control.status["picker"]["listens"].rpartition(":")[2]) + 1
            eventually(lambda: client.get("/open/").ok and _decisions(port) > 0)
            a.refuse()
            statuses = [client.post("/", _PROMPT, [("content-type", "application/json")]).status for _ in range(2)]
            assert statuses == [200, 429]
            assert [seen.path for seen in b.seen] == ["/"]
            a.accept()
