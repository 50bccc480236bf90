"""An Envoy with the bootstrap of `lbctl bootstrap` finds the control plane, waits for it, and follows renewed keys."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import requests
import yaml

from lbctl.cli import run
from tests.support.diagnosis import diagnosed
from tests.support.processes.binaries import require
from tests.support.processes.certs import Authority, Pair
from tests.support.processes.control import ControlPlane, XdsEnvoy, controlling
from tests.support.processes.fleet import entry, fleet_of
from tests.support.processes.picker import await_picker
from tests.support.processes.ports import HOST, free_pair, free_port
from tests.support.processes.replicas import Replica
from tests.support.processes.waiting import eventually


@contextmanager
def joined(
    control: ControlPlane, out: Path, *more: str, wait: bool = True, api: str = "DELTA_GRPC"
) -> Iterator[XdsEnvoy]:
    """Run an Envoy with the bootstrap of the command, in which the user has replaced DELTA_GRPC by `api`."""
    admin = free_port()
    where = ["--xds", f"{HOST}:{control.xds}", "--node", "edge", "--proxy-admin", f"{HOST}:{admin}"]
    assert run(["bootstrap", *where, *more, "-d", str(out)]) == 0
    bootstrap = (out / "envoy.yaml").read_text()
    (out / "envoy.yaml").write_text(bootstrap.replace("DELTA_GRPC", api))
    (listener,) = yaml.safe_load((control.files / "fleet.yaml").read_text())["listeners"].values()
    ports = {"gateway": int(listener["bind"].rpartition(":")[2])}
    envoy = XdsEnvoy(require("envoy"), out, out / "envoy.yaml", "edge", admin, ports)
    try:
        with diagnosed(envoy.logs):
            envoy.start()
            if wait:
                envoy.await_listeners()
            yield envoy
            envoy.assert_alive()
    finally:
        envoy.stop()


def connected(envoy: XdsEnvoy) -> bool:
    return envoy.stat("control_plane.connected_state") == 1


def is_ready(envoy: XdsEnvoy) -> bool:
    """Return whether a readiness probe succeeds."""
    try:
        return requests.get(f"http://{HOST}:{envoy.admin}/ready", timeout=10).status_code == 200
    except requests.RequestException:
        return False


def test_bootstrapped_envoy_connects_and_reconnects(tmp_path: Path) -> None:
    """It uses either variant of the protocol, and reconnects after the control plane was away for two seconds."""
    with Replica("one") as one, controlling(fleet_of([one])) as control:
        for api, delta in (("GRPC", False), ("DELTA_GRPC", True)):
            with joined(control, tmp_path / api, api=api) as envoy:
                assert envoy.client().get("/").status == 200
                assert control.proxies["edge"]["delta"] is delta
                if delta:
                    control.kill()
                    eventually(lambda envoy=envoy: not connected(envoy))
                    time.sleep(2.0)
                    assert envoy.client().get("/").status == 200
                    control.start()
                    eventually(lambda envoy=envoy: connected(envoy), 20)


def test_envoy_is_not_ready_without_a_control_plane(tmp_path: Path) -> None:
    with (
        Replica("one") as one,
        controlling(fleet_of([one]), start=False) as control,
        joined(control, tmp_path, wait=False) as envoy,
    ):
        time.sleep(1.0)
        assert not is_ready(envoy)
        control.start()
        envoy.await_listeners()
        eventually(lambda: is_ready(envoy))
        assert envoy.client().get("/").status == 200


def test_renewed_certificates_need_no_restart(tmp_path: Path) -> None:
    """Both CAs are replaced: the Envoy reconnects when it has a certificate of the new CA and trusts it."""
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    own = tmp_path / "own"
    own.mkdir()
    _put(own, old, old.issue("edge"))
    flags = ["--tls-ca", f"{own}/ca.crt", "--tls-cert", f"{own}/edge.crt", "--tls-key", f"{own}/edge.key"]
    with (
        Replica("one") as one,
        controlling(_mutual_tls_fleet(one), files=_files(old)) as control,
        joined(control, tmp_path / "out", *flags) as envoy,
    ):
        assert connected(envoy)
        control.kill()
        for name, content in _files(new).items():
            (control.files / name).write_bytes(content)
        control.start()
        time.sleep(1.5)
        eventually(lambda: not connected(envoy))  # it still uses the old certificate and trusts the old CA
        _put(own, new, new.issue("edge"))
        eventually(lambda: connected(envoy))
        assert envoy.client().get("/").status == 200


def test_control_plane_certificate_must_match_its_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    edge = authority.issue("edge")
    flags = ["--tls-ca", str(authority.ca), "--tls-cert", str(edge.certificate), "--tls-key", str(edge.key)]
    files = _files(authority, name="other.example.com")
    with (
        Replica("one") as one,
        controlling(_mutual_tls_fleet(one), files=files) as control,
        joined(control, tmp_path / "out", *flags, wait=False) as envoy,
    ):
        eventually(lambda: envoy.stat("cluster.xds|lbctl.ssl.fail_verify_san") > 1)  # it retries continuously
        assert envoy.stat("cluster_manager.cds.update_success") == 0
        assert not is_ready(envoy)


class _Picking(NamedTuple):
    """A control plane whose picker listens on all addresses, and the CA of its certificates."""

    control: ControlPlane
    authority: Authority


@pytest.fixture(scope="module")
def picking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Picking]:
    authority = Authority(tmp_path_factory.mktemp("pki"))
    with Replica("one") as one, Replica("two") as two:
        fleet = _mutual_tls_fleet(one)
        fleet["pools"]["pool"] = {"replicas": [entry(item) for item in (one, two)], "balance": {"algorithm": "pick"}}
        fleet["control"]["picker"] = {"bind": f"0.0.0.0:{free_pair()}"}
        with controlling(fleet, files=_files(authority)) as control:
            yield _Picking(control, authority)


def test_envoy_uses_a_remote_picker_with_its_certificate(picking: _Picking, tmp_path: Path) -> None:
    control, authority = picking
    edge = authority.issue("edge")
    flags = ["--tls-ca", str(authority.ca), "--tls-cert", str(edge.certificate), "--tls-key", str(edge.key)]
    with joined(control, tmp_path, *flags) as envoy:
        await_picker(envoy)
        envoy.client().load(20, 2).assert_no_failure()
        eventually(lambda: control.metric("lbctl_pick_decisions_total") >= 1)


def test_envoy_without_certificate_does_not_use_the_picker(picking: _Picking) -> None:
    control, _ = picking
    with control.envoy("edge", by_socket=True) as envoy:
        eventually(lambda: "xds-ca" in str(control.proxies["edge"]))
        envoy.client().load(20, 2).assert_no_failure()
        assert envoy.stat("cluster.picker|lbctl.upstream_rq_total") == 0
        missed = {"picker_unasked", "picks_missed"}  # requests of another test may have been picked recently
        eventually(lambda: envoy.client().load(20, 2) and missed & _problems(control), pause=1.0)


def _problems(control: ControlPlane) -> set[str]:
    return {str(item["kind"]) for item in control.status["problems"]}


def _mutual_tls_fleet(replica: Replica) -> dict[str, Any]:
    tls = {"certificate": "xds.crt", "key": "xds.key", "client_ca": "clients-ca.crt"}
    return fleet_of([replica]) | {"control": {"xds": {"tls": tls}}}


def _files(authority: Authority, name: str = HOST) -> dict[str, bytes]:
    pair = authority.issue("xds", [name])
    return {
        "xds.crt": pair.certificate.read_bytes(),
        "xds.key": pair.key.read_bytes(),
        "clients-ca.crt": authority.ca.read_bytes(),
    }


def _put(directory: Path, authority: Authority, pair: Pair) -> None:
    """Replace the files as a renewal does, by renaming new ones."""
    for name, source in (("ca.crt", authority.ca), ("edge.crt", pair.certificate), ("edge.key", pair.key)):
        new_file = directory / f".{name}"
        new_file.write_bytes(source.read_bytes())
        new_file.replace(directory / name)
