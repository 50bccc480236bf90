"""A pool whose replicas are listed in a file of Prometheus' format, with labels for their keys."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import fleet_of, put, running
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually


def _fleet_with_targets() -> Fleet:
    return fleet_of({"discovery": {"file": {"path": "targets.json"}}, "balance": {"algorithm": "round_robin"}})


def _group(replica: Replica, **labels: str) -> dict[str, Any]:
    return {"targets": [replica.address], "labels": labels}


def _files(*groups: dict[str, Any]) -> dict[str, str]:
    return {"targets.json": json.dumps(groups)}


def test_each_target_is_a_replica(kind: Kind) -> None:
    with replicas("a", "b", "c") as (a, b, c):
        groups = [{"targets": [a.address, b.address], "labels": {"team": "search"}}, _group(c)]
        with running(kind, _fleet_with_targets(), files=_files(*groups)) as gateway:
            load = gateway.load(30)
    assert load.by_replica == {"a": 10, "b": 10, "c": 10}


@pytest.mark.parametrize("labels", [("weight", "3", "1"), ("gpu", "A100-80GB", "T4")], ids=["weight", "gpu"])
def test_labels_set_the_weight(kind: Kind, labels: tuple[str, str, str]) -> None:
    key, more, less = labels
    with replicas("a", "b") as (a, b):
        groups = _group(a, **{key: more}), _group(b, **{key: less})
        with running(kind, _fleet_with_targets(), files=_files(*groups)) as gateway:
            shares = gateway.load(100, 2).shares()
    assert shares["a"] > 0.7


def test_labels_set_name_and_priority(kind: Kind) -> None:
    with replicas("a", "b") as (a, b):
        groups = _group(a, name="first"), _group(b, name="spot-1", priority="1", spot="true")
        with running(kind, _fleet_with_targets(), files=_files(*groups)) as gateway:
            assert gateway.load(10).by_replica == {"a": 10}
            a.refuse()
            eventually(lambda: gateway.get().replica == "b")
            eventually(lambda: gateway.access_log(11)[-1]["replica"] == "spot-1")
            assert gateway.access_log(11)[0]["replica"] == "first"


def test_reload_applies_a_changed_file(kind: Kind) -> None:
    fleet = _fleet_with_targets()
    with replicas("a", "b") as (a, b), running(kind, fleet, files=_files(_group(a))) as gateway:
        assert gateway.load(4).by_replica == {"a": 4}
        put(gateway.proxy.directory, _files(_group(b)))
        gateway.reload(fleet)
        assert gateway.load(4).by_replica == {"b": 4}


def test_empty_file_answers_503(kind: Kind) -> None:
    with running(kind, _fleet_with_targets(), files=_files()) as gateway:
        answer = gateway.post()
    assert (answer.status, answer.json["error"]["type"]) == (503, "unavailable")
