from __future__ import annotations

import pytest

from tests.integration.xds.playbook import KINDS, Client, fleet, started

SETS = pytest.mark.parametrize("short", ["cds", "lds"])
NAMED = pytest.mark.parametrize("short", ["eds", "rds", "sds"])
EVERY = pytest.mark.parametrize("short", list(KINDS))
BOTH = pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])


def client_of(short: str, words: str, *names: str, delta: bool = False) -> Client:
    """One that asked for these names of a type, and has what there was."""
    client = Client(fleet(**{short: words}), delta=delta)
    client.want(short, *names)
    client.hear()
    return client


@EVERY
def test_rule_15_names_in_the_state_of_the_world_are_the_whole_list(short: str) -> None:
    client = client_of(short, "a1 b1", "a", "b")
    client.ask(short, "b")
    assert client.status(short).names == ("b",)
    client.offer(fleet(**{short: "a2 b1"}))
    assert client.pull() == []


@EVERY
def test_rule_15_names_of_delta_add_up(short: str) -> None:
    client = client_of(short, "a1 b1 c1", "a", delta=True)
    client.change(short, "b")
    assert client.hear() == [f"{short}: b1"]
    client.change(short, "c", drop=["a"])
    assert client.hear() == [f"{short}: c1"]
    assert client.status(short).names == ("b", "c")


@BOTH
@EVERY
def test_rule_15_a_subscription_lasts_as_long_as_the_stream(delta: bool, short: str) -> None:
    client = client_of(short, "a1", "a", delta=delta)
    for number in range(2, 6):
        client.offer(fleet(**{short: f"a{number}"}))
        assert client.hear() == [f"{short}: a{number}"]


@BOTH
@SETS
def test_rule_16_who_never_named_anything_gets_everything(delta: bool, short: str) -> None:
    client = client_of(short, "a1 b1", delta=delta)
    client.offer(fleet(**{short: "a1 b1 c1"}))
    assert client.hear() == [f"{short}: {'c1' if delta else 'a1 b1 c1'}"]
    assert client.status(short).wildcard


@SETS
@pytest.mark.parametrize("first", ["a", "*"])
def test_rule_16_after_any_name_an_empty_list_means_nothing(short: str, first: str) -> None:
    client = client_of(short, "a1 b1", first)
    client.ask(short)
    client.offer(fleet(**{short: "a2 b2 c1"}))
    assert client.pull() == []
    assert not client.status(short).wildcard


@SETS
def test_rule_16_an_empty_delta_request_after_a_name_asks_for_nothing_more(short: str) -> None:
    client = client_of(short, "a1 b1", "a", delta=True)
    client.change(short)
    assert client.hear() == []
    assert not client.status(short).wildcard


@BOTH
@EVERY
def test_rule_16_a_star_gets_everything_of_any_type(delta: bool, short: str) -> None:
    client = Client(fleet(**{short: "a1 b1"}), delta=delta)
    client.want(short, "*")
    assert client.hear() == [f"{short}: a1 b1"]


@SETS
def test_rule_17_a_star_and_a_name_are_both_and_the_name_alone_drops_the_star(short: str) -> None:
    client = client_of(short, "a1 b1", "*", "a")
    assert (client.status(short).wildcard, client.status(short).names) == (True, ("a",))
    client.ask(short, "a")
    assert not client.status(short).wildcard
    client.offer(fleet(**{short: "a1 b2"}))
    assert client.hear() == []
    client.offer(fleet(**{short: "a2 b2"}))
    assert client.hear() == [f"{short}: a2"]


@SETS
def test_rule_17_a_delta_client_keeps_its_wildcard_until_it_drops_the_star(short: str) -> None:
    client = client_of(short, "a1 b1", delta=True)
    client.change(short, "a")
    assert client.hear() == [f"{short}: a1"]
    client.offer(fleet(**{short: "a2 b2"}))
    assert client.hear() == [f"{short}: a2 b2"]
    client.change(short, drop=["*"])
    client.offer(fleet(**{short: "a3 b3"}))
    assert client.hear() == [f"{short}: a3"]


@BOTH
@SETS
def test_rule_17_a_star_after_names_gets_the_rest_too(delta: bool, short: str) -> None:
    client = client_of(short, "a1 b1", "a", delta=delta)
    if delta:
        client.change(short, "*")
    else:
        client.ask(short, "a", "*")
    assert client.hear() == [f"{short}: {'b1' if delta else 'a1 b1'}"]


@BOTH
@NAMED
def test_rule_18_no_names_are_no_wildcard_where_there_is_none(delta: bool, short: str) -> None:
    client = client_of(short, "a1 b1", delta=delta)
    client.offer(fleet(**{short: "a2 b2"}))
    assert client.pull() == []
    assert client.state(short) == "SYNCED"


@NAMED
def test_rule_18_the_last_name_dropped_is_not_answered(short: str) -> None:
    client = client_of(short, "a1", "a")
    client.ask(short)
    client.offer(fleet(**{short: "a2"}))
    assert client.pull() == []


@BOTH
@NAMED
def test_rule_19_a_new_name_is_sent_and_the_old_ones_are_not(delta: bool, short: str) -> None:
    client = client_of(short, "a1 b1", "a", delta=delta)
    if delta:
        client.change(short, "b")
    else:
        client.ask(short, "a", "b")
    assert client.hear() == [f"{short}: b1"]


@SETS
def test_rule_19_a_new_name_of_a_whole_set_is_sent_with_the_others(short: str) -> None:
    client = client_of(short, "a1 b1", "a")
    client.ask(short, "a", "b")
    assert client.hear() == [f"{short}: a1 b1"]


@BOTH
@EVERY
def test_rule_19_what_is_dropped_and_asked_for_again_is_sent_again(delta: bool, short: str) -> None:
    client = client_of(short, "a1 b1", "a", "b", delta=delta)
    if delta:
        client.change(short, drop=["b"])
        client.change(short, "b")
    else:
        client.ask(short, "a")
        client.ask(short, "a", "b")
    assert "b1" in client.hear()[0]


@SETS
def test_rule_19_a_name_that_came_by_the_star_is_sent_when_it_is_named(short: str) -> None:
    client = client_of(short, "a1 b1", "*")
    client.ask(short, "*", "a")
    assert client.hear() == [f"{short}: a1 b1"]


@EVERY
def test_rule_20_a_delta_client_that_asks_again_is_told_again(short: str) -> None:
    client = client_of(short, "a1 b1", "a", "b", delta=True)
    client.change(short, "a")
    assert client.hear() == [f"{short}: a1"]


@NAMED
def test_rule_20_also_what_it_has_refused(short: str) -> None:
    client = Client(fleet(**{short: "a1"}), delta=True)
    client.change(short, "a")
    client.nack(client.one())
    assert client.pull() == []
    client.change(short, "a")
    assert client.hear() == [f"{short}: a1"]


@EVERY
def test_rule_21_what_is_missing_is_sent_when_it_is_made(short: str) -> None:
    client = client_of(short, "a1", "x")
    assert client.state(short) == "WAITING"
    assert client.pull() == []
    client.offer(fleet(**{short: "a1 x1"}))
    assert client.hear() == [f"{short}: x1"]


@EVERY
def test_rule_21_a_delta_client_is_told_at_once_that_it_is_missing(short: str) -> None:
    client = Client(fleet(**{short: "a1"}), delta=True)
    client.change(short, "x")
    assert client.hear() == [f"{short}: -x"]
    client.offer(fleet(**{short: "a1 x1"}))
    assert client.hear() == [f"{short}: x1"]


@EVERY
def test_rule_22_dropping_what_was_never_asked_for_is_nothing(short: str) -> None:
    client = client_of(short, "a1 b1", "a", delta=True)
    client.change(short, drop=["b", "never"])
    assert client.pull() == []
    client.change(short, drop=["a"])
    assert client.pull() == []


@SETS
def test_rule_22_under_a_star_what_is_dropped_is_answered(short: str) -> None:
    client = client_of(short, "a1 b1", "*", "a", "x", delta=True)
    client.change(short, drop=["a"])
    assert client.hear() == [f"{short}: a1"]
    client.change(short, drop=["x"])
    assert client.hear() == [f"{short}: -x"]
    client.change(short, drop=["b"])
    assert client.hear() == []


@SETS
def test_rule_23_a_change_of_one_sends_the_whole_set(short: str) -> None:
    client = client_of(short, "a1 b1")
    client.offer(fleet(**{short: "a1 b2"}))
    assert client.hear() == [f"{short}: a1 b2"]


@SETS
def test_rule_23_a_change_of_one_sends_all_that_are_named(short: str) -> None:
    client = client_of(short, "a1 b1 c1", "a", "b")
    client.offer(fleet(**{short: "a1 b2 c2"}))
    assert client.hear() == [f"{short}: a1 b2"]


def test_rule_23_what_is_absent_is_deleted_and_an_empty_response_deletes_all() -> None:
    client = client_of("lds", "a1 b1")
    client.offer(fleet(lds="b1"))
    assert client.hear() == ["lds: b1"]
    client.offer(fleet(lds=""))
    assert client.hear() == ["lds: "]


@NAMED
def test_rule_24_only_what_has_changed_is_sent_and_nothing_is_removed(short: str) -> None:
    client = client_of(short, "a1 b1 c1", "a", "b", "c")
    client.offer(fleet(**{short: "a1 b2"}))
    assert client.hear() == [f"{short}: b2"]
    client.wait(100)
    assert client.pull() == []


@NAMED
def test_rule_24_what_comes_back_is_sent(short: str) -> None:
    client = client_of(short, "a1 b1", "a", "b")
    client.offer(fleet(**{short: "a1"}))
    client.hear()
    client.wait(100)
    client.hear()
    client.offer(fleet(**{short: "a1 b1"}))
    assert client.hear() == [f"{short}: b1"]


@EVERY
def test_rule_25_delta_sends_what_changed_and_names_what_is_gone(short: str) -> None:
    client = client_of(short, "a1 b1 c1", "*", delta=True)
    client.offer(fleet(**{short: "a2 c1 d1"}))
    said = client.hear()
    client.wait(1)
    assert [*said, *client.hear()] in ([f"{short}: a2 d1 -b"], [f"{short}: a2 d1", f"{short}: -b"])
    client.wait(100)
    assert client.pull() == []


def test_rule_25_a_pool_is_emptied_by_an_assignment_without_endpoints_not_by_its_removal() -> None:
    client = started(fleet(cds="a1", eds="a1", lds="public1"), delta=True)
    client.offer(fleet(cds="a1", eds="a0", lds="public1"))
    client.wait(100)
    assert client.hear() == ["eds: a0"]


@BOTH
@SETS
def test_rule_26_the_first_wildcard_is_answered_even_if_there_is_nothing(delta: bool, short: str) -> None:
    client = Client(fleet(), delta=delta)
    client.want(short)
    assert client.hear() == [f"{short}: "]
    assert client.state(short) == "SYNCED"
    client.wait(100)
    assert client.pull() == []


@EVERY
def test_rule_26_a_name_is_not_answered_until_there_is_something(short: str) -> None:
    client = Client(fleet())
    client.ask(short, "a")
    assert client.pull() == []


@BOTH
@EVERY
def test_rule_27_nothing_is_answered_before_there_is_content(delta: bool, short: str) -> None:
    client = Client(delta=delta)
    client.want(short, *([] if short in ("cds", "lds") else ["a", "x"]))
    client.wait(1000)
    assert client.pull() == []
    assert client.stream.due() is None
    assert client.state(short) == "WAITING"
    client.offer(fleet(**{short: "a1"}))
    assert client.hear()[0].startswith(f"{short}: a1")


@BOTH
@EVERY
def test_rule_35_no_resource_has_a_ttl_so_there_are_no_heartbeats(delta: bool, short: str) -> None:
    client = client_of(short, "a1", "a", delta=delta)
    client.wait(1e6)
    assert client.pull() == []
    assert client.stream.due() is None


@BOTH
def test_rule_39_one_changed_weight_sends_that_assignment_alone(delta: bool) -> None:
    client = client_of("eds", "a1 b1 c1", "a", "b", "c", delta=delta)
    client.offer(fleet(eds="a1 b2 c1"))
    assert client.hear() == ["eds: b2"]
