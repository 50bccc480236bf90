"""The examples about picking, with a picker: their pools as in the files, with replicas on loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from tests.support.paths import ROOT
from tests.support.processes.client import Client
from tests.support.processes.control import ControlPlane
from tests.support.processes.fleet import entry
from tests.support.processes.http1 import Request
from tests.support.processes.picker import PICK, open_picks, picked
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

COUNT = 6
"""The number of requests for each session, document or adapter."""


@contextmanager
def _example(name: str, kind: str) -> Iterator[tuple[ControlPlane, Client, list[Replica]]]:
    """Run the only pool of an example behind a proxy, which waits longer for the picker of a busy machine."""
    (pool,) = yaml.safe_load((ROOT / "examples" / f"{name}.yaml").read_text())["pools"].values()
    with replicas(*(item["name"] for item in pool["replicas"])) as members:
        places = [{**item, **entry(replica)} for item, replica in zip(pool["replicas"], members, strict=True)]
        patient = {**PICK, "pick": {**pool["balance"].get("pick", {}), **PICK["pick"]}}
        with picked(kind, {**pool, "balance": {**pool["balance"], **patient}, "replicas": places}) as (control, client):
            eventually(lambda: client.post("/").ok and control.metric("lbctl_pick_decisions_total") > 0)
            yield control, client, members


def _request(**fields: Any) -> Request:
    return Request("POST", "/v1/completions", (("content-type", "application/json"),), json.dumps(fields).encode())


def _homes(control: ControlPlane, client: Client, requests: list[Request]) -> set[str]:
    """Return which replicas answer these requests.

    They are sequential, each after the report of the previous one's end.
    """
    homes, picker = set[str](), int(control.status["picker"]["listens"].rpartition(":")[2])
    for request in requests:
        load = client.load(1, 1, request)
        load.assert_no_failure()
        homes |= set(load.by_replica)
        eventually(lambda: open_picks(picker) == 0)
    return homes


@pytest.mark.parametrize("kind", ["nginx", pytest.param("envoy", marks=pytest.mark.nightly)])
def test_turns_of_an_agent_go_to_the_replica_of_its_conversation(kind: str) -> None:
    with _example("agents-with-sessions", kind) as (control, client, _):
        for number in range(4):
            turns = [_request(prompt="x" * 400 * turn, prompt_cache_key=f"agent-{number}") for turn in range(1, COUNT)]
            assert len(_homes(control, client, turns)) == 1
        sessions = [_request(prompt=f"{number} " * 4000, metadata={"session_id": str(number)}) for number in range(16)]
        load = client.load(16, 16, lambda number: sessions[number])
        assert len(load.by_replica) >= 2, "conversations are spread"


@pytest.mark.parametrize("kind", ["envoy", pytest.param("nginx", marks=pytest.mark.nightly)])
def test_questions_about_a_document_share_a_replica_with_a_limit(kind: str) -> None:
    with _example("shared-system-prompt", kind) as (control, client, members):
        for document in ("one", "two"):
            questions = [_request(prompt=f"{document} " * 4000 + f"Question {number}?") for number in range(COUNT)]
            assert len(_homes(control, client, questions)) == 1
        for replica in members:
            replica.behave(delay=1.0)
        crowd = client.load(40, 40, lambda number: _request(prompt="one " * 4000 + f"And {number}?"))
        crowd.assert_no_failure()
        assert max(crowd.by_replica.values()) <= 1.25 * 40 / len(members) + 10, "a crowd does not queue at one replica"


@pytest.mark.parametrize("kind", ["haproxy", pytest.param("nginx", marks=pytest.mark.nightly)])
def test_requests_for_an_adapter_go_to_one_replica(kind: str) -> None:
    with _example("adapters", kind) as (control, client, _):
        for adapter in ("support-de", "sql"):
            questions = [_request(model=adapter, prompt=f"{number}?") for number in range(COUNT)]
            assert len(_homes(control, client, questions)) == 1
        base = [_request(model="meta-llama/Llama-3.1-8B-Instruct", prompt=f"{number}?") for number in range(24)]
        assert len(_homes(control, client, base)) >= 2, "the model itself is everywhere"
