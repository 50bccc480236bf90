from __future__ import annotations

import pytest

from tests.integration.xds.playbook import KINDS, Client, resources, started

WILDCARD_TYPES = pytest.mark.parametrize("short", ["cds", "lds"])
NAMED_TYPES = pytest.mark.parametrize("short", ["eds", "rds", "sds"])
ALL_TYPES = pytest.mark.parametrize("short", list(KINDS))
BOTH = pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])


def subscribed_client(short: str, words: str, *names: str, delta: bool = False) -> Client:
    """Return a client that has subscribed to these names of a type and received the existing resources."""
    client = Client(resources(**{short: words}), delta=delta)
    client.subscribe(short, *names)
    client.accept_all()
    return client


@ALL_TYPES
def test_rule_15_sotw_names_are_the_whole_list(short: str) -> None:
    client = subscribed_client(short, "a1 b1", "a", "b")
    client.ask(short, "b")
    assert client.status(short).names == ("b",)
    client.offer(resources(**{short: "a2 b1"}))
    assert client.pull() == []


@ALL_TYPES
def test_rule_15_delta_names_are_added(short: str) -> None:
    client = subscribed_client(short, "a1 b1 c1", "a", delta=True)
    client.change(short, "b")
    assert client.accept_all() == [f"{short}: b1"]
    client.change(short, "c", drop=["a"])
    assert client.accept_all() == [f"{short}: c1"]
    assert client.status(short).names == ("b", "c")


@BOTH
@ALL_TYPES
def test_rule_15_a_subscription_lasts_as_long_as_the_stream(delta: bool, short: str) -> None:
    client = subscribed_client(short, "a1", "a", delta=delta)
    for number in range(2, 6):
        client.offer(resources(**{short: f"a{number}"}))
        assert client.accept_all() == [f"{short}: a{number}"]


@BOTH
@WILDCARD_TYPES
def test_rule_16_a_request_without_names_is_a_wildcard(delta: bool, short: str) -> None:
    client = subscribed_client(short, "a1 b1", delta=delta)
    client.offer(resources(**{short: "a1 b1 c1"}))
    assert client.accept_all() == [f"{short}: {'c1' if delta else 'a1 b1 c1'}"]
    assert client.status(short).wildcard


@WILDCARD_TYPES
@pytest.mark.parametrize("first", ["a", "*"])
def test_rule_16_an_empty_list_after_a_name_unsubscribes(short: str, first: str) -> None:
    client = subscribed_client(short, "a1 b1", first)
    client.ask(short)
    client.offer(resources(**{short: "a2 b2 c1"}))
    assert client.pull() == []
    assert not client.status(short).wildcard


@WILDCARD_TYPES
def test_rule_16_an_empty_delta_request_is_not_a_wildcard(short: str) -> None:
    client = subscribed_client(short, "a1 b1", "a", delta=True)
    client.change(short)
    assert client.accept_all() == []
    assert not client.status(short).wildcard


@BOTH
@ALL_TYPES
def test_rule_16_a_star_subscribes_to_all_of_a_type(delta: bool, short: str) -> None:
    client = Client(resources(**{short: "a1 b1"}), delta=delta)
    client.subscribe(short, "*")
    assert client.accept_all() == [f"{short}: a1 b1"]


@WILDCARD_TYPES
def test_rule_17_a_list_without_the_star_ends_the_wildcard(short: str) -> None:
    client = subscribed_client(short, "a1 b1", "*", "a")
    assert (client.status(short).wildcard, client.status(short).names) == (True, ("a",))
    client.ask(short, "a")
    assert not client.status(short).wildcard
    client.offer(resources(**{short: "a1 b2"}))
    assert client.accept_all() == []
    client.offer(resources(**{short: "a2 b2"}))
    assert client.accept_all() == [f"{short}: a2"]


@WILDCARD_TYPES
def test_rule_17_a_delta_wildcard_ends_with_the_star(short: str) -> None:
    client = subscribed_client(short, "a1 b1", delta=True)
    client.change(short, "a")
    assert client.accept_all() == [f"{short}: a1"]
    client.offer(resources(**{short: "a2 b2"}))
    assert client.accept_all() == [f"{short}: a2 b2"]
    client.change(short, drop=["*"])
    client.offer(resources(**{short: "a3 b3"}))
    assert client.accept_all() == [f"{short}: a3"]


@BOTH
@WILDCARD_TYPES
def test_rule_17_a_star_after_names_adds_the_rest(delta: bool, short: str) -> None:
    client = subscribed_client(short, "a1 b1", "a", delta=delta)
    if delta:
        client.change(short, "*")
    else:
        client.ask(short, "a", "*")
    assert client.accept_all() == [f"{short}: {'b1' if delta else 'a1 b1'}"]


@BOTH
@NAMED_TYPES
def test_rule_18_no_names_are_not_a_wildcard_for_named_types(delta: bool, short: str) -> None:
    client = subscribed_client(short, "a1 b1", delta=delta)
    client.offer(resources(**{short: "a2 b2"}))
    assert client.pull() == []
    assert client.state(short) == "SYNCED"


@NAMED_TYPES
def test_rule_18_dropping_the_last_name_is_not_answered(short: str) -> None:
    client = subscribed_client(short, "a1", "a")
    client.ask(short)
    client.offer(resources(**{short: "a2"}))
    assert client.pull() == []


@BOTH
@NAMED_TYPES
def test_rule_19_only_a_new_name_is_sent(delta: bool, short: str) -> None:
    client = subscribed_client(short, "a1 b1", "a", delta=delta)
    if delta:
        client.change(short, "b")
    else:
        client.ask(short, "a", "b")
    assert client.accept_all() == [f"{short}: b1"]


@WILDCARD_TYPES
def test_rule_19_a_new_name_of_a_full_set_resends_the_set(short: str) -> None:
    client = subscribed_client(short, "a1 b1", "a")
    client.ask(short, "a", "b")
    assert client.accept_all() == [f"{short}: a1 b1"]


@BOTH
@ALL_TYPES
def test_rule_19_a_resubscribed_name_is_resent(delta: bool, short: str) -> None:
    client = subscribed_client(short, "a1 b1", "a", "b", delta=delta)
    if delta:
        client.change(short, drop=["b"])
        client.change(short, "b")
    else:
        client.ask(short, "a")
        client.ask(short, "a", "b")
    assert "b1" in client.accept_all()[0]


@WILDCARD_TYPES
def test_rule_19_naming_a_wildcard_resource_resends_it(short: str) -> None:
    client = subscribed_client(short, "a1 b1", "*")
    client.ask(short, "*", "a")
    assert client.accept_all() == [f"{short}: a1 b1"]


@ALL_TYPES
def test_rule_20_a_repeated_delta_subscription_resends(short: str) -> None:
    client = subscribed_client(short, "a1 b1", "a", "b", delta=True)
    client.change(short, "a")
    assert client.accept_all() == [f"{short}: a1"]


@NAMED_TYPES
def test_rule_20_a_repeated_subscription_resends_after_a_nack(short: str) -> None:
    client = Client(resources(**{short: "a1"}), delta=True)
    client.change(short, "a")
    client.nack(client.pull_one())
    assert client.pull() == []
    client.change(short, "a")
    assert client.accept_all() == [f"{short}: a1"]


@ALL_TYPES
def test_rule_21_a_missing_resource_is_sent_when_it_appears(short: str) -> None:
    client = subscribed_client(short, "a1", "x")
    assert client.state(short) == "WAITING"
    assert client.pull() == []
    client.offer(resources(**{short: "a1 x1"}))
    assert client.accept_all() == [f"{short}: x1"]


@ALL_TYPES
def test_rule_21_a_missing_delta_resource_is_removed_at_once(short: str) -> None:
    client = Client(resources(**{short: "a1"}), delta=True)
    client.change(short, "x")
    assert client.accept_all() == [f"{short}: -x"]
    client.offer(resources(**{short: "a1 x1"}))
    assert client.accept_all() == [f"{short}: x1"]


@ALL_TYPES
def test_rule_22_dropping_an_unsubscribed_name_does_nothing(short: str) -> None:
    client = subscribed_client(short, "a1 b1", "a", delta=True)
    client.change(short, drop=["b", "never"])
    assert client.pull() == []
    client.change(short, drop=["a"])
    assert client.pull() == []


@WILDCARD_TYPES
def test_rule_22_a_name_dropped_under_a_wildcard_is_answered(short: str) -> None:
    client = subscribed_client(short, "a1 b1", "*", "a", "x", delta=True)
    client.change(short, drop=["a"])
    assert client.accept_all() == [f"{short}: a1"]
    client.change(short, drop=["x"])
    assert client.accept_all() == [f"{short}: -x"]
    client.change(short, drop=["b"])
    assert client.accept_all() == []


@WILDCARD_TYPES
def test_rule_23_one_change_sends_the_whole_set(short: str) -> None:
    client = subscribed_client(short, "a1 b1")
    client.offer(resources(**{short: "a1 b2"}))
    assert client.accept_all() == [f"{short}: a1 b2"]


@WILDCARD_TYPES
def test_rule_23_one_change_sends_all_named_resources(short: str) -> None:
    client = subscribed_client(short, "a1 b1 c1", "a", "b")
    client.offer(resources(**{short: "a1 b2 c2"}))
    assert client.accept_all() == [f"{short}: a1 b2"]


def test_rule_23_absent_resources_are_deleted() -> None:
    client = subscribed_client("lds", "a1 b1")
    client.offer(resources(lds="b1"))
    assert client.accept_all() == ["lds: b1"]
    client.offer(resources(lds=""))
    assert client.accept_all() == ["lds: "]


@NAMED_TYPES
def test_rule_24_only_changes_are_sent_for_named_types(short: str) -> None:
    client = subscribed_client(short, "a1 b1 c1", "a", "b", "c")
    client.offer(resources(**{short: "a1 b2"}))
    assert client.accept_all() == [f"{short}: b2"]
    client.wait(100)
    assert client.pull() == []


@NAMED_TYPES
def test_rule_24_a_returning_resource_is_sent(short: str) -> None:
    client = subscribed_client(short, "a1 b1", "a", "b")
    client.offer(resources(**{short: "a1"}))
    client.accept_all()
    client.wait(100)
    client.accept_all()
    client.offer(resources(**{short: "a1 b1"}))
    assert client.accept_all() == [f"{short}: b1"]


@ALL_TYPES
def test_rule_25_delta_sends_changes_and_removals(short: str) -> None:
    client = subscribed_client(short, "a1 b1 c1", "*", delta=True)
    client.offer(resources(**{short: "a2 c1 d1"}))
    responses = client.accept_all()
    client.wait(1)
    assert [*responses, *client.accept_all()] in ([f"{short}: a2 d1 -b"], [f"{short}: a2 d1", f"{short}: -b"])
    client.wait(100)
    assert client.pull() == []


def test_rule_25_an_empty_assignment_empties_a_pool() -> None:
    client = started(resources(cds="a1", eds="a1", lds="public1"), delta=True)
    client.offer(resources(cds="a1", eds="a0", lds="public1"))
    client.wait(100)
    assert client.accept_all() == ["eds: a0"]


@BOTH
@WILDCARD_TYPES
def test_rule_26_the_first_wildcard_is_answered_even_if_empty(delta: bool, short: str) -> None:
    client = Client(resources(), delta=delta)
    client.subscribe(short)
    assert client.accept_all() == [f"{short}: "]
    assert client.state(short) == "SYNCED"
    client.wait(100)
    assert client.pull() == []


@ALL_TYPES
def test_rule_26_a_name_is_not_answered_before_it_exists(short: str) -> None:
    client = Client(resources())
    client.ask(short, "a")
    assert client.pull() == []


@BOTH
@ALL_TYPES
def test_rule_27_nothing_is_answered_before_there_is_content(delta: bool, short: str) -> None:
    client = Client(delta=delta)
    client.subscribe(short, *([] if short in ("cds", "lds") else ["a", "x"]))
    client.wait(1000)
    assert client.pull() == []
    assert client.stream.due() is None
    assert client.state(short) == "WAITING"
    client.offer(resources(**{short: "a1"}))
    assert client.accept_all()[0].startswith(f"{short}: a1")


@BOTH
@ALL_TYPES
def test_rule_35_no_heartbeats_are_sent(delta: bool, short: str) -> None:
    client = subscribed_client(short, "a1", "a", delta=delta)
    client.wait(1e6)
    assert client.pull() == []
    assert client.stream.due() is None


@BOTH
def test_rule_39_one_changed_weight_sends_one_assignment(delta: bool) -> None:
    client = subscribed_client("eds", "a1 b1 c1", "a", "b", "c", delta=delta)
    client.offer(resources(eds="a1 b2 c1"))
    assert client.accept_all() == ["eds: b2"]
