"""An import's fleet, adapted to loopback and rendered for the same kind of proxy."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lbctl.apply.check import version_of
from lbctl.apply.files import write_bundle
from lbctl.apply.reserved_ports import LOOPBACK
from lbctl.base.diagnostics import Diagnostics
from lbctl.compile.proxies import version_text
from lbctl.importer.compare.places import STAND_IN_TIMEOUT, StandIns
from lbctl.importer.compare.sources import haproxy, nginx
from lbctl.importer.draft import Draft
from lbctl.importer.nginx.read import read as read_nginx
from lbctl.importer.write import text
from lbctl.ir.snapshot import Snapshot
from lbctl.model.fleet import parse
from lbctl.model.load import SourceText
from lbctl.targets import target
from lbctl.targets.load import complete
from lbctl.targets.prepare import prepare


def configuration(kind: str, binary: str, draft: Draft, places: StandIns) -> str:
    """Write the fleet's configuration for the local proxy, and return the path of its main file."""
    local = Draft(draft.ledger)
    local.fleet = _local(draft.fleet, places)
    version = ".".join(version_text(version_of(binary)).split(".")[:2])
    entry = {"kind": kind, "version": version, "config": f"{places.directory}/{kind}.conf"}
    local.fleet["proxies"] = {"compared": entry | _include(draft, kind)}
    _write_secrets(draft, places)
    diagnostics = Diagnostics()
    source = parse([SourceText("compared.yaml", text(local, kind, "").encode(), str(places.directory))], diagnostics)
    own = {str(places.directory / name): _own(kind, text, places).encode() for name, text in draft.own_files().items()}
    loaded = complete(replace(source, target_contents=own), diagnostics) if source is not None else None
    if loaded is None:
        raise ValueError("; ".join(str(item) for item in diagnostics if item.severity == "error"))
    topology = loaded.compiled.topology
    prepared = prepare(target(kind), loaded.compiled, topology.proxies[0], Snapshot(topology, secrets=loaded.secrets))
    bundle = prepared.target.render(prepared.rooted(str(places.directory)))
    write_bundle(bundle, str(places.directory))
    return str(Path(places.directory) / bundle.main.name)


def _write_secrets(draft: Draft, places: StandIns) -> None:
    """Write placeholder keys for hosted APIs."""
    for pool in draft.fleet["pools"].values():
        for value in pool.get("upstream", {}).get("headers", {}).values():
            if isinstance(value, dict):
                file = places.directory / str(value["file"])
                file.parent.mkdir(exist_ok=True)
                file.write_text("stand-in\n")
                file.chmod(0o600)


def _include(draft: Draft, kind: str) -> dict[str, Any]:
    """Return the fleet's own lines for places that also exist in the source on loopback."""
    include = draft.get(("proxies", kind, "include")) or {}
    kept = {place: value for place, value in include.items() if place not in {"global", "http_filters"}}
    return {"include": kept} if kept else {}


def _own(kind: str, text: str, places: StandIns) -> str:
    """Return the own lines that are also run in the source."""
    if kind == "haproxy":
        return haproxy.own_lines(text, places)
    file = places.directory / "own-lines"
    file.write_text(text)
    return nginx.own_lines(read_nginx(str(file), Diagnostics()))


def _local(fleet: dict[str, Any], places: StandIns) -> dict[str, Any]:
    local = copy.deepcopy(fleet)
    for listener in local["listeners"].values():
        listener["bind"] = f"{LOOPBACK}:{places.binds[listener['bind']]}"
        listener["access_log"] = {"format": "none"}
        listener.pop("proxy_protocol", None)
        if "tls" in listener:
            pair = {"certificate": places.pem, "key": places.pem}
            listener["tls"] = {"certificates": [pair]}
    for route in local["routes"].values():
        if external := route.get("auth", {}).get("external"):
            url = urlsplit(external["url"])
            external |= {"url": url._replace(netloc=places.replica(url.netloc)).geturl(), "timeout": STAND_IN_TIMEOUT}
    for pool in local["pools"].values():
        for key in ("tls", "health", "slow_start"):
            pool.pop(key, None)
        if "discovery" in pool:
            dns = pool.pop("discovery")["dns"]
            pool["replicas"] = [{"address": f"{dns['name']}:{dns['port']}"}]
        for replica in pool["replicas"]:
            replica["address"] = places.replica(replica["address"])
    return local
