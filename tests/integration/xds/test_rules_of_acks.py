from __future__ import annotations

import pytest

from lbctl.xds.protocol.stream import Acked, Nacked
from lbctl.xds.resource import CDS, EDS
from tests.integration.xds.playbook import Client, fleet, started

BOTH = pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
FLEET = fleet(cds="a1 b1", eds="a1 b1", lds="public1", rds="public1")


@BOTH
def test_rule_7_an_answer_without_error_detail_is_an_ack(delta: bool) -> None:
    client = Client(FLEET, delta=delta)
    client.want("cds")
    got = client.one()
    assert client.ack(got) == [Acked(CDS, got.nonce, got.version, ("a", "b"))]
    assert client.state("cds") == "SYNCED"


@BOTH
def test_rule_7_an_empty_error_detail_is_a_nack_all_the_same(delta: bool) -> None:
    client = Client(FLEET, delta=delta)
    client.want("cds")
    got = client.one()
    assert client.nack(got, "") == [Nacked(CDS, got.nonce, got.version, ("a", "b"), "")]
    assert client.pull() == []
    assert client.state("cds") == "NACKED"


def test_rule_7_an_old_version_without_error_detail_is_no_nack() -> None:
    client = Client(FLEET)
    client.ask("cds")
    got = client.one()
    (event,) = client.send("cds", response_nonce=got.nonce, version_info="something else")
    assert isinstance(event, Acked)


@BOTH
@pytest.mark.parametrize("short", ["cds", "eds", "lds", "rds"])
def test_rule_8_after_an_ack_there_is_silence(delta: bool, short: str) -> None:
    client = started(FLEET, delta=delta)
    client.offer(fleet(cds="a1 b1", eds="a1 b1", lds="public1", rds="public1"))
    client.wait(100)
    assert client.pull() == []
    assert client.state(short) == "SYNCED"


@BOTH
def test_rule_8_what_changed_before_the_ack_is_sent_after_it(delta: bool) -> None:
    client = started(FLEET, delta=delta)
    client.offer(fleet(cds="a1 b1", eds="a2 b1", lds="public1", rds="public1"))
    first = client.one()
    client.offer(fleet(cds="a1 b1", eds="a3 b1", lds="public1", rds="public1"))
    client.offer(fleet(cds="a1 b1", eds="a4 b1", lds="public1", rds="public1"))
    assert client.pull() == []
    client.ack(first)
    assert client.one().words == "a4"


@BOTH
def test_a_change_that_is_taken_back_before_it_was_sent_is_not_sent(delta: bool) -> None:
    client = started(FLEET, delta=delta)
    client.offer(fleet(cds="a1 b1", eds="a2 b1", lds="public1", rds="public1"))
    client.offer(FLEET)
    assert client.pull() == []


@BOTH
@pytest.mark.parametrize(("short", "bad"), [("cds", "a1 b2"), ("eds", "a1 b2"), ("lds", "public2"), ("rds", "public2")])
def test_rule_9_refused_content_is_recorded_and_never_sent_again(delta: bool, short: str, bad: str) -> None:
    client = started(FLEET, delta=delta)
    contents = {"cds": "a1 b1", "eds": "a1 b1", "lds": "public1", "rds": "public1"}
    for _ in range(3):
        client.offer(fleet(**contents | {short: bad}))
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
def test_rule_9_other_content_is_sent_as_soon_as_it_is_there(delta: bool, short: str, bad: str, good: str) -> None:
    client = started(FLEET, delta=delta)
    contents = {"cds": "a1 b1", "eds": "a1 b1", "lds": "public1", "rds": "public1"}
    client.offer(fleet(**contents | {short: bad}))
    client.nack(client.pull()[0])
    client.offer(fleet(**contents | {short: good}))
    assert "b3" in client.hear()[0]
    assert client.state(short) == "SYNCED"
    assert client.status(short).message == ""


@BOTH
def test_rule_9_bad_content_that_comes_back_later_is_known(delta: bool) -> None:
    client = started(FLEET, delta=delta)
    bad = fleet(cds="a1 b1", eds="a1 b2", lds="public1", rds="public1")
    client.offer(bad)
    client.nack(client.one())
    client.offer(fleet(cds="a1 b1", eds="a1 b3", lds="public1", rds="public1"))
    client.hear()
    client.offer(bad)
    assert client.pull() == []
    assert client.status("eds").nacked == ("b",)


@BOTH
@pytest.mark.parametrize("short", ["eds", "rds", "sds"])
def test_a_refusal_that_names_one_holds_up_no_other(delta: bool, short: str) -> None:
    client = Client(fleet(**{short: "llama1 llama-v1 gpt1"}), delta=delta)
    client.want(short, "llama", "llama-v", "gpt")
    (event,) = client.nack(client.one(), "Error adding/updating llama-v: weight must be at least 1")
    assert event.names == ("llama-v",)
    assert client.hear() == [f"{short}: gpt1 llama1"]
    assert client.status(short).nacked == ("llama-v",)


@BOTH
@pytest.mark.parametrize(("short", "bad"), [("cds", "a1 b2"), ("eds", "a1 b2"), ("lds", "public2"), ("rds", "public2")])
def test_what_was_refused_is_sent_once_more_when_somebody_asks_for_that(delta: bool, short: str, bad: str) -> None:
    client = started(FLEET, delta=delta)
    client.offer(fleet(**{"cds": "a1 b1", "eds": "a1 b1", "lds": "public1", "rds": "public1"} | {short: bad}))
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
    assert bad.split()[-1] in " ".join(client.hear())
    assert client.state(short) == "SYNCED"
    assert client.stream.retry_rejected() == 0
    assert client.pull() == []


@BOTH
def test_a_removal_that_was_refused_is_sent_once_more_too(delta: bool) -> None:
    client = started(FLEET, delta=delta)
    client.offer(fleet(cds="a1 b1", eds="a1 b1"))
    (got,) = client.pull()
    client.nack(got, "public: cannot go now")
    assert client.pull() == []
    client.stream.retry_rejected()
    assert client.hear()[0].startswith("lds")
    assert client.state("lds") == "SYNCED"


def test_delta_clusters_that_were_not_named_are_sent_again_without_the_faulty_one() -> None:
    client = started(FLEET, delta=True)
    client.offer(fleet(cds="a2 b2 c1", eds="a1 b1 c1", lds="public1", rds="public1"))
    (event,) = client.nack(client.pull()[0], "Error adding/updating cluster(s) b: hostname mismatch")
    assert event.names == ("b",)
    clusters, *_ = client.pull()
    assert clusters.words == "a2 c1"


@BOTH
def test_when_the_words_name_nobody_everything_in_the_response_is_refused(delta: bool) -> None:
    client = Client(fleet(eds="a1 b1"), delta=delta)
    client.want("eds", "a", "b")
    (event,) = client.nack(client.one(), "Malformed protobuf")
    assert event.names == ("a", "b")
    assert client.pull() == []


@BOTH
def test_after_a_refusal_the_content_of_before_is_sent_since_part_of_the_refused_may_be_in_use(delta: bool) -> None:
    client = started(FLEET, delta=delta)
    client.offer(fleet(cds="a2 b2", eds="a1 b1", lds="public1", rds="public1"))
    client.nack(client.pull()[0], "Error adding/updating cluster(s) b: no")
    client.offer(FLEET)
    said = client.hear()
    assert any("a1" in each for each in said if each.startswith("cds"))
    assert client.state("cds") == "SYNCED"


def test_rule_10_a_nack_may_add_and_drop_names() -> None:
    client = Client(fleet(eds="a1 b1 c1"))
    client.ask("eds", "a", "b")
    client.nack(client.one(), "a: no", names=["a", "c"])
    assert client.status("eds").names == ("a", "c")
    assert client.hear() == ["eds: c1"]


def test_rule_10_a_delta_nack_may_add_and_drop_names() -> None:
    client = Client(fleet(eds="a1 b1 c1"), delta=True)
    client.change("eds", "a", "b")
    got = client.one()
    client.send(
        "eds",
        response_nonce=got.nonce,
        error="a: no",
        resource_names_subscribe=["c"],
        resource_names_unsubscribe=["b"],
    )
    assert client.hear() == ["eds: c1"]


def test_rule_11_a_response_that_is_thrown_away_is_not_sent_again() -> None:
    client = Client(fleet(eds="a1"))
    client.ask("eds", "a")
    client.hear()
    client.offer(fleet(eds="a2"))
    got = client.one()
    old = client.accepted["eds"]
    assert client.send("eds", response_nonce=got.nonce, version_info=old) == []
    assert client.pull() == []


def test_rule_11_what_was_unsubscribed_before_it_was_written_is_not_written() -> None:
    client = Client(fleet(eds="a1 b1"))
    client.ask("eds", "a", "b")
    client.hear()
    client.offer(fleet(eds="a2 b2"))
    client.ask("eds", "b", version=client.accepted["eds"])
    assert client.one().words == "b2"


def test_rule_11_a_version_that_differs_triggers_nothing() -> None:
    client = Client(fleet(eds="a1"))
    client.ask("eds", "a")
    client.hear()
    client.ask("eds", "a", version="another")
    assert client.pull() == []


def test_rule_12_an_ack_of_clusters_that_warm_comes_late_and_endpoints_do_not_wait_for_it() -> None:
    client = started(FLEET)
    client.offer(fleet(cds="a1 b1 c1", eds="a2 b1 c1", lds="public1", rds="public2"))
    clusters, endpoints = client.pull()
    assert (str(clusters), str(endpoints)) == ("cds: a1 b1 c1", "eds: a2")
    client.ack(endpoints)
    client.ask("eds", "a", "b", "c")
    endpoints = client.one()
    assert str(endpoints) == "eds: c1"
    client.ack(endpoints)
    assert client.pull() == []
    client.ack(clusters)
    assert str(client.one()) == "rds: public2"


def test_rule_13_a_stale_request_is_not_answered_but_its_names_are_taken() -> None:
    client = Client(fleet(eds="a1 b1"))
    client.ask("eds", "a")
    client.hear()
    client.offer(fleet(eds="a2 b1"))
    old = client.last["eds"].nonce
    got = client.one()
    client.ask("eds", "a", "b", nonce=old)
    assert client.pull() == []
    assert client.state("eds") == "STALE"
    client.ack(got)
    assert client.one().words == "b1"


def test_rule_13_a_stale_nonce_neither_accepts_nor_refuses() -> None:
    client = Client(fleet(eds="a1"))
    client.ask("eds", "a")
    got = client.one()
    assert client.send("eds", resource_names=["a"], response_nonce="of another stream", error="no") == []
    assert client.state("eds") == "STALE"
    (event,) = client.ack(got)
    assert isinstance(event, Acked)


def test_rule_13_two_first_requests_that_cross_the_response_get_one_answer_each() -> None:
    client = Client(fleet(eds="a1 b1"))
    client.ask("eds", "a")
    got = client.one()
    client.ask("eds", "a", "b", nonce="")
    assert client.pull() == []
    client.ack(got)
    assert client.hear() == ["eds: b1"]


def test_a_client_that_knows_no_nonce_any_more_is_told_all_again() -> None:
    client = Client(fleet(eds="a1 b1"))
    client.ask("eds", "a", "b")
    client.hear()
    client.ask("eds", "a", "b", nonce="")
    assert client.hear() == ["eds: a1 b1"]


@pytest.mark.parametrize("nonce", ["", "stale"])
def test_rule_14_a_delta_client_may_change_its_names_with_any_nonce(nonce: str) -> None:
    client = Client(fleet(eds="a1 b1 c1"), delta=True)
    client.change("eds", "a", "b")
    got = client.one()
    client.change("eds", "c", drop=["b"], nonce=nonce)
    assert client.status("eds").names == ("a", "c")
    client.ack(got)
    assert client.hear() == ["eds: c1"]
    client.offer(fleet(eds="a2 b2 c2"))
    assert client.one().words == "a2 c2"


@BOTH
def test_no_more_than_one_response_of_a_type_is_under_way(delta: bool) -> None:
    client = Client(fleet(eds="a1"), delta=delta)
    client.want("eds", "a")
    client.one()
    for number in range(2, 100):
        client.offer(fleet(eds=f"a{number}"))
        assert client.pull() == []
    client.ack(client.last["eds"])
    assert client.hear() == ["eds: a99"]


@BOTH
def test_a_name_that_is_a_word_of_the_sentence_is_not_blamed(delta: bool) -> None:
    client = Client(fleet(eds="cluster1 a1 gpt1"), delta=delta)
    client.want("eds", "cluster", "a", "gpt")
    (event,) = client.nack(client.one(), "Error adding/updating cluster(s) gpt: a duplicate address")
    assert event.names == ("gpt",)
    assert event.type_url == EDS
