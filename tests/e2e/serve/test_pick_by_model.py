"""The picker is queried for routes that are distinguished by the model in the body, and for no other requests."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest

from tests.support.processes.fleet import entry
from tests.support.processes.http1 import Request, Response
from tests.support.processes.picker import KINDS, picked
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually

PICK = {"algorithm": "pick", "pick": {"timeout": "20s", "prefix": "off", "session": ["x-session-id"]}}


def _chat(kind: str, model: str, session: str = "s") -> Request:
    """Return a request for a model; nginx does not read it in the body."""
    headers = (("content-type", "application/json"), ("x-session-id", session))
    named = (("x-model", model),) if kind == "nginx" else ()
    return Request("POST", "/v1/chat/completions", (*headers, *named), json.dumps({"model": model}).encode())


def _content_length(response: Response) -> int:
    """Return the `content-length` that the replica got; a chunked body has none."""
    headers = {name.lower(): value for name, value in response.json["headers"]}
    return int(headers["content-length"])


@pytest.mark.parametrize("kind", KINDS)
def test_picker_is_asked_for_the_model_in_the_body(kind: str) -> None:
    with replicas("a", "b", "c", "plain") as members:
        plain = members[-1]
        pool = {"replicas": [entry(item) for item in members[:-1]], "balance": PICK}
        routes = {
            "everything": {"match": {"path_prefix": "/v1", "model": ["llama"]}},
            "plain": {"match": {"path_prefix": "/v1", "model": ["mistral"]}, "pool": "plain"},
        }
        more = {"routes": {"plain": routes["plain"]}, "pools": {"plain": {"replicas": [entry(plain)]}}}
        with picked(kind, pool, route=routes["everything"], **more) as (control, client):
            homes: dict[str, set[str | None]] = defaultdict(set)
            load = client.load(48, 4, lambda number: _chat(kind, "llama", f"s{number % 12}"))
            load.assert_no_failure()
            for response in load.responses:
                homes[str(dict(response.json["headers"])["x-session-id"])].add(response.replica)
            assert all(len(home) == 1 for home in homes.values()), homes
            assert {"a", "b", "c"} == {name for home in homes.values() for name in home}
            assert {_content_length(response) for response in load.responses} == {len(_chat(kind, "llama").body)}
            assert client.load(12, 4, _chat(kind, "mistral")).by_replica == {"plain": 12}
            assert client.load(4, 2, _chat(kind, "other")).statuses == {404: 4}
            eventually(lambda: sum(sum(row["decisions"].values()) for row in control.get("picks")["pools"]) == 48)
            eventually(lambda: control.metric("lbctl_pick_open") == 0.0)
            assert not {"picker_unasked", "picks_missed"} & {item["kind"] for item in control.status["problems"]}
