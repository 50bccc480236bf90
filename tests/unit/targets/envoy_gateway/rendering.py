"""Fleets with an Envoy Gateway, and the objects that are rendered for it."""

from __future__ import annotations

import io
from typing import Any

import yaml

from lbctl.base.diagnostics import Diagnostics
from lbctl.ir.snapshot import Snapshot, view
from lbctl.targets import target
from lbctl.targets.load import load

LISTENERS = 'listeners: {web: {bind: "0.0.0.0:80"}}'
ROUTES = "routes: {r: {match: {path_prefix: /v1}, pool: p}}"
POOLS = 'pools: {p: {replicas: [{address: "10.0.0.1:80"}]}}'
PROXIES = 'proxies: {edge: {kind: envoy-gateway, version: "1.9", kubernetes: {namespace: ml}}}'


def fleet(listeners: str = LISTENERS, routes: str = ROUTES, pools: str = POOLS, proxies: str = PROXIES) -> str:
    """Return a fleet file with these sections."""
    return "\n".join(("version: 1", listeners, routes, pools, proxies, ""))


def rendering(text: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the objects of the entry `edge`, and the code of each of the target's own warnings."""
    diagnostics = Diagnostics()
    loaded = load(["-"], diagnostics, stdin=io.BytesIO(text.encode()))
    assert loaded is not None, "\n".join(f"{item.code} {item.message} ({item.hint})" for item in diagnostics)
    topology = loaded.compiled.topology
    (proxy,) = [item for item in topology.proxies if item.name == "edge"]
    bundle = target("envoy-gateway").render(view(Snapshot(topology, secrets=loaded.secrets), proxy))
    return list(yaml.safe_load_all(bundle.main.text)), [item.code for item in bundle.diagnostics]


def named(objects: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    """Return the objects of a kind by name."""
    return {item["metadata"]["name"]: item for item in objects if item["kind"] == kind}
