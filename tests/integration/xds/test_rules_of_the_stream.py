from __future__ import annotations

import pytest
from envoy.service.discovery.v3 import discovery_pb2 as xds

from lbctl.xds.protocol.stream import Stream, StreamError, XdsNode
from lbctl.xds.resource import CDS, EDS, Resource, Resources
from tests.integration.xds.playbook import KINDS, NAMES, Client, fleet, started

BOTH = pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
FLEET = fleet(cds="a1 b1", eds="a1 b1", lds="public1", rds="public1", sds="certificate1")


def message(delta: bool, **fields: object) -> bytes:
    made = (xds.DeltaDiscoveryRequest if delta else xds.DiscoveryRequest)(**fields)
    return bytes(made.SerializeToString())


@BOTH
def test_rule_1_the_first_request_must_name_its_node(delta: bool) -> None:
    stream = Stream(delta=delta)
    with pytest.raises(StreamError, match="node"):
        stream.request(message(delta, type_url=CDS), 0)


@BOTH
def test_rule_1_a_node_without_an_id_is_none(delta: bool) -> None:
    with pytest.raises(StreamError, match="node"):
        Stream(delta=delta).request(message(delta, type_url=CDS, node={"cluster": "edge"}), 0)


@BOTH
def test_rule_1_the_node_is_remembered_when_later_requests_leave_it_out(delta: bool) -> None:
    stream = Stream(delta=delta)
    node = {
        "id": "edge-1",
        "cluster": "edge",
        "locality": {"region": "eu", "zone": "eu-a", "sub_zone": "rack-7"},
        "user_agent_build_version": {"version": {"major_number": 1, "minor_number": 40, "patch": 2}},
    }
    stream.request(message(delta, type_url=CDS, node=node), 0)
    stream.request(message(delta, type_url=EDS), 0)
    assert stream.node == XdsNode("edge-1", "edge", "eu", "eu-a", "rack-7", "1.40.2")


@BOTH
def test_bytes_that_are_no_request_end_the_stream(delta: bool) -> None:
    with pytest.raises(StreamError, match="DiscoveryRequest"):
        Stream(delta=delta).request(b"\xff\xff\xff", 0)


@BOTH
def test_rule_2_an_aggregated_stream_must_be_told_the_type(delta: bool) -> None:
    with pytest.raises(StreamError, match="type"):
        Stream(delta=delta).request(message(delta, node={"id": "edge-1"}), 0)


@BOTH
@pytest.mark.parametrize("said", ["", CDS])
def test_rule_2_a_stream_of_one_type_knows_it(delta: bool, said: str) -> None:
    stream = Stream(delta=delta, only=CDS)
    stream.offer(FLEET)
    stream.request(message(delta, node={"id": "edge-1"}, type_url=said), 0)
    response = stream.respond(0)
    assert response is not None
    assert response.type_url == CDS


@BOTH
def test_rule_2_a_stream_of_one_type_refuses_another(delta: bool) -> None:
    with pytest.raises(StreamError, match="ClusterLoadAssignment"):
        Stream(delta=delta, only=CDS).request(message(delta, node={"id": "edge-1"}, type_url=EDS), 0)


@BOTH
def test_a_type_that_is_not_served_is_never_answered(delta: bool) -> None:
    client = Client(FLEET, delta=delta)
    client.send("type.googleapis.com/envoy.service.runtime.v3.Runtime")
    assert client.pull() == []
    assert client.stream.status() == ()


@BOTH
def test_rule_3_every_nonce_is_new_and_never_empty(delta: bool) -> None:
    for _ in range(2):
        seen = []
        client = Client(FLEET, delta=delta)
        for round_ in range(3):
            for short in NAMES.values():
                if not round_:
                    client.want(short, *([] if short in ("cds", "lds") else FLEET.of(KINDS[short])))
            client.offer(fleet(**dict.fromkeys(("cds", "eds", "lds", "rds", "sds"), f"a{round_} b{round_}")))
            while got := client.pull():
                seen += [each.nonce for each in got]
                for each in got:
                    client.ack(each)
        assert all(seen)
        assert len(seen) == len(set(seen)) > 5


@BOTH
def test_rule_3_what_is_sent_again_has_another_nonce(delta: bool) -> None:
    client = started(fleet(cds="a1"), delta=delta)
    seen = [client.last["cds"].nonce]
    for words in ("a2", "a1", "a2"):
        client.offer(fleet(cds=words))
        got = client.one()
        client.ack(got)
        seen.append(got.nonce)
    assert len(set(seen)) == 4


@BOTH
def test_rule_3_the_nonce_of_one_type_says_nothing_about_another(delta: bool) -> None:
    client = Client(FLEET, delta=delta)
    client.want("cds")
    client.want("eds", "a", "b")
    clusters, endpoints = client.pull()
    assert client.send("eds", response_nonce=clusters.nonce) == []
    assert client.state("cds") == "STALE"
    (acked,) = client.ack(clusters)
    assert acked.type_url == CDS
    assert endpoints.nonce != clusters.nonce


@BOTH
def test_rule_4_an_answer_counts_that_comes_before_the_write_has_returned(delta: bool) -> None:
    client = Client(FLEET, delta=delta)
    client.want("cds")
    response = client.stream.respond(0)
    assert response is not None
    (acked,) = client.send(
        "cds", response_nonce=response.nonce, **({} if delta else {"version_info": response.version})
    )
    assert acked.nonce == response.nonce


@BOTH
def test_rule_5_the_types_inside_are_the_type_of_the_message(delta: bool) -> None:
    client = Client(FLEET, delta=delta)
    for short in ("cds", "eds", "lds", "rds", "sds"):
        client.want(short, *([] if short in ("cds", "lds") else FLEET.of(KINDS[short])))
    found = client.pull()
    assert len(found) == 5
    assert all(got.inner_types == {got.type_url} for got in found)


@BOTH
def test_rule_6_no_name_stands_twice_in_a_response(delta: bool) -> None:
    client = Client(FLEET, delta=delta)
    client.want("eds", "a", "a", "b", "a")
    assert client.one().words == "a1 b1"


def test_rule_6_no_name_is_both_there_and_removed() -> None:
    client = started(fleet(cds="a1 b1", eds="a1 b1", lds="public1"), delta=True)
    client.offer(fleet(cds="a1", eds="a1", lds="public1"))
    client.pull()
    client.offer(fleet(cds="a1 b2", eds="a1", lds="public1"))
    client.change("cds", "b", drop=["b"])
    client.wait(10)
    assert client.hear()[0] == "cds: b2"


@BOTH
def test_a_response_reads_the_same_however_it_is_shared(delta: bool) -> None:
    one, other = Client(FLEET, delta=delta), Client(FLEET, delta=delta)
    for client in (one, other):
        client.want("eds", "b", "a")
    first, second = one.one(), other.one()
    assert (first.words, first.version, first.versions) == (second.words, second.version, second.versions)


def test_a_response_that_may_be_divided_stays_under_what_clients_take() -> None:
    big = {f"pool-{number}": Resource(EDS, f"pool-{number}", bytes(1 << 20)) for number in range(8)}
    stream = Stream(delta=False)
    stream.offer(Resources({EDS: big}))
    stream.request(message(False, type_url=EDS, node={"id": "edge-1"}, resource_names=list(big)), 0)
    named: list[str] = []
    while response := stream.respond(0):
        assert len(response.encode()) <= 4 << 20
        assert stream.respond(0) is None
        named += [resource.name for resource in response.resources]
        stream.request(
            message(
                False,
                type_url=EDS,
                resource_names=list(big),
                response_nonce=response.nonce,
                version_info=response.version,
            ),
            0,
        )
    assert sorted(named) == sorted(big)


def test_a_client_that_names_without_end_is_sent_away() -> None:
    stream = Stream(delta=True)
    stream.request(message(True, type_url=EDS, node={"id": "edge-1"}), 0)
    with pytest.raises(StreamError, match="names"):
        stream.request(message(True, type_url=EDS, resource_names_subscribe=map(str, range(100_001))), 0)
