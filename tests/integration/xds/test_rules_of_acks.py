from __future__ import annotations

import pytest

from lbctl.xds.protocol.stream import Acked, Nacked
from lbctl.xds.resource import CDS, EDS
from tests.integration.xds.playbook import Client, resources, started

BOTH = pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
CONTENT = resources(cds="a1 b1", eds="a1 b1", lds="public1", rds="public1")


@BOTH
def test_rule_7_a_request_without_error_detail_is_an_ack(delta: bool) -> None:
    client = Client(CONTENT, delta=delta)
    client.subscribe("cds")
    got = client.pull_one()
    assert client.ack(got) == [Acked(CDS, got.nonce, got.version, ("a", "b"))]
    assert client.state("cds") == "SYNCED"


@BOTH
def test_rule_7_an_empty_error_detail_is_a_nack(delta: bool) -> None:
    client = Client(CONTENT, delta=delta)
    client.subscribe("cds")
    got = client.pull_one()
    assert client.nack(got, "") == [Nacked(CDS, got.nonce, got.version, ("a", "b"), "")]
    assert client.pull() == []
    assert client.state("cds") == "NACKED"


def test_rule_7_an_old_version_alone_is_not_a_nack() -> None:
    client = Client(CONTENT)
    client.ask("cds")
    got = client.pull_one()
    (event,) = client.send("cds", response_nonce=got.nonce, version_info="something else")
    assert isinstance(event, Acked)


@BOTH
@pytest.mark.parametrize("short", ["cds", "eds", "lds", "rds"])
def test_rule_8_nothing_is_sent_after_an_ack(delta: bool, short: str) -> None:
    client = started(CONTENT, delta=delta)
    client.offer(resources(cds="a1 b1", eds="a1 b1", lds="public1", rds="public1"))
    client.wait(100)
    assert client.pull() == []
    assert client.state(short) == "SYNCED"


@BOTH
def test_rule_8_changes_before_the_ack_are_sent_after_it(delta: bool) -> None:
    client = started(CONTENT, delta=delta)
    client.offer(resources(cds="a1 b1", eds="a2 b1", lds="public1", rds="public1"))
    first = client.pull_one()
    client.offer(resources(cds="a1 b1", eds="a3 b1", lds="public1", rds="public1"))
    client.offer(resources(cds="a1 b1", eds="a4 b1", lds="public1", rds="public1"))
    assert client.pull() == []
    client.ack(first)
    assert client.pull_one().words == "a4"


@BOTH
def test_a_change_that_is_reverted_in_time_is_not_sent(delta: bool) -> None:
    client = started(CONTENT, delta=delta)
    client.offer(resources(cds="a1 b1", eds="a2 b1", lds="public1", rds="public1"))
    client.offer(CONTENT)
    assert client.pull() == []


@BOTH
@pytest.mark.parametrize(("short", "bad"), [("cds", "a1 b2"), ("eds", "a1 b2"), ("lds", "public2"), ("rds", "public2")])
def test_rule_9_rejected_content_is_recorded_and_not_resent(delta: bool, short: str, bad: str) -> None:
    client = started(CONTENT, delta=delta)
    contents = {"cds": "a1 b1", "eds": "a1 b1", "lds": "public1", "rds": "public1"}
    for _ in range(3):
        client.offer(resources(**contents | {short: bad}))
        for got in client.pull():
            (event,) = client.nack(got, f"Proto constraint validation failed in {bad.split()[-1]}")
            assert isinstance(event, Nacked)
        client.wait(1000)
        assert client.pull() == []
        assert client.state(short) == "NACKED"
        assert client.status(short).message.startswith("Proto constraint")
        assert client.status(short).acked_version != client.status(short).offered_version


@BOTH
@pytest.mark.parametrize(("short", "bad", "good"), [("cds", "a1 b2", "a1 b3"), ("eds", "a1 b2", "a1 b3")])
def test_rule_9_other_content_is_sent_at_once(delta: bool, short: str, bad: str, good: str) -> None:
    client = started(CONTENT, delta=delta)
    contents = {"cds": "a1 b1", "eds": "a1 b1", "lds": "public1", "rds": "public1"}
    client.offer(resources(**contents | {short: bad}))
    client.nack(client.pull()[0])
    client.offer(resources(**contents | {short: good}))
    assert "b3" in client.accept_all()[0]
    assert client.state(short) == "SYNCED"
    assert client.status(short).message == ""


@BOTH
def test_rule_9_rejected_content_is_not_sent_when_it_returns(delta: bool) -> None:
    client = started(CONTENT, delta=delta)
    bad = resources(cds="a1 b1", eds="a1 b2", lds="public1", rds="public1")
    client.offer(bad)
    client.nack(client.pull_one())
    client.offer(resources(cds="a1 b1", eds="a1 b3", lds="public1", rds="public1"))
    client.accept_all()
    client.offer(bad)
    assert client.pull() == []
    assert client.status("eds").nacked == ("b",)


@BOTH
@pytest.mark.parametrize("short", ["eds", "rds", "sds"])
def test_a_nack_that_names_a_resource_blocks_only_it(delta: bool, short: str) -> None:
    client = Client(resources(**{short: "llama1 llama-v1 gpt1"}), delta=delta)
    client.subscribe(short, "llama", "llama-v", "gpt")
    (event,) = client.nack(client.pull_one(), "Error adding/updating llama-v: weight must be at least 1")
    assert event.names == ("llama-v",)
    assert client.accept_all() == [f"{short}: gpt1 llama1"]
    assert client.status(short).nacked == ("llama-v",)


@BOTH
@pytest.mark.parametrize(("short", "bad"), [("cds", "a1 b2"), ("eds", "a1 b2"), ("lds", "public2"), ("rds", "public2")])
def test_retry_rejected_sends_rejected_content_once_more(delta: bool, short: str, bad: str) -> None:
    client = started(CONTENT, delta=delta)
    client.offer(resources(**{"cds": "a1 b1", "eds": "a1 b1", "lds": "public1", "rds": "public1"} | {short: bad}))
    words = f"{bad.split()[-1][:-1]}: the port is taken"
    for _ in range(3):
        for got in client.pull():
            if got.short == short:
                client.nack(got, words)
            else:
                client.ack(got)
        assert client.pull() == []
        assert client.state(short) == "NACKED"
        assert client.stream.retry_rejected() == 1
    assert bad.split()[-1] in " ".join(client.accept_all())
    assert client.state(short) == "SYNCED"
    assert client.stream.retry_rejected() == 0
    assert client.pull() == []


@BOTH
def test_retry_rejected_sends_a_rejected_removal_once_more(delta: bool) -> None:
    client = started(CONTENT, delta=delta)
    client.offer(resources(cds="a1 b1", eds="a1 b1"))
    (got,) = client.pull()
    client.nack(got, "public: cannot go now")
    assert client.pull() == []
    client.stream.retry_rejected()
    assert client.accept_all()[0].startswith("lds")
    assert client.state("lds") == "SYNCED"


def test_delta_clusters_are_resent_without_the_rejected_one() -> None:
    client = started(CONTENT, delta=True)
    client.offer(resources(cds="a2 b2 c1", eds="a1 b1 c1", lds="public1", rds="public1"))
    (event,) = client.nack(client.pull()[0], "Error adding/updating cluster(s) b: hostname mismatch")
    assert event.names == ("b",)
    clusters, *_ = client.pull()
    assert clusters.words == "a2 c1"


@BOTH
def test_a_nack_without_names_rejects_the_whole_response(delta: bool) -> None:
    client = Client(resources(eds="a1 b1"), delta=delta)
    client.subscribe("eds", "a", "b")
    (event,) = client.nack(client.pull_one(), "Malformed protobuf")
    assert event.names == ("a", "b")
    assert client.pull() == []


@BOTH
def test_the_last_content_is_resent_after_a_nack(delta: bool) -> None:
    client = started(CONTENT, delta=delta)
    client.offer(resources(cds="a2 b2", eds="a1 b1", lds="public1", rds="public1"))
    client.nack(client.pull()[0], "Error adding/updating cluster(s) b: no")
    client.offer(CONTENT)
    responses = client.accept_all()
    assert any("a1" in each for each in responses if each.startswith("cds"))
    assert client.state("cds") == "SYNCED"


def test_rule_10_a_nack_may_add_and_drop_names() -> None:
    client = Client(resources(eds="a1 b1 c1"))
    client.ask("eds", "a", "b")
    client.nack(client.pull_one(), "a: no", names=["a", "c"])
    assert client.status("eds").names == ("a", "c")
    assert client.accept_all() == ["eds: c1"]


def test_rule_10_a_delta_nack_may_add_and_drop_names() -> None:
    client = Client(resources(eds="a1 b1 c1"), delta=True)
    client.change("eds", "a", "b")
    got = client.pull_one()
    client.send(
        "eds",
        response_nonce=got.nonce,
        error="a: no",
        resource_names_subscribe=["c"],
        resource_names_unsubscribe=["b"],
    )
    assert client.accept_all() == ["eds: c1"]


def test_rule_11_a_discarded_response_is_not_resent() -> None:
    client = Client(resources(eds="a1"))
    client.ask("eds", "a")
    client.accept_all()
    client.offer(resources(eds="a2"))
    got = client.pull_one()
    old = client.accepted["eds"]
    assert client.send("eds", response_nonce=got.nonce, version_info=old) == []
    assert client.pull() == []


def test_rule_11_unsubscribed_resources_are_not_sent() -> None:
    client = Client(resources(eds="a1 b1"))
    client.ask("eds", "a", "b")
    client.accept_all()
    client.offer(resources(eds="a2 b2"))
    client.ask("eds", "b", version=client.accepted["eds"])
    assert client.pull_one().words == "b2"


def test_rule_11_a_different_version_triggers_nothing() -> None:
    client = Client(resources(eds="a1"))
    client.ask("eds", "a")
    client.accept_all()
    client.ask("eds", "a", version="another")
    assert client.pull() == []


def test_rule_12_endpoints_do_not_wait_for_the_cluster_ack() -> None:
    client = started(CONTENT)
    client.offer(resources(cds="a1 b1 c1", eds="a2 b1 c1", lds="public1", rds="public2"))
    clusters, endpoints = client.pull()
    assert (str(clusters), str(endpoints)) == ("cds: a1 b1 c1", "eds: a2")
    client.ack(endpoints)
    client.ask("eds", "a", "b", "c")
    endpoints = client.pull_one()
    assert str(endpoints) == "eds: c1"
    client.ack(endpoints)
    assert client.pull() == []
    client.ack(clusters)
    assert str(client.pull_one()) == "rds: public2"


def test_rule_13_names_of_a_stale_request_count() -> None:
    client = Client(resources(eds="a1 b1"))
    client.ask("eds", "a")
    client.accept_all()
    client.offer(resources(eds="a2 b1"))
    old = client.last["eds"].nonce
    got = client.pull_one()
    client.ask("eds", "a", "b", nonce=old)
    assert client.pull() == []
    assert client.state("eds") == "STALE"
    client.ack(got)
    assert client.pull_one().words == "b1"


def test_rule_13_a_stale_nonce_neither_accepts_nor_refuses() -> None:
    client = Client(resources(eds="a1"))
    client.ask("eds", "a")
    got = client.pull_one()
    assert client.send("eds", resource_names=["a"], response_nonce="of another stream", error="no") == []
    assert client.state("eds") == "STALE"
    (event,) = client.ack(got)
    assert isinstance(event, Acked)


def test_rule_13_crossing_first_requests_get_one_response_each() -> None:
    client = Client(resources(eds="a1 b1"))
    client.ask("eds", "a")
    got = client.pull_one()
    client.ask("eds", "a", "b", nonce="")
    assert client.pull() == []
    client.ack(got)
    assert client.accept_all() == ["eds: b1"]


def test_a_request_without_a_nonce_gets_everything_again() -> None:
    client = Client(resources(eds="a1 b1"))
    client.ask("eds", "a", "b")
    client.accept_all()
    client.ask("eds", "a", "b", nonce="")
    assert client.accept_all() == ["eds: a1 b1"]


@pytest.mark.parametrize("nonce", ["", "stale"])
def test_rule_14_delta_names_may_change_with_any_nonce(nonce: str) -> None:
    client = Client(resources(eds="a1 b1 c1"), delta=True)
    client.change("eds", "a", "b")
    got = client.pull_one()
    client.change("eds", "c", drop=["b"], nonce=nonce)
    assert client.status("eds").names == ("a", "c")
    client.ack(got)
    assert client.accept_all() == ["eds: c1"]
    client.offer(resources(eds="a2 b2 c2"))
    assert client.pull_one().words == "a2 c2"


@BOTH
def test_at_most_one_response_per_type_is_in_flight(delta: bool) -> None:
    client = Client(resources(eds="a1"), delta=delta)
    client.subscribe("eds", "a")
    client.pull_one()
    for number in range(2, 100):
        client.offer(resources(eds=f"a{number}"))
        assert client.pull() == []
    client.ack(client.last["eds"])
    assert client.accept_all() == ["eds: a99"]


@BOTH
def test_an_ordinary_word_in_a_nack_is_not_taken_for_a_name(delta: bool) -> None:
    client = Client(resources(eds="cluster1 a1 gpt1"), delta=delta)
    client.subscribe("eds", "cluster", "a", "gpt")
    (event,) = client.nack(client.pull_one(), "Error adding/updating cluster(s) gpt: a duplicate address")
    assert event.names == ("gpt",)
    assert event.type_url == EDS
