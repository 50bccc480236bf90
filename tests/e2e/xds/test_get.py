"""`lbctl xds` shows the configuration that Envoys have, which depends on their zone and node id."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lbctl.cli import run
from tests.support.processes.certs import Authority
from tests.support.processes.control import ControlPlane, controlling
from tests.support.processes.fleet import fleet_of
from tests.support.processes.ports import HOST
from tests.support.processes.waiting import eventually

LEFT = {"address": "127.0.0.1:1", "name": "left", "zone": "a", "weight": 1}
_PATIENT = ("--timeout", "60")
"""The first message imports hundreds of types of Envoy, which takes long on a busy machine."""
RIGHT = {"address": "127.0.0.1:2", "name": "right", "zone": "b", "weight": 1}


Get = Callable[..., dict[str, dict[str, Any]]]


@pytest.fixture
def get(capsys: pytest.CaptureFixture[str]) -> Get:
    """Yield a function that returns the output of `lbctl xds get` for a node, as kind → name → resource."""

    def get(control: ControlPlane, node: str, *more: str) -> dict[str, dict[str, Any]]:
        code = run(["xds", "get", "--xds", f"{HOST}:{control.xds}", "--node", node, "-o", "json", *_PATIENT, *more])
        output = capsys.readouterr()
        assert code == 0, output.err
        kinds = json.loads(output.out)
        return {kind: {item["name"]: item["resource"] for item in items} for kind, items in kinds.items()}

    return get


@pytest.fixture(scope="module")
def control() -> Iterator[ControlPlane]:
    """Run a control plane for nodes named edge-…, whose pool has a replica in each of two zones."""
    fleet = fleet_of(
        {"replicas": [LEFT, RIGHT], "locality": {"prefer": "zone"}},
        route={"retry": {"attempts": 1}, "headers": {"request": {"set": {"x": "y"}}}},
        proxies={"edge": {"kind": "envoy", "nodes": ["edge-*"]}},
    )
    with controlling(fleet) as started:
        yield started


def plain(value: object) -> Any:
    """Return the value with all numbers as text: Envoy writes 64-bit numbers in this way."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return f"{value:.12g}" if isinstance(value, int | float) and not isinstance(value, bool) else value


def held(resources: dict[str, dict[str, Any]], kind: str) -> Any:
    return {
        name: plain({key: value for key, value in item.items() if key != "@type"})
        for name, item in resources[kind].items()
    }


def test_get_shows_the_resources_of_a_real_envoy(control: ControlPlane, get: Get) -> None:
    with control.envoy("edge-1") as envoy:
        shown, resources = get(control, "edge-1"), envoy.resources()
        for kind in ("cds", "lds", "rds"):
            assert plain(shown[kind]) == held(resources, kind)
        assert set(shown["eds"]) == set(resources["eds"]) == {"pool"}


def test_zone_decides_the_order_of_replicas(control: ControlPlane, get: Get) -> None:
    def order(zone: str) -> list[int]:
        groups = get(control, "edge-2", "--zone", zone)["eds"]["pool"]["endpoints"]
        groups.sort(key=lambda group: group.get("priority", 0))
        return [
            member["endpoint"]["address"]["socket_address"]["port_value"]
            for group in groups
            for member in group["lb_endpoints"]
        ]

    assert (order("a"), order("b")) == ([1, 2], [2, 1])


def test_unknown_node_is_rejected(control: ControlPlane, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--xds", f"{HOST}:{control.xds}"]
    outputs: list[str] = []

    def is_rejected() -> bool:
        """Return whether the command reached the control plane, which takes longer than a second on a busy machine."""
        assert run(["xds", "get", *where, "--timeout", "1", "--node", "stranger"]) == 3
        output = capsys.readouterr()
        outputs.append(output.out)
        return "or the node is not one of its proxies" in output.err

    eventually(is_rejected)
    assert set(outputs) == {""}
    assert run(["xds", "get", *where, *_PATIENT, "--node", "edge-7"]) == 0


def test_keys_and_certificates_are_not_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = Authority(tmp_path).issue("gateway.example.com")
    key = pair.key.read_text()
    files = {
        "tls/a.crt": pair.certificate.read_bytes(),
        "tls/a.key": key,
        "secrets/keys.yaml": "hunter2-hunter2: acme\n",
    }
    fleet = fleet_of(
        {"replicas": [LEFT]},
        listener={"tls": {"certificates": [{"certificate": "tls/a.crt", "key": "tls/a.key"}]}},
        route={"auth": {"api_keys": {"file": "secrets/keys.yaml"}}},
    )
    with controlling(fleet, files=files) as control:
        assert run(["xds", "get", *_PATIENT, "--xds", control.socket, "--node", "edge"]) == 0
    out = capsys.readouterr().out
    assert "acme" in out, "whose the key is"
    assert "hunter2" not in out
    assert "tls_certificate" in out
    assert 'private_key: "[redacted]"' in out
    assert key.splitlines()[1] not in out
    assert b64encode(key.encode()).decode()[40:80] not in out


def test_watch_shows_a_weight_as_changed_endpoints() -> None:
    replicas = [dict(LEFT), dict(RIGHT)]
    with controlling(fleet_of({"replicas": replicas})) as control:
        command = [sys.executable, "-m", "lbctl", "xds", "watch", "--xds", f"{HOST}:{control.xds}", "--node", "edge"]
        watching = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert watching.stdout
            first = [watching.stdout.readline().split()[1] for _ in range(4)]
            assert sorted(first) == ["cds", "eds", "lds", "rds"]
            eventually(lambda: {item["state"] for item in control.proxies["edge"]["types"]} == {"SYNCED"})
            replicas[0]["weight"] = 3
            fleet = fleet_of({"replicas": replicas})
            fleet["listeners"]["gateway"]["bind"] = f"{HOST}:{next(iter(control._ports([]).values()))}"
            control.write(fleet)
            assert watching.stdout.readline().split()[1:4] == ["eds", "changed", "pool"]
        finally:
            watching.kill()
            watching.communicate()
