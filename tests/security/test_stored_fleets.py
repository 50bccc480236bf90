"""A fleet in a shared store configures the proxies, but never what runs or is opened on the machine of a member."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lbctl.base.diagnostics import Diagnostics
from lbctl.ir.proxies import Control, Proxy
from lbctl.model.load import SourceText, texts
from lbctl.model.own_sections import own_sections
from lbctl.serve.drivers.eligibility import driven, undriven
from lbctl.serve.fleet.reader import Writers
from lbctl.serve.fleet.reload import FleetReloader, relocated
from lbctl.store.records import SavedFleet
from lbctl.targets.load import Loaded
from tests.support.fleets import fleet_text, pool, replica

EVIL = {
    "kind": "haproxy",
    "config": "/evil/haproxy.cfg",
    "reload": {"command": ["/bin/sh", "-c", "id"]},
    "runtime_api": "/evil/socket",
    "include": {"global": ["/evil/lines"]},
    "user": "root",
    "group": "root",
    "chroot": "/evil",
    "metrics": "127.0.0.1:9999",
}
OWN = {
    "kind": "haproxy",
    "config": "/own/haproxy.cfg",
    "reload": {"command": ["systemctl", "reload", "haproxy"]},
    "runtime_api": "/own/socket",
    "user": "haproxy",
    "metrics": "127.0.0.1:8405",
}
CONTROL = {"state": "/own/state", "api": {"bind": "127.0.0.1:18081"}}


def fleet(name: str, proxies: dict[str, Any], control: dict[str, Any] | None = None) -> str:
    return fleet_text(pool(replica(name)), proxies=proxies, **({"control": control} if control else {}))


def served(directory: Path, own: str, stored: str, *, saved: bool = False) -> Loaded:
    """Return the stored fleet as a member with these files serves it: by following or rolling back, or from its `saved`
    copy."""
    (directory / "fleet.yaml").write_text(own)
    paths = (str(directory / "fleet.yaml"),)
    files = relocated((SourceText("/evil/fleet.yaml", stored.encode(), "/evil"),), paths)
    reloader = FleetReloader(paths, writers="members")
    outcome = reloader.restore(SavedFleet(files)) if saved else reloader.load(pinned=files)
    assert outcome.loaded is not None, outcome.diagnostics
    return outcome.loaded


def control_of(loaded: Loaded) -> Control:
    return loaded.compiled.topology.control


def proxies_of(loaded: Loaded) -> dict[str, Proxy]:
    return {item.name: item for item in loaded.compiled.topology.proxies}


def replicas_of(loaded: Loaded) -> set[str]:
    return {item.name for pool in loaded.compiled.topology.pools for item in pool.replicas}


@pytest.mark.parametrize("saved", [False, True])
def test_proxy_of_a_stored_fleet_alone_is_not_driven(tmp_path: Path, saved: bool) -> None:
    loaded = served(tmp_path, fleet("a", {}, CONTROL), fleet("b", {"x": EVIL}), saved=saved)
    proxy = proxies_of(loaded)["x"]
    assert replicas_of(loaded) == {"b"}, "what is served is the stored fleet's"
    assert proxy == Proxy(name="x", kind="haproxy", version=proxy.version)
    assert driven(loaded.compiled.topology) == ()
    assert undriven(proxy)


@pytest.mark.parametrize("saved", [False, True])
def test_commands_and_paths_come_from_own_files(tmp_path: Path, saved: bool) -> None:
    stored = fleet("b", {"x": {**EVIL, "listeners": ["gateway"], "slots": 7}}, {"state": "/evil", "member": "evil"})
    loaded = served(tmp_path, fleet("a", {"x": OWN}, CONTROL), stored, saved=saved)
    proxy = proxies_of(loaded)["x"]
    assert proxy.reload is not None
    assert proxy.reload.command == ("systemctl", "reload", "haproxy")
    assert (proxy.config, proxy.runtime_api) == ("/own/haproxy.cfg", "/own/socket")
    assert (proxy.user, proxy.group, proxy.chroot, proxy.include) == ("haproxy", None, None, ())
    assert str(proxy.metrics) == "127.0.0.1:8405"
    assert (proxy.listeners, proxy.slots) == (("gateway",), 7), "what it carries is the stored fleet's"
    assert (control_of(loaded).state, control_of(loaded).member) == ("/own/state", None)
    assert str(control_of(loaded).api_bind) == "127.0.0.1:18081"


def test_own_keys_are_not_given_to_a_proxy_of_another_kind(tmp_path: Path) -> None:
    stored = fleet("b", {"x": {"kind": "nginx", "config": "/evil/nginx.conf"}})
    loaded = served(tmp_path, fleet("a", {"x": OWN}, CONTROL), stored)
    assert (proxies_of(loaded)["x"].config, proxies_of(loaded)["x"].reload) == (None, None)


def test_own_lines_are_read_from_own_files_alone(tmp_path: Path) -> None:
    (tmp_path / "own-lines").write_text("# of this machine\n")
    lines = {"global": ["own-lines"], "backend": {"pool": ["own-lines"], "gone": ["own-lines"]}}
    loaded = served(tmp_path, fleet("a", {"x": {**OWN, "include": lines}}, CONTROL), fleet("b", {"x": EVIL}))
    assert {(item.place, item.owner) for item in proxies_of(loaded)["x"].include} == {
        ("global", ""),
        ("backend", "pool"),
    }
    assert all("of this machine" in item.text for item in proxies_of(loaded)["x"].include)


@pytest.mark.parametrize("broken", ["\nroutes: [", "\npools: {a: {replicas: 7}}"])
def test_own_sections_are_read_from_files_broken_elsewhere(tmp_path: Path, broken: str) -> None:
    own = yaml.safe_dump({"version": 1, "control": CONTROL, "proxies": {"x": OWN}}) + broken
    loaded = served(tmp_path, own, fleet("b", {"x": EVIL}, {"state": "/evil"}))
    assert proxies_of(loaded)["x"].config == "/own/haproxy.cfg"
    assert control_of(loaded).state == "/own/state"


def test_without_readable_own_sections_nothing_is_driven(tmp_path: Path) -> None:
    loaded = served(tmp_path, "control: [\nproxies: [", fleet("b", {"x": EVIL}, {"state": "/evil"}))
    assert driven(loaded.compiled.topology) == ()
    assert control_of(loaded) == Control()


def test_last_own_sections_stay_while_files_are_broken(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(fleet("a", {"x": OWN}, CONTROL))
    paths = (str(tmp_path / "fleet.yaml"),)
    reloader = FleetReloader(paths, writers="members")
    stored = relocated((SourceText("/evil/fleet.yaml", fleet("b", {"x": EVIL}).encode(), "/evil"),), paths)
    assert reloader.load(pinned=stored).loaded is not None
    (tmp_path / "fleet.yaml").write_text("proxies: [")
    loaded = reloader.load(pinned=stored).loaded
    assert loaded is not None
    assert proxies_of(loaded)["x"].config == "/own/haproxy.cfg"


def test_state_of_one_process_keeps_its_proxies(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text("proxies: [")
    files = (SourceText(str(tmp_path / "fleet.yaml"), fleet("b", {"x": OWN}).encode(), str(tmp_path)),)
    loaded = FleetReloader((str(tmp_path / "fleet.yaml"),)).load(pinned=files).loaded
    assert loaded is not None
    assert [item.name for item in driven(loaded.compiled.topology)] == ["x"]


def test_stored_files_are_placed_below_own_paths(tmp_path: Path) -> None:
    stored = (SourceText("/evil/../etc/other.yaml", b"", "/evil"),)
    for paths in ((str(tmp_path),), (str(tmp_path / "fleet.yaml"),)):
        (placed,) = relocated(stored, paths)
        assert (placed.name, placed.root) == (str(tmp_path / "other.yaml"), str(tmp_path))


def test_sections_may_be_in_several_files(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({"version": 1, "control": CONTROL}))
    (tmp_path / "b.yaml").write_text(yaml.safe_dump({"version": 1, "proxies": {"x": OWN}}) + "pools: [")
    own = own_sections(tuple(texts((str(tmp_path),), Diagnostics())))
    assert own is not None
    assert set(own.fleet.proxies) == {"x"}
    assert own.fleet.control.state == "/own/state"


# ── Sockets and log files outside `proxies` and `control` ────────────────────────────────────────────────────────────

SOCKET, LOG = "unix:/run/replica.sock", "/var/log/gateway.log"


def opening(socket: str = SOCKET, log: str = LOG) -> str:
    """Return a fleet whose proxies connect to a socket and write a log file."""
    listener = {"gateway": {"bind": "127.0.0.1:8080", "access_log": {"path": log}}}
    return fleet_text(pool(replica("b", socket)), listeners=listener, control=CONTROL)


def refused(directory: Path, own: str, stored: str, writers: Writers, *, saved: bool = False) -> list[str]:
    """Return the errors that a stored fleet causes in a member with these files."""
    (directory / "fleet.yaml").write_text(own)
    paths = (str(directory / "fleet.yaml"),)
    files = relocated((SourceText("/other/fleet.yaml", stored.encode(), "/other"),), paths)
    reloader = FleetReloader(paths, writers=writers)
    outcome = reloader.restore(SavedFleet(files)) if saved else reloader.load(pinned=files)
    assert (outcome.loaded is None) == bool(outcome.refused)
    return [str(item.path[-1]) for item in outcome.diagnostics if item.code == "LB516"]


@pytest.mark.parametrize("saved", [False, True])
def test_unsigned_fleet_names_only_sockets_and_logs_of_own_files(tmp_path: Path, saved: bool) -> None:
    evil = opening("unix:/var/run/docker.sock", "/etc/cron.d/x")
    for stored in (evil, f"# lbctl: ignore LB516\n{evil}", evil.replace("access_log:", "access_log: # ignore LB516")):
        assert sorted(refused(tmp_path, opening(), stored, "anybody", saved=saved)) == ["address", "path"]
    assert refused(tmp_path, opening(), opening(), "anybody", saved=saved) == []
    assert refused(tmp_path, fleet("a", {}, CONTROL), opening(), "anybody", saved=saved) == ["path", "address"]


def test_signed_fleet_may_name_other_sockets_and_logs(tmp_path: Path) -> None:
    assert refused(tmp_path, fleet("a", {}, CONTROL), opening(), "members") == []


def test_places_of_broken_files_are_the_last_readable_ones(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(opening())
    paths = (str(tmp_path / "fleet.yaml"),)
    reloader = FleetReloader(paths, writers="anybody")
    stored = relocated((SourceText("/other/fleet.yaml", opening().encode(), "/other"),), paths)
    assert reloader.load(pinned=stored).loaded is not None
    (tmp_path / "fleet.yaml").write_text("routes: [")
    assert reloader.load(pinned=stored).loaded is not None
    evil = (SourceText(stored[0].name, opening("unix:/evil").encode(), stored[0].root),)
    assert reloader.load(pinned=evil).loaded is None
