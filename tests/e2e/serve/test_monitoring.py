"""contrib/: a real Prometheus scrapes a running `lbctl serve`, and every query of the dashboard and the rules works."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import requests
import yaml

from tests.support.fleets import Fleet
from tests.support.paths import ROOT
from tests.support.processes import edges
from tests.support.processes.control import ControlPlane, controlling, driven
from tests.support.processes.engines import Engine, engines
from tests.support.processes.exporters import Page
from tests.support.processes.fleet import pool_of
from tests.support.processes.http1 import Request
from tests.support.processes.picker import PICK, picker_section
from tests.support.processes.ports import HOST, free_port
from tests.support.processes.prometheus import CONTRIB, prometheus, until_series
from tests.support.processes.waiting import eventually

_DCGM = """\
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="h"} 71
"""
_VARIABLES = {"$instance": ".*", "$pool": ".*", "$__rate_interval": "10s"}
_SUFFIXES = ("_bucket", "_sum", "_count", "_total", "")
_GENERATE = Request("POST", "/v1/completions?n=5", timeout=20.0)


def test_prometheus_has_series_for_every_query(tmp_path: Path) -> None:
    with ExitStack() as stack:
        a, *others, new = stack.enter_context(engines("a", "b", "c", "d", "new"))
        exporter = stack.enter_context(Page("exporter", _DCGM))
        haproxy = stack.enter_context(edges.haproxy())
        fleet = _fleet([a, *others], [new], exporter.address, haproxy)
        stack.enter_context(edges.started_edge(haproxy, fleet))
        control = stack.enter_context(controlling(fleet))
        envoy = stack.enter_context(control.envoy("edge", ["edge"]))
        for client in (envoy.client(), haproxy):
            stack.enter_context(client.steady(10, _GENERATE))
        others[0].wedged = True
        server = stack.enter_context(prometheus(tmp_path, lbctl=[f"127.0.0.1:{control.api}"], replicas=[a.address]))
        eventually(lambda: not _unknown_names(control))
        control.reload()
        assert until_series(server, [*_queries()], timeout=90) == []
        assert set(server.targets().values()) == {"up"}
        others[0].wedged = False  # its requests end


def test_panels_are_unique_and_use_the_chosen_data_source() -> None:
    board = _dashboard()
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    cells = [cell for panel in board["panels"] for cell in _cells(panel["gridPos"])]
    assert len(cells) == len(set(cells))
    assert {(target["datasource"]["type"], target["datasource"]["uid"]) for target in _targets(board)} == {
        ("prometheus", "${datasource}")
    }
    assert [panel["title"] for panel in board["panels"] if panel["type"] != "row" and not panel["description"]] == []


def _fleet(old: list[Engine], new: list[Engine], exporter: str, site: edges.Edge) -> Fleet:
    """Return a fleet with the GPU of `exporter` in the old pool, whose deep health reacts quickly; the new pool's GPU
    is unavailable. Another pool has a queue at the picker."""

    def telemetry(gpu: str) -> dict[str, Any]:
        sources = [
            {"kind": "vllm", "url": "http://{address}/metrics"},
            {"kind": "dcgm", "url": f"http://{gpu}/metrics"},
        ]
        return {"interval": "500ms", "sources": sources}

    steps = [{"percent": "50%", "hold": "1h"}, {"percent": "100%"}]
    route = {
        "match": {"path_prefix": "/v1/"},
        "split": {"old": 100, "new": 0},
        "rollout": {"to": "new", "mode": "timed", "steps": steps},
    }
    pools = {
        "old": pool_of(old, telemetry=telemetry(exporter), health={"deep": {"stalled_after": "2s"}}),
        "new": pool_of(new, telemetry=telemetry(f"{HOST}:{free_port()}")),
        "queued": pool_of(new, balance=PICK, circuit_breaker={"per_replica": {"max_requests": 1}}, queue={}),
    }
    fleet = {"version": 1, **driven("edge"), **picker_section(), "routes": {"chat": route}, "pools": pools}
    return edges.add(fleet, site)


def _unknown_names(control: ControlPlane) -> set[str]:
    """Return the lbctl metrics in queries that `serve` does not export."""
    with requests.Session() as session:
        session.trust_env = False
        page = session.get(f"{control.url}/metrics", timeout=30).text
    exported = set(re.findall(r"^# TYPE (\S+)", page, re.MULTILINE))
    everything = " ".join([*_queries(), *_alerts()])
    named = set(re.findall(r"\b((?:lbctl|process)_\w+)\b(?!:)", everything))
    return {name for name in named if not any(name.removesuffix(suffix) in exported for suffix in _SUFFIXES)}


def _queries() -> Iterator[str]:
    """Yield the queries of the dashboard, of its variables, and of the recording rules."""
    board = _dashboard()
    for target in _targets(board):
        yield _filled(target["expr"])
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield _filled(re.fullmatch(r"label_values\((.*), \w+\)", variable["definition"])[1])
    yield from (rule["record"] for rule in _rules() if "record" in rule)
    yield from (rule["expr"] for rule in _rules() if "record" in rule)


def _alerts() -> Iterator[str]:
    yield from (rule["expr"] for rule in _rules() if "alert" in rule)


def _rules() -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load((CONTRIB / "lbctl.rules.yml").read_text(encoding="utf-8"))["groups"]:
        yield from group["rules"]


def _dashboard() -> dict[str, Any]:
    board: dict[str, Any] = json.loads((ROOT / "contrib" / "grafana" / "lbctl.json").read_text(encoding="utf-8"))
    return board


def _targets(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in board["panels"]:
        yield from panel.get("targets", ())


def _filled(query: str) -> str:
    for variable, value in _VARIABLES.items():
        query = query.replace(variable, value)
    return query


def _cells(place: dict[str, int]) -> Iterator[tuple[int, int]]:
    for row in range(place["y"], place["y"] + place["h"]):
        yield from ((row, column) for column in range(place["x"], place["x"] + place["w"]))
