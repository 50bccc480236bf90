from __future__ import annotations

import pytest
from envoy.service.discovery.v3 import discovery_pb2 as xds

from lbctl.xds.protocol.stream import Stream, StreamError, XdsNode
from lbctl.xds.resource import CDS, EDS, Resource, Resources
from tests.integration.xds.playbook import KINDS, NAMES, Client, resources, started

BOTH = pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
CONTENT = resources(cds="a1 b1", eds="a1 b1", lds="public1", rds="public1", sds="certificate1")


def message(delta: bool, **fields: object) -> bytes:
    request = (xds.DeltaDiscoveryRequest if delta else xds.DiscoveryRequest)(**fields)
    return bytes(request.SerializeToString())


@BOTH
def test_rule_1_the_first_request_must_name_its_node(delta: bool) -> None:
    stream = Stream(delta=delta)
    with pytest.raises(StreamError, match="node"):
        stream.request(message(delta, type_url=CDS), 0)


@BOTH
def test_rule_1_a_node_needs_an_id(delta: bool) -> None:
    with pytest.raises(StreamError, match="node"):
        Stream(delta=delta).request(message(delta, type_url=CDS, node={"cluster": "edge"}), 0)


@BOTH
def test_rule_1_the_node_is_remembered(delta: bool) -> None:
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
def test_undecodable_bytes_end_the_stream(delta: bool) -> None:
    with pytest.raises(StreamError, match="DiscoveryRequest"):
        Stream(delta=delta).request(b"\xff\xff\xff", 0)


@BOTH
def test_rule_2_a_request_on_ads_needs_a_type(delta: bool) -> None:
    with pytest.raises(StreamError, match="type"):
        Stream(delta=delta).request(message(delta, node={"id": "edge-1"}), 0)


@BOTH
@pytest.mark.parametrize("type_url", ["", CDS])
def test_rule_2_a_stream_of_one_type_needs_no_type(delta: bool, type_url: str) -> None:
    stream = Stream(delta=delta, only=CDS)
    stream.offer(CONTENT)
    stream.request(message(delta, node={"id": "edge-1"}, type_url=type_url), 0)
    response = stream.respond(0)
    assert response is not None
    assert response.type_url == CDS


@BOTH
def test_rule_2_a_stream_of_one_type_rejects_other_types(delta: bool) -> None:
    with pytest.raises(StreamError, match="ClusterLoadAssignment"):
        Stream(delta=delta, only=CDS).request(message(delta, node={"id": "edge-1"}, type_url=EDS), 0)


@BOTH
def test_an_unsupported_type_is_never_answered(delta: bool) -> None:
    client = Client(CONTENT, delta=delta)
    client.send("type.googleapis.com/envoy.service.runtime.v3.Runtime")
    assert client.pull() == []
    assert client.stream.status() == ()


@BOTH
def test_rule_3_every_nonce_is_new_and_never_empty(delta: bool) -> None:
    for _ in range(2):
        seen = []
        client = Client(CONTENT, delta=delta)
        for round_ in range(3):
            for short in NAMES.values():
                if not round_:
                    client.subscribe(short, *([] if short in ("cds", "lds") else CONTENT.of(KINDS[short])))
            client.offer(resources(**dict.fromkeys(("cds", "eds", "lds", "rds", "sds"), f"a{round_} b{round_}")))
            while got := client.pull():
                seen += [each.nonce for each in got]
                for each in got:
                    client.ack(each)
        assert all(seen)
        assert len(seen) == len(set(seen)) > 5


@BOTH
def test_rule_3_resent_content_has_a_new_nonce(delta: bool) -> None:
    client = started(resources(cds="a1"), delta=delta)
    seen = [client.last["cds"].nonce]
    for words in ("a2", "a1", "a2"):
        client.offer(resources(cds=words))
        got = client.pull_one()
        client.ack(got)
        seen.append(got.nonce)
    assert len(set(seen)) == 4


@BOTH
def test_rule_3_nonces_belong_to_one_type(delta: bool) -> None:
    client = Client(CONTENT, delta=delta)
    client.subscribe("cds")
    client.subscribe("eds", "a", "b")
    clusters, endpoints = client.pull()
    assert client.send("eds", response_nonce=clusters.nonce) == []
    assert client.state("cds") == "STALE"
    (acked,) = client.ack(clusters)
    assert acked.type_url == CDS
    assert endpoints.nonce != clusters.nonce


@BOTH
def test_rule_4_an_ack_before_the_write_returns_counts(delta: bool) -> None:
    client = Client(CONTENT, delta=delta)
    client.subscribe("cds")
    response = client.stream.respond(0)
    assert response is not None
    (acked,) = client.send(
        "cds", response_nonce=response.nonce, **({} if delta else {"version_info": response.version})
    )
    assert acked.nonce == response.nonce


@BOTH
def test_rule_5_resources_have_the_type_of_the_response(delta: bool) -> None:
    client = Client(CONTENT, delta=delta)
    for short in ("cds", "eds", "lds", "rds", "sds"):
        client.subscribe(short, *([] if short in ("cds", "lds") else CONTENT.of(KINDS[short])))
    responses = client.pull()
    assert len(responses) == 5
    assert all(got.inner_types == {got.type_url} for got in responses)


@BOTH
def test_rule_6_a_name_occurs_once_in_a_response(delta: bool) -> None:
    client = Client(CONTENT, delta=delta)
    client.subscribe("eds", "a", "a", "b", "a")
    assert client.pull_one().words == "a1 b1"


def test_rule_6_a_name_is_not_both_sent_and_removed() -> None:
    client = started(resources(cds="a1 b1", eds="a1 b1", lds="public1"), delta=True)
    client.offer(resources(cds="a1", eds="a1", lds="public1"))
    client.pull()
    client.offer(resources(cds="a1 b2", eds="a1", lds="public1"))
    client.change("cds", "b", drop=["b"])
    client.wait(10)
    assert client.accept_all()[0] == "cds: b2"


@BOTH
def test_shared_responses_are_equal(delta: bool) -> None:
    one, other = Client(CONTENT, delta=delta), Client(CONTENT, delta=delta)
    for client in (one, other):
        client.subscribe("eds", "b", "a")
    first, second = one.pull_one(), other.pull_one()
    assert (first.words, first.version, first.versions) == (second.words, second.version, second.versions)


def test_a_large_response_is_split() -> None:
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


def test_the_number_of_names_is_limited() -> None:
    stream = Stream(delta=True)
    stream.request(message(True, type_url=EDS, node={"id": "edge-1"}), 0)
    with pytest.raises(StreamError, match="names"):
        stream.request(message(True, type_url=EDS, resource_names_subscribe=map(str, range(100_001))), 0)
