"""`lbctl xds` beside real Envoys: it shows what they hold, and an Envoy's place and name decide what that is."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from lbctl.cli import run
from tests.support.processes.certs import Authority
from tests.support.processes.control import ControlPlane, controlling
from tests.support.processes.fleet import fleet_of
from tests.support.processes.ports import HOST
from tests.support.processes.replicas import Replica
from tests.support.processes.waiting import eventually

LEFT = {"address": "127.0.0.1:1", "name": "left", "zone": "a", "weight": 1}
_PATIENT = ("--timeout", "60")
"""Envoy's hundreds of messages are imported when the first comes."""
RIGHT = {"address": "127.0.0.1:2", "name": "right", "zone": "b", "weight": 1}


@pytest.fixture
def got(capsys: pytest.CaptureFixture[str]) -> Any:
    def get(control: ControlPlane, node: str, *more: str) -> Any:
        code = run(["xds", "get", "--xds", f"{HOST}:{control.xds}", "--node", node, "-o", "json", *_PATIENT, *more])
        said = capsys.readouterr()
        assert code == 0, said.err
        return {
            kind: {item["name"]: item["resource"] for item in items} for kind, items in json.loads(said.out).items()
        }

    return get


def plain(value: object) -> Any:
    """Envoy adds the type of what it dumps, and writes numbers of 64 bits as texts."""
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


def test_it_shows_what_a_real_envoy_holds(got: Any) -> None:
    with (
        Replica("one") as one,
        controlling(
            fleet_of([one], route={"retry": {"attempts": 1}, "headers": {"request": {"set": {"x": "y"}}}})
        ) as control,
        control.envoy("edge") as envoy,
    ):
        shown, has = got(control, "edge"), envoy.resources()
        for kind in ("cds", "lds", "rds"):
            assert plain(shown[kind]) == held(has, kind)
        assert set(shown["eds"]) == set(has["eds"]) == {"pool"}


def test_the_zone_decides_which_replicas_come_first(got: Any) -> None:
    pool = {"replicas": [LEFT, RIGHT], "locality": {"prefer": "zone"}}
    with controlling(fleet_of(pool)) as control:

        def order(zone: str) -> list[int]:
            groups = got(control, "edge", "--zone", zone)["eds"]["pool"]["endpoints"]
            groups.sort(key=lambda group: group.get("priority", 0))
            return [
                member["endpoint"]["address"]["socket_address"]["port_value"]
                for group in groups
                for member in group["lb_endpoints"]
            ]

        assert (order("a"), order("b")) == ([1, 2], [2, 1])


def test_a_node_that_is_none_of_the_proxies_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    proxies = {"edge": {"kind": "envoy", "nodes": ["edge-*"]}}
    with controlling(fleet_of({"replicas": [LEFT]}, proxies=proxies)) as control:
        where = ["--xds", f"{HOST}:{control.xds}"]
        assert run(["xds", "get", *where, "--timeout", "2", "--node", "stranger"]) == 3
        said = capsys.readouterr()
        assert "sends nothing to a node that is none of its proxies" in said.err
        assert said.out == ""
        assert run(["xds", "get", *where, *_PATIENT, "--node", "edge-7"]) == 0


def test_keys_and_certificates_of_the_fleet_are_not_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_watch_sees_a_changed_weight_as_endpoints_alone_and_counts_as_synced() -> None:
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
