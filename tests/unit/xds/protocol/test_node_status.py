"""What is said of each node: the worst of its types, its refusals, and for how long it is remembered."""

from __future__ import annotations

import json
from typing import Any

from lbctl.base.diagnostics import Diagnostic, Position
from lbctl.xds.protocol.events import State
from lbctl.xds.protocol.node_status import READER, Nack, NodeStatus, StreamEntry
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


def only(ledger: NodeStatus) -> dict[str, Any]:
    (row,) = ledger.proxies()
    json.dumps(row)
    return row


def test_a_row_says_who_where_since_when_and_how_far_type_by_type() -> None:
    ledger = NodeStatus(Clock())
    one = entry("edge-1", status(CDS), status(EDS, "STALE"))
    one.pushed[EDS] = 1001.0
    ledger.enter(one)
    row = only(ledger)
    assert (row["node"], row["proxy"], row["zone"], row["envoy"]) == ("edge-1", "edge", "z", "1.40.0")
    assert (row["connected"], row["since"], row["delta"], row["version"]) == (True, 1000.0, True, "e1")
    said = [(item["type"], item["state"], item["names"]) for item in row["types"]]
    assert said == [("cds", "SYNCED", 2), ("eds", "STALE", 2)]
    assert row["types"][1]["pushed_at"] == 1001.0
    assert row["types"][1]["acked_at"] is None


def test_the_state_is_the_worst_of_the_types() -> None:
    for states, expected in [
        (["SYNCED", "SYNCED"], "SYNCED"),
        (["SYNCED", "WAITING"], "WAITING"),
        (["WAITING", "STALE"], "STALE"),
        (["STALE", "NACKED"], "NACKED"),
        ([], "WAITING"),
    ]:
        ledger = NodeStatus()
        ledger.enter(entry("n", *(status(kind, state) for kind, state in zip(TYPES, states, strict=False))))
        assert only(ledger)["state"] == expected


def test_a_node_that_gets_nothing_new_says_why_here_and_gone() -> None:
    ledger = NodeStatus()
    one = entry("n", status())
    one.reason = "no entry of proxies is for it"
    ledger.enter(one)
    assert (only(ledger)["state"], only(ledger)["reason"]) == ("REFUSED", one.reason)
    ledger.leave(one)
    gone = only(ledger)
    assert (gone["state"], gone["reason"], gone["connected"]) == ("GONE", one.reason, False)


def test_who_only_looks_is_a_row_of_its_own_and_leaves_nothing_behind() -> None:
    ledger = NodeStatus()
    envoy, reader = entry("edge-1", status()), entry("edge-1", status(CDS, "STALE"), peer="127.0.0.1:2")
    reader.node = XdsNode("edge-1", agent=READER)
    ledger.enter(envoy)
    ledger.good(envoy)
    ledger.enter(reader)
    assert [(row["reader"], row["state"], row["last_good"]) for row in ledger.proxies()] == [
        (False, "SYNCED", "e1"), (True, "STALE", ""),
    ]  # fmt: skip
    ledger.leave(reader)
    assert only(ledger)["reader"] is False
    ledger.leave(envoy)
    assert only(ledger)["state"] == "GONE"


def test_each_type_says_since_when_it_is_in_its_state() -> None:
    clock = Clock()
    ledger = NodeStatus(clock)
    one = entry("n", status(CDS), status(EDS, "STALE"), status(LDS, "NACKED"), status(RDS, "WAITING"))
    one.acked, one.pushed, one.refused = {CDS: 1001.0}, {EDS: 1002.0, LDS: 1002.0}, {LDS: 1003.0}
    ledger.enter(one)
    assert [item["since"] for item in only(ledger)["types"]] == [1001.0, 1002.0, 1003.0, 1000.0]
    ledger.leave(one)
    assert {item["since"] for item in only(ledger)["types"]} == {clock.now}


def test_streams_of_one_connection_are_one_row_and_two_proxies_of_one_id_are_two() -> None:
    ledger = NodeStatus()
    ledger.enter(entry("n", status(CDS)))
    ledger.enter(entry("n", status(EDS)))
    assert [item["type"] for item in only(ledger)["types"]] == ["cds", "eds"]
    ledger.enter(entry("n", status(CDS), peer="127.0.0.1:2"))
    assert [row["peer"] for row in ledger.proxies()] == ["127.0.0.1:1", "127.0.0.1:2"]


def test_a_refusal_is_kept_with_words_and_place_also_over_a_reconnect() -> None:
    ledger = NodeStatus(Clock())
    one = entry("n", status(CDS, "NACKED"))
    ledger.enter(one)
    found = Diagnostic("LB999", "weight must be at least 1", Position("fleet.yaml", 7, 3), ("pools", "a"))
    ledger.nacked(one, Nack(1002.0, CDS, "v2", ("a",), "Proto constraint validation failed", (found,)))
    ledger.leave(one)
    ledger.enter(entry("n", status()))
    (nack,) = only(ledger)["nacks"]
    assert (nack["type"], nack["names"], nack["version"], nack["at"]) == ("cds", ["a"], "v2", 1002.0)
    assert nack["message"] == "Proto constraint validation failed"
    assert nack["findings"] == [str(found)]
    assert "fleet.yaml:7:3" in nack["findings"][0]


def test_only_the_latest_refusals_are_kept_the_newest_first() -> None:
    ledger = NodeStatus()
    one = entry("n")
    ledger.enter(one)
    for number in range(50):
        ledger.nacked(one, Nack(float(number), CDS, str(number), (), ""))
    assert [item["version"] for item in only(ledger)["nacks"]] == [str(number) for number in range(49, 39, -1)]


def test_the_last_good_version_is_what_all_streams_of_the_node_have() -> None:
    ledger = NodeStatus()
    clusters, endpoints = entry("n", status(CDS)), entry("n", status(EDS))
    ledger.enter(clusters)
    ledger.enter(endpoints)
    ledger.good(clusters)
    assert only(ledger)["last_good"] == ""
    ledger.good(endpoints)
    assert only(ledger)["last_good"] == "e1"
    clusters.version = endpoints.version = "e2"
    ledger.good(clusters)
    assert only(ledger)["last_good"] == "e1"


def test_a_node_that_left_is_remembered_for_an_hour() -> None:
    clock = Clock()
    ledger = NodeStatus(clock)
    one = entry("n", status())
    ledger.enter(one)
    ledger.leave(one)
    clock.now += 3599
    assert (only(ledger)["state"], only(ledger)["connected"]) == ("GONE", False)
    clock.now += 2
    assert ledger.proxies() == []


def test_ever_new_names_do_not_fill_the_memory() -> None:
    ledger = NodeStatus()
    stays = entry("stays", status())
    ledger.enter(stays)
    for number in range(3000):
        one = entry(f"n{number:05}", status())
        ledger.enter(one)
        ledger.leave(one)
    rows = ledger.proxies()
    assert len(rows) == 1001
    assert [row["node"] for row in rows if row["connected"]] == ["stays"]
    assert rows[0]["node"] == "n02000"


def test_a_stream_that_ended_is_let_go_of() -> None:
    ledger = NodeStatus()
    alive = True

    def ask() -> tuple[TypeStatus, ...]:
        assert alive, "asked after its end"
        return (status(),)

    one = entry("n")
    one.status = ask
    ledger.enter(one)
    ledger.leave(one)
    alive = False
    assert [item["type"] for item in only(ledger)["types"]] == ["cds"]


def test_it_says_why_reports_of_a_node_are_not_taken_as_long_as_the_stream_is_open() -> None:
    status = NodeStatus()
    streams = object(), object()
    for stream in streams:
        status.refuse_reports(stream, "edge", "in the clear")
    status.refuse_reports(streams[0], "edge", "")
    assert status.reports_refused() == {"edge": "in the clear"}, "the other stream is still refused"
    status.refuse_reports(streams[1], "edge", "")
    assert status.reports_refused() == {}
