"""A running nginx takes weights, drains and another fleet without a failed request, and is restored after an error."""

from __future__ import annotations

import shutil
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from lbctl.apply.nginx import driver, reload_schedule
from tests.support.fleets import Fleet
from tests.support.processes import background
from tests.support.processes.certs import Authority
from tests.support.processes.fleet import fleet_of, pool_of, put
from tests.support.processes.nginx_driver import OWN, Site, driving
from tests.support.processes.ports import HOST, await_listeners
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_ROUND_ROBIN = {"algorithm": "round_robin"}


def _fleet(*members: Replica, **sections: Any) -> Fleet:
    return fleet_of(pool_of(members, balance=_ROUND_ROBIN), **sections)


def _apply(site: Site, fleet: Fleet, **live: Any) -> None:
    applied = site.converge(fleet, **live)
    assert applied.outcome == "applied", applied


def test_first_apply_keeps_a_copy_of_the_owners_configuration() -> None:
    with replicas("a") as (a,), driving(fleet := _fleet(a)) as site:
        before = site.config.read_text()
        assert site.own.get().body.decode() == OWN
        _apply(site, fleet)
        assert site.get().replica == "a"
        assert site.own.get().error == "refused"
        assert site.config.with_name("nginx.conf.orig").read_text() == before
        assert site.converge(fleet).outcome == "same"
        temporary = [f"lbctl-{name}" for name in ("client-body", "fastcgi", "proxy", "scgi", "uwsgi")]
        assert sorted(item.name for item in site.config.parent.iterdir()) == [
            *temporary, "nginx.conf", "nginx.conf.lbctl", "nginx.conf.orig"
        ]  # fmt: skip


def test_weights_change_shares_and_no_request_fails() -> None:
    with replicas("a", "b") as (a, b), driving(fleet := _fleet(a, b)) as site:
        _apply(site, fleet)
        running = site.send_load(250, 10, gap=0.1)
        time.sleep(0.7)
        before = (a.requests, b.requests)
        _apply(site, fleet, weights={"a": 1.0, "b": 3.0})
        load = running.result(60)
        after = site.load(200, 4)
    load.assert_no_failure()
    assert abs(before[0] - before[1]) <= 4
    assert 0.72 <= after.shares()["b"] <= 0.78


def test_streams_complete_during_a_reload() -> None:
    with replicas("a", "b") as (a, b), driving(fleet := _fleet(a, b)) as site:
        _apply(site, fleet)
        a.paused = b.paused = True
        streams = [site.send("GET", "/sse?n=6&gap=0.3", timeout=100) for _ in range(4)]
        eventually(lambda: a.in_flight + b.in_flight == 4)
        applied = site.converge(fleet, drained=frozenset({"b"}))
        assert (applied.outcome, applied.finishing > 0) == ("applied", True)
        served = b.requests
        load = site.load(40, 4)
        a.paused = b.paused = False
        assert [len(stream.result(60).events()) for stream in streams] == [6] * 4
    assert load.by_replica == {"a": 40}
    assert b.requests == served


def test_unchanged_configuration_is_not_loaded_again() -> None:
    with replicas("a") as (a,), driving(fleet := _fleet(a)) as site:
        _apply(site, fleet)
        workers = site.nginx._workers()
        site.restart_driver()
        assert site.converge(fleet).outcome == "same"
        assert set(site.nginx._workers()) <= set(workers)
        site.config.unlink()
        site.config.write_text("events { }")
        _apply(site, fleet)
        assert site.config.with_name("nginx.conf.orig.2").read_text() == "events { }"


def test_refused_configuration_does_not_replace_the_running_one() -> None:
    broken = {"certificates": [{"certificate": "tls/none.crt", "key": "tls/none.key"}]}
    with replicas("a") as (a,), driving(fleet := _fleet(a)) as site:
        own = site.config.read_text()
        refused = site.converge({**fleet, "listeners": {"gateway": {**fleet["listeners"]["gateway"], "tls": broken}}})
        assert refused.outcome == "refused"
        assert "none.crt" in refused.reason
        assert site.config.read_text() == own
        assert site.own.get().body.decode() == OWN
        _apply(site, fleet)
        text = site.config.read_text()
        refused = site.converge({**fleet, "listeners": {"gateway": {**fleet["listeners"]["gateway"], "tls": broken}}})
        assert refused.outcome == "refused"
        assert site.config.read_text() == text
        assert site.get().replica == "a"


def test_port_in_use_restores_the_configuration_and_drains_apply() -> None:
    """`nginx -t` accepts the configuration. Drains apply to the fleet that runs."""
    with replicas("a", "b") as (a, b), driving(fleet := _fleet(a, b)) as site, socket.socket() as other:
        _apply(site, fleet)
        text = site.config.read_text()
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((HOST, 0))
        other.listen()
        more = {"listeners": {**fleet["listeners"], "more": {"bind": f"{HOST}:{other.getsockname()[1]}"}}}
        running = site.send_load(200, 6, gap=0.1)
        refused = site.converge({**fleet, **more})
        assert (refused.outcome, refused.behind) == ("refused", False)
        assert "Address already in use" in refused.reason
        assert site.config.read_text() == text
        assert site.converge({**fleet, **more}).outcome == "same"
        applied = site.converge({**fleet, **more}, drained=frozenset({"b"}))
        assert (applied.outcome, applied.behind) == ("applied", True)
        assert site.load(40, 4).by_replica == {"a": 40}
        running.result(60).assert_no_failure()


def test_hanging_reload_command_restores_the_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver, "_COMMAND_TIMEOUT", 0.5)
    with replicas("a") as (a,), driving(fleet := _fleet(a), command=("sh", "-c", "sleep 60; true")) as site:
        begin = time.monotonic()
        applied = site.converge(fleet)
        assert (applied.outcome, applied.reason.partition(";")[0]) == ("refused", "sh: it did not end within 0.5 s")
        assert time.monotonic() - begin < 30, "the driver waited for the child"
        assert site.own.get().body.decode() == OWN


def test_failed_first_apply_keeps_the_owners_configuration() -> None:
    with replicas("a") as (a,), socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        fleet = _fleet(a, listener={"bind": f"{HOST}:{other.getsockname()[1]}"})
        with driving(fleet) as site:
            own = site.config.read_text()
            assert site.converge(fleet).outcome == "refused"
            assert (site.config.is_symlink(), site.config.read_text()) == (False, own)
            assert site.own.get().body.decode() == OWN


def test_renewed_certificate_is_loaded(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first, second = authority.issue("first.test", [HOST]), authority.issue("second.test", [HOST])
    tls = {"certificates": [{"certificate": "tls/server.crt", "key": "tls/server.key"}]}
    with replicas("a") as (a,), driving(fleet := _fleet(a, listener={"tls": tls})) as site:
        site.put({"tls/server.crt": first.certificate.read_bytes(), "tls/server.key": first.key.read_bytes()})
        _apply(site, fleet)
        assert _certificate_name(site) == "first.test"
        site.put({"tls/server.crt": second.certificate.read_bytes(), "tls/server.key": second.key.read_bytes()})
        _apply(site, fleet)
        assert _certificate_name(site) == "second.test"


def test_renewed_certificate_is_loaded_despite_an_old_copy(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first, second = authority.issue("first.test", [HOST]), authority.issue("second.test", [HOST])
    tls = {"certificates": [{"certificate": "tls/server.crt", "key": "tls/server.key"}]}
    old, new = (
        {"tls/server.crt": pair.certificate.read_bytes(), "tls/server.key": pair.key.read_bytes()}
        for pair in (first, second)
    )
    with replicas("a") as (a,), driving(fleet := _fleet(a, listener={"tls": tls})) as site:
        put(site.config.parent, old)
        _apply(site, fleet)
        assert _certificate_name(site) == "first.test"
        site.put(new)
        site.restart_driver()
        _apply(site, fleet)
        assert _certificate_name(site) == "second.test"


def test_tenant_keys_are_private_and_change_with_the_fleet() -> None:
    auth = {"auth": {"api_keys": {"file": "keys.yaml"}}}
    with replicas("a") as (a,), driving(fleet := _fleet(a, route=auth)) as site:
        site.put({"keys.yaml": "sk-one: acme\n"})
        _apply(site, fleet)
        assert [site.get("/", {"authorization": key}).status for key in ("sk-one", "sk-two")] == [200, 401]
        site.put({"keys.yaml": "sk-two: acme\n"})
        _apply(site, fleet)
        assert [site.get("/", {"authorization": key}).status for key in ("sk-one", "sk-two")] == [401, 200]
        holding = [file for file in site.config.parent.rglob("*") if file.is_file() and b"acme" in file.read_bytes()]
        assert holding
        assert {file.stat().st_mode & 0o777 for file in holding} == {0o600}


def test_stopped_nginx_starts_with_the_new_configuration() -> None:
    with replicas("a") as (a,):
        fleet = _fleet(a)
        with driving(fleet) as site:
            site.nginx.process.terminate()
            site.nginx.process.wait(60)
            absent = site.converge(fleet)
            assert absent.outcome == "absent", absent
            site.nginx.ports = [site.port]
            site.nginx.start()
            assert site.get().replica == "a"


def test_nginx_without_workers_yet_is_not_reported_as_reloaded() -> None:
    """nginx listens for a moment before it has workers."""
    with replicas("a") as (a,), driving(fleet := _fleet(a)) as site:
        for _ in range(5):
            site.nginx.stop()
            shutil.rmtree(site.config.with_name("nginx.conf.lbctl"), ignore_errors=True)
            if site.config.with_name("nginx.conf.orig").exists():
                site.config.with_name("nginx.conf.orig").replace(site.config)
            site.restart_driver()
            newest = site.prepared(fleet)
            site.nginx._spawn(site.nginx._command())
            assert not await_listeners(site.nginx.ports)
            assert background.wait(site.driver.converge(newest)).outcome == "applied"
            assert site.get().replica == "a"


def test_weights_wait_for_min_interval_and_health_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload_schedule, "PAUSE", 1.0)
    with replicas("a", "b", "c") as members, driving(fleet := _fleet(*members), min_interval="60s") as site:
        newest = site.prepared(fleet)
        results: list[tuple[float, str]] = []
        running = background.start(site.driver.run(lambda applied: results.append((time.monotonic(), applied.outcome))))
        try:
            _want(site, newest)
            eventually(lambda: len(results) == 1)
            for weight in (2.0, 3.0, 4.0):
                _want(site, site.prepared(fleet, {"a": 1.0, "b": weight, "c": 1.0}))
            _want(site, site.prepared(fleet, {"a": 1.0, "b": 4.0, "c": 1.0}, frozenset({"c"})))
            eventually(lambda: len(results) == 2)
            load = site.load(100, 4)
        finally:
            running.cancel()
    assert [outcome for _, outcome in results] == ["applied", "applied"]
    assert 0.9 <= results[1][0] - results[0][0] < 30
    assert load.by_replica == {"a": 20, "b": 80}


def _want(site: Site, newest: Any) -> None:
    async def want() -> None:
        site.driver.want(newest)

    background.wait(want())


def _certificate_name(site: Site) -> str:
    """Return the name in the certificate of the listener."""
    pem = ssl.get_server_certificate((HOST, site.port))
    return str(x509.load_pem_x509_certificate(pem.encode()).subject.rdns[0].rfc4514_string()).removeprefix("CN=")
