from __future__ import annotations

import gc
import io
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import pytest
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.route.v3 import route_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from lbctl.base.diagnostics import Diagnostics
from lbctl.ir.address import Address
from lbctl.ir.pools import Replica
from lbctl.ir.proxies import Proxy
from lbctl.ir.routes import Share
from lbctl.ir.snapshot import Snapshot
from lbctl.ir.weight import Weight
from lbctl.targets.load import Loaded, load
from lbctl.xds.build.snapshot_cache import Builder, CachedSnapshot, UnsoundError
from lbctl.xds.resource import CDS, EDS, LDS, RDS, SHORT, TYPES, Resource, Resources
from tests.support.processes.certs import Authority
from tests.support.weights import plain_weights

pytestmark = pytest.mark.no_cover  # many of one kind, in which a trace would be most of the time

ANY = Proxy("somebody", "envoy", (1, 40))

FLEET = """
version: 1
listeners:
  public: {bind: "127.0.0.1:8080", max_body: 1MiB}
  inner: {bind: "127.0.0.1:8081", tracing: {otlp: "collector.example:4317", sample: 10%, service: gateway}}
routes:
  chat:
    match: {path_prefix: /chat/}
    split: {v1: 95, v2: 5}
    sticky_split: {cookie: variant}
    pin: [{header: x-v, equals: v2, pool: v2}]
  near: {match: {path_prefix: /near/}, pool: near}
  spare: {match: {path_prefix: /spare/, hosts: [a.example.com]}, pool: v1, fallback: v2}
  any: {match: {path_prefix: /}, pool: random, listeners: [inner]}
  east: {match: {path_prefix: /east/}, pool: v2, regions: [east]}
pools:
  v1:
    replicas:
      - {name: one, address: "10.0.0.1:80", weight: 1, region: east}
      - {name: two, address: "10.0.0.2:80", weight: 3}
    affinity: {cookie: lb}
    health: {passive: {max_ejection: 60%}}
  v2: {replicas: [{name: one, address: "10.0.1.1:80", region: east}, {name: two, address: "10.0.1.2:80", region: west}]}
  near:
    locality: {prefer: zone}
    replicas:
      - {name: a, address: "10.0.2.1:80", zone: a}
      - {name: b, address: "10.0.2.2:80", zone: b}
  random:
    balance: {algorithm: random}
    replicas: [{name: one, address: "10.0.3.1:80"}, {name: named, address: "replica.example:80"}]
"""


@cache
def tls() -> dict[str, bytes]:
    with TemporaryDirectory() as directory:
        authority = Authority(Path(directory))
        pair = authority.issue("a.example.com")
        found = {"a.crt": pair.certificate, "a.key": pair.key, "ca.crt": authority.ca}
        return {name: path.read_bytes() for name, path in found.items()}


def loaded(text: str) -> Loaded:
    found = Diagnostics()
    made = load(["-"], found, stdin=io.BytesIO(text.encode()))
    assert made is not None, list(map(str, found))
    return made


def snapshot_of(made: Loaded, **live: Any) -> Snapshot:
    weights = plain_weights(live.pop("weights", {}))
    return Snapshot(made.compiled.topology, weights, secrets=made.secrets, **live)


def built(text: str, **live: Any) -> CachedSnapshot:
    made = loaded(text)
    return Builder().build(made, snapshot_of(made, **live))


def changed(before: Resources, after: Resources) -> set[str]:
    """`type name` of every resource that differs, is new, or is gone."""
    found = set()
    for kind in TYPES:
        old, new = before.of(kind), after.of(kind)
        for name in {*old, *new}:
            if old.get(name) is not new.get(name):
                found.add(f"{SHORT[kind]} {name}")
    return found


def members(resources: Resources, name: str) -> list[list[tuple[str, str, int]]]:
    """For each rank: (replica, address, weight)."""
    message = endpoint_pb2.ClusterLoadAssignment.FromString(resources.of(EDS)[name].body)
    return [
        [
            (item.endpoint.hostname, item.endpoint.address.socket_address.address, item.load_balancing_weight.value)
            for item in group.lb_endpoints
        ]
        for group in message.endpoints
    ]


# ── What a proxy is given ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_proxy_gets_each_part_of_what_it_sees_by_name() -> None:
    resources = built(FLEET).resources(ANY)
    assert {SHORT[kind]: list(resources.of(kind)) for kind in TYPES} == {
        "cds": ["near", "random", "tracing|inner", "v1", "v1|else|v2", "v2", "v2|east"],
        "eds": ["near", "random", "tracing|inner", "v1", "v2", "v2|east"],
        "lds": ["inner", "public"],
        "rds": ["inner", "public"],
        "sds": [],
    }


def test_a_proxy_of_one_listener_gets_nothing_of_the_others() -> None:
    resources = built(FLEET).resources(replace(ANY, listeners=("public",)))
    assert list(resources.of(LDS)) == list(resources.of(RDS)) == ["public"]
    assert list(resources.of(EDS)) == ["near", "v1", "v2", "v2|east"]


def test_replicas_routes_and_listeners_come_by_ads() -> None:
    resources = built(FLEET).resources(ANY)
    cluster = cluster_pb2.Cluster.FromString(resources.of(CDS)["v1"].body)
    assert cluster.type == cluster_pb2.Cluster.EDS
    assert cluster.eds_cluster_config.service_name == "v1"
    assert cluster.eds_cluster_config.eds_config.HasField("ads")
    assert not cluster.HasField("load_assignment")
    assert b"inline" not in resources.of(LDS)["public"].body.replace(b"inline_string", b"")


def test_a_pool_that_nobody_was_found_for_is_an_empty_assignment_and_never_none() -> None:
    text = """
version: 1
listeners: {l: {bind: "127.0.0.1:80"}}
routes: {r: {match: {path_prefix: /}, pool: p}}
pools: {p: {discovery: {dns: {name: pool.example, port: 80}}}}
"""
    assert members(built(text).resources(ANY), "p") == []


def test_what_discovery_found_stands_as_the_pools_replicas() -> None:
    text = """
version: 1
listeners: {l: {bind: "127.0.0.1:80"}}
routes: {r: {match: {path_prefix: /}, pool: p}}
pools: {p: {discovery: {dns: {name: pool.example, port: 80}}, tls: {ca: ca.crt}}}
"""
    made = loaded(text)
    (pool,) = made.compiled.topology.pools
    found = replace(pool, replicas=(Replica("10.0.0.7-80", Address("10.0.0.7", 80)),))
    topology = replace(made.compiled.topology, pools=(found,))
    secrets = replace(made.secrets, files=tls())
    resources = Builder().build(made, Snapshot(topology, secrets=secrets)).resources(ANY)
    assert members(resources, "p") == [[("10.0.0.7-80", "10.0.0.7", 100)]]
    assert b"pool.example" in resources.of(CDS)["p"].body  # the name that its certificate must have


def test_a_host_name_is_each_of_its_addresses_and_they_share_its_weight() -> None:
    addresses = {"replica.example": ("10.9.0.1", "10.9.0.2", "10.9.0.3"), "collector.example": ("10.9.0.9",)}
    resources = built(FLEET, addresses=addresses).resources(ANY)
    (group,) = members(resources, "random")
    assert [(address, weight) for _, address, weight in group] == [
        ("10.9.0.1", 33), ("10.9.0.2", 33), ("10.9.0.3", 33), ("10.0.3.1", 100),
    ]  # fmt: skip
    assert members(resources, "tracing|inner") == [[("tracing|inner", "10.9.0.9", 100)]]


def test_a_host_name_without_an_answer_is_left_out_and_nothing_else_is() -> None:
    assert members(built(FLEET).resources(ANY), "random") == [[("one", "10.0.3.1", 100)]]


def test_two_replicas_in_one_place_are_one_endpoint() -> None:
    addresses = {"replica.example": ("10.0.3.1", "10.9.0.2")}
    (group,) = members(built(FLEET, addresses=addresses).resources(ANY), "random")
    assert sorted(address for _, address, _ in group) == ["10.0.3.1", "10.9.0.2"]


def test_weights_may_come_at_any_time_so_no_cluster_ignores_them() -> None:
    clusters = built(FLEET).resources(ANY).of(CDS).values()
    policies = [cluster_pb2.Cluster.FromString(item.body).lb_policy for item in clusters]
    assert cluster_pb2.Cluster.RANDOM not in policies


# ── What changes with what ───────────────────────────────────────────────────────────────────────────────────────────


def _both(live: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> tuple[Resources, Resources]:
    made, builder = loaded(FLEET), Builder()
    first = builder.build(made, snapshot_of(made, **(before or {})))
    second = builder.build(made, snapshot_of(made, **live))
    return first.resources(ANY), second.resources(ANY)


@pytest.mark.parametrize(
    ("live", "expected"),
    [
        ({}, set()),
        ({"weights": {"v1": {"one": 2.5}}}, {"eds v1"}),
        ({"weights": {"random": {"one": 7.0}}}, {"eds random"}),
        ({"drained": {"v1": frozenset({"one"})}}, {"eds v1"}),
        ({"drained": {"near": frozenset({"a"})}}, {"eds near"}),
        ({"splits": {"chat": (Share("v1", 50), Share("v2", 50))}}, {"rds inner", "rds public"}),
        ({"splits": {"chat": (Share("v1", 100), Share("v2", 0))}}, {"rds inner", "rds public"}),
        ({"splits": {"chat": (Share("v1", 100),)}}, {"rds inner", "rds public"}),
        ({"addresses": {"replica.example": ("10.9.0.1",)}}, {"eds random"}),
    ],
)
def test_live_state_changes_its_own_type_and_nothing_else(live: Mapping[str, Any], expected: set[str]) -> None:
    assert changed(*_both(live)) == expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("10.0.1.2:80", "10.0.1.9:80", {"eds v2"}),
        ("weight: 3", "weight: 4", {"eds v1"}),
        ("10.0.0.1:80", "10.0.0.9:80", {"eds v1", "rds inner", "rds public"}),  # the route knows where clients stay
        ("{prefer: zone}", "{prefer: zone, spill_below: 50%}", set()),  # this proxy is in no zone
        ("x-v, equals: v2", "x-v, equals: new", {"rds inner", "rds public"}),
        ("8080", "8082", {"lds public"}),
        ("sample: 10%", "sample: 11%", {"lds inner"}),
        ("{cookie: lb}", "{cookie: lb2}", {"eds v1", "rds inner", "rds public"}),
        ("  random:\n", "  random:\n    timeouts: {connect: 1s}\n", {"cds random", "eds random"}),
        ("# nothing", "", set()),
    ],
)
def test_a_reload_keeps_every_resource_that_it_does_not_change(old: str, new: str, expected: set[str]) -> None:
    builder, first, second = Builder(), loaded(f"{FLEET}# nothing\n"), loaded(f"{FLEET}# nothing\n".replace(old, new))
    before = builder.build(first, snapshot_of(first))
    after = builder.build(second, snapshot_of(second))
    assert changed(before.resources(ANY), after.resources(ANY)) == expected


_KEYS = (
    "",
    ", balance: {algorithm: random}, protocol: http2",
    ", balance: {algorithm: hash, hash: {key: {header: x-user}}}",
    ", circuit_breaker: {per_replica: {max_requests: 8, max_connections: 8}}, health: {active: {tcp: {}}}",
    ", health: {load_shedding: {min_healthy: 50%, retry_after: 2s}}",
    ", locality: {prefer: zone}",
)


def _moved(before: Sequence[str], after: Sequence[str], keys: str) -> set[str]:
    """What a reload changes where a pool has these replicas, each written as its further keys."""

    def fleet(replicas: Sequence[str]) -> Loaded:
        listed = ", ".join(f'{{name: r{i}, address: "10.0.0.{i}:80"{more}}}' for i, more in enumerate(replicas, 1))
        return loaded(
            'version: 1\nlisteners: {l: {bind: "127.0.0.1:80"}}\nroutes: {r: {match: {path_prefix: /}, pool: p}}\n'
            f"pools: {{p: {{replicas: [{listed}]{keys}}}}}\n"
        )

    builder, old, new = Builder(), fleet(before), fleet(after)
    first, second = builder.build(old, snapshot_of(old)), builder.build(new, snapshot_of(new))
    return changed(first.resources(ANY), second.resources(ANY))


@pytest.mark.parametrize("keys", _KEYS)
def test_a_drained_replica_leaves_the_cluster_and_its_connections_as_they_are(keys: str) -> None:
    one, two = [", weight: 1"] * 3, [", weight: 1", ", weight: 1, drain: true", ", weight: 1"]
    assert _moved(one, two, keys) == _moved(two, one, keys) == {"eds p"}
    assert _moved(two, [f"{item}, drain: true" for item in one], keys) == {"eds p"}


@pytest.mark.parametrize("keys", _KEYS)
@pytest.mark.parametrize("weight", [1, 3])
def test_a_further_replica_leaves_the_cluster_as_it_is_until_their_number_passes_a_power_of_two(
    keys: str, weight: int
) -> None:
    three = [", weight: 1"] * 3
    four = [*three, f", weight: {weight}"]
    assert _moved(three, four, keys) == _moved(four, three, keys) == {"eds p"}
    assert _moved(four, [*four, four[0]], keys) == {"cds p", "eds p"}


def test_a_variant_that_gets_nothing_any_more_lets_its_cookie_go() -> None:
    _, after = _both({"splits": {"chat": (Share("v1", 100), Share("v2", 0))}})
    table = route_pb2.RouteConfiguration.FromString(after.of(RDS)["public"].body)
    ways = [item for item in table.virtual_hosts[0].routes if item.name == "chat"]
    shown = [item for item in ways if b"variant" in item.match.SerializeToString()]
    assert len(shown) == 1  # v2's cookie, which is taken back
    assert [item.name for item in shown[0].route.weighted_clusters.clusters] == ["v1"]
    (told,) = [
        item.header.value
        for item in shown[0].route.weighted_clusters.clusters[0].response_headers_to_add
        if item.header.value.startswith("variant=")
    ]
    assert told.startswith("variant=v1;")
    assert ways[-1].route.cluster == "v1"


def test_a_change_back_gives_the_version_of_before() -> None:
    made, builder = loaded(FLEET), Builder()
    first = builder.build(made, snapshot_of(made))
    other = builder.build(made, snapshot_of(made, weights={"v1": {"one": 2.5}}))
    again = builder.build(made, snapshot_of(made))
    assert first.version == again.version != other.version
    assert first.resources(ANY).version == again.resources(ANY).version


def test_another_speed_at_the_same_rate_is_another_edition() -> None:
    made, builder = loaded(FLEET), Builder()
    first = builder.build(made, snapshot_of(made))
    topology = made.compiled.topology
    slow = {"v1": {"one": Weight(rate=1.0, room=4.0, speed=0.25)}}
    other = builder.build(made, Snapshot(topology, slow, secrets=made.secrets))
    assert changed(first.resources(ANY), other.resources(ANY)) == {"eds v1"}
    assert other.version == Builder().build(made, Snapshot(topology, slow, secrets=made.secrets)).version


def test_an_edition_stays_as_it_was_when_the_next_one_is_built() -> None:
    """Weights are written over the last ones; what was sent must not change with them."""
    made, builder = loaded(FLEET), Builder()
    first = builder.build(made, snapshot_of(made))
    before = {name: item.body for name, item in first.resources(ANY).of(EDS).items()}
    builder.build(made, snapshot_of(made, weights={"v1": {"one": 2.5}, "near": {"a": 9.0}}))
    late = first.resources(replace(ANY, zone="b"))  # made from parts that the newer edition has written over
    assert {name: item.body for name, item in first.resources(ANY).of(EDS).items()} == before
    assert members(late, "near") == [[("b", "10.0.2.2", 100)], [("a", "10.0.2.1", 100)]]


def test_after_an_unsound_build_the_next_one_goes_on_from_the_last_good_one() -> None:
    builder, good, bad = (
        Builder(),
        loaded(FLEET),
        loaded(FLEET.replace('{bind: "127.0.0.1:8080", max_body: 1MiB}', _TLS)),
    )
    first = builder.build(good, snapshot_of(good))
    with pytest.raises(UnsoundError):
        builder.build(bad, snapshot_of(bad))
    again = builder.build(good, snapshot_of(good))
    assert changed(first.resources(ANY), again.resources(ANY)) == set()


_TLS = '{bind: "127.0.0.1:8080", tls: {certificates: [{certificate: gone.crt, key: gone.key}]}}'


@pytest.mark.parametrize("unmatched", ["nothing", "all"])
def test_what_no_envoy_will_ask_for_is_not_missed(unmatched: str) -> None:
    text = FLEET.replace('{bind: "127.0.0.1:8080", max_body: 1MiB}', _TLS)
    text += f"proxies: {{edge: {{kind: nginx, version: '1.22'}}}}\ncontrol: {{xds: {{unmatched_nodes: {unmatched}}}}}\n"
    if unmatched == "nothing":
        assert built(text).version
    else:
        with pytest.raises(UnsoundError, match=r"LB922 .*certificates\[0\]"):
            built(text)


@pytest.fixture
def _restless() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.slow
@pytest.mark.usefixtures("_restless")
def test_proxies_may_ask_while_the_next_edition_is_built() -> None:
    """Each edition is asked for every zone while later ones write other weights over the same messages."""
    zones = [f"z{number}" for number in range(40)]
    listed = "".join(
        f"      - {{address: '10.1.0.{number + 1}:80', zone: {zone}}}\n" for number, zone in enumerate(zones)
    )
    made = loaded(
        f"{FLEET}  wide:\n    locality: {{prefer: zone}}\n    replicas:\n{listed}".replace("pool: near", "pool: wide")
    )
    wide = next(item for item in made.compiled.topology.pools if item.name == "wide")
    lives = [{"wide": {item.name: float(turn) for item in wide.replicas[::2]}} for turn in range(1, 25)]
    snapshots = [snapshot_of(made), *(snapshot_of(made, weights=live) for live in lives)]
    builder, editions = Builder(), list[CachedSnapshot]()
    proxies = [replace(ANY, zone=zone) for zone in zones]

    def build() -> None:
        for number, item in enumerate(snapshots):
            editions.append(builder.build(made, item, proxies if number % 2 else ()))

    thread = Thread(target=build)
    thread.start()
    seen: dict[tuple[int, str], str] = {}
    while thread.is_alive():
        number = len(editions) - 1
        for proxy in proxies if number >= 0 else ():
            seen[number, proxy.zone or ""] = editions[number].resources(proxy).version
    thread.join()
    assert len(seen) > 100
    sys.setswitchinterval(0.005)
    fresh = {number: Builder().build(made, snapshots[number]) for number in {number for number, _ in seen}}
    for (number, zone), version in seen.items():
        assert fresh[number].resources(replace(ANY, zone=zone)).version == version


def test_a_thousand_new_weights_leave_no_more_behind_than_one() -> None:
    made, builder = loaded(FLEET), Builder()
    builder.build(made, snapshot_of(made))
    gc.collect()
    before = sum(isinstance(item, Resource) for item in gc.get_objects())
    for turn in range(1000):
        builder.build(made, snapshot_of(made, weights={"near": {"a": turn + 1.0}, "v1": {"one": turn + 0.5}}))
    gc.collect()
    assert sum(isinstance(item, Resource) for item in gc.get_objects()) <= before


def test_a_cluster_that_was_forgotten_would_be_missed_before_a_proxy_misses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbctl.xds.build.proxy_resources._clusters", lambda *_: iter(()))
    with pytest.raises(UnsoundError, match="it refers to 'v1', and there is none"):
        built(FLEET)


# ── Who shares what ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_proxies_that_see_the_same_share_the_same_object() -> None:
    edition = built(FLEET)
    assert edition.resources(ANY) is edition.resources(replace(ANY, name="other", region="elsewhere", zone="elsewhere"))


def test_the_zone_moves_replicas_alone_and_only_of_pools_that_look_at_it() -> None:
    edition = built(FLEET)
    here, there = edition.resources(replace(ANY, zone="a")), edition.resources(replace(ANY, zone="b"))
    assert changed(here, there) == {"eds near"}
    assert [group[0][0] for group in members(here, "near")] == ["a", "b"]
    assert [group[0][0] for group in members(there, "near")] == ["b", "a"]


def test_a_zone_of_the_same_name_in_another_region_is_not_the_own_zone() -> None:
    """For a region of the fleet and for one in which no replica is."""
    fleet = FLEET.replace("zone: a}", "zone: a, region: east}").replace("zone: b}", "zone: b, region: west}")
    edition = built(fleet)
    nowhere = edition.resources(ANY)
    assert edition.resources(replace(ANY, zone="a", region="east")).version != nowhere.version
    assert edition.resources(replace(ANY, zone="a", region="south")).version == nowhere.version
    assert edition.resources(replace(ANY, zone="a", region="n")) is edition.resources(
        replace(ANY, zone="a", region="south")
    )


def test_where_no_pool_looks_at_zones_all_zones_share_everything() -> None:
    edition = built(FLEET.replace("    locality: {prefer: zone}\n", ""))
    assert edition.resources(replace(ANY, zone="a")) is edition.resources(replace(ANY, zone="b"))


def test_a_part_of_the_limits_is_all_that_named_proxies_have_for_themselves() -> None:
    text = f"{FLEET}proxies: {{edge: {{kind: envoy, version: '1.40', instances: 2, nodes: ['*']}}}}\n"
    edition = built(text)
    edge = edition.snapshot.topology.proxies[0]
    apart = changed(edition.resources(edge), edition.resources(ANY))
    assert {item.split()[0] for item in apart} == {"cds", "eds"}


def test_the_version_moves_with_a_replicas_zone_though_no_proxy_is_near_it() -> None:
    assert built(FLEET).version != built(FLEET.replace("zone: b", "zone: c")).version


# ── Nothing is forgotten: an edition made from the last one equals one that is made anew ─────────────────────────────

_CHANGES: Sequence[tuple[str, str]] = (
    ("weight: 3", "weight: 5"),
    ("10.0.0.1", "10.0.0.8"),
    ("10.0.1.1", "10.0.1.8"),
    ("95, v2: 5", "1, v2: 1"),
    ("sticky_split: {cookie: variant}", "sticky_split: {header: x-user}"),
    ("affinity: {cookie: lb}", "affinity: {cookie: lb, ttl: 5m}"),
    ("affinity: {cookie: lb}", "protocol: grpc"),
    ("{prefer: zone}", "{prefer: region}"),
    ("zone: a}", "zone: a, region: east, priority: 1}"),
    ("zone: b}", "zone: b, drain: true}"),
    ("algorithm: random", "algorithm: hash, hash: {key: {header: x-user}}"),
    ("algorithm: random", "algorithm: hash, hash: {key: {json_body: $.user}}"),
    ("algorithm: random", "algorithm: least_request"),
    ('8081"', '8081", tls: {certificates: [{certificate: a.crt, key: a.key}]}'),
    ("max_body: 1MiB", "max_connections: 50"),
    ("region: west", "region: east"),
    ("pool: near", "pool: v1, regions: [east]"),
    ("pool: near", "pool: near, retry: {budget: 30%}"),
    ("pool: near", "pool: v2, mirror: {pool: near}"),
    (", fallback: v2", ""),
    (", listeners: [inner]", ""),
)
_LIVE: Sequence[Mapping[str, Any]] = (
    {},
    {"weights": {"v1": {"one": 3.25}, "near": {"b": 0.5}}},
    {"drained": {"random": frozenset({"one"})}},
    {"addresses": {"replica.example": ("10.9.0.1", "10.9.0.2"), "collector.example": ("10.9.0.9",)}},
    {"splits": {"chat": (Share("v2", 1),)}},
)
_PROXIES = (ANY, replace(ANY, zone="b", region="east"), replace(ANY, listeners=("public",), zone="a"))


@pytest.mark.parametrize("change", _CHANGES, ids=lambda item: item[1][:30])
def test_a_change_and_its_undoing_are_both_seen_whole(change: tuple[str, str]) -> None:
    kept = Builder()
    for changes in ((), (change,), ()):
        made = loaded(_with(changes))
        snapshot = replace(snapshot_of(made), secrets=replace(made.secrets, files=tls()))
        _same(kept.build(made, snapshot), Builder().build(made, snapshot))


_STEPS = st.tuples(
    st.sets(st.sampled_from(_CHANGES), max_size=4), st.lists(st.sampled_from(_LIVE), min_size=1, max_size=3)
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.lists(_STEPS, max_size=3))
def test_what_is_built_from_the_last_edition_equals_what_is_built_anew(
    steps: list[tuple[set[tuple[str, str]], list[Mapping[str, Any]]]],
) -> None:
    kept = Builder()
    for changes, lives in steps:
        made = loaded(_with(changes))
        for live in lives:
            snapshot = replace(snapshot_of(made, **live), secrets=replace(made.secrets, files=tls()))
            _same(kept.build(made, snapshot, _PROXIES[:2]), Builder().build(made, snapshot))


def _same(one: CachedSnapshot, other: CachedSnapshot) -> None:
    assert one.version == other.version
    for proxy in _PROXIES:
        mine, theirs = one.resources(proxy), other.resources(proxy)
        assert mine.version == theirs.version
        for kind in TYPES:
            assert {name: item.body for name, item in mine.of(kind).items()} == {
                name: item.body for name, item in theirs.of(kind).items()
            }


def _with(changes: Iterable[tuple[str, str]]) -> str:
    text = FLEET
    for old, new in sorted(changes):
        text = text.replace(old, new)
    return text


def test_listeners_and_routes_find_in_the_part_that_they_are_made_from_all_that_they_look_for() -> None:
    """They are made from less than the view, so that less has to be compared; the whole gives the same bytes."""
    from lbctl.ir.snapshot import view
    from lbctl.targets.envoy import ads, resources
    from lbctl.targets.envoy.plan import plan

    for changes in [(), *((item,) for item in _CHANGES)]:
        made = loaded(_with(changes))
        whole = view(snapshot_of(made), ANY)
        wanted, small = plan(whole), ads.routing(whole, {name: ads.routed(pool) for name, pool in whole.pools.items()})
        for item in whole.listeners:
            assert ads.listener(whole, item) == ads.listener(small, item)
            assert resources.table(whole, item, wanted) == resources.table(small, item, wanted)


# ── Envoy's words ────────────────────────────────────────────────────────────────────────────────────────────────────

_DUMP = 'goo.gle/debugstr   \ncluster_name: "v1"\nsecret: "sk-1"\n: Proto constraint validation failed ('
_INSIDE = ": embedded message failed validation | caused by "
_WEIGHT = _INSIDE.join(
    (
        "ClusterLoadAssignmentValidationError.Endpoints[0]",
        "LocalityLbEndpointsValidationError.LbEndpoints[1]",
        "LbEndpointValidationError.LoadBalancingWeight: value must be greater than or equal to 1)",
    )
)
_CLUSTER = _INSIDE.join(
    (
        "RouteConfigurationValidationError.VirtualHosts[1]",
        "VirtualHostValidationError.Routes[3]",
        "RouteValidationError.Route",
        "RouteActionValidationError.Cluster: value length must be at least 1 characters)",
    )
)


@pytest.mark.parametrize(
    ("kind", "name", "words", "path", "message"),
    [
        (
            EDS,
            "v1",
            _DUMP + _WEIGHT,
            ("pools", "v1", "replicas", 1),
            "LbEndpoint.LoadBalancingWeight: value must be greater than or equal to 1",
        ),
        (
            RDS,
            "public",
            _DUMP + _CLUSTER,
            ("routes", "spare"),
            "RouteAction.Cluster: value length must be at least 1 characters",
        ),
        (RDS, "public", "missing ): (?:.*[;,])? *variant", ("routes", "chat"), "missing )"),
        (RDS, "public", "Only a single wildcard domain is permitted", ("listeners", "public"), "Only a single"),
        (
            LDS,
            "inner",
            "Error adding/updating listener(s) inner: cannot bind '127.0.0.1:8081': Address already in use\n",
            ("listeners", "inner"),
            "Address already in use",
        ),
        (
            LDS,
            "inner",
            'goo.gle/debugproto  \nname: "inner"\nkey: "sk-1" (truncated)',
            ("listeners", "inner"),
            "Envoy's words end",
        ),
        (CDS, "v1|else|v2", "no such cluster", ("pools", "v1"), "no such cluster"),
        (EDS, "v1", "malformed IP address: 10.0.0.2.", ("pools", "v1"), "malformed"),
        (CDS, "unknown", "whatever", (), "whatever"),
    ],
)
def test_envoys_words_lead_to_the_yaml(
    kind: str, name: str, words: str, path: tuple[str | int, ...], message: str
) -> None:
    edition = built(FLEET)
    edition.resources(ANY)
    found = edition.nack_diagnostic(kind, name, words)
    assert (found.code, found.path) == ("LB921", path)
    assert message in found.message
    assert "sk-1" not in found.message
    assert (found.position is not None) == bool(path)


# ── A large fleet ────────────────────────────────────────────────────────────────────────────────────────────────────


def _large(pools: int, replicas: int, address: str = "10") -> str:
    names = [f"p{number:04}" for number in range(pools)]
    routes = "".join(f"  {name}: {{match: {{path_prefix: /{name}/}}, pool: {name}}}\n" for name in names)
    text = f'version: 1\nlisteners: {{l: {{bind: "127.0.0.1:80"}}}}\nroutes:\n{routes}pools:\n'
    for number, name in enumerate(names):
        place = f"{address if number == pools // 2 else '10'}.{number >> 8}.{number & 255}"
        listed = "".join(f'      - {{address: "{place}.{n + 1}:8000"}}\n' for n in range(replicas))
        text += f"  {name}:\n    replicas:\n{listed}"
    return text


def test_one_changed_pool_of_many_is_the_only_one_whose_endpoints_are_made_anew() -> None:
    builder, first, second = Builder(), loaded(_large(100, 10)), loaded(_large(100, 10, "11"))
    before = builder.build(first, snapshot_of(first)).resources(ANY)
    after = builder.build(second, snapshot_of(second)).resources(ANY)
    assert changed(before, after) == {"eds p0050"}
