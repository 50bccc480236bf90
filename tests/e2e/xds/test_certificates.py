"""The certificate of a listener is renewed by SDS: who is connected stays so, who comes sees the new one."""

from __future__ import annotations

import time
from pathlib import Path

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


def _fleet(replica: Replica) -> Fleet:
    fleet = fleet_of([replica], **driven(*BOTH))
    for name in BOTH:
        fleet["listeners"][name]["tls"] = {"certificates": [{"certificate": "tls/edge.crt", "key": "tls/edge.key"}]}
    del fleet["listeners"]["gateway"]
    return fleet


def _put(control: ControlPlane, *, certificate: Pair, key: Pair) -> None:
    """As a renewal does: each file in its time, written beside, renamed into place."""
    for name, source in (("edge.crt", certificate.certificate), ("edge.key", key.key)):
        beside = control.files / "tls" / f".{name}"
        beside.write_bytes(source.read_bytes())
        beside.replace(control.files / "tls" / name)


def _serial(client: Client) -> str:
    """Of the certificate that a new connection is shown."""
    answer = client.get()
    assert answer.ok, answer
    assert answer.peer is not None
    return answer.peer.serial


def _untouched(envoy: XdsEnvoy) -> dict[str, int]:
    """What may not move with a certificate: what was taken of the other types, and the listeners."""
    counted = {name: count for name, count in envoy.updates().items() if not name.startswith("sds.")}
    return {**counted, **envoy.stats("listener_manager.listener_modified$")}


def test_a_renewed_certificate_is_shown_to_new_connections_and_no_connection_is_dropped(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first = authority.issue("first", [_NAME])
    files = {"tls/edge.crt": first.certificate.read_bytes(), "tls/edge.key": first.key.read_bytes()}
    trust = client_context(authority.ca)
    with (
        replicas("a") as (a,),
        controlling(_fleet(a), files=files) as control,
        both(control) as envoys,
    ):
        clients = [envoy.client(tls=trust, server_name=_NAME) for envoy in envoys]
        before = [_serial(client) for client in clients]
        assert before[0] == before[1]
        synced(control)
        streams = [client.send("GET", "/sse?n=16&gap=0.5") for client in clients]
        kept = [client.send_load(70, 5, Request(), gap=0.5) for client in clients]
        time.sleep(0.8)
        quiet = [_untouched(envoy) for envoy in envoys]

        second = authority.issue("second", [_NAME])
        _put(control, certificate=second, key=second)
        eventually(lambda: all(_serial(client) != before[0] for client in clients), 10, 0.1)
        after = [_serial(client) for client in clients]
        assert after[0] == after[1]

        for load in kept:
            done = load.result(30)
            done.assert_no_failure()
            assert done.connections == 5, "a connection was opened anew"
            assert {answer.peer.serial for answer in done.responses if answer.peer} == {before[0]}
        assert [len(stream.result(20).events()) for stream in streams] == [16, 16]
        assert [_untouched(envoy) for envoy in envoys] == quiet


def test_a_certificate_without_its_key_changes_nothing_and_is_told(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first = authority.issue("first", [_NAME])
    files = {"tls/edge.crt": first.certificate.read_bytes(), "tls/edge.key": first.key.read_bytes()}
    trust = client_context(authority.ca)
    with (
        replicas("a") as (a,),
        controlling(fleet := _fleet(a), files=files) as control,
        both(control) as envoys,
    ):
        clients = [envoy.client(tls=trust, server_name=_NAME) for envoy in envoys]
        before = _serial(clients[0])
        second, third = authority.issue("second", [_NAME]), authority.issue("third", [_NAME])
        _put(control, certificate=second, key=first)
        eventually(lambda: "tls/edge.key" in str(control.status["fleet"]["diagnostics"]), 20)
        assert [_serial(client) for client in clients] == [before, before]
        change(control, {**fleet, "pools": {"pool": {"replicas": [{"address": a.address, "weight": 1}]}}})
        assert [_serial(client) for client in clients] == [before, before], "the rest of the fleet goes on"

        _put(control, certificate=third, key=third)
        eventually(lambda: all(_serial(client) != before for client in clients), 20, 0.1)
        assert "tls/edge.key" not in str(control.status["fleet"]["diagnostics"])
