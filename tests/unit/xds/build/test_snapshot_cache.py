from __future__ import annotations

import gc
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

from lbctl.ir.address import Address
from lbctl.ir.pools import Replica
from lbctl.ir.proxies import Proxy
from lbctl.ir.routes import Share
from lbctl.ir.snapshot import Snapshot
from lbctl.ir.weight import Weight
from lbctl.targets.load import Loaded
from lbctl.xds.build.snapshot_cache import Builder, CachedSnapshot, UnsoundError
from lbctl.xds.resource import CDS, EDS, LDS, RDS, SHORT, TYPES, Resource, Resources
from tests.support.fleets import fleet_text, pool, replica
from tests.support.processes.certs import Authority
from tests.support.weights import plain_weights
from tests.support.xds import load_text

pytestmark = pytest.mark.no_cover  # many similar cases, which tracing would slow down

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
        paths = {"a.crt": pair.certificate, "a.key": pair.key, "ca.crt": authority.ca}
        return {name: path.read_bytes() for name, path in paths.items()}


def snapshot_of(fleet: Loaded, **live: Any) -> Snapshot:
    weights = plain_weights(live.pop("weights", {}))
    return Snapshot(fleet.compiled.topology, weights, secrets=fleet.secrets, **live)


def built(text: str, **live: Any) -> CachedSnapshot:
    fleet = load_text(text)
    return Builder().build(fleet, snapshot_of(fleet, **live))


def changed(before: Resources, after: Resources) -> set[str]:
    """Return `type name` of every resource that differs, is new, or is gone."""
    names = set()
    for kind in TYPES:
        old, new = before.of(kind), after.of(kind)
        for name in {*old, *new}:
            if old.get(name) is not new.get(name):
                names.add(f"{SHORT[kind]} {name}")
    return names


def members(resources: Resources, name: str) -> list[list[tuple[str, str, int]]]:
    """Return (replica, address, weight) of each endpoint, by priority."""
    message = endpoint_pb2.ClusterLoadAssignment.FromString(resources.of(EDS)[name].body)
    return [
        [
            (item.endpoint.hostname, item.endpoint.address.socket_address.address, item.load_balancing_weight.value)
            for item in group.lb_endpoints
        ]
        for group in message.endpoints
    ]


# ── Resources of a proxy ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_proxy_gets_its_resources_by_name() -> None:
    resources = built(FLEET).resources(ANY)
    assert {SHORT[kind]: list(resources.of(kind)) for kind in TYPES} == {
        "cds": ["near", "random", "tracing|inner", "v1", "v1|else|v2", "v2", "v2|east"],
        "eds": ["near", "random", "tracing|inner", "v1", "v2", "v2|east"],
        "lds": ["inner", "public"],
        "rds": ["inner", "public"],
        "sds": [],
    }


def test_a_proxy_gets_only_resources_of_its_listeners() -> None:
    resources = built(FLEET).resources(replace(ANY, listeners=("public",)))
    assert list(resources.of(LDS)) == list(resources.of(RDS)) == ["public"]
    assert list(resources.of(EDS)) == ["near", "v1", "v2", "v2|east"]


def test_endpoints_and_routes_are_separate_from_clusters() -> None:
    resources = built(FLEET).resources(ANY)
    cluster = cluster_pb2.Cluster.FromString(resources.of(CDS)["v1"].body)
    assert cluster.type == cluster_pb2.Cluster.EDS
    assert cluster.eds_cluster_config.service_name == "v1"
    assert cluster.eds_cluster_config.eds_config.HasField("ads")
    assert not cluster.HasField("load_assignment")
    assert b"inline" not in resources.of(LDS)["public"].body.replace(b"inline_string", b"")


def test_a_pool_without_replicas_has_an_empty_assignment() -> None:
    text = fleet_text({"discovery": {"dns": {"name": "pool.example", "port": 80}}})
    assert members(built(text).resources(ANY), "pool") == []


def test_discovered_replicas_are_endpoints_of_the_pool() -> None:
    discovery = {"dns": {"name": "pool.example", "port": 80}}
    fleet = load_text(fleet_text({"discovery": discovery, "tls": {"ca": "ca.crt"}}))
    (unresolved,) = fleet.compiled.topology.pools
    discovered = replace(unresolved, replicas=(Replica("10.0.0.7-80", Address("10.0.0.7", 80)),))
    topology = replace(fleet.compiled.topology, pools=(discovered,))
    secrets = replace(fleet.secrets, files=tls())
    resources = Builder().build(fleet, Snapshot(topology, secrets=secrets)).resources(ANY)
    assert members(resources, "pool") == [[("10.0.0.7-80", "10.0.0.7", 100)]]
    assert b"pool.example" in resources.of(CDS)["pool"].body, "the certificate must have this name"


def test_addresses_of_a_host_name_share_its_weight() -> None:
    addresses = {"replica.example": ("10.9.0.1", "10.9.0.2", "10.9.0.3"), "collector.example": ("10.9.0.9",)}
    resources = built(FLEET, addresses=addresses).resources(ANY)
    (group,) = members(resources, "random")
    assert [(address, weight) for _, address, weight in group] == [
        ("10.9.0.1", 33), ("10.9.0.2", 33), ("10.9.0.3", 33), ("10.0.3.1", 100),
    ]  # fmt: skip
    assert members(resources, "tracing|inner") == [[("tracing|inner", "10.9.0.9", 100)]]


def test_only_an_unresolved_host_name_is_left_out() -> None:
    assert members(built(FLEET).resources(ANY), "random") == [[("one", "10.0.3.1", 100)]]


def test_replicas_with_one_address_are_one_endpoint() -> None:
    addresses = {"replica.example": ("10.0.3.1", "10.9.0.2")}
    (group,) = members(built(FLEET, addresses=addresses).resources(ANY), "random")
    assert sorted(address for _, address, _ in group) == ["10.0.3.1", "10.9.0.2"]


def test_no_cluster_ignores_weights() -> None:
    clusters = built(FLEET).resources(ANY).of(CDS).values()
    policies = [cluster_pb2.Cluster.FromString(item.body).lb_policy for item in clusters]
    assert cluster_pb2.Cluster.RANDOM not in policies


# ── Changes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def before_and_after(live: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> tuple[Resources, Resources]:
    fleet, builder = load_text(FLEET), Builder()
    first = builder.build(fleet, snapshot_of(fleet, **(before or {})))
    second = builder.build(fleet, snapshot_of(fleet, **live))
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
def test_live_state_changes_only_its_resources(live: Mapping[str, Any], expected: set[str]) -> None:
    assert changed(*before_and_after(live)) == expected


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
def test_a_reload_keeps_unchanged_resources(old: str, new: str, expected: set[str]) -> None:
    builder, first, second = (
        Builder(),
        load_text(f"{FLEET}# nothing\n"),
        load_text(f"{FLEET}# nothing\n".replace(old, new)),
    )
    before = builder.build(first, snapshot_of(first))
    after = builder.build(second, snapshot_of(second))
    assert changed(before.resources(ANY), after.resources(ANY)) == expected


_POOL_KEYS: Sequence[Mapping[str, Any]] = (
    {},
    {"balance": {"algorithm": "random"}, "protocol": "http2"},
    {"balance": {"algorithm": "hash", "hash": {"key": {"header": "x-user"}}}},
    {
        "circuit_breaker": {"per_replica": {"max_requests": 8, "max_connections": 8}},
        "health": {"active": {"tcp": {}}},
    },
    {"health": {"load_shedding": {"min_healthy": "50%", "retry_after": "2s"}}},
    {"locality": {"prefer": "zone"}},
)


def resources_changed_by_reload(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], keys: Mapping[str, Any]
) -> set[str]:
    """Return the resources that a reload changes if the replicas of a pool have these keys before and after it."""

    def fleet_with_replicas(replicas: Sequence[Mapping[str, Any]]) -> Loaded:
        listed = [replica(f"r{number}", f"10.0.0.{number}:80", **more) for number, more in enumerate(replicas, 1)]
        return load_text(fleet_text(pool(*listed, **keys)))

    builder, old, new = Builder(), fleet_with_replicas(before), fleet_with_replicas(after)
    first, second = builder.build(old, snapshot_of(old)), builder.build(new, snapshot_of(new))
    return changed(first.resources(ANY), second.resources(ANY))


@pytest.mark.parametrize("keys", _POOL_KEYS)
def test_a_drain_does_not_change_the_cluster(keys: Mapping[str, Any]) -> None:
    in_service, drained = {"weight": 1}, {"weight": 1, "drain": True}
    before, one_drained = [in_service] * 3, [in_service, drained, in_service]
    assert resources_changed_by_reload(before, one_drained, keys) == {"eds pool"}
    assert resources_changed_by_reload(one_drained, before, keys) == {"eds pool"}
    assert resources_changed_by_reload(one_drained, [drained] * 3, keys) == {"eds pool"}


@pytest.mark.parametrize("keys", _POOL_KEYS)
@pytest.mark.parametrize("weight", [1, 3])
def test_a_cluster_changes_only_at_powers_of_two_replicas(keys: Mapping[str, Any], weight: int) -> None:
    three = [{"weight": 1}] * 3
    four = [*three, {"weight": weight}]
    assert resources_changed_by_reload(three, four, keys) == {"eds pool"}
    assert resources_changed_by_reload(four, three, keys) == {"eds pool"}
    assert resources_changed_by_reload(four, [*four, four[0]], keys) == {"cds pool", "eds pool"}


def test_the_cookie_of_a_variant_without_share_is_replaced() -> None:
    _, after = before_and_after({"splits": {"chat": (Share("v1", 100), Share("v2", 0))}})
    table = route_pb2.RouteConfiguration.FromString(after.of(RDS)["public"].body)
    routes = [item for item in table.virtual_hosts[0].routes if item.name == "chat"]
    with_cookie = [item for item in routes if b"variant" in item.match.SerializeToString()]
    assert len(with_cookie) == 1  # the cookie of v2, which is replaced
    assert [item.name for item in with_cookie[0].route.weighted_clusters.clusters] == ["v1"]
    (cookie,) = [
        item.header.value
        for item in with_cookie[0].route.weighted_clusters.clusters[0].response_headers_to_add
        if item.header.value.startswith("variant=")
    ]
    assert cookie.startswith("variant=v1;")
    assert routes[-1].route.cluster == "v1"


def test_a_reverted_change_restores_the_version() -> None:
    fleet, builder = load_text(FLEET), Builder()
    first = builder.build(fleet, snapshot_of(fleet))
    other = builder.build(fleet, snapshot_of(fleet, weights={"v1": {"one": 2.5}}))
    again = builder.build(fleet, snapshot_of(fleet))
    assert first.version == again.version != other.version
    assert first.resources(ANY).version == again.resources(ANY).version


def test_another_speed_at_the_same_rate_is_a_new_version() -> None:
    fleet, builder = load_text(FLEET), Builder()
    first = builder.build(fleet, snapshot_of(fleet))
    topology = fleet.compiled.topology
    slow = {"v1": {"one": Weight(rate=1.0, room=4.0, speed=0.25)}}
    other = builder.build(fleet, Snapshot(topology, slow, secrets=fleet.secrets))
    assert changed(first.resources(ANY), other.resources(ANY)) == {"eds v1"}
    assert other.version == Builder().build(fleet, Snapshot(topology, slow, secrets=fleet.secrets)).version


def test_a_snapshot_is_unchanged_by_the_next_build() -> None:
    """The builder overwrites weights in place. Resources that were sent must not change with them."""
    fleet, builder = load_text(FLEET), Builder()
    first = builder.build(fleet, snapshot_of(fleet))
    before = {name: item.body for name, item in first.resources(ANY).of(EDS).items()}
    builder.build(fleet, snapshot_of(fleet, weights={"v1": {"one": 2.5}, "near": {"a": 9.0}}))
    late = first.resources(replace(ANY, zone="b"))  # built from parts that the newer build has overwritten
    assert {name: item.body for name, item in first.resources(ANY).of(EDS).items()} == before
    assert members(late, "near") == [[("b", "10.0.2.2", 100)], [("a", "10.0.2.1", 100)]]


def test_a_failed_build_does_not_affect_the_next_one() -> None:
    builder, good, bad = (
        Builder(),
        load_text(FLEET),
        load_text(FLEET.replace('{bind: "127.0.0.1:8080", max_body: 1MiB}', _TLS)),
    )
    first = builder.build(good, snapshot_of(good))
    with pytest.raises(UnsoundError):
        builder.build(bad, snapshot_of(bad))
    again = builder.build(good, snapshot_of(good))
    assert changed(first.resources(ANY), again.resources(ANY)) == set()


_TLS = '{bind: "127.0.0.1:8080", tls: {certificates: [{certificate: gone.crt, key: gone.key}]}}'


@pytest.mark.parametrize("unmatched", ["nothing", "all"])
def test_missing_files_matter_only_if_an_envoy_may_need_them(unmatched: str) -> None:
    text = FLEET.replace('{bind: "127.0.0.1:8080", max_body: 1MiB}', _TLS)
    text += f"proxies: {{edge: {{kind: nginx, version: '1.22'}}}}\ncontrol: {{xds: {{unmatched_nodes: {unmatched}}}}}\n"
    if unmatched == "nothing":
        assert built(text).version
    else:
        with pytest.raises(UnsoundError, match=r"LB922 .*certificates\[0\]"):
            built(text)


@pytest.fixture
def _restless() -> Iterator[None]:
    """Make threads switch as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.slow
@pytest.mark.usefixtures("_restless")
def test_resources_can_be_read_during_the_next_build() -> None:
    """Each snapshot is read for every zone, while later builds overwrite the weights in the same messages."""
    zones = [f"z{number}" for number in range(40)]
    listed = "".join(
        f"      - {{address: '10.1.0.{number + 1}:80', zone: {zone}}}\n" for number, zone in enumerate(zones)
    )
    fleet = load_text(
        f"{FLEET}  wide:\n    locality: {{prefer: zone}}\n    replicas:\n{listed}".replace("pool: near", "pool: wide")
    )
    wide = next(item for item in fleet.compiled.topology.pools if item.name == "wide")
    lives = [{"wide": {item.name: float(turn) for item in wide.replicas[::2]}} for turn in range(1, 25)]
    snapshots = [snapshot_of(fleet), *(snapshot_of(fleet, weights=live) for live in lives)]
    builder, editions = Builder(), list[CachedSnapshot]()
    proxies = [replace(ANY, zone=zone) for zone in zones]

    def build() -> None:
        for number, item in enumerate(snapshots):
            editions.append(builder.build(fleet, item, proxies if number % 2 else ()))

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
    fresh = {number: Builder().build(fleet, snapshots[number]) for number in {number for number, _ in seen}}
    for (number, zone), version in seen.items():
        assert fresh[number].resources(replace(ANY, zone=zone)).version == version


@pytest.mark.slow
def test_a_thousand_builds_do_not_leak_resources() -> None:
    fleet, builder = load_text(FLEET), Builder()
    builder.build(fleet, snapshot_of(fleet))
    gc.collect()
    before = sum(isinstance(item, Resource) for item in gc.get_objects())
    for turn in range(1000):
        builder.build(fleet, snapshot_of(fleet, weights={"near": {"a": turn + 1.0}, "v1": {"one": turn + 0.5}}))
    gc.collect()
    assert sum(isinstance(item, Resource) for item in gc.get_objects()) <= before


def test_a_missing_cluster_fails_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbctl.xds.build.proxy_resources._clusters", lambda *_: iter(()))
    with pytest.raises(UnsoundError, match="it refers to 'v1', which does not exist"):
        built(FLEET)


# ── Sharing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_proxies_with_equal_views_share_one_object() -> None:
    edition = built(FLEET)
    assert edition.resources(ANY) is edition.resources(replace(ANY, name="other", region="elsewhere", zone="elsewhere"))


def test_the_zone_changes_only_endpoints_of_zoned_pools() -> None:
    edition = built(FLEET)
    here, there = edition.resources(replace(ANY, zone="a")), edition.resources(replace(ANY, zone="b"))
    assert changed(here, there) == {"eds near"}
    assert [group[0][0] for group in members(here, "near")] == ["a", "b"]
    assert [group[0][0] for group in members(there, "near")] == ["b", "a"]


def test_equal_zone_names_in_other_regions_do_not_match() -> None:
    """This holds for a region of the fleet and for a region without replicas."""
    fleet = FLEET.replace("zone: a}", "zone: a, region: east}").replace("zone: b}", "zone: b, region: west}")
    edition = built(fleet)
    nowhere = edition.resources(ANY)
    assert edition.resources(replace(ANY, zone="a", region="east")).version != nowhere.version
    assert edition.resources(replace(ANY, zone="a", region="south")).version == nowhere.version
    assert edition.resources(replace(ANY, zone="a", region="n")) is edition.resources(
        replace(ANY, zone="a", region="south")
    )


def test_without_zoned_pools_all_zones_share_one_object() -> None:
    edition = built(FLEET.replace("    locality: {prefer: zone}\n", ""))
    assert edition.resources(replace(ANY, zone="a")) is edition.resources(replace(ANY, zone="b"))


def test_instances_change_only_limits() -> None:
    text = f"{FLEET}proxies: {{edge: {{kind: envoy, version: '1.40', instances: 2, nodes: ['*']}}}}\n"
    edition = built(text)
    edge = edition.snapshot.topology.proxies[0]
    differing = changed(edition.resources(edge), edition.resources(ANY))
    assert {item.split()[0] for item in differing} == {"cds", "eds"}


def test_the_version_depends_on_the_zones_of_replicas() -> None:
    assert built(FLEET).version != built(FLEET.replace("zone: b", "zone: c")).version


def test_routes_list_the_models_of_pools() -> None:
    listed = "  models: {match: {path: /v1/models}, respond: {models: true}}\npools:\n"
    edition = built(FLEET.replace("pools:\n", listed).replace("affinity: {cookie: lb}", "model: {name: listed-model}"))
    assert all(b"listed-model" in item.body for item in edition.resources(ANY).of(RDS).values())


# ── Incremental builds equal fresh builds ────────────────────────────────────────────────────────────────────────────

_CHANGES: Sequence[tuple[str, str]] = (
    ("weight: 3", "weight: 5"),
    ("10.0.0.1", "10.0.0.8"),
    ("10.0.1.1", "10.0.1.8"),
    ("95, v2: 5", "1, v2: 1"),
    ("sticky_split: {cookie: variant}", "sticky_split: {header: x-user}"),
    ("affinity: {cookie: lb}", "affinity: {cookie: lb, ttl: 5m}"),
    ("affinity: {cookie: lb}", "affinity: {header: mcp-session-id}"),
    ("affinity: {cookie: lb}", "model: {name: listed-model}"),
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


@pytest.mark.slow
@pytest.mark.parametrize("change", _CHANGES, ids=lambda item: item[1][:30])
def test_a_change_and_its_revert_equal_a_fresh_build(change: tuple[str, str]) -> None:
    kept = Builder()
    for changes in ((), (change,), ()):
        fleet = load_text(fleet_with(changes))
        snapshot = replace(snapshot_of(fleet), secrets=replace(fleet.secrets, files=tls()))
        assert_equal_resources(kept.build(fleet, snapshot), Builder().build(fleet, snapshot))


_STEPS = st.tuples(
    st.sets(st.sampled_from(_CHANGES), max_size=4), st.lists(st.sampled_from(_LIVE), min_size=1, max_size=3)
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.lists(_STEPS, max_size=3))
def test_an_incremental_build_equals_a_fresh_build(
    steps: list[tuple[set[tuple[str, str]], list[Mapping[str, Any]]]],
) -> None:
    kept = Builder()
    for changes, lives in steps:
        fleet = load_text(fleet_with(changes))
        for live in lives:
            snapshot = replace(snapshot_of(fleet, **live), secrets=replace(fleet.secrets, files=tls()))
            assert_equal_resources(kept.build(fleet, snapshot, _PROXIES[:2]), Builder().build(fleet, snapshot))


def assert_equal_resources(one: CachedSnapshot, other: CachedSnapshot) -> None:
    assert one.version == other.version
    for proxy in _PROXIES:
        mine, theirs = one.resources(proxy), other.resources(proxy)
        assert mine.version == theirs.version
        for kind in TYPES:
            assert {name: item.body for name, item in mine.of(kind).items()} == {
                name: item.body for name, item in theirs.of(kind).items()
            }


def fleet_with(changes: Iterable[tuple[str, str]]) -> str:
    text = FLEET
    for old, new in sorted(changes):
        text = text.replace(old, new)
    return text


def test_listeners_and_routes_need_only_a_part_of_the_view() -> None:
    """They are built from a part of the view, so that less has to be compared. The full view yields the same bytes."""
    from lbctl.ir.snapshot import view
    from lbctl.targets.envoy import ads, resources
    from lbctl.targets.envoy.cluster_names import plan

    for changes in [(), *((item,) for item in _CHANGES)]:
        fleet = load_text(fleet_with(changes))
        full = view(snapshot_of(fleet), ANY)
        wanted, routing_part = (
            plan(full),
            ads.routing(full, {name: ads.routed(pool) for name, pool in full.pools.items()}),
        )
        for item in full.listeners:
            assert ads.listener(full, item) == ads.listener(routing_part, item)
            assert resources.table(full, item, wanted) == resources.table(routing_part, item, wanted)


# ── NACK messages ────────────────────────────────────────────────────────────────────────────────────────────────────

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
        "VirtualHostValidationError.Routes[4]",
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
            "Envoy's error is cut off",
        ),
        (CDS, "v1|else|v2", "no such cluster", ("pools", "v1"), "no such cluster"),
        (EDS, "v1", "malformed IP address: 10.0.0.2.", ("pools", "v1"), "malformed"),
        (CDS, "unknown", "whatever", (), "whatever"),
    ],
)
def test_a_nack_message_points_to_the_yaml(
    kind: str, name: str, words: str, path: tuple[str | int, ...], message: str
) -> None:
    edition = built(FLEET)
    edition.resources(ANY)
    diagnostic = edition.nack_diagnostic(kind, name, words)
    assert (diagnostic.code, diagnostic.path) == ("LB921", path)
    assert message in diagnostic.message
    assert "sk-1" not in diagnostic.message
    assert (diagnostic.position is not None) == bool(path)


# ── A large fleet ────────────────────────────────────────────────────────────────────────────────────────────────────


def large_fleet(pools: int, replicas: int, network: int = 10) -> str:
    """Return the YAML of many pools with many replicas; `network` is the first byte of addresses of the middle pool."""
    names = [f"p{number:04}" for number in range(pools)]
    prefixes = [network if number == pools // 2 else 10 for number in range(pools)]
    return fleet_text(
        routes={name: {"match": {"path_prefix": f"/{name}/"}, "pool": name} for name in names},
        pools={
            name: pool(*(replica(f"r{host}", f"{first}.0.{number}.{host}:8000") for host in range(1, replicas + 1)))
            for number, (name, first) in enumerate(zip(names, prefixes, strict=True))
        },
    )


def test_one_changed_pool_of_many_changes_only_its_endpoints() -> None:
    builder, first, second = Builder(), load_text(large_fleet(100, 10)), load_text(large_fleet(100, 10, 11))
    before = builder.build(first, snapshot_of(first)).resources(ANY)
    after = builder.build(second, snapshot_of(second)).resources(ANY)
    assert changed(before, after) == {"eds p0050"}
