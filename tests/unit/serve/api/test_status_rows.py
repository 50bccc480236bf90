"""The JSON of a proxy: every field of an Envoy's status and of a driven proxy's."""

from __future__ import annotations

from lbctl.api import schema
from lbctl.api.codec import encode
from lbctl.base.diagnostics import Diagnostic, Position
from lbctl.ir.proxies import Proxy
from lbctl.serve.api.status_rows import driven_proxy, xds_proxy
from lbctl.serve.drivers.base import DriverRow, DriverStatus
from lbctl.xds.protocol.node_status import Nack, NodeStatus, StreamEntry
from lbctl.xds.protocol.stream import TypeStatus, XdsNode
from lbctl.xds.resource import CDS, EDS

ENVOY = """\
{
 "node": "edge-1",
 "proxy": "edge",
 "kind": "envoy",
 "connected": true,
 "since": "1970-01-01T00:16:40.000Z",
 "state": "NACKED",
 "reason": "",
 "version": "e1",
 "last_good": "e0",
 "confirmed": true,
 "types": [
  {
   "type": "cds",
   "state": "NACKED",
   "since": "1970-01-01T00:16:43.000Z",
   "wildcard": true,
   "names": 0,
   "offered": "v1",
   "acked": "v0",
   "pushed_at": "1970-01-01T00:16:42.000Z",
   "acked_at": null,
   "message": "no such cluster",
   "nacked": [
    "a"
   ]
  },
  {
   "type": "eds",
   "state": "SYNCED",
   "since": "1970-01-01T00:16:41.000Z",
   "wildcard": false,
   "names": 2,
   "offered": "v1",
   "acked": "v1",
   "pushed_at": null,
   "acked_at": "1970-01-01T00:16:41.000Z",
   "message": "",
   "nacked": []
  }
 ],
 "nacks": [
  {
   "at": "1970-01-01T00:16:43.000Z",
   "type": "cds",
   "version": "v1",
   "names": [
    "a"
   ],
   "message": "no such cluster",
   "findings": [
    "fleet.yaml:7:3: error LB999 pools.a: no such cluster"
   ]
  }
 ],
 "cluster": "front",
 "region": "eu",
 "zone": "z",
 "sub_zone": "s",
 "envoy": "1.40.0",
 "peer": "127.0.0.1:1",
 "delta": true,
 "reports_refused": "too many"
}"""
DRIVEN = """\
{
 "node": "ha",
 "proxy": "ha",
 "kind": "haproxy",
 "connected": false,
 "since": "1970-01-01T00:16:40.000Z",
 "state": "FAILING",
 "reason": "it is away",
 "version": "e1",
 "last_good": "e1",
 "confirmed": true,
 "types": [],
 "nacks": [],
 "reloads": 3,
 "leaving": 2
}"""


def test_json_of_an_envoy_has_every_field() -> None:
    nodes = NodeStatus(lambda: 1000.0)
    types = (
        TypeStatus(CDS, True, (), 0, "NACKED", "v0", "v1", "", ("a",)),
        TypeStatus(EDS, False, ("a", "b"), 2, "SYNCED", "v1", "v1", "", ()),
    )
    node = XdsNode("edge-1", cluster="front", region="eu", zone="z", sub_zone="s", version="1.40.0")
    stream = StreamEntry(node, "127.0.0.1:1", True, lambda: types, 1000.0, proxy="edge", version="e1", good="e0")
    stream.push(CDS, 1002.0)
    stream.nack(CDS, 1003.0, "no such cluster")
    stream.ack(EDS, 1001.0)
    nodes.enter(stream)
    finding = Diagnostic("LB999", "no such cluster", Position("fleet.yaml", 7, 3), ("pools", "a"))
    nodes.nacked(stream, Nack(1003.0, CDS, "v1", ("a",), "no such cluster", (finding,)))
    nodes.refuse_reports(object(), "edge-1", "too many")
    (row,) = nodes.proxies()
    assert encode(xds_proxy(row), indent=1) == ENVOY


def test_json_of_a_driven_proxy_has_every_field() -> None:
    status = DriverStatus("FAILING", "e1", "it is away", reloads=3, leaving=2)
    row: schema.DrivenProxy = driven_proxy(DriverRow.of(Proxy("ha", "haproxy", ""), status, 1000.0))
    assert encode(row, indent=1) == DRIVEN
