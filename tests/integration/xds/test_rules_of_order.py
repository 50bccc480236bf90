from __future__ import annotations

import pytest

from lbctl.xds.protocol.stream import Stream
from lbctl.xds.resource import CDS, EDS, LDS, Resources
from tests.integration.xds.playbook import KINDS, Client, ResourceFactory, resources, started

BOTH = pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
OLD = resources(cds="a1 b1", eds="a1 b1", lds="public1", rds="public1", sds="ca1")


def add(client: Client, short: str, *names: str) -> None:
    """Subscribe to more resources, in either variant."""
    if client.delta:
        client.change(short, *names)
    else:
        client.ask(short, *client.names.get(short, []), *names)


# ── endpoints after a changed cluster


@BOTH
def test_rule_28_endpoints_are_resent_after_a_cluster_change(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(resources(cds="a2 b1", eds="a1 b1", lds="public1", rds="public1", sds="ca1"))
    assert client.accept_all() == [f"cds: {'a2' if delta else 'a2 b1'}", "eds: a1"]


@BOTH
def test_rule_28_endpoints_are_resent_after_one_in_flight(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(resources(cds="a1 b1", eds="a2 b1", lds="public1", rds="public1", sds="ca1"))
    before = client.pull_one()
    client.offer(resources(cds="a2 b1", eds="a2 b1", lds="public1", rds="public1", sds="ca1"))
    clusters = client.pull_one()
    client.ack(before)
    assert str(client.pull_one()) == "eds: a2"
    client.ack(clusters)


@BOTH
def test_rule_28_after_a_nack_the_last_endpoints_are_resent(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(resources(cds="a1 b1", eds="a2 b1", lds="public1", rds="public1", sds="ca1"))
    client.nack(client.pull_one())
    client.offer(resources(cds="a2 b1", eds="a2 b1", lds="public1", rds="public1", sds="ca1"))
    assert client.accept_all()[1] == "eds: a1"


@BOTH
def test_rule_28_a_reverted_cluster_gets_its_endpoints(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(resources(cds="a2 b1", eds="a1 b1", lds="public1", rds="public1", sds="ca1"))
    clusters, endpoints = client.pull()
    client.ack(endpoints)
    client.nack(clusters, "a: no")
    client.offer(OLD)
    assert client.accept_all() == [f"cds: {'a1' if delta else 'a1 b1'}", "eds: a1"]


@BOTH
def test_rule_28_endpoints_next_to_rejected_ones_are_resent(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(resources(cds="a1 b2", eds="a2 b1", lds="public1", rds="public2", sds="ca1"))
    clusters, endpoints = client.pull()
    assert str(endpoints) == "eds: a2 b1"
    client.nack(endpoints, "a: no")
    client.ack(clusters)
    assert client.accept_all() == ["eds: b1", "rds: public2"]


@BOTH
def test_rule_28_routes_are_not_resent_after_a_listener_change(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(resources(cds="a1 b1", eds="a1 b1", lds="public2", rds="public1", sds="ca1"))
    assert client.accept_all() == ["lds: public2"]


@BOTH
def test_rule_29_nothing_waits_for_unrequested_types(delta: bool) -> None:
    client = Client(OLD, delta=delta)
    client.subscribe("cds")
    client.subscribe("lds")
    client.subscribe("rds", "public")
    client.accept_all()
    client.offer(resources(cds="a2 b1 c1", eds="a1 b1 c1", lds="public2", rds="public2", sds="ca1"))
    assert [each[:3] for each in client.accept_all()] == ["cds", "lds", "rds"]


@BOTH
def test_rule_29_routes_wait_for_new_endpoints_to_be_requested(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(resources(cds="a1 b1 c1", eds="a1 b1 c1", lds="public1", rds="public2", sds="ca1"))
    client.ack(client.pull_one())
    assert client.pull() == []
    client.wait(1.9)
    assert client.pull() == []
    add(client, "eds", "c")
    endpoints = client.pull_one()
    assert str(endpoints) == "eds: c1"
    client.wait(10)
    assert client.pull() == []
    assert client.stream.due() is None, "only the client's answer changes anything"
    client.ack(endpoints)
    assert client.accept_all() == ["rds: public2"]
    assert client.stream.due() is None


@BOTH
def test_rule_29_the_wait_starts_after_the_cluster_ack(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(resources(cds="a1 b1 c1", eds="a1 b1 c1", lds="public1", rds="public2", sds="ca1"))
    client.ack(client.pull_one())
    assert client.pull() == []
    client.wait(1)
    client.offer(resources(cds="a1 b1 c2", eds="a1 b1 c1", lds="public1", rds="public2", sds="ca1"))
    clusters = client.pull_one()
    client.wait(10)
    assert client.pull() == []
    assert client.stream.due() is None
    client.ack(clusters)
    assert client.pull() == [], "the client may subscribe now"
    assert client.stream.due() == client.now + 2
    client.wait(2)
    assert client.accept_all() == ["rds: public2"]


@BOTH
def test_rule_29_the_wait_for_endpoint_requests_ends(delta: bool) -> None:
    client = started(OLD, delta=delta)
    for number, cluster in enumerate("cd", 2):
        names = " ".join(f"{name}1" for name in "abcd"[: "abcd".index(cluster) + 1])
        client.offer(resources(cds=names, eds=names, lds="public1", rds=f"public{number}", sds="ca1"))
        client.ack(client.pull_one())
        assert client.pull() == []
        assert client.stream.due() == client.now + 2
        client.wait(2)
        assert client.accept_all() == [f"rds: public{number}"]


@BOTH
def test_rule_29_endpoints_can_be_requested_alone(delta: bool) -> None:
    client = Client(OLD, delta=delta)
    client.subscribe("eds", "a")
    assert client.accept_all() == ["eds: a1"]


# ── order


@BOTH
def test_rule_30_types_are_sent_in_a_fixed_order(delta: bool) -> None:
    client = Client(OLD, delta=delta)
    for short, names in {"sds": ["ca"], "rds": ["public"], "lds": [], "eds": ["a", "b"], "cds": []}.items():
        client.subscribe(short, *names)
    assert [got.short for got in client.pull()] == ["cds", "eds", "lds", "rds", "sds"]


@BOTH
@pytest.mark.parametrize("other", [{"lds": "public2"}, {"rds": "public2"}])
def test_rule_30_listeners_and_routes_wait_for_warm_clusters(delta: bool, other: dict[str, str]) -> None:
    client = started(OLD, delta=delta)
    new = {"cds": "a1 b1 c1", "eds": "a1 b1 c1", "lds": "public1", "rds": "public1", "sds": "ca1"} | other
    client.offer(resources(**new))
    clusters = client.pull_one()
    add(client, "eds", "c")
    endpoints = client.pull_one()
    assert str(endpoints) == "eds: c1"
    client.ack(clusters)
    assert client.pull() == []
    client.ack(endpoints)
    assert [got.short for got in client.pull()] == list(other)


@BOTH
def test_rule_30_endpoints_and_secrets_never_wait(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(resources(cds="a2 b1", eds="a1 b1", lds="public1", rds="public1", sds="ca1"))
    client.pull()
    client.ack(client.last["eds"])
    client.offer(resources(cds="a3 b1", eds="a1 b9", lds="public1", rds="public1", sds="ca9"))
    assert [str(got) for got in client.pull()] == ["eds: b9", "sds: ca9"]


@BOTH
@pytest.mark.parametrize("short", ["lds", "rds"])
def test_rule_30_first_listeners_and_routes_do_not_wait(delta: bool, short: str) -> None:
    client = Client(OLD, delta=delta)
    client.subscribe("cds")
    client.pull_one()
    client.subscribe(short, *(["public"] if short == "rds" else []))
    assert str(client.pull_one()) == f"{short}: public1"


@BOTH
def test_rule_30_a_new_route_table_does_not_wait(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(resources(cds="a2 b1", eds="a1 b1", lds="public1", rds="public2 internal1", sds="ca1"))
    client.pull()
    add(client, "rds", "internal")
    assert str(client.pull_one()) == "rds: internal1"


def test_rule_30_old_routes_are_resent_while_clusters_warm() -> None:
    client = started(OLD, delta=True)
    client.offer(resources(cds="a2 b1", eds="a1 b1", lds="public1", rds="public2", sds="ca1"))
    client.pull()
    client.change("rds", "public")
    got = client.pull_one()
    assert str(got) == "rds: public1"
    client.ack(got)
    client.ack(client.last["cds"])
    client.ack(client.last["eds"])
    assert client.accept_all() == ["rds: public2"]


@BOTH
def test_rule_30_after_a_cluster_nack_nothing_else_is_sent(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(resources(cds="a1 c1", eds="a1 c1", lds="public2", rds="public2", sds="ca1"))
    client.nack(client.pull_one(), "c: no")
    client.wait(1000)
    assert client.pull() == []
    assert client.stream.due() is None
    assert (client.state("lds"), client.state("rds")) == ("STALE", "STALE")
    client.offer(resources(cds="a1 c2", eds="a1 c1", lds="public2", rds="public2", sds="ca1"))
    assert client.accept_all() == ["cds: c2" if delta else "cds: a1 b1 c2"]
    client.wait(2)
    assert client.accept_all() == ["lds: public2", "rds: public2"]


@BOTH
def test_rule_30_routes_wait_for_rejected_endpoints(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(resources(cds="a1 b1 c1", eds="a1 b1 c1", lds="public1", rds="public2", sds="ca1"))
    clusters = client.pull_one()
    add(client, "eds", "c")
    client.nack(client.pull_one())
    client.ack(clusters)
    assert client.pull() == []
    client.offer(resources(cds="a1 b1 c1", eds="a1 b1 c2", lds="public1", rds="public2", sds="ca1"))
    assert client.accept_all() == ["eds: c2", "rds: public2"]


# ── removal


def removal_of_b(client: Client) -> str:
    return "cds: -b" if client.delta else "cds: a1"


@BOTH
def test_rule_30_a_cluster_is_removed_after_its_routes(delta: bool) -> None:
    client = started(OLD, delta=delta, settle=1.0)
    client.offer(resources(cds="a1", eds="a1", lds="public1", rds="public2", sds="ca1"))
    routes = client.pull_one()
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
    assert str(client.pull()[0]) == removal_of_b(client)
    assert client.stream.due() is None


@BOTH
def test_rule_30_a_cluster_stays_while_its_routes_are_rejected(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(resources(cds="a1", eds="a1", lds="public1", rds="public2", sds="ca1"))
    client.nack(client.pull_one())
    client.wait(1000)
    assert client.pull() == []
    client.offer(resources(cds="a1", eds="a1", lds="public1", rds="public3", sds="ca1"))
    assert client.accept_all() == ["rds: public3"]
    client.wait(1)
    assert client.accept_all()[0] == removal_of_b(client)


@BOTH
def test_rule_30_endpoints_of_a_leaving_cluster_are_served(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(resources(cds="a1", eds="a1", lds="public1", rds="public2", sds="ca1"))
    client.pull_one()
    if delta:
        client.change("eds", "b")
    else:
        client.ask("eds", "a")
        client.ask("eds", "a", "b")
    assert client.accept_all()[0] == "eds: b1"


@BOTH
def test_rule_30_a_cluster_that_returns_in_time_is_not_removed(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(resources(cds="a1", eds="a1", lds="public1", rds="public1", sds="ca1"))
    client.pull()
    client.wait(0.5)
    client.offer(OLD)
    client.wait(100)
    assert client.pull() == []


@BOTH
def test_rule_30_without_routes_a_removal_waits_to_settle(delta: bool) -> None:
    client = Client(OLD, delta=delta, only=CDS)
    client.subscribe("cds")
    client.accept_all()
    client.offer(resources(cds="a1", eds="a1", lds="public1", rds="public2", sds="ca1"))
    assert client.pull() == []
    client.wait(1)
    assert client.accept_all() == [removal_of_b(client)]


@BOTH
def test_rule_30_frequent_offers_do_not_prevent_a_removal(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(resources(cds="a1", eds="a1", lds="public1", rds="public1", sds="ca1"))
    responses: list[str] = []
    for number in range(2, 8):
        client.offer(resources(cds="a1", eds="a1", lds="public1", rds=f"public{number}", sds="ca1"))
        responses += client.accept_all()
        client.wait(0.4)
    assert removal_of_b(client) in responses


@BOTH
def test_rule_30_a_listener_is_removed_at_once(delta: bool) -> None:
    both = {"cds": "a1", "eds": "a1", "rds": "public1 internal1"}
    client = started(resources(**both, lds="public1 internal1"), delta=delta)
    client.offer(resources(**both, lds="public1"))
    assert client.accept_all() == ["lds: -internal" if delta else "lds: public1"]


@BOTH
def test_rule_30_a_leaving_cluster_keeps_its_last_good_content(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(resources(cds="a1 b2", eds="a1 b1", lds="public1", rds="public1", sds="ca1"))
    clusters, endpoints = client.pull()
    client.ack(endpoints)
    client.nack(clusters, "b: no")
    client.offer(resources(cds="a1", eds="a1", lds="public1", rds="public2", sds="ca1"))
    responses = client.accept_all()
    assert ("cds: b1" if delta else "cds: a1 b1") in responses
    assert not any("b2" in each for each in responses)
    client.wait(1)
    assert client.accept_all()[0] == removal_of_b(client)


@BOTH
@pytest.mark.parametrize("words", ["b: no", "malformed"])
def test_rule_30_a_nack_of_a_leaving_cluster_is_not_resent(delta: bool, words: str) -> None:
    client = started(OLD, delta=delta)
    client.offer(resources(cds="a1 b2", eds="a1 b1", lds="public1", rds="public1", sds="ca1"))
    clusters, endpoints = client.pull()
    client.offer(resources(cds="a1", eds="a1", lds="public1", rds="public2", sds="ca1"))
    client.ack(endpoints)
    client.nack(clusters, words)
    responses = client.accept_all()
    assert not any("b2" in each for each in responses)
    assert "rds: public2" in responses
    client.wait(1)
    assert client.accept_all()[0] == removal_of_b(client)


def test_rule_30_a_partly_applied_cluster_stays_while_used() -> None:
    client = started(resources(cds="a1", eds="a1 d1"))
    client.offer(resources(cds="a9 d3", eds="a1 d1"))
    client.ask("eds", "a", "d")
    clusters, endpoints = client.pull()
    client.nack(clusters, "Error adding/updating cluster(s) a: no")
    client.ack(endpoints)
    client.offer(resources(cds="a1 d4", eds="a1 d1", lds="public1", rds="public1"))
    client.ask("rds", "public")
    for got in client.pull():
        client.nack(got, "Error adding/updating cluster(s) d: no") if got.short == "cds" else client.ack(got)
    client.offer(resources(cds="a2", eds="a1"))
    assert client.accept_all() == ["cds: a2 d3", "eds: a1 d1", "lds: "], "the routes lead to d until they are gone"
    client.wait(5)
    assert client.accept_all() == ["cds: a2"]


@BOTH
def test_rule_30_an_obsolete_rejected_cluster_blocks_nothing(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(resources(cds="a1 b1 c1", eds="a1 b1 c1", lds="public1", rds="public2", sds="ca1"))
    clusters = client.pull_one()
    client.offer(resources(cds="a1 b1", eds="a1 b1", lds="public1", rds="public3", sds="ca1"))
    client.nack(clusters, "c: no")
    assert "rds: public3" in client.accept_all()
    client.wait(1)
    assert not any("c1" in each for each in client.accept_all())
    assert {client.state("cds"), client.state("rds")} == {"SYNCED"}


@BOTH
def test_rule_30_routes_of_a_removed_listener_are_not_sent(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(resources(cds="a1 b1 c1", eds="a1 b1 c1", lds="public1", rds="public2", sds="ca1"))
    client.offer(resources(cds="a1 b1", eds="a1 b1", lds="", rds="", sds="ca1"))
    assert [each for each in client.accept_all() if each.startswith("rds")] == []


@BOTH
def test_rule_30_a_cluster_that_was_never_sent_is_not_removed(delta: bool) -> None:
    client = started(OLD, delta=delta)
    client.offer(resources(cds="a2 b1", eds="a1 b1", lds="public1", rds="public1", sds="ca1"))
    client.pull()
    client.offer(resources(cds="a2 b1 c1", eds="a1 b1 c1", lds="public1", rds="public1", sds="ca1"))
    client.offer(resources(cds="a2 b1", eds="a1 b1", lds="public1", rds="public1", sds="ca1"))
    for got in list(client.last.values()):
        client.ack(got)
    client.wait(100)
    assert client.accept_all() == []


@BOTH
def test_rule_31_a_weight_change_sends_only_endpoints(delta: bool) -> None:
    client = started(OLD, delta=delta)
    before = {each.type_url: each.acked_version for each in client.stream.status()}
    for number in range(2, 10):
        client.offer(resources(cds="a1 b1", eds=f"a{number} b1", lds="public1", rds="public1", sds="ca1"))
        assert client.accept_all() == [f"eds: a{number}"]
    after = {each.type_url: each.acked_version for each in client.stream.status()}
    assert {kind for kind in after if after[kind] != before[kind]} == {EDS}


# ── a new stream


@pytest.mark.parametrize("short", ["cds", "lds"])
def test_rule_32_a_wildcard_at_the_same_version_is_not_resent(short: str) -> None:
    version = started(OLD).accepted[short]
    client = Client(OLD)
    client.ask(short, version=version)
    assert client.pull() == []
    assert client.state(short) == "SYNCED"
    client.offer(resources(**{short: "z1"}))
    client.wait(10)
    assert "z1" in client.accept_all()[-1]


@pytest.mark.parametrize("short", ["cds", "lds"])
def test_rule_32_a_wildcard_at_another_version_is_sent(short: str) -> None:
    client = Client(OLD)
    client.ask(short, version="of yesterday")
    assert client.pull() != []


@pytest.mark.parametrize("short", ["eds", "rds", "sds"])
def test_rule_32_names_are_answered_at_the_same_version(short: str) -> None:
    names = [*OLD.of(KINDS[short])]
    client = Client(OLD)
    client.ask(short, *names, version=started(OLD).accepted[short])
    assert client.accept_all() == [f"{short}: {' '.join(f'{name}1' for name in names)}"]
    client.ask(short, *names)
    assert client.pull() == [], "once on a stream"


@pytest.mark.parametrize("short", ["cds", "lds"])
def test_rule_32_named_clusters_and_listeners_are_always_sent(short: str) -> None:
    name = "a" if short == "cds" else "public"
    first = Client(OLD)
    first.ask(short, name)
    first.accept_all()
    client = Client(OLD)
    client.ask(short, name, version=first.accepted[short])
    assert client.accept_all() == [f"{short}: {name}1"]


def test_rule_32_routes_wait_for_clusters_on_a_new_stream() -> None:
    client = Client(resources(cds="a1 c1", eds="a1 c1", lds="public2", rds="public2"))
    client.ask("cds", version="old")
    client.ask("eds", "a", version="old")
    client.ask("lds", version="old")
    client.ask("rds", "public", version="old")
    clusters, endpoints = client.pull()
    client.ack(endpoints)
    client.ask("eds", "a", "c")
    client.ack(client.pull_one())
    assert client.pull() == []
    client.ack(clusters)
    assert client.accept_all() == ["lds: public2", "rds: public2"]


def versions(words: str, short: str = "cds") -> dict[str, str]:
    kind = {"cds": CDS, "lds": LDS, "eds": EDS}[short]
    return {name: each.version for name, each in resources(**{short: words}).of(kind).items()}


def test_rule_33_a_delta_client_gets_only_differences() -> None:
    client = Client(OLD, delta=True)
    client.change("cds", have=versions("a1 b7"))
    assert client.accept_all() == ["cds: b1"]
    assert client.state("cds") == "SYNCED"


def test_rule_33_an_up_to_date_delta_client_gets_nothing() -> None:
    client = Client(OLD, delta=True)
    client.change("cds", have=versions("a1 b1"))
    assert client.accept_all() == []
    status = client.status("cds")
    assert (status.state, status.acked_version) == ("SYNCED", status.offered_version)


def test_rule_33_an_outdated_cluster_is_removed_after_routes() -> None:
    client = Client(OLD, delta=True)
    client.change("cds", have=versions("a1 b1 x1"))
    client.change("lds", have=versions("public1", "lds"))
    client.change("rds", "public", have={"public": "old"})
    assert client.accept_all() == ["rds: public1"]
    client.wait(1)
    assert client.accept_all() == ["cds: -x"]


def test_rule_33_an_outdated_listener_is_removed_at_once() -> None:
    client = Client(OLD, delta=True)
    client.change("lds", have=versions("public1 internal1", "lds"))
    assert client.accept_all() == ["lds: -internal"]


def test_rule_33_named_resources_the_client_has_are_not_sent() -> None:
    client = Client(OLD, delta=True)
    client.change("eds", "a", "b", have=versions("a1 b7", "eds"))
    assert client.accept_all() == ["eds: b1"]
    assert client.state("eds") == "SYNCED"
    client.change("eds", "a")
    assert client.accept_all() == ["eds: a1"], "rule 20 applies to a repeated subscription"


def test_rule_33_an_outdated_named_resource_is_removed() -> None:
    client = Client(OLD, delta=True)
    client.change("eds", "a", "z", have=versions("a1 z1", "eds"))
    client.wait(2)
    assert client.accept_all() == ["eds: -z"]


def test_rule_33_initial_versions_count_only_until_the_next_ack() -> None:
    client = Client(resources(cds="a2"), delta=True)
    client.change("cds", have=versions("a1"))
    assert client.accept_all() == ["cds: a2"]
    client.offer(resources(cds="a1"))
    assert client.accept_all() == ["cds: a1"]


def test_rule_33_versions_depend_only_on_content() -> None:
    def offered(delta: bool) -> list[tuple[str, dict[str, str]]]:
        content = ResourceFactory()(cds="a1 b1", eds="a1 b1")
        client = Client(content, delta=delta)
        client.subscribe("cds")
        client.subscribe("eds", "a", "b")
        return [(got.version, got.versions) for got in client.pull()]

    for delta in (False, True):
        assert offered(delta) == offered(delta)
    assert offered(True)[0][0] == offered(False)[0][0]


def test_rule_33_initial_versions_count_for_later_content() -> None:
    client = Client(delta=True)
    client.change("cds", have=versions("a1 b1 x1"))
    assert client.accept_all() == []
    client.offer(OLD)
    assert client.accept_all() == []
    client.wait(1)
    assert client.accept_all() == ["cds: -x"]


@BOTH
def test_rule_34_early_endpoints_are_resent_after_clusters(delta: bool) -> None:
    client = Client(OLD, delta=delta)
    client.subscribe("eds", "a", "b")
    assert client.accept_all() == ["eds: a1 b1"]
    client.subscribe("cds")
    assert client.accept_all() == ["cds: a1 b1", "eds: a1 b1"]


def test_rule_34_only_endpoints_of_changed_clusters_are_resent() -> None:
    client = Client(OLD, delta=True)
    client.change("eds", "a", "b")
    client.accept_all()
    client.change("cds", have=versions("a1 b7"))
    assert client.accept_all() == ["cds: b1", "eds: b1"]


@BOTH
def test_resources_kept_on_a_stream_stay_on_the_next_one(delta: bool) -> None:
    first = started(OLD, delta=delta)
    first.offer(resources(cds="a1", eds="a1", lds="public1", rds="public2", sds="ca1"))
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
    client.offer(resources(cds="a1", eds="a1", lds="public1", rds="public2", sds="ca1"))
    assert client.accept_all() == ["rds: public2"]
    client.wait(1)
    assert client.accept_all() == [removal_of_b(client)]
    last = client.stream.last()
    assert last is not None
    assert list(last.of(CDS)) == ["a"]


def test_clusters_in_flight_at_the_end_of_a_stream_are_kept() -> None:
    first = started(OLD)
    first.offer(resources(cds="a1 b1 c1", eds="a1 b1 c1", lds="public1", rds="public1", sds="ca1"))
    first.pull()
    client = Client(before=first.stream.last())
    client.offer(OLD)
    client.ask("cds", version="of a, b and c")
    client.ask("lds", version=first.accepted["lds"])
    assert client.accept_all() == ["cds: a1 b1 c1"]
    client.wait(1)
    assert client.accept_all() == ["cds: a1 b1"]


def test_a_cluster_removed_before_the_first_request_is_kept() -> None:
    client = Client(before=started(OLD).stream.last())
    client.offer(OLD)
    client.offer(resources(cds="a1", eds="a1", lds="public1", rds="public2", sds="ca1"))
    client.ask("cds", version="some")
    client.ask("rds", "public", version="old")
    assert client.accept_all() == ["cds: a1 b1", "rds: public2"]
    client.wait(1)
    assert client.accept_all() == ["cds: a1"]


def test_a_stream_without_content_leaves_nothing() -> None:
    assert Stream(delta=False).last() is None


def test_a_settled_stream_leaves_its_offered_content() -> None:
    client = started(OLD)
    assert client.stream.last() is OLD
    assert isinstance(client.stream.last(), Resources)
