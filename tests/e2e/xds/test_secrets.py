"""Keys and private keys reach the Envoys of their owner, and no other user of the machine."""

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

from lbctl.cli import ads, run
from lbctl.xds.resource import CDS, LDS, RDS, SDS
from tests.support.fleets import Fleet
from tests.support.processes.certs import Authority, client_context
from tests.support.processes.control import ControlPlane, XdsEnvoy, controlling, settled
from tests.support.processes.driving import change, synced
from tests.support.processes.fleet import fleet_of, put
from tests.support.processes.ports import HOST, free_port
from tests.support.processes.replicas import Replica
from tests.support.processes.waiting import eventually
from tests.support.xds import Client, connected

_KEY = "sk-Live7f3kQ"
_HEADER = "sk-Upstream8x"
_NAME = "edge.example.com"
_SECRETS = (_KEY, _HEADER, "PRIVATE KEY")


class Certificates:
    """A CA, its certificates, and the files of a fleet with a secret of each type."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self.edge = self.authority.issue("edge", [_NAME])
        self.xds = self.authority.issue("xds", ["localhost"])
        self.files = {
            "keys": f"{_KEY}: tenant\n",
            "edge.crt": self.edge.certificate.read_bytes(),
            "edge.key": self.edge.key.read_bytes(),
            "xds.crt": self.xds.certificate.read_bytes(),
            "xds.key": self.xds.key.read_bytes(),
            "ca.crt": self.authority.ca.read_bytes(),
        }


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def control(certificates: Certificates) -> Iterator[ControlPlane]:
    """Run a control plane whose fleet has a secret of each type, with default options."""
    with Replica("one") as one, controlling(_secret_fleet(one), files=certificates.files) as started:
        yield started


def _secret_fleet(replica: Replica, **sections: Any) -> Fleet:
    pair = {"certificate": "edge.crt", "key": "edge.key"}
    return fleet_of(
        [replica],
        route={"auth": {"api_keys": {"file": "keys"}}, "headers": {"request": {"set": {"x-api-key": _HEADER}}}},
        listener={"tls": {"certificates": [pair]}},
        **sections,
    )


async def _received(where: int | str, only: str | None, *, delta: bool, **more: Any) -> bytes | grpc.StatusCode:
    """Return all resources that a client gets of the types with secrets, or the status of its stream."""
    async with connected(where, "edge", delta=delta, only=only, **more) as client:
        try:
            parts = [await _read(client, kind, names) for kind, names in _WANTED.items() if only in (None, kind)]
        except grpc.aio.AioRpcError:
            return await client.status()
        return b"".join(parts)


_WANTED = {CDS: (), LDS: (), RDS: ("gateway",), SDS: ("certificate:edge.crt",)}


async def _read(client: Client, kind: str, names: tuple[str, ...]) -> bytes:
    await client.ask(kind, *names)
    response = await client.read()
    await client.ack(response, *names)
    return bytes(response.SerializeToString())


def _secrets_in(data: bytes) -> list[str]:
    return [secret for secret in _SECRETS if secret.encode() in data]


@pytest.mark.parametrize("delta", [True, False], ids=["delta", "sotw"])
def test_only_clients_of_the_socket_get_secrets(delta: bool, control: ControlPlane) -> None:
    for only in (None, *_WANTED):
        status = asyncio.run(_received(control.xds, only, delta=delta))
        assert status == grpc.StatusCode.PERMISSION_DENIED
    socket = control.state / "xds.sock"
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    resources = asyncio.run(_received(control.socket, None, delta=delta))
    assert isinstance(resources, bytes)
    assert _secrets_in(resources) == list(_SECRETS)
    assert "LB527" in control.log


def test_client_with_certificate_gets_secrets(certificates: Certificates) -> None:
    tls = {"certificate": "xds.crt", "key": "xds.key", "client_ca": "ca.crt"}
    fleet_keys = {"control": {"xds": {"tls": tls}}}
    with (
        Replica("one") as one,
        controlling(_secret_fleet(one, **fleet_keys), files=certificates.files) as control,
    ):
        pair = certificates.edge.key.read_bytes(), certificates.edge.certificate.read_bytes()
        credentials = grpc.ssl_channel_credentials(certificates.authority.ca.read_bytes(), *pair)
        more = {"credentials": credentials, "options": (("grpc.ssl_target_name_override", "localhost"),)}
        resources = asyncio.run(_received(control.xds, None, delta=True, **more))
        assert isinstance(resources, bytes)
        assert _secrets_in(resources) == list(_SECRETS)


@contextmanager
def _by_default(control: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> Iterator[XdsEnvoy]:
    """Run an Envoy with the bootstrap of `lbctl bootstrap --node edge`, which finds the running `serve`."""
    monkeypatch.setenv("LBCTL_SERVER", control.url)
    monkeypatch.delenv("LBCTL_XDS", raising=False)
    with tempfile.TemporaryDirectory() as out:
        assert run(["bootstrap", "--node", "edge", "-d", out]) == 0
        bootstrap = yaml.safe_load((Path(out) / "envoy.yaml").read_text())
    with control.envoy("edge", bootstrap=bootstrap) as envoy:
        yield envoy


def test_default_bootstrap_serves_tls_and_checks_keys(
    certificates: Certificates, control: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _by_default(control, monkeypatch) as envoy:
        client = envoy.client(tls=client_context(certificates.authority.ca), server_name=_NAME)
        assert client.get(headers={"authorization": f"Bearer {_KEY}"}).status == 200
        assert client.get().status == 401
        synced(control, "edge")
        control.stop()
        control.start()
        eventually(lambda: control.proxies.get("edge", {}).get("state") == "SYNCED")
        assert client.get(headers={"authorization": f"Bearer {_KEY}"}).status == 200


def test_envoy_of_the_port_keeps_its_routes_without_keys(certificates: Certificates) -> None:
    with (
        Replica("one") as one,
        controlling(fleet_of([one]), files=certificates.files) as control,
        control.envoy("e") as envoy,
    ):
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


def test_bootstrap_uses_only_the_socket_of_the_user(
    control: ControlPlane, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It uses the default port if the socket is another user's, or if nothing answers within the timeout."""
    port = {"socket_address": {"address": "127.0.0.1", "port_value": 18000}}
    monkeypatch.delenv("LBCTL_XDS", raising=False)
    monkeypatch.setenv("LBCTL_SERVER", control.url)
    assert _bootstrapped(capsys) == {"pipe": {"path": str(control.state / "xds.sock")}}
    with monkeypatch.context() as another_user:
        another_user.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert _bootstrapped(capsys) == port
    monkeypatch.setenv("LBCTL_SERVER", f"http://{HOST}:{free_port()}")
    running = ads._Running
    monkeypatch.setattr(ads, "_Running", lambda *fields: running(*fields[:-1], 0.5))  # half a second, not ten
    assert _bootstrapped(capsys) == port


def test_bootstrap_waits_for_a_starting_serve(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LBCTL_XDS", raising=False)
    running = ads._Running
    monkeypatch.setattr(ads, "_Running", lambda *fields: running(*fields[:-1], 60.0))  # a minute, not ten seconds
    with Replica("one") as one, controlling(fleet_of([one]), start=False) as control:
        monkeypatch.setenv("LBCTL_SERVER", control.url)
        control.start(ready=False)
        assert _bootstrapped(capsys) == {"pipe": {"path": str(control.state / "xds.sock")}}


def _bootstrapped(capsys: pytest.CaptureFixture[str]) -> Any:
    """Return the address of the control plane in the bootstrap that the command prints."""
    assert run(["bootstrap", "--node", "edge"]) == 0
    output = capsys.readouterr()
    (cluster,) = yaml.safe_load(output.out)["static_resources"]["clusters"]
    address = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]
    assert ("LB527" in output.err) == ("pipe" not in address)
    return address


def test_api_shows_no_secret(
    certificates: Certificates, control: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(_received(control.socket, None, delta=True))
    kinds = ("status", "proxies", "pools", "fleet", "signals", "decisions", "overrides")
    shown = [json.dumps(control.get(kind)) for kind in kinds]
    shown.append("\n".join(control.metrics()))
    fleet = yaml.safe_load((control.files / "fleet.yaml").read_text())
    fleet["routes"]["everything"]["headers"]["request"]["set"]["x-api-key"] = "sk-Another9"
    other = tmp_path / "other.yaml"
    put(tmp_path, certificates.files)
    other.write_text(yaml.safe_dump(fleet))
    run(["diff", str(other), "--against", "live", "--server", control.url])
    shown.append(str(capsys.readouterr()))
    assert "x-api-key" in shown[-1]
    assert _secrets_in("\n".join((*shown, control.log)).encode()) == []
    assert "sk-Another9" not in shown[-1]


def test_insecure_port_sends_secrets(certificates: Certificates) -> None:
    options = ["--insecure", "--xds-bind", f"{HOST}:0"]
    with (
        Replica("one") as one,
        controlling(_secret_fleet(one), files=certificates.files, options=options) as control,
    ):
        port = int(control.status["listens"]["xds"].rpartition(":")[2])
        resources = asyncio.run(_received(port, None, delta=True))
        assert isinstance(resources, bytes)
        assert _secrets_in(resources) == list(_SECRETS)
