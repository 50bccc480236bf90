"""The status of each node: its worst type, its NACKs, and how long it is remembered."""

from __future__ import annotations

import pytest

from lbctl.base.diagnostics import Diagnostic, Position
from lbctl.xds.protocol.events import State
from lbctl.xds.protocol.node_status import READER, Nack, NodeRow, NodeStatus, StreamEntry
from lbctl.xds.protocol.stream import TypeStatus, XdsNode
from lbctl.xds.resource import CDS, EDS, LDS, RDS, TYPES


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def status(type_url: str = CDS, state: State = "SYNCED") -> TypeStatus:
    return TypeStatus(type_url, True, ("a", "b"), 2, state, "v1", "v2", "", ())


def entry(node_id: str = "edge-1", *types: TypeStatus, peer: str = "127.0.0.1:1") -> StreamEntry:
    node = XdsNode(node_id, zone="z", version="1.40.0")
    return StreamEntry(node, peer, True, lambda: types, 1000.0, proxy="edge", version="e1")


def only_row(ledger: NodeStatus) -> NodeRow:
    (row,) = ledger.proxies()
    return row


def test_a_row_has_node_proxy_times_and_states_by_type() -> None:
    ledger = NodeStatus(Clock())
    one = entry("edge-1", status(CDS), status(EDS, "STALE"))
    one.pushed[EDS] = 1001.0
    ledger.enter(one)
    row = only_row(ledger)
    assert (row.node, row.proxy, row.zone, row.envoy) == ("edge-1", "edge", "z", "1.40.0")
    assert (row.connected, row.since, row.delta, row.version) == (True, 1000.0, True, "e1")
    states = [(item.type, item.state, item.names) for item in row.types]
    assert states == [("cds", "SYNCED", 2), ("eds", "STALE", 2)]
    assert row.types[1].pushed_at == 1001.0
    assert row.types[1].acked_at is None


def test_the_state_is_the_worst_state_of_all_types() -> None:
    for states, expected in [
        (["SYNCED", "SYNCED"], "SYNCED"),
        (["SYNCED", "WAITING"], "WAITING"),
        (["WAITING", "STALE"], "STALE"),
        (["STALE", "NACKED"], "NACKED"),
        ([], "WAITING"),
    ]:
        ledger = NodeStatus()
        ledger.enter(entry("n", *(status(kind, state) for kind, state in zip(TYPES, states, strict=False))))
        assert only_row(ledger).state == expected


def test_a_refused_node_keeps_its_reason_after_it_left() -> None:
    ledger = NodeStatus()
    one = entry("n", status())
    one.reason = "no entry of proxies is for it"
    ledger.enter(one)
    assert (only_row(ledger).state, only_row(ledger).reason) == ("REFUSED", one.reason)
    ledger.leave(one)
    gone = only_row(ledger)
    assert (gone.state, gone.reason, gone.connected) == ("GONE", one.reason, False)


def test_a_reader_has_its_own_row_until_it_leaves() -> None:
    ledger = NodeStatus()
    envoy, reader = entry("edge-1", status()), entry("edge-1", status(CDS, "STALE"), peer="127.0.0.1:2")
    reader.node = XdsNode("edge-1", agent=READER)
    ledger.enter(envoy)
    ledger.good(envoy)
    ledger.enter(reader)
    assert [(row.kind, row.state, row.last_good) for row in ledger.proxies()] == [
        ("envoy", "SYNCED", "e1"), ("reader", "STALE", ""),
    ]  # fmt: skip
    ledger.leave(reader)
    assert only_row(ledger).kind == "envoy"
    ledger.leave(envoy)
    assert only_row(ledger).state == "GONE"


def test_each_type_has_the_time_of_its_state() -> None:
    clock = Clock()
    ledger = NodeStatus(clock)
    one = entry("n", status(CDS), status(EDS, "STALE"), status(LDS, "NACKED"), status(RDS, "WAITING"))
    one.acked, one.pushed, one.refused = {CDS: 1001.0}, {EDS: 1002.0, LDS: 1002.0}, {LDS: 1003.0}
    ledger.enter(one)
    assert [item.since for item in only_row(ledger).types] == [1001.0, 1002.0, 1003.0, 1000.0]
    ledger.leave(one)
    assert {item.since for item in only_row(ledger).types} == {clock.now}


def test_each_connection_is_one_row() -> None:
    ledger = NodeStatus()
    ledger.enter(entry("n", status(CDS)))
    ledger.enter(entry("n", status(EDS)))
    assert [item.type for item in only_row(ledger).types] == ["cds", "eds"]
    ledger.enter(entry("n", status(CDS), peer="127.0.0.1:2"))
    assert [row.peer for row in ledger.proxies()] == ["127.0.0.1:1", "127.0.0.1:2"]


def test_a_nack_survives_a_reconnect() -> None:
    ledger = NodeStatus(Clock())
    one = entry("n", status(CDS, "NACKED"))
    ledger.enter(one)
    diagnostic = Diagnostic("LB999", "weight must be at least 1", Position("fleet.yaml", 7, 3), ("pools", "a"))
    ledger.nacked(one, Nack(1002.0, CDS, "v2", ("a",), "Proto constraint validation failed", (diagnostic,)))
    ledger.leave(one)
    ledger.enter(entry("n", status()))
    (nack,) = only_row(ledger).nacks
    assert (nack.type, nack.names, nack.version, nack.at) == ("cds", ("a",), "v2", 1002.0)
    assert nack.message == "Proto constraint validation failed"
    assert nack.findings == (str(diagnostic),)
    assert "fleet.yaml:7:3" in nack.findings[0]


def test_only_the_latest_nacks_are_kept_newest_first() -> None:
    ledger = NodeStatus()
    one = entry("n")
    ledger.enter(one)
    for number in range(50):
        ledger.nacked(one, Nack(float(number), CDS, str(number), (), ""))
    assert [item.version for item in only_row(ledger).nacks] == [str(number) for number in range(49, 39, -1)]


def test_texts_of_nacks_are_limited_over_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbctl.xds.protocol.node_status._MAX_NACK_TEXT", 5_000)
    ledger = NodeStatus(Clock())
    entries = [entry(f"edge-{number}") for number in range(20)]
    for number, each in enumerate(entries):
        ledger.enter(each)
        for _ in range(12 if number == 10 else 1):
            ledger.nacked(each, Nack(float(number), CDS, "v", ("a",), "x" * 499))
    kept = {row.node: len(row.nacks) for row in ledger.proxies()}
    assert {node for node, count in kept.items() if count} == {f"edge-{number}" for number in range(15, 20)}


def test_the_last_good_version_is_on_all_streams_of_the_node() -> None:
    ledger = NodeStatus()
    clusters, endpoints = entry("n", status(CDS)), entry("n", status(EDS))
    ledger.enter(clusters)
    ledger.enter(endpoints)
    ledger.good(clusters)
    assert only_row(ledger).last_good == ""
    ledger.good(endpoints)
    assert only_row(ledger).last_good == "e1"
    clusters.version = endpoints.version = "e2"
    ledger.good(clusters)
    assert only_row(ledger).last_good == "e1"


def test_a_node_that_left_is_remembered_for_an_hour() -> None:
    clock = Clock()
    ledger = NodeStatus(clock)
    one = entry("n", status())
    ledger.enter(one)
    clock.now += 60
    ledger.leave(one)
    clock.now += 3599
    row = only_row(ledger)
    assert (row.state, row.connected, row.since) == ("GONE", False, clock.now - 3599), "when it left"
    clock.now += 2
    assert ledger.proxies() == []


def test_the_number_of_remembered_nodes_is_limited() -> None:
    ledger = NodeStatus()
    stays = entry("stays", status())
    ledger.enter(stays)
    for number in range(3000):
        one = entry(f"n{number:05}", status())
        ledger.enter(one)
        ledger.leave(one)
    rows = ledger.proxies()
    assert len(rows) == 1001
    assert [row.node for row in rows if row.connected] == ["stays"]
    assert rows[0].node == "n02000"


def test_an_ended_stream_is_not_queried_again() -> None:
    ledger = NodeStatus()
    alive = True

    def current_status() -> tuple[TypeStatus, ...]:
        assert alive, "queried after its end"
        return (status(),)

    one = entry("n")
    one.status = current_status
    ledger.enter(one)
    ledger.leave(one)
    alive = False
    assert [item.type for item in only_row(ledger).types] == ["cds"]


def test_refused_reports_have_a_reason_while_a_stream_is_open() -> None:
    status = NodeStatus()
    streams = object(), object()
    for stream in streams:
        status.refuse_reports(stream, "edge", "in the clear")
    status.refuse_reports(streams[0], "edge", "")
    assert status.reports_refused() == {"edge": "in the clear"}, "the other stream is still refused"
    status.refuse_reports(streams[1], "edge", "")
    assert status.reports_refused() == {}
