"""A listener's certificate is renewed by SDS: connections stay open, and new ones get the new certificate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.certs import Authority, Pair, client_context
from tests.support.processes.client import Client
from tests.support.processes.control import ControlPlane, XdsEnvoy, controlling, driven
from tests.support.processes.driving import BOTH, both, change, synced
from tests.support.processes.fleet import fleet_of
from tests.support.processes.http1 import Request
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_NAME = "edge.example.com"


def _tls_fleet(replica: Replica) -> Fleet:
    fleet = fleet_of([replica], **driven(*BOTH))
    for name in BOTH:
        fleet["listeners"][name]["tls"] = {"certificates": [{"certificate": "tls/edge.crt", "key": "tls/edge.key"}]}
    del fleet["listeners"]["gateway"]
    return fleet


def _put(control: ControlPlane, *, certificate: Pair, key: Pair) -> None:
    """Replace the files as a renewal does, one after the other, by renaming new ones."""
    for name, source in (("edge.crt", certificate.certificate), ("edge.key", key.key)):
        new_file = control.files / "tls" / f".{name}"
        new_file.write_bytes(source.read_bytes())
        new_file.replace(control.files / "tls" / name)


def _serial(client: Client) -> str:
    """Return the serial number of the certificate that a new connection gets."""
    answer = client.get()
    assert answer.ok, answer
    assert answer.peer is not None
    return answer.peer.serial


def _untouched(envoy: XdsEnvoy) -> dict[str, int]:
    """Return the counters that a new certificate does not change: updates of the other types, and listeners."""
    counted = {name: count for name, count in envoy.updates().items() if not name.startswith("sds.")}
    return {**counted, **envoy.stats("listener_manager.listener_modified$")}


def _connections(envoy: XdsEnvoy) -> int:
    """Return the number of open connections of clients."""
    stats = envoy.stats(r"^listener\..*downstream_cx_active$")
    return sum(count for name, count in stats.items() if ".admin." not in name and ".worker_" not in name)


class _Served(NamedTuple):
    """A control plane and two Envoys with a TLS listener each; `clients` trust the CA of its certificates."""

    control: ControlPlane
    fleet: Fleet
    envoys: tuple[XdsEnvoy, XdsEnvoy]
    clients: list[Client]
    authority: Authority


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Served]:
    authority = Authority(tmp_path_factory.mktemp("pki"))
    first = authority.issue("first", [_NAME])
    files = {"tls/edge.crt": first.certificate.read_bytes(), "tls/edge.key": first.key.read_bytes()}
    with (
        replicas("a") as (a,),
        controlling(fleet := _tls_fleet(a), files=files) as control,
        both(control) as envoys,
    ):
        trust = client_context(authority.ca)
        clients = [envoy.client(tls=trust, server_name=_NAME) for envoy in envoys]
        yield _Served(control, fleet, envoys, clients, authority)


def test_renewed_certificate_drops_no_connection(served: _Served) -> None:
    control, clients, authority = served.control, served.clients, served.authority
    before = [_serial(client) for client in clients]
    assert before[0] == before[1]
    synced(control)
    for envoy in served.envoys:
        eventually(lambda envoy=envoy: _connections(envoy) == 0)  # type: ignore[misc]
    streams = [client.send("GET", "/sse?n=8&gap=0.5") for client in clients]
    loads = [client.send_load(35, 5, Request(), gap=0.5) for client in clients]
    for envoy in served.envoys:  # a connection that is opened later gets the new certificate
        eventually(lambda envoy=envoy: _connections(envoy) >= 5 + 1)  # type: ignore[misc]
    untouched = [_untouched(envoy) for envoy in served.envoys]

    second = authority.issue("second", [_NAME])
    _put(control, certificate=second, key=second)
    eventually(lambda: all(_serial(client) != before[0] for client in clients), pause=0.1)
    after = [_serial(client) for client in clients]
    assert after[0] == after[1]

    for started in loads:
        load = started.result(30)
        load.assert_no_failure()
        assert load.connections == 5, "a connection was opened anew"
        assert {answer.peer.serial for answer in load.responses if answer.peer} == {before[0]}
    assert [len(stream.result(20).events()) for stream in streams] == [8, 8]
    assert [_untouched(envoy) for envoy in served.envoys] == untouched


def test_certificate_without_its_key_is_reported_and_unused(served: _Served) -> None:
    control, fleet, clients, authority = served.control, served.fleet, served.clients, served.authority
    before = _serial(clients[0])
    third, fourth, fifth = (authority.issue(name, [_NAME]) for name in ("third", "fourth", "fifth"))
    _put(control, certificate=third, key=fourth)
    eventually(lambda: "tls/edge.key" in str(control.status["fleet"]["diagnostics"]))
    assert [_serial(client) for client in clients] == [before, before]
    address = fleet["pools"]["pool"]["replicas"][0]["address"]
    change(control, {**fleet, "pools": {"pool": {"replicas": [{"name": "renamed", "address": address}]}}})
    assert [_serial(client) for client in clients] == [before, before], "the rest of the fleet goes on"

    _put(control, certificate=fifth, key=fifth)
    eventually(lambda: all(_serial(client) != before for client in clients), pause=0.1)
    assert "tls/edge.key" not in str(control.status["fleet"]["diagnostics"])
