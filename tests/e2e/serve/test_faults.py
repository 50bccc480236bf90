"""Each fault in docs/reference/faults.md is caused with real proxies, and has the effects in its row."""

from __future__ import annotations

import re
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase

import pytest
import yaml

from tests.support.fleets import Fleet
from tests.support.paths import ROOT
from tests.support.processes import edges
from tests.support.processes.control import ControlPlane, controlling, driven
from tests.support.processes.engines import Engine, engines
from tests.support.processes.fleet import entry, fleet_of, pool_of
from tests.support.processes.http1 import Request
from tests.support.processes.invocation import invoke
from tests.support.processes.lbctl_process import PICKER_MAY_HANG, short_pauses
from tests.support.processes.picker import PICK, frozen, picked, picker_section, pid_of
from tests.support.processes.ports import HOST
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually
from tests.support.processes.xds_envoy import XdsEnvoy
from tests.support.stores import RedisServer

pytestmark = pytest.mark.e2e
_GENERATE = Request("POST", "/v1/completions?n=20", timeout=20.0)
_NO_PROGRAMS = {f"LBCTL_{kind}": "/nowhere" for kind in ("ENVOY", "HAPROXY", "NGINX")}
"""Paths without programs: asking for their versions takes time."""
_SLOW = 6
"""Maximum factor by which a busy machine may be slower than the page states."""


@dataclass(frozen=True)
class Row:
    """A row of the page."""

    fault: str
    status: str
    check: int
    doctor: str
    top: str
    log: str
    alert: str
    seconds: float


def _rows() -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for line in (ROOT / "docs" / "reference" / "faults.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 8 and cells[0] != "fault":
            fault, status, check, doctor, top, log, alert, seconds = cells
            rows[fault] = Row(fault, status, int(check), doctor, top, log.strip("–"), alert, float(seconds))
    return rows


ROWS = _rows()


def _shows(control: ControlPlane, row: Row) -> str:
    """Return the effects in the row that the fault does not have; empty if it has all of them."""
    server = ["--server", control.url]
    status = invoke(["status", "--check", *server])
    pattern = row.status.replace("[", "[[]").replace("…", "*") + ("" if row.status.endswith("…") else "*")
    if not any(fnmatchcase(line, pattern) for line in status.stdout.splitlines()):
        return f"status:\n{status.stdout}"
    if status.code != row.check:
        return f"--check ends with {status.code}: {status.stderr}"
    command = next(line for line in status.stdout.splitlines() if fnmatchcase(line, pattern)).rpartition("; run: ")[2]
    if not command.startswith("lbctl "):
        return f"no command in {status.stdout}"
    doctor = invoke(["doctor", *server], _NO_PROGRAMS)
    lines = [line for line in doctor.stdout.splitlines() if re.match(rf"(serve|picker) .* {row.doctor} ", line)]
    if not lines or (doctor.code == 0) == (row.doctor == "failed"):
        return f"doctor ends with {doctor.code}:\n{doctor.stdout}"
    top = invoke(["top", *server]).stdout
    if not re.search(rf"^pool/\S+ +{row.top} ", top, re.MULTILINE):
        return f"top:\n{top}"
    return "" if row.log in control.log else f"the log has no {row.log!r}"


def _check(control: ControlPlane, fault: str) -> None:
    row = ROWS[fault]
    last = [""]

    def is_shown() -> bool:
        last[0] = _shows(control, row)
        return not last[0]

    try:
        eventually(is_shown, max(60.0, _SLOW * row.seconds))
    except AssertionError:
        pytest.fail(f"{fault}: {last[0]}")


@dataclass(frozen=True)
class Site:
    """Two engines behind an Envoy."""

    control: ControlPlane
    engines: list[Engine]
    fleet: Fleet
    envoy: XdsEnvoy


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with engines("a", "b") as members:
        pool = {
            "replicas": [entry(item) for item in members],
            "health": {"deep": {"stalled_after": "2s"}},
            "telemetry": {
                "interval": "1s", "stale_after": "3s",
                "sources": [{"kind": "vllm", "url": "http://{address}/metrics"}],
            },
        }  # fmt: skip
        fleet = fleet_of(pool, **driven("edge-1"))
        with controlling(fleet) as control, control.envoy("edge-1", ["edge-1"], by_socket=True) as envoy:
            yield Site(control, members, fleet, envoy)


@contextmanager
def _killed(site: Site) -> Iterator[None]:
    site.engines[0].refuse()
    try:
        yield
    finally:
        site.engines[0].accept()


@contextmanager
def _all_killed(site: Site) -> Iterator[None]:
    for item in site.engines:
        item.refuse()
    try:
        yield
    finally:
        for item in site.engines:
            item.accept()


@contextmanager
def _wedged(site: Site) -> Iterator[None]:
    with site.envoy.client().steady(10, _GENERATE):
        site.engines[0].wedged = True
        try:
            yield
        finally:
            site.engines[0].wedged = False


@contextmanager
def _silent(site: Site) -> Iterator[None]:
    for item in site.engines:
        item.silent = True
    try:
        yield
    finally:
        for item in site.engines:
            item.silent = False


@contextmanager
def _broken(site: Site) -> Iterator[None]:
    site.control.write_text("version: [1\n")
    try:
        yield
    finally:
        site.control.write(site.fleet)


@contextmanager
def _rejected(site: Site) -> Iterator[None]:
    """Give the Envoy a listener whose port another program has."""
    with socket.create_server((HOST, 0)) as taken:
        listeners = {**site.fleet["listeners"], "taken": {"bind": f"{HOST}:{taken.getsockname()[1]}"}}
        proxies = {"edge-1": {**site.fleet["proxies"]["edge-1"], "listeners": ["edge-1", "taken"]}}
        site.control.write({**site.fleet, "listeners": listeners, "proxies": proxies})
        try:
            yield
        finally:
            site.control.write(site.fleet)


SHARED: dict[str, Callable[[Site], AbstractContextManager[None]]] = {
    "a replica is killed": _killed,
    "all replicas are down": _all_killed,
    "all metrics sources fail": _silent,
    "a fleet file has an error": _broken,
    "a proxy rejects the configuration": _rejected,
    "a replica is stalled": _wedged,  # the last one: the replica is on trial for a while after it
}
"""Maps a fault to the function that causes it at the shared site."""


@contextmanager
def _proxies_gone(count: int) -> Iterator[ControlPlane]:
    """Run two Envoys of one entry, of which `count` end."""
    with replicas("a", "b") as members, ExitStack() as stack:
        fleet = fleet_of({"replicas": [entry(item) for item in members]}, **driven("edge-1"))
        fleet["proxies"] = {"edge": {"kind": "envoy", "nodes": ["edge-*"], "instances": 2}}
        control = stack.enter_context(controlling(fleet))
        nodes = ("edge-1", "edge-2")
        envoys = [ExitStack(), ExitStack()]
        for envoy, node in zip(envoys, nodes, strict=True):
            stack.push(envoy)
            envoy.enter_context(control.envoy(node, by_socket=True, wait=False))
        eventually(lambda: [control.proxies[node]["state"] for node in nodes] == ["SYNCED"] * 2)
        for envoy in envoys[2 - count :]:
            envoy.close()
        yield control


@contextmanager
def _picker_gone() -> Iterator[ControlPlane]:
    with short_pauses(PICKER_MAY_HANG), replicas("a", "b") as members:
        pool = {"replicas": [entry(item) for item in members], "balance": {"algorithm": "pick"}}
        with picked("envoy", pool) as (control, _), frozen(pid_of(control)):
            yield control


@contextmanager
def _picker_suspects() -> Iterator[ControlPlane]:
    """Stop one of three engines; deep health would eject it after half a minute."""
    with engines("a", "b", "c") as members:
        pool = pool_of(
            members, balance=dict(PICK), health={"deep": {"stalled_after": "30s"}},
            telemetry={"sources": [{"kind": "vllm", "url": "http://{address}/metrics"}]},
        )  # fmt: skip
        with picked("haproxy", pool) as (control, client), client.steady(20, _GENERATE):
            eventually(lambda: min(item.requests for item in members) > 30)
            members[0].wedged = True
            try:
                yield control
            finally:
                members[0].wedged = False


@contextmanager
def _picker_never_asked() -> Iterator[ControlPlane]:
    """Run a HAProxy with an earlier configuration without the picker, which the Runtime API cannot change."""
    with replicas("a", "b") as members, edges.haproxy() as ha:
        pool = {"replicas": [entry(item) for item in members]}
        before = edges.add(fleet_of(pool), ha)
        with edges.started_edge(ha, before):
            for key in ("config", "reload"):
                del ha.entry[key]
            after = edges.add(fleet_of({**pool, "balance": {"algorithm": "pick"}}, **picker_section()), ha)
            with controlling(after) as control:
                eventually(lambda: control.status["picker"]["running"])
                with ha.steady(20, Request("GET", "/")):
                    yield control


@contextmanager
def _store_gone() -> Iterator[ControlPlane]:
    server = RedisServer()
    server.start()
    try:
        with replicas("a", "b") as members:
            fleet = fleet_of({"replicas": [entry(item) for item in members]})
            store = {"url": f"redis://{HOST}:{server.port}", "lease": "3s"}
            fleet["control"] = {**fleet.get("control", {}), "store": store}
            with controlling(fleet) as control:
                server.signal(signal.SIGSTOP)
                try:
                    yield control
                finally:
                    server.signal(signal.SIGCONT)
    finally:
        server.close()


@contextmanager
def _disk_full() -> Iterator[ControlPlane]:
    """Prevent all files of the process from growing: for SQLite that is a full disk.

    The unsaved change is that a replica is down.
    """
    with replicas("a", "b", "c") as members:
        fleet = fleet_of({"replicas": [entry(item) for item in members]})
        with controlling(fleet) as control:
            assert control.process is not None
            eventually(lambda: control.status["replicas"]["states"] == {"in": 3})
            size = control.log_file.stat().st_size + 65_536
            resource.prlimit(control.process.pid, resource.RLIMIT_FSIZE, (size, size))
            members[2].refuse()
            yield control


OWN: dict[str, Callable[[], AbstractContextManager[ControlPlane]]] = {
    "one of two proxies disconnects": lambda: _proxies_gone(1),
    "all proxies disconnect": lambda: _proxies_gone(2),
    "the picker is not running": _picker_gone,
    "proxies never query the picker": _picker_never_asked,
    "the picker suspects a stall": _picker_suspects,
    "the store is unavailable": _store_gone,
    "the disk is full": _disk_full,
}
"""Maps a fault to the function that causes it at a separate site, and yields that site's control plane."""


@pytest.mark.parametrize("fault", [*SHARED, *OWN])
def test_fault_shows_as_on_the_page(fault: str, request: pytest.FixtureRequest) -> None:
    if fault in OWN:
        with OWN[fault]() as control:
            _check(control, fault)
        return
    site: Site = request.getfixturevalue("site")
    eventually(lambda: [item["kind"] for item in site.control.status["problems"]] == [])
    with SHARED[fault](site):
        _check(site.control, fault)


def test_every_row_is_driven_and_names_an_alert() -> None:
    assert {*ROWS} == {*SHARED, *OWN}
    assert len(ROWS) == 13
    groups = yaml.safe_load((ROOT / "contrib/prometheus/lbctl.rules.yml").read_text(encoding="utf-8"))["groups"]
    alerts = {rule.get("alert") for group in groups for rule in group["rules"]}
    assert {row.alert for row in ROWS.values()} - alerts == {"–"}, "the picker's suspicion is too short for an alert"
