"""An Envoy invented by a local user neither makes `status --check` fail nor keeps `drain --wait` waiting."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from lbctl.api import schema
from lbctl.api.client import ServeClient
from lbctl.cli import overrides
from lbctl.cli.status.check import proxy_problems
from lbctl.ir.proxies import Proxy
from lbctl.serve.api.decision_rows import should_have_it
from lbctl.serve.api.problems import Observed, problems
from lbctl.xds.protocol.node_status import NodeRow, NodeStatus, StreamEntry
from lbctl.xds.protocol.stream import TypeStatus, XdsNode
from lbctl.xds.resource import CDS
from tests.support import api

EDGE = Proxy("edge", "envoy", (1, 36))
INVENTED = replace(api.ENVOY, confirmed=False, state="NACKED", reason="no", last_good="", peer="127.0.0.1:2")


def stream(peer: str, *, authenticated: bool = False) -> StreamEntry:
    status = TypeStatus(CDS, True, (), 0, "STALE", "v1", "", "", ())
    return StreamEntry(
        XdsNode("edge-1"), peer, True, lambda: (status,), 1000.0, authenticated, proxy="edge", version="v1"
    )


def rows(nodes: NodeStatus) -> dict[str, NodeRow]:
    """Return peer → the row of its connection."""
    return {row.peer: row for row in nodes.proxies()}


def test_node_is_confirmed_by_a_certificate_or_an_accepted_fleet() -> None:
    nodes, real = NodeStatus(), stream("127.0.0.1:1")
    for entry in (real, stream("127.0.0.1:2"), stream("/run/xds.sock", authenticated=True)):
        nodes.enter(entry)
    confirmed = {peer: row.confirmed for peer, row in rows(nodes).items()}
    assert confirmed == {"127.0.0.1:1": False, "127.0.0.1:2": False, "/run/xds.sock": True}
    nodes.good(real)
    assert rows(nodes)["127.0.0.1:1"].confirmed is True


def test_invented_connection_hides_no_acceptance() -> None:
    nodes, real, invented = NodeStatus(), stream("127.0.0.1:1"), stream("127.0.0.1:2")
    nodes.enter(real)
    nodes.enter(invented)
    nodes.good(real)
    found = rows(nodes)
    assert (found["127.0.0.1:1"].last_good, found["127.0.0.1:2"].last_good) == ("v1", "")
    assert found["127.0.0.1:2"].confirmed is False
    nodes.leave(invented)
    assert [(row.state, row.last_good) for row in nodes.proxies()] == [("STALE", "v1")]
    nodes.leave(real)
    nodes.enter(stream("127.0.0.1:3"))
    assert [row.last_good for row in nodes.proxies()] == ["v1"]


def test_unconfirmed_node_is_a_warning_alone() -> None:
    found = problems(Observed("", api.FILES, proxies=[api.ENVOY, INVENTED], expected=[EDGE], seconds=100.0))
    assert [(item.severity, item.kind, item.text) for item in found] == [
        ("warning", "proxy_unconfirmed", "unconfirmed envoy edge-1 is NACKED: no")
    ]
    assert list(proxy_problems([api.ENVOY, INVENTED], expected=1)) == []
    assert not should_have_it(INVENTED)
    many = problems(Observed("", api.FILES, proxies=[INVENTED] * 300))
    assert (len(many), many[-1].text) == (6, "295 more nodes are unconfirmed")
    assert problems(Observed("", api.FILES, proxies=[replace(INVENTED, connected=False, state="GONE")])) == ()


def test_entry_with_unconfirmed_nodes_alone_is_critical() -> None:
    observed = Observed("", api.FILES, proxies=[INVENTED], expected=[EDGE], seconds=100.0)
    worst = problems(observed)[0]
    assert worst.severity == "critical"
    assert worst.text == "no envoy of the entry edge has accepted a fleet since lbctl started: edge-1"
    assert [item.severity for item in problems(dataclasses.replace(observed, seconds=10.0))] == ["warning"]


def test_drain_waits_for_no_unconfirmed_node(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (replace(api.ENVOY, node="real"), INVENTED)
    answers = {
        "/api/v1/status": api.status(snapshot=schema.Snapshot("v1", api.THEN, 0.0, "files", 1, 1)),
        "/api/v1/proxies": schema.Proxies(rows),
    }
    monkeypatch.setattr(ServeClient, "get", lambda _self, path, _kind: answers[path])
    assert overrides._having_and_late(ServeClient("http://127.0.0.1:1", None, None)) == (["real"], [])
