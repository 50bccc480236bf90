"""HAProxy's file and reload, for changes that its Runtime API does not support.

A failed reload restores the old file.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from lbctl.apply.haproxy import driver, reload
from tests.support.processes.binaries import Binary
from tests.support.processes.certs import Authority
from tests.support.processes.fleet import fleet_of, pool_of, put
from tests.support.processes.haproxy_driven import VERSIONS, driven
from tests.support.processes.ports import HOST, free_pair, free_port
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

ROUND_ROBIN: dict[str, Any] = {"balance": {"algorithm": "round_robin"}, "slow_start": {"window": "1s"}}
HEADERS = {"headers": {"response": {"set": {"x-served-by": "lbctl"}}}}


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> Binary:
    binary: Binary = request.param
    return binary


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow a reload every half second."""
    monkeypatch.setattr(reload, "MIN_INTERVAL", 0.5)


@pytest.fixture
def two() -> Iterator[list[Replica]]:
    with replicas("a", "b") as pool:
        yield pool


def test_changed_route_is_reloaded_and_live_weights_stay(version: Binary, two: list[Replica]) -> None:
    pool = pool_of(two, (10, 10), **ROUND_ROBIN)
    with driven(version, fleet_of(pool)) as gateway:
        live = {"pool": {"a": 2.5}}
        gateway.apply(live)
        worker, stream = gateway.worker, gateway.send("GET", "/sse?n=20&gap=0.1")
        gateway.change({**fleet_of(pool, route=HEADERS), "listeners": gateway.listeners})
        with gateway.steady(100) as steady:
            applied = gateway.apply(live)
        steady.load.assert_no_failure()
        assert (applied.done, applied.reloaded) == (True, True)
        assert gateway.worker != worker
        assert gateway.get().header("x-served-by") == "lbctl"
        assert gateway.load(100, 4).shares() == pytest.approx({"a": 0.2, "b": 0.8}, abs=0.03)
        assert stream.result(60).ok
        assert not gateway.apply(live).reloaded


@pytest.mark.usefixtures("short_pauses")
def test_failed_reload_keeps_old_worker_and_restores_the_file(
    version: Binary, two: list[Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is retried after `RETRY_AFTER`."""
    impatient = partial(reload.HaproxyReloader, start_timeout=3.0)
    monkeypatch.setattr(driver, "HaproxyReloader", impatient)
    pool = pool_of(two, (10, 10), **ROUND_ROBIN)
    port = free_port()
    with driven(version, fleet_of(pool)) as gateway, socket.create_server((HOST, port)) as taken:
        before = gateway.config.read_text()
        more = {**gateway.listeners, "second": {"bind": f"{HOST}:{port}"}}
        gateway.change({**fleet_of(pool), "listeners": more})
        applied = gateway.apply({"pool": {"a": 2.5}})
        assert not applied.done
        assert "no new process started" in applied.failure
        assert "the previous file was restored" in applied.failure
        assert gateway.config.read_text() == before
        assert gateway.load(100, 4).shares() == pytest.approx({"a": 0.2, "b": 0.8}, abs=0.03)
        worker = gateway.worker
        assert "no new process started" in gateway.apply({"pool": {"a": 2.5}}).failure
        assert gateway.worker == worker
        taken.close()
        monkeypatch.setattr(reload, "RETRY_AFTER", 0.0)
        eventually(lambda: gateway.apply({"pool": {"a": 2.5}}).reloaded)


def test_file_that_haproxy_rejects_is_never_written(two: list[Replica]) -> None:
    with driven("haproxy", fleet_of(pool_of(two))) as gateway:
        before, worker = gateway.config.read_text(), gateway.worker
        tls = {"certificates": [{"certificate": "missing.crt", "key": "missing.key"}]}
        secure = {name: {**keys, "tls": tls} for name, keys in gateway.listeners.items()}
        gateway.change({**fleet_of(pool_of(two)), "listeners": secure})
        applied = gateway.apply()
        assert not applied.done
        assert "missing.crt" in applied.complaints[0].message
        assert (gateway.config.read_text(), gateway.worker) == (before, worker)
        assert gateway.get().ok


def test_reloads_keep_their_minimal_interval(version: Binary, two: list[Replica]) -> None:
    with driven(version, fleet_of(pool_of(two)), clock=_no_time) as gateway:
        gateway.change({**fleet_of(pool_of(two), route=HEADERS), "listeners": gateway.listeners})
        assert gateway.apply().reloaded
        gateway.change({**fleet_of(pool_of(two)), "listeners": gateway.listeners})
        waiting = gateway.apply()
        assert not waiting.reloaded
        assert waiting.retry_after == 5


def test_without_runtime_api_drains_reload_sooner_than_weights(version: Binary, two: list[Replica]) -> None:
    fleet = fleet_of(pool_of(two, (10, 10), **ROUND_ROBIN))
    with driven(version, fleet, clock=_no_time, runtime_api=None) as gateway:
        assert gateway.apply({"pool": {"a": 2.5}}).reloaded
        assert gateway.load(100, 4).shares() == pytest.approx({"a": 0.2, "b": 0.8}, abs=0.03)
        assert gateway.apply({"pool": {"a": 5.0}}).retry_after == 30
        assert gateway.apply({"pool": {"a": 5.0}}, drained={"pool": ["b"]}).retry_after == 5


def _no_time() -> float:
    """Return a constant time, so that no time passes between two reloads on any machine."""
    return 0.0


@pytest.mark.parametrize("version", ["haproxy", pytest.param("haproxy-2.8", marks=pytest.mark.nightly)], indirect=True)
def test_agent_check_sets_weights_drains_and_down_replicas(version: Binary, two: list[Replica]) -> None:
    base = free_pair()
    pool = pool_of(two, (10, 4), **ROUND_ROBIN)
    with driven(version, fleet_of(pool), agent_check={"bind": f"127.0.0.1:{base}"}) as gateway:
        pid = gateway.proxy.process.pid
        eventually(lambda: gateway.apply().done)
        gateway.apply({"pool": {"a": 1.0}})
        expected = pytest.approx({"a": 0.2, "b": 0.8}, abs=0.04)
        gateway.eventually_shares(expected)
        gateway.apply({"pool": {"a": 1.0}}, drained={"pool": ["b"]})
        gateway.eventually_shares({"a": 1.0})
        gateway.apply({"pool": {"a": 8.0}})
        gateway.eventually_shares(pytest.approx({"a": 2 / 3, "b": 1 / 3}, abs=0.04))
        gateway.apply(down={("pool", "a"): "xid 79; gone\nup"})
        gateway.eventually_shares({"b": 1.0})
        gateway.apply()
        gateway.eventually_shares(pytest.approx({"a": 5 / 7, "b": 2 / 7}, abs=0.04))
        assert gateway.proxy.process.pid == pid


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("by_file", [False, True])
def test_renewed_certificate_is_loaded_without_a_changed_line(
    version: Binary, two: list[Replica], tmp_path: Path, by_file: bool
) -> None:
    authority = Authority(tmp_path)
    tls = {"certificates": [{"certificate": "tls/server.crt", "key": "tls/server.key"}]}

    def issue(name: str) -> dict[str, bytes]:
        pair = authority.issue(name, [HOST])
        return {"tls/server.crt": pair.certificate.read_bytes(), "tls/server.key": pair.key.read_bytes()}

    keys = {"runtime_api": None} if by_file else {}
    with driven(version, fleet_of(two, listener={"tls": tls}), issue("first.test"), **keys) as gateway:
        eventually(lambda: gateway.apply().done)
        assert _certificate_name(gateway.port) == "first.test"
        assert not gateway.apply().reloaded
        put(gateway.directory, issue("second.test"))
        eventually(lambda: gateway.apply().reloaded)
        eventually(lambda: _certificate_name(gateway.port) == "second.test")


def _certificate_name(port: int) -> str:
    pem = ssl.get_server_certificate((HOST, port))
    return str(x509.load_pem_x509_certificate(pem.encode()).subject.rdns[0].rfc4514_string()).removeprefix("CN=")
