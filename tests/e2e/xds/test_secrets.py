"""Keys and private keys reach the Envoys of their owner, and no other user of the machine: by real gRPC, real Envoy."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from lbctl.cli import run
from lbctl.xds.resource import CDS, LDS, RDS, SDS
from tests.support.fleets import Fleet
from tests.support.processes.certs import Authority, client_context
from tests.support.processes.control import ControlPlane, XdsEnvoy, controlling, settled
from tests.support.processes.driving import change, synced
from tests.support.processes.fleet import fleet_of
from tests.support.processes.ports import HOST
from tests.support.processes.replicas import Replica
from tests.support.processes.waiting import eventually
from tests.support.xds import Client, connected

_KEY = "sk-Live7f3kQ"
_HEADER = "sk-Upstream8x"
_NAME = "edge.example.com"
_TELLING = (_KEY, _HEADER, "PRIVATE KEY")


class Place:
    """Files of a fleet with a secret of each type."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self.mine = self.authority.issue("mine", [_NAME])
        self.xds = self.authority.issue("xds", ["localhost"])
        self.files = {
            "keys": f"{_KEY}: tenant\n",
            "edge.crt": self.mine.certificate.read_bytes(),
            "edge.key": self.mine.key.read_bytes(),
            "xds.crt": self.xds.certificate.read_bytes(),
            "xds.key": self.xds.key.read_bytes(),
            "ca.crt": self.authority.ca.read_bytes(),
        }


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def _fleet(replica: Replica, **sections: Any) -> Fleet:
    pair = {"certificate": "edge.crt", "key": "edge.key"}
    return fleet_of(
        [replica],
        route={"auth": {"api_keys": {"file": "keys"}}, "headers": {"request": {"set": {"x-api-key": _HEADER}}}},
        listener={"tls": {"certificates": [pair]}},
        **sections,
    )


async def _asked(where: int | str, only: str | None, *, delta: bool, **more: Any) -> bytes | grpc.StatusCode:
    """All that a client is sent of the types that hold secrets, or how its stream ends."""
    async with connected(where, "edge", delta=delta, only=only, **more) as client:
        try:
            found = [await _read(client, kind, names) for kind, names in _WANTED.items() if only in (None, kind)]
        except grpc.aio.AioRpcError:
            return await client.status()
        return b"".join(found)


_WANTED = {CDS: (), LDS: (), RDS: ("gateway",), SDS: ("certificate:edge.crt",)}


async def _read(client: Client, kind: str, names: tuple[str, ...]) -> bytes:
    await client.ask(kind, *names)
    response = await client.read()
    await client.ack(response, *names)
    return bytes(response.SerializeToString())


def _told(data: bytes) -> list[str]:
    return [secret for secret in _TELLING if secret.encode() in data]


@pytest.mark.parametrize("delta", [True, False], ids=["delta", "sotw"])
def test_a_client_of_the_port_gets_no_secret_by_any_service_and_one_of_the_socket_gets_them(
    delta: bool, place: Place
) -> None:
    with Replica("one") as one, controlling(_fleet(one), files=place.files) as control:
        for only in (None, *_WANTED):
            ended = asyncio.run(_asked(control.xds, only, delta=delta))
            assert ended == grpc.StatusCode.PERMISSION_DENIED
        socket = control.state / "xds.sock"
        assert stat.S_IMODE(socket.stat().st_mode) == 0o600
        found = asyncio.run(_asked(control.socket, None, delta=delta))
        assert isinstance(found, bytes)
        assert _told(found) == list(_TELLING)
        assert "LB527" in control.log


def test_a_client_with_a_certificate_gets_them(place: Place) -> None:
    tls = {"certificate": "xds.crt", "key": "xds.key", "client_ca": "ca.crt"}
    with (
        Replica("one") as one,
        controlling(_fleet(one, control={"xds": {"tls": tls}}), files=place.files) as control,
    ):
        mine = place.mine.key.read_bytes(), place.mine.certificate.read_bytes()
        credentials = grpc.ssl_channel_credentials(place.authority.ca.read_bytes(), *mine)
        more = {"credentials": credentials, "options": (("grpc.ssl_target_name_override", "localhost"),)}
        found = asyncio.run(_asked(control.xds, None, delta=True, **more))
        assert isinstance(found, bytes)
        assert _told(found) == list(_TELLING)


@contextmanager
def _by_default(control: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> Iterator[XdsEnvoy]:
    """An Envoy with what `lbctl bootstrap --node edge` writes while that `serve` runs."""
    monkeypatch.setenv("LBCTL_SERVER", control.url)
    monkeypatch.delenv("LBCTL_XDS", raising=False)
    with tempfile.TemporaryDirectory() as out:
        assert run(["bootstrap", "--node", "edge", "-d", out]) == 0
        written = yaml.safe_load((Path(out) / "envoy.yaml").read_text())
    with control.envoy("edge", bootstrap=written) as envoy:
        yield envoy


def test_an_envoy_of_the_default_bootstrap_serves_tls_and_checks_keys(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Replica("one") as one,
        controlling(_fleet(one), files=place.files) as control,
        _by_default(control, monkeypatch) as envoy,
    ):
        client = envoy.client(tls=client_context(place.authority.ca), server_name=_NAME)
        assert client.get(headers={"authorization": f"Bearer {_KEY}"}).status == 200
        assert client.get().status == 401
        synced(control, "edge")
        control.stop()
        control.start()
        eventually(lambda: control.proxies.get("edge", {}).get("state") == "SYNCED")
        assert client.get(headers={"authorization": f"Bearer {_KEY}"}).status == 200


def test_an_envoy_on_the_port_goes_on_without_the_route_that_gets_a_key(place: Place) -> None:
    with Replica("one") as one, controlling(fleet_of([one]), files=place.files) as control, control.envoy("e") as envoy:
        settled(envoy)
        fleet = yaml.safe_load((control.files / "fleet.yaml").read_text())
        fleet["routes"]["open"] = {"match": {"path_prefix": "/keyed/"}, "pool": "pool"}
        change(control, fleet)
        fleet["routes"]["open"]["auth"] = {"api_keys": {"file": "keys"}}
        control.write(fleet)
        eventually(lambda: control.proxies["e"]["state"] == "REFUSED")
        assert envoy.client().get("/").status == 200
        assert "LB527" in control.proxies["e"]["reason"]
        assert [item["node"] for item in control.status["unmatched"]] == ["e"]


def test_the_bootstrap_takes_no_socket_that_is_not_this_users_and_the_port_where_nobody_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LBCTL_XDS", raising=False)
    with Replica("one") as one, controlling(fleet_of([one])) as control:
        monkeypatch.setenv("LBCTL_SERVER", control.url)
        assert _bootstrapped(capsys) == {"pipe": {"path": str(control.state / "xds.sock")}}
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert _bootstrapped(capsys) == {"socket_address": {"address": "127.0.0.1", "port_value": 18000}}
        monkeypatch.undo()
    monkeypatch.setenv("LBCTL_SERVER", control.url)
    assert _bootstrapped(capsys) == {"socket_address": {"address": "127.0.0.1", "port_value": 18000}}


def test_the_bootstrap_waits_for_a_serve_that_is_just_starting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LBCTL_XDS", raising=False)
    with Replica("one") as one, controlling(fleet_of([one]), start=False) as control:
        monkeypatch.setenv("LBCTL_SERVER", control.url)
        control.start(ready=False)
        assert _bootstrapped(capsys) == {"pipe": {"path": str(control.state / "xds.sock")}}


def _bootstrapped(capsys: pytest.CaptureFixture[str]) -> Any:
    assert run(["bootstrap", "--node", "edge"]) == 0
    said = capsys.readouterr()
    (cluster,) = yaml.safe_load(said.out)["static_resources"]["clusters"]
    found = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]
    assert ("LB527" in said.err) == ("pipe" not in found)
    return found


def test_the_api_shows_no_secret(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    with Replica("one") as one, controlling(_fleet(one), files=place.files) as control:
        asyncio.run(_asked(control.socket, None, delta=True))
        kinds = ("status", "proxies", "pools", "fleet", "signals", "decisions", "overrides")
        shown = [json.dumps(control.get(kind)) for kind in kinds]
        shown.append("\n".join(control.metrics()))
        fleet = _fleet(one)
        fleet["routes"]["everything"]["headers"]["request"]["set"]["x-api-key"] = "sk-Another9"
        other = control.directory / "other.yaml"
        for name, data in place.files.items():
            (control.directory / name).write_bytes(data if isinstance(data, bytes) else data.encode())
        other.write_text(yaml.safe_dump(fleet))
        run(["diff", str(other), "--against", "live", "--server", control.url])
        shown.append(str(capsys.readouterr()))
        assert "x-api-key" in shown[-1]
        assert _told("\n".join((*shown, control.log)).encode()) == []
        assert "sk-Another9" not in shown[-1]


def test_secrets_go_over_the_port_with_insecure(place: Place) -> None:
    with (
        Replica("one") as one,
        controlling(_fleet(one), files=place.files, options=["--insecure", "--xds-bind", f"{HOST}:0"]) as control,
    ):
        port = int(control.status["listens"]["xds"].rpartition(":")[2])
        found = asyncio.run(_asked(port, None, delta=True))
        assert isinstance(found, bytes)
        assert _told(found) == list(_TELLING)
