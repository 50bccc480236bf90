"""A real API server accepts the golden objects, with the rules (CEL) of the Gateway API's oldest and newest version.

`make test-manifests` runs these tests (`tests.support.real_kubernetes`). The core kinds are not custom
resources: `tests/golden/test_kubernetes.py` validates them by their schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from lbctl.cli import run
from tests.golden.test_kubernetes import CASES, NAMES, entries
from tests.support.kubernetes_objects import GATEWAY_API, GROUPS, Tree, definitions, plural
from tests.support.processes.waiting import eventually
from tests.support.real_kubernetes import DEFINITIONS, OPT_IN, RealApiServer, real_api_server

pytestmark = OPT_IN


@pytest.fixture(scope="module", params=GATEWAY_API)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, RealApiServer]]:
    """Start an API server with one version of the Gateway API, and return the version and the server."""
    with real_api_server(tmp_path_factory.mktemp("kube-api")) as started:
        listed = definitions(request.param)
        for definition in listed:
            status, document = started.call("POST", DEFINITIONS, definition)
            assert status == 201, document
        eventually(lambda: all(is_established(started, item["metadata"]["name"]) for item in listed))
        yield request.param, started


def is_established(server: RealApiServer, name: str) -> bool:
    conditions = server.call("GET", f"{DEFINITIONS}/{name}")[1].get("status", {}).get("conditions", ())
    return any(item["type"] == "Established" and item["status"] == "True" for item in conditions)


def apply(server: RealApiServer, item: Tree, *, dry_run: bool = False) -> tuple[int, dict[str, Any]]:
    metadata = item["metadata"]
    path = f"/apis/{item['apiVersion']}/namespaces/{metadata['namespace']}/{plural(item['kind'])}/{metadata['name']}"
    query = "fieldManager=lbctl&force=true&fieldValidation=Strict" + ("&dryRun=All" if dry_run else "")
    return server.call("PATCH", f"{path}?{query}", item, "application/apply-patch+yaml")


@pytest.mark.parametrize("case", NAMES)
def test_server_accepts_the_objects_unchanged(
    case: str,
    server: tuple[str, RealApiServer],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    version, api = server
    monkeypatch.chdir(CASES / case)
    for entry in entries(case):
        options = ("--proxy", entry, "--proxy-version", version.rpartition(".")[0])
        assert run(["render", "-t", "gateway-api", *options, "in.yaml"]) == 0
        for item in yaml.safe_load_all(capsys.readouterr().out):
            if item["apiVersion"].partition("/")[0] in GROUPS:
                results = [apply(api, item) for _ in range(3)]  # a new Gateway changes once, by its default status
                assert {status for status, _ in results} <= {200, 201}, results[0]
                assert results[1][1]["metadata"]["resourceVersion"] == results[2][1]["metadata"]["resourceVersion"]


def route(change: Callable[[Tree], None]) -> Tree:
    spec = {"parentRefs": [{"name": "edge"}], "rules": [{"matches": [prefix("/")], "backendRefs": [backend(0)]}]}
    metadata = {"name": "probe", "namespace": "ml"}
    item = {"apiVersion": f"{GROUPS[0]}/v1", "kind": "HTTPRoute", "metadata": metadata, "spec": spec}
    change(spec)
    return item


def prefix(value: str) -> Tree:
    return {"path": {"type": "PathPrefix", "value": value}}


def backend(index: int) -> Tree:
    return {"name": f"s{index}", "port": 80}


def rules(count: int, matches: int) -> list[Tree]:
    return [
        {"matches": [prefix(f"/v{index}/{number}") for number in range(matches)], "backendRefs": [backend(0)]}
        for index in range(count)
    ]


def test_server_has_the_limits_that_lbctl_keeps(server: tuple[str, RealApiServer]) -> None:
    """A limit that moves in a new version of the API would otherwise stay unnoticed."""
    _, api = server
    accepted = {
        "16 rules, 128 matches": route(lambda spec: spec.update(rules=rules(16, 8))),
        "64 matches of a rule": route(lambda spec: spec.update(rules=rules(2, 64))),
        "16 backends": route(lambda spec: spec["rules"][0].update(backendRefs=[backend(i) for i in range(16)])),
    }
    refused = {
        "17 rules": route(lambda spec: spec.update(rules=rules(17, 1))),
        "129 matches": route(lambda spec: spec.update(rules=rules(3, 43))),
        "65 matches of a rule": route(lambda spec: spec.update(rules=rules(1, 65))),
        "17 backends": route(lambda spec: spec["rules"][0].update(backendRefs=[backend(i) for i in range(17)])),
        "weight above a million": route(lambda spec: spec["rules"][0]["backendRefs"][0].update(weight=1_000_001)),
        "method": route(lambda spec: spec["rules"][0]["matches"][0].update(method="PROPFIND")),
        "duration": route(lambda spec: spec["rules"][0].update(timeouts={"request": "100000s"})),
        "name of a rule": route(lambda spec: spec["rules"][0].update(name="CLOSED")),
    }
    assert [name for name, item in accepted.items() if apply(api, item, dry_run=True)[0] not in (200, 201)] == []
    assert [name for name, item in refused.items() if apply(api, item, dry_run=True)[0] != 422] == []
