"""What `lbctl bootstrap` writes, in a real Envoy: it finds the control plane, waits for it, and follows its keys."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from lbctl.cli import run
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
    """An Envoy with the bootstrap of the command; `api`: what the user writes in the place of DELTA_GRPC."""
    admin = free_port()
    where = ["--xds", f"{HOST}:{control.xds}", "--node", "edge", "--proxy-admin", f"{HOST}:{admin}"]
    assert run(["bootstrap", *where, *more, "-d", str(out)]) == 0
    written = (out / "envoy.yaml").read_text()
    (out / "envoy.yaml").write_text(written.replace("DELTA_GRPC", api))
    (bind,) = yaml.safe_load((control.files / "fleet.yaml").read_text())["listeners"].values()
    ports = {"gateway": int(bind["bind"].rpartition(":")[2])}
    envoy = XdsEnvoy(require("envoy"), out, out / "envoy.yaml", "edge", admin, ports)
    try:
        envoy.start()
        if wait:
            envoy.await_listeners()
        yield envoy
        envoy.assert_alive()
    except Exception as error:
        error.add_note(f"{control.tail()}\n{envoy.logs()}")
        raise
    finally:
        envoy.stop()


def connected(envoy: XdsEnvoy) -> bool:
    return envoy.stat("control_plane.connected_state") == 1


def live(envoy: XdsEnvoy) -> bool:
    """As a readiness probe asks."""
    try:
        return requests.get(f"http://{HOST}:{envoy.admin}/ready", timeout=10).status_code == 200
    except requests.RequestException:
        return False


@pytest.mark.parametrize(("api", "delta"), [("DELTA_GRPC", True), ("GRPC", False)])
def test_it_connects_to_serve_and_traffic_flows(api: str, delta: bool, tmp_path: Path) -> None:
    with Replica("one") as one, controlling(fleet_of([one])) as control, joined(control, tmp_path, api=api) as envoy:
        assert envoy.client().get("/").status == 200
        assert control.proxies["edge"]["delta"] is delta


def test_envoy_is_not_ready_before_the_control_plane_has_answered(tmp_path: Path) -> None:
    with (
        Replica("one") as one,
        controlling(fleet_of([one]), start=False) as control,
        joined(control, tmp_path, wait=False) as envoy,
    ):
        time.sleep(1.0)
        assert not live(envoy)
        control.start()
        envoy.await_listeners()
        eventually(lambda: live(envoy))
        assert envoy.client().get("/").status == 200


def test_a_control_plane_that_comes_back_is_found_at_once(tmp_path: Path) -> None:
    with Replica("one") as one, controlling(fleet_of([one])) as control, joined(control, tmp_path) as envoy:
        control.kill()
        eventually(lambda: not connected(envoy))
        time.sleep(5.0)
        assert envoy.client().get("/").status == 200
        control.start()
        eventually(lambda: connected(envoy), 4.0)


def test_renewed_keys_and_authorities_are_taken_without_a_restart(tmp_path: Path) -> None:
    """Everything changes hands: afterwards only who knows the new authority, and is known to it, can connect."""
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    mine = tmp_path / "mine"
    mine.mkdir()
    _put(mine, old, old.issue("edge"))
    flags = ["--tls-ca", f"{mine}/ca.crt", "--tls-cert", f"{mine}/edge.crt", "--tls-key", f"{mine}/edge.key"]
    with (
        Replica("one") as one,
        controlling(_fleet(one), files=_files(old)) as control,
        joined(control, tmp_path / "out", *flags) as envoy,
    ):
        assert connected(envoy)
        control.kill()
        for name, content in _files(new).items():
            (control.files / name).write_bytes(content)
        control.start()
        time.sleep(1.5)
        eventually(lambda: not connected(envoy))  # it still shows the old certificate and trusts the old authority
        _put(mine, new, new.issue("edge"))
        eventually(lambda: connected(envoy))
        assert envoy.client().get("/").status == 200


def test_a_control_plane_with_a_certificate_for_another_name_is_not_believed(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    edge = authority.issue("edge")
    flags = ["--tls-ca", str(authority.ca), "--tls-cert", str(edge.certificate), "--tls-key", str(edge.key)]
    files = _files(authority, name="other.example.com")
    with (
        Replica("one") as one,
        controlling(_fleet(one), files=files) as control,
        joined(control, tmp_path / "out", *flags, wait=False) as envoy,
    ):
        eventually(lambda: envoy.stat("cluster.xds|lbctl.ssl.fail_verify_san") > 1)  # it tries again and again
        assert envoy.stat("cluster_manager.cds.update_success") == 0
        assert not live(envoy)


def test_an_envoy_asks_a_picker_beyond_loopback_with_its_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    edge = authority.issue("edge")
    flags = ["--tls-ca", str(authority.ca), "--tls-cert", str(edge.certificate), "--tls-key", str(edge.key)]
    with Replica("one") as one, Replica("two") as two:
        fleet = _fleet(one)
        fleet["pools"]["pool"] = {"replicas": [entry(item) for item in (one, two)], "balance": {"algorithm": "pick"}}
        fleet["control"]["picker"] = {"bind": f"0.0.0.0:{free_pair()}"}
        with (
            controlling(fleet, files=_files(authority)) as control,
            joined(control, tmp_path / "out", *flags) as envoy,
        ):
            await_picker(envoy)
            envoy.client().load(20, 2).assert_no_failure()
            eventually(lambda: control.metric("lbctl_pick_decisions_total") >= 1)


def test_an_envoy_without_a_certificate_goes_on_by_its_own_policy(tmp_path: Path) -> None:
    with Replica("one") as one, Replica("two") as two:
        fleet = _fleet(one)
        fleet["pools"]["pool"] = {"replicas": [entry(item) for item in (one, two)], "balance": {"algorithm": "pick"}}
        fleet["control"]["picker"] = {"bind": f"0.0.0.0:{free_pair()}"}
        with (
            controlling(fleet, files=_files(Authority(tmp_path / "pki"))) as control,
            control.envoy("edge", by_socket=True) as envoy,
        ):
            envoy.client().load(20, 2).assert_no_failure()
            eventually(lambda: "xds-ca" in str(control.proxies["edge"]))


def _fleet(replica: Replica) -> dict[str, Any]:
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
    """As a renewal does: written beside, renamed into place."""
    for name, source in (("ca.crt", authority.ca), ("edge.crt", pair.certificate), ("edge.key", pair.key)):
        beside = directory / f".{name}"
        beside.write_bytes(source.read_bytes())
        beside.replace(directory / name)
