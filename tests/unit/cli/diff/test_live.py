"""`lbctl diff --against live` with pools whose replicas come from discovery."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lbctl.api import schema
from lbctl.api.client import ServeClient
from lbctl.base.diagnostics import Diagnostics
from lbctl.cli.diff import live
from lbctl.compile.fleet import Compiled
from lbctl.ir.pools import Discovery, DnsDiscovery, FileDiscovery
from lbctl.targets.load import load
from tests.support import api
from tests.support.discovery import ToyDiscovery

FLEET = """version: 1
listeners: {gateway: {bind: "127.0.0.1:8080"}}
routes: {chat: {match: {path_prefix: /}, pool: chat}}
pools: {chat: {replicas: [{address: "10.9.9.9:8000"}]}}
proxies: {edge: {kind: envoy}}
"""


class AnsweringServer(ServeClient):
    """A control plane that serves the replica `a` in the pool `chat`, and no settings or overrides."""

    def get(self, path: str, kind: type[Any]) -> Any:
        fleet = api.Fleet()
        fleet.listed = (api.pool("chat", api.REPLICA),)
        snapshot = schema.Snapshot("v1", api.THEN, 1.0, "files", 1, 1)
        documents = (
            api.status(snapshot=snapshot),
            fleet.fleet(),
            fleet.pools(),
            fleet.overrides(),
            fleet.rollouts(),
        )
        return next(document for document in documents if isinstance(document, kind))


def compiled(directory: Path, discovery: Discovery) -> Compiled:
    """Return the fleet with `discovery` in place of the replicas of the pool `chat`."""
    (directory / "fleet.yaml").write_text(FLEET)
    diagnostics = Diagnostics()
    fleet = load([str(directory / "fleet.yaml")], diagnostics)
    assert fleet is not None, list(map(str, diagnostics))
    topology = fleet.compiled.topology
    (pool,) = topology.pools
    pools = (replace(pool, replicas=(), discovery=discovery),)
    return Compiled(replace(topology, pools=pools), fleet.compiled.sources)


@pytest.mark.parametrize(
    ("discovery", "is_removed"),
    [
        (DnsDiscovery("chat.test", 8000), False),
        (ToyDiscovery(), False),
        (FileDiscovery("targets.json"), True),
    ],
)
def test_diff_removes_only_replicas_that_files_list(
    discovery: Discovery, is_removed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live.compare(compiled(tmp_path, discovery), AnsweringServer("http://127.0.0.1:9", None, None), "json")
    assert ("removed replica" in capsys.readouterr().out) is is_removed
