from __future__ import annotations

import pytest

from lbctl.xds.protocol.stream import Stream
from lbctl.xds.resource import CDS, EDS, LDS, Resources
from tests.integration.xds.playbook import KINDS, Client, fleet, started

BOTH = pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
OLD = fleet(cds="a1 b1", eds="a1 b1", lds="public1", rds="public1", sds="ca1")


def add(client: Client, short: str, *names: str) -> None:
    """Names one more resource, as Envoy does it in either variant."""
    if client.delta:
        client.change(short, *names)
    else:
        client.ask(short, *client.names.get(short, []), *names)


# ── endpoints after a changed cluster


@BOTH
def test_rule_28_after_a_changed_cluster_its_endpoints_are_sent_though_they_be_the_same(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(fleet(cds="a2 b1", eds="a1 b1", lds="public1", rds="public1", sds="ca1"))
    assert client.hear() == [f"cds: {'a2' if delta else 'a2 b1'}", "eds: a1"]


@BOTH
def test_rule_28_also_when_an_older_response_of_endpoints_is_still_under_way(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(fleet(cds="a1 b1", eds="a2 b1", lds="public1", rds="public1", sds="ca1"))
    before = client.one()
    client.offer(fleet(cds="a2 b1", eds="a2 b1", lds="public1", rds="public1", sds="ca1"))
    clusters = client.one()
    client.ack(before)
    assert str(client.one()) == "eds: a2"
    client.ack(clusters)


@BOTH
def test_rule_28_endpoints_that_were_refused_are_those_of_before(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(fleet(cds="a1 b1", eds="a2 b1", lds="public1", rds="public1", sds="ca1"))
    client.nack(client.one())
    client.offer(fleet(cds="a2 b1", eds="a2 b1", lds="public1", rds="public1", sds="ca1"))
    assert client.hear()[1] == "eds: a1"


@BOTH
def test_rule_28_a_cluster_that_was_refused_and_comes_back_as_it_was_gets_its_endpoints(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(fleet(cds="a2 b1", eds="a1 b1", lds="public1", rds="public1", sds="ca1"))
    clusters, endpoints = client.pull()
    client.ack(endpoints)
    client.nack(clusters, "a: no")
    client.offer(OLD)
    assert client.hear() == [f"cds: {'a1' if delta else 'a1 b1'}", "eds: a1"]


@BOTH
def test_rule_28_endpoints_that_stood_beside_refused_ones_are_sent_once_more(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(fleet(cds="a1 b2", eds="a2 b1", lds="public1", rds="public2", sds="ca1"))
    clusters, endpoints = client.pull()
    assert str(endpoints) == "eds: a2 b1"
    client.nack(endpoints, "a: no")
    client.ack(clusters)
    assert client.hear() == ["eds: b1", "rds: public2"]


@BOTH
def test_rule_28_routes_are_not_sent_again_after_a_changed_listener(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(fleet(cds="a1 b1", eds="a1 b1", lds="public2", rds="public1", sds="ca1"))
    assert client.hear() == ["lds: public2"]


@BOTH
def test_rule_29_nothing_waits_for_what_nobody_asked_for(delta: bool) -> None:
    client = Client(OLD, delta=delta)
    client.want("cds")
    client.want("lds")
    client.want("rds", "public")
    client.hear()
    client.offer(fleet(cds="a2 b1 c1", eds="a1 b1 c1", lds="public2", rds="public2", sds="ca1"))
    assert [each[:3] for each in client.hear()] == ["cds", "lds", "rds"]


@BOTH
def test_rule_29_routes_wait_a_moment_for_a_client_that_asks_for_endpoints_after_its_clusters(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(fleet(cds="a1 b1 c1", eds="a1 b1 c1", lds="public1", rds="public2", sds="ca1"))
    client.ack(client.one())
    assert client.pull() == []
    client.wait(1.9)
    assert client.pull() == []
    add(client, "eds", "c")
    endpoints = client.one()
    assert str(endpoints) == "eds: c1"
    client.wait(10)
    assert client.pull() == []
    assert client.stream.due() is None  # only the client's answer changes anything
    client.ack(endpoints)
    assert client.hear() == ["rds: public2"]
    assert client.stream.due() is None


@BOTH
def test_rule_29_while_clusters_are_not_accepted_no_time_is_waited_for(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(fleet(cds="a1 b1 c1", eds="a1 b1 c1", lds="public1", rds="public2", sds="ca1"))
    client.ack(client.one())
    assert client.pull() == []
    client.wait(1)
    client.offer(fleet(cds="a1 b1 c2", eds="a1 b1 c1", lds="public1", rds="public2", sds="ca1"))
    clusters = client.one()
    client.wait(10)
    assert client.pull() == []
    assert client.stream.due() is None
    client.ack(clusters)
    assert client.pull() == []  # it may ask now
    assert client.stream.due() == client.now + 2
    client.wait(2)
    assert client.hear() == ["rds: public2"]


@BOTH
def test_rule_29_routes_wait_no_longer_for_a_client_that_never_asks_for_the_endpoints(delta: bool) -> None:
    client = started(OLD, delta=delta)
    for number, cluster in enumerate("cd", 2):
        names = " ".join(f"{name}1" for name in "abcd"[: "abcd".index(cluster) + 1])
        client.offer(fleet(cds=names, eds=names, lds="public1", rds=f"public{number}", sds="ca1"))
        client.ack(client.one())
        assert client.pull() == []
        assert client.stream.due() == client.now + 2
        client.wait(2)
        assert client.hear() == [f"rds: public{number}"]


@BOTH
def test_rule_29_endpoints_asked_for_alone_are_given_alone(delta: bool) -> None:
    client = Client(OLD, delta=delta)
    client.want("eds", "a")
    assert client.hear() == ["eds: a1"]


# ── order


@BOTH
def test_rule_30_clusters_endpoints_listeners_routes_whatever_was_asked_for_first(delta: bool) -> None:
    client = Client(OLD, delta=delta)
    for short, names in {"sds": ["ca"], "rds": ["public"], "lds": [], "eds": ["a", "b"], "cds": []}.items():
        client.want(short, *names)
    assert [got.short for got in client.pull()] == ["cds", "eds", "lds", "rds", "sds"]


@BOTH
@pytest.mark.parametrize("other", [{"lds": "public2"}, {"rds": "public2"}])
def test_rule_30_listeners_and_routes_wait_until_new_clusters_are_warm(delta: bool, other: dict[str, str]) -> None:
    client = started(OLD, delta=delta)
    new = {"cds": "a1 b1 c1", "eds": "a1 b1 c1", "lds": "public1", "rds": "public1", "sds": "ca1"} | other
    client.offer(fleet(**new))
    clusters = client.one()
    add(client, "eds", "c")
    endpoints = client.one()
    assert str(endpoints) == "eds: c1"
    client.ack(clusters)
    assert client.pull() == []
    client.ack(endpoints)
    assert [got.short for got in client.pull()] == list(other)


@BOTH
def test_rule_30_endpoints_and_secrets_never_wait(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(fleet(cds="a2 b1", eds="a1 b1", lds="public1", rds="public1", sds="ca1"))
    client.pull()
    client.ack(client.last["eds"])
    client.offer(fleet(cds="a3 b1", eds="a1 b9", lds="public1", rds="public1", sds="ca9"))
    assert [str(got) for got in client.pull()] == ["eds: b9", "sds: ca9"]


@BOTH
@pytest.mark.parametrize("short", ["lds", "rds"])
def test_rule_30_a_client_that_has_none_is_answered_while_clusters_warm(delta: bool, short: str) -> None:
    client = Client(OLD, delta=delta)
    client.want("cds")
    client.one()
    client.want(short, *(["public"] if short == "rds" else []))
    assert str(client.one()) == f"{short}: public1"


@BOTH
def test_rule_30_a_new_route_table_is_answered_while_clusters_warm(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(fleet(cds="a2 b1", eds="a1 b1", lds="public1", rds="public2 internal1", sds="ca1"))
    client.pull()
    add(client, "rds", "internal")
    assert str(client.one()) == "rds: internal1"


def test_rule_30_routes_that_are_asked_for_again_while_clusters_warm_are_those_of_before() -> None:
    client = started(OLD, delta=True)
    client.offer(fleet(cds="a2 b1", eds="a1 b1", lds="public1", rds="public2", sds="ca1"))
    client.pull()
    client.change("rds", "public")
    got = client.one()
    assert str(got) == "rds: public1"
    client.ack(got)
    client.ack(client.last["cds"])
    client.ack(client.last["eds"])
    assert client.hear() == ["rds: public2"]


@BOTH
def test_rule_30_after_refused_clusters_the_node_stays_where_it_was(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(fleet(cds="a1 c1", eds="a1 c1", lds="public2", rds="public2", sds="ca1"))
    client.nack(client.one(), "c: no")
    client.wait(1000)
    assert client.pull() == []
    assert client.stream.due() is None
    assert (client.state("lds"), client.state("rds")) == ("STALE", "STALE")
    client.offer(fleet(cds="a1 c2", eds="a1 c1", lds="public2", rds="public2", sds="ca1"))
    assert client.hear() == ["cds: c2" if delta else "cds: a1 b1 c2"]
    client.wait(2)
    assert client.hear() == ["lds: public2", "rds: public2"]


@BOTH
def test_rule_30_endpoints_of_a_new_cluster_that_were_refused_hold_back_its_routes(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(fleet(cds="a1 b1 c1", eds="a1 b1 c1", lds="public1", rds="public2", sds="ca1"))
    clusters = client.one()
    add(client, "eds", "c")
    client.nack(client.one())
    client.ack(clusters)
    assert client.pull() == []
    client.offer(fleet(cds="a1 b1 c1", eds="a1 b1 c2", lds="public1", rds="public2", sds="ca1"))
    assert client.hear() == ["eds: c2", "rds: public2"]


# ── removal


def gone_of(client: Client) -> str:
    return "cds: -b" if client.delta else "cds: a1"


@BOTH
def test_rule_30_a_cluster_goes_when_its_routes_have_moved_and_then_some(delta: bool) -> None:
    client = started(OLD, delta=delta, settle=1.0)
    client.offer(fleet(cds="a1", eds="a1", lds="public1", rds="public2", sds="ca1"))
    routes = client.one()
    assert str(routes) == "rds: public2"
    client.wait(1000)
    assert client.pull() == []
    assert client.stream.due() is None
    client.ack(routes)
    assert client.pull() == []
    assert client.stream.due() == client.now + 1.0
    client.wait(0.99)
    assert client.pull() == []
    client.wait(0.01)
    assert str(client.pull()[0]) == gone_of(client)
    assert client.stream.due() is None


@BOTH
def test_rule_30_a_cluster_stays_as_long_as_its_routes_are_refused(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(fleet(cds="a1", eds="a1", lds="public1", rds="public2", sds="ca1"))
    client.nack(client.one())
    client.wait(1000)
    assert client.pull() == []
    client.offer(fleet(cds="a1", eds="a1", lds="public1", rds="public3", sds="ca1"))
    assert client.hear() == ["rds: public3"]
    client.wait(1)
    assert client.hear()[0] == gone_of(client)


@BOTH
def test_rule_30_endpoints_of_a_cluster_that_is_to_go_are_still_answered(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(fleet(cds="a1", eds="a1", lds="public1", rds="public2", sds="ca1"))
    client.one()
    if delta:
        client.change("eds", "b")
    else:
        client.ask("eds", "a")
        client.ask("eds", "a", "b")
    assert client.hear()[0] == "eds: b1"


@BOTH
def test_rule_30_a_cluster_that_comes_back_in_time_was_never_away(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(fleet(cds="a1", eds="a1", lds="public1", rds="public1", sds="ca1"))
    client.pull()
    client.wait(0.5)
    client.offer(OLD)
    client.wait(100)
    assert client.pull() == []


@BOTH
def test_rule_30_without_routes_on_the_stream_a_removal_waits_for_the_settling_alone(delta: bool) -> None:
    client = Client(OLD, delta=delta, only=CDS)
    client.want("cds")
    client.hear()
    client.offer(fleet(cds="a1", eds="a1", lds="public1", rds="public2", sds="ca1"))
    assert client.pull() == []
    client.wait(1)
    assert client.hear() == [gone_of(client)]


@BOTH
def test_rule_30_offers_that_follow_each_other_do_not_put_off_a_removal_for_ever(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(fleet(cds="a1", eds="a1", lds="public1", rds="public1", sds="ca1"))
    said: list[str] = []
    for number in range(2, 8):
        client.offer(fleet(cds="a1", eds="a1", lds="public1", rds=f"public{number}", sds="ca1"))
        said += client.hear()
        client.wait(0.4)
    assert gone_of(client) in said


@BOTH
def test_rule_30_a_listener_goes_with_the_others_at_once(delta: bool) -> None:
    both = {"cds": "a1", "eds": "a1", "rds": "public1 internal1"}
    client = started(fleet(**both, lds="public1 internal1"), delta=delta)
    client.offer(fleet(**both, lds="public1"))
    assert client.hear() == ["lds: -internal" if delta else "lds: public1"]


@BOTH
def test_rule_30_a_changed_cluster_that_was_refused_is_kept_as_it_was_good_when_it_is_to_go(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(fleet(cds="a1 b2", eds="a1 b1", lds="public1", rds="public1", sds="ca1"))
    clusters, endpoints = client.pull()
    client.ack(endpoints)
    client.nack(clusters, "b: no")
    client.offer(fleet(cds="a1", eds="a1", lds="public1", rds="public2", sds="ca1"))
    said = client.hear()
    assert ("cds: b1" if delta else "cds: a1 b1") in said
    assert not any("b2" in each for each in said)
    client.wait(1)
    assert client.hear()[0] == gone_of(client)


@BOTH
@pytest.mark.parametrize("words", ["b: no", "malformed"])
def test_rule_30_so_is_one_that_is_refused_when_it_is_to_go_already(delta: bool, words: str) -> None:
    client = started(OLD, delta=delta)
    client.offer(fleet(cds="a1 b2", eds="a1 b1", lds="public1", rds="public1", sds="ca1"))
    clusters, endpoints = client.pull()
    client.offer(fleet(cds="a1", eds="a1", lds="public1", rds="public2", sds="ca1"))
    client.ack(endpoints)
    client.nack(clusters, words)
    said = client.hear()
    assert not any("b2" in each for each in said)
    assert "rds: public2" in said
    client.wait(1)
    assert client.hear()[0] == gone_of(client)


@BOTH
def test_rule_30_a_new_cluster_that_is_refused_and_not_wanted_any_more_holds_up_nothing(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(fleet(cds="a1 b1 c1", eds="a1 b1 c1", lds="public1", rds="public2", sds="ca1"))
    clusters = client.one()
    client.offer(fleet(cds="a1 b1", eds="a1 b1", lds="public1", rds="public3", sds="ca1"))
    client.nack(clusters, "c: no")
    assert "rds: public3" in client.hear()
    client.wait(1)
    assert not any("c1" in each for each in client.hear())
    assert {client.state("cds"), client.state("rds")} == {"SYNCED"}


@BOTH
def test_rule_30_routes_of_a_listener_that_goes_are_not_replaced_by_others_that_were_never_sent(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(fleet(cds="a1 b1 c1", eds="a1 b1 c1", lds="public1", rds="public2", sds="ca1"))
    client.offer(fleet(cds="a1 b1", eds="a1 b1", lds="", rds="", sds="ca1"))
    assert [each for each in client.hear() if each.startswith("rds")] == []


@BOTH
def test_rule_30_a_cluster_that_was_never_sent_is_not_kept(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(fleet(cds="a2 b1", eds="a1 b1", lds="public1", rds="public1", sds="ca1"))
    client.pull()
    client.offer(fleet(cds="a2 b1 c1", eds="a1 b1 c1", lds="public1", rds="public1", sds="ca1"))
    client.offer(fleet(cds="a2 b1", eds="a1 b1", lds="public1", rds="public1", sds="ca1"))
    for got in list(client.last.values()):
        client.ack(got)
    client.wait(100)
    assert client.hear() == []


@BOTH
def test_rule_31_a_change_of_weights_moves_endpoints_alone(delta: bool) -> None:
    client = started(OLD, delta=delta)
    before = {each.type_url: each.acked_version for each in client.stream.status()}
    for number in range(2, 10):
        client.offer(fleet(cds="a1 b1", eds=f"a{number} b1", lds="public1", rds="public1", sds="ca1"))
        assert client.hear() == [f"eds: a{number}"]
    after = {each.type_url: each.acked_version for each in client.stream.status()}
    assert {kind for kind in after if after[kind] != before[kind]} == {EDS}


# ── a new stream


@pytest.mark.parametrize("short", ["cds", "lds"])
def test_rule_32_a_wildcard_at_the_same_version_is_not_sent_again(short: str) -> None:
    version = started(OLD).accepted[short]
    client = Client(OLD)
    client.ask(short, version=version)
    assert client.pull() == []
    assert client.state(short) == "SYNCED"
    client.offer(fleet(**{short: "z1"}))
    client.wait(10)
    assert "z1" in client.hear()[-1]


@pytest.mark.parametrize("short", ["cds", "lds"])
def test_rule_32_a_wildcard_at_another_version_is_sent(short: str) -> None:
    client = Client(OLD)
    client.ask(short, version="of yesterday")
    assert client.pull() != []


@pytest.mark.parametrize("short", ["eds", "rds", "sds"])
def test_rule_32_what_is_named_at_the_same_version_is_not_sent_again(short: str) -> None:
    names = [*OLD.of(KINDS[short])]
    client = Client(OLD)
    client.ask(short, *names, version=started(OLD).accepted[short])
    assert client.pull() == []
    assert client.state(short) == "SYNCED"
    client.offer(fleet(**{short: f"{names[0]}2"}))
    assert client.hear() == [f"{short}: {names[0]}2"]


def test_rule_32_a_version_stands_for_all_that_the_client_has_not_for_the_last_response() -> None:
    first = started(OLD)
    first.offer(fleet(cds="a1 b1", eds="a1 b2", lds="public1", rds="public1", sds="ca1"))
    assert first.hear() == ["eds: b2"]
    same = Client(fleet(cds="a1 b1", eds="a1 b2"))
    same.ask("eds", "a", "b", version=first.accepted["eds"])
    assert same.hear() == []
    more = Client(fleet(cds="a1 b1 c1", eds="a1 b2 c1"))
    more.ask("eds", "a", "b", "c", version=first.accepted["eds"])
    assert more.hear() == ["eds: a1 b2 c1"]


def test_rule_32_a_refused_resource_is_not_part_of_what_the_client_has() -> None:
    first, newer = started(OLD), fleet(cds="a1 b1", eds="a2 b2", lds="public1", rds="public1", sds="ca1")
    first.offer(newer)
    first.nack(first.one(), "a is wrong")
    assert first.hear() == ["eds: b2"]
    client = Client(newer)
    client.ask("eds", "a", "b", version=first.accepted["eds"])
    assert client.hear() == ["eds: a2 b2"]


@pytest.mark.parametrize("short", ["cds", "lds"])
def test_rule_32_named_clusters_and_listeners_are_answered_at_any_version(short: str) -> None:
    name = "a" if short == "cds" else "public"
    first = Client(OLD)
    first.ask(short, name)
    first.hear()
    client = Client(OLD)
    client.ask(short, name, version=first.accepted[short])
    assert client.hear() == [f"{short}: {name}1"]


def test_rule_32_routes_of_a_client_that_has_some_wait_for_changed_clusters_on_a_new_stream_too() -> None:
    client = Client(fleet(cds="a1 c1", eds="a1 c1", lds="public2", rds="public2"))
    client.ask("cds", version="old")
    client.ask("eds", "a", version="old")
    client.ask("lds", version="old")
    client.ask("rds", "public", version="old")
    clusters, endpoints = client.pull()
    client.ack(endpoints)
    client.ask("eds", "a", "c")
    client.ack(client.one())
    assert client.pull() == []
    client.ack(clusters)
    assert client.hear() == ["lds: public2", "rds: public2"]


def versions(words: str, short: str = "cds") -> dict[str, str]:
    kind = {"cds": CDS, "lds": LDS, "eds": EDS}[short]
    return {name: each.version for name, each in fleet(**{short: words}).of(kind).items()}


def test_rule_33_a_delta_client_gets_what_differs_from_what_it_has() -> None:
    client = Client(OLD, delta=True)
    client.change("cds", have=versions("a1 b7"))
    assert client.hear() == ["cds: b1"]
    assert client.state("cds") == "SYNCED"


def test_rule_33_a_delta_client_that_has_all_gets_nothing() -> None:
    client = Client(OLD, delta=True)
    client.change("cds", have=versions("a1 b1"))
    assert client.hear() == []
    status = client.status("cds")
    assert (status.state, status.acked_version) == ("SYNCED", status.offered_version)


def test_rule_33_what_is_gone_meanwhile_is_removed_when_the_routes_have_moved() -> None:
    client = Client(OLD, delta=True)
    client.change("cds", have=versions("a1 b1 x1"))
    client.change("lds", have=versions("public1", "lds"))
    client.change("rds", "public", have={"public": "old"})
    assert client.hear() == ["rds: public1"]
    client.wait(1)
    assert client.hear() == ["cds: -x"]


def test_rule_33_a_listener_that_is_gone_meanwhile_is_removed_at_once() -> None:
    client = Client(OLD, delta=True)
    client.change("lds", have=versions("public1 internal1", "lds"))
    assert client.hear() == ["lds: -internal"]


def test_rule_33_what_is_named_is_not_sent_to_a_delta_client_that_has_it() -> None:
    client = Client(OLD, delta=True)
    client.change("eds", "a", "b", have=versions("a1 b7", "eds"))
    assert client.hear() == ["eds: b1"]
    assert client.state("eds") == "SYNCED"
    client.change("eds", "a")
    assert client.hear() == ["eds: a1"], "rule 20 holds for what it asks for again"


def test_rule_33_a_name_that_a_delta_client_has_and_that_is_gone_is_removed() -> None:
    client = Client(OLD, delta=True)
    client.change("eds", "a", "z", have=versions("a1 z1", "eds"))
    client.wait(2)
    assert client.hear() == ["eds: -z"]


def test_rule_33_what_a_client_had_does_not_count_once_it_has_another() -> None:
    client = Client(fleet(cds="a2"), delta=True)
    client.change("cds", have=versions("a1"))
    assert client.hear() == ["cds: a2"]
    client.offer(fleet(cds="a1"))
    assert client.hear() == ["cds: a1"]


def test_rule_33_versions_are_of_the_content_so_that_two_servers_agree() -> None:
    def offered(delta: bool) -> list[tuple[str, dict[str, str]]]:
        from tests.integration.xds.playbook import Fleet

        content = Fleet()(cds="a1 b1", eds="a1 b1")
        client = Client(content, delta=delta)
        client.want("cds")
        client.want("eds", "a", "b")
        return [(got.version, got.versions) for got in client.pull()]

    for delta in (False, True):
        assert offered(delta) == offered(delta)
    assert offered(True)[0][0] == offered(False)[0][0]


def test_rule_33_what_a_client_had_in_a_version_counts_when_content_comes_later() -> None:
    client = Client(delta=True)
    client.change("cds", have=versions("a1 b1 x1"))
    assert client.hear() == []
    client.offer(OLD)
    assert client.hear() == []
    client.wait(1)
    assert client.hear() == ["cds: -x"]


@BOTH
def test_rule_34_endpoints_before_clusters_are_sent_again_after_them(delta: bool) -> None:
    client = Client(OLD, delta=delta)
    client.want("eds", "a", "b")
    assert client.hear() == ["eds: a1 b1"]
    client.want("cds")
    assert client.hear() == ["cds: a1 b1", "eds: a1 b1"]


def test_rule_34_not_if_the_clusters_are_those_that_the_client_has() -> None:
    client = Client(OLD, delta=True)
    client.change("eds", "a", "b")
    client.hear()
    client.change("cds", have=versions("a1 b7"))
    assert client.hear() == ["cds: b1", "eds: b1"]


@BOTH
def test_what_the_last_stream_still_held_the_next_one_holds(delta: bool) -> None:
    first = started(OLD, delta=delta)
    first.offer(fleet(cds="a1", eds="a1", lds="public1", rds="public2", sds="ca1"))
    first.pull()
    left = first.stream.last()
    assert left is not None
    assert list(left.of(CDS)) == ["a", "b"]
    client = Client(delta=delta, before=left)
    assert client.stream.last() is left
    if delta:
        client.change("cds", have=versions("a1 b1"))
        client.change("rds", "public", have={"public": "old"})
    else:
        client.ask("cds", version=first.accepted["cds"])
        client.ask("rds", "public", version="old")
    client.offer(fleet(cds="a1", eds="a1", lds="public1", rds="public2", sds="ca1"))
    assert client.hear() == ["rds: public2"]
    client.wait(1)
    assert client.hear() == [gone_of(client)]
    last = client.stream.last()
    assert last is not None
    assert list(last.of(CDS)) == ["a"]


def test_clusters_that_were_under_way_when_the_stream_ended_are_held_too() -> None:
    first = started(OLD)
    first.offer(fleet(cds="a1 b1 c1", eds="a1 b1 c1", lds="public1", rds="public1", sds="ca1"))
    first.pull()
    client = Client(before=first.stream.last())
    client.offer(OLD)
    client.ask("cds", version="of a, b and c")
    client.ask("lds", version=first.accepted["lds"])
    assert client.hear() == ["cds: a1 b1 c1"]
    client.wait(1)
    assert client.hear() == ["cds: a1 b1"]


def test_a_cluster_that_goes_before_the_client_has_asked_on_its_new_stream_is_held() -> None:
    client = Client(before=started(OLD).stream.last())
    client.offer(OLD)
    client.offer(fleet(cds="a1", eds="a1", lds="public1", rds="public2", sds="ca1"))
    client.ask("cds", version="some")
    client.ask("rds", "public", version="old")
    assert client.hear() == ["cds: a1 b1", "rds: public2"]
    client.wait(1)
    assert client.hear() == ["cds: a1"]


def test_a_stream_that_was_offered_nothing_leaves_nothing() -> None:
    assert Stream(delta=False).last() is None


def test_the_rest_of_a_stream_that_holds_nothing_is_what_it_was_offered() -> None:
    client = started(OLD)
    assert client.stream.last() is OLD
    assert isinstance(client.stream.last(), Resources)
