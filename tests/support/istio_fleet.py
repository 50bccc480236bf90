"""Fleets for Istio, rendered in this process."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import yaml

from lbctl.base.diagnostics import Diagnostics
from lbctl.cli.proxy import chosen
from lbctl.ir.snapshot import Snapshot
from lbctl.targets import target
from lbctl.targets.load import Loaded, load
from lbctl.targets.prepare import placed, prepare

LISTENERS = 'listeners: {web: {bind: "0.0.0.0:80"}}'
ROUTES = "routes: {r: {match: {path_prefix: /v1}, pool: p}}"
POOLS = 'pools: {p: {replicas: [{address: "10.0.0.1:80"}]}}'
PROXIES = "proxies: {edge: {kind: istio, kubernetes: {namespace: ml}}}"


def fleet(listeners: str = LISTENERS, routes: str = ROUTES, pools: str = POOLS, proxies: str = PROXIES) -> str:
    """Return the text of a fleet. The default of each section is a small valid one."""
    return "\n".join(("version: 1", listeners, routes, pools, proxies, ""))


def loading(text: str) -> tuple[Loaded | None, list[str]]:
    """Return the loaded fleet, and `line:column code` of its errors."""
    diagnostics = Diagnostics()
    loaded = load(["-"], diagnostics, stdin=io.BytesIO(text.encode()))
    errors = [item for item in diagnostics if item.severity == "error"]
    assert all(item.hint for item in errors), errors
    return loaded, [f"{item.position.line}:{item.position.column} {item.code}" for item in errors if item.position]


@dataclass(frozen=True, slots=True)
class Rendering:
    """The objects of a fleet, and the messages about it."""

    objects: list[dict[str, Any]]
    warnings: list[str]
    """`line:column code` of each warning."""
    commands: list[str]
    """Commands that create the Secrets."""

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the specifications of all objects of a kind."""
        return [item["spec"] for item in self.objects if item["kind"] == kind]

    def rules(self, host: str = "*") -> list[dict[str, Any]]:
        """Return the rules of the only VirtualService for a host."""
        (spec,) = [item for item in self.of("VirtualService") if item["hosts"] == [host]]
        rules: list[dict[str, Any]] = spec["http"]
        return rules


def rendering(text: str) -> Rendering:
    """Render the only entry of a fleet, which must have no errors."""
    loaded, errors = loading(text)
    assert loaded is not None, errors
    topology = loaded.compiled.topology
    snapshot = Snapshot(topology, secrets=loaded.secrets)
    prepared = prepare(target("istio"), loaded.compiled, chosen(topology, "istio", None), snapshot)
    bundle = prepared.target.render(prepared.view)
    found = [*prepared.losses, *placed(bundle, loaded.compiled)]
    return Rendering(
        list(yaml.safe_load_all(bundle.main.text)),
        sorted(f"{item.position.line}:{item.position.column} {item.code}" for item in found if item.position),
        [item.command(str) for item in bundle.prerequisites],
    )
