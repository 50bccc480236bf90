"""Pools as destinations of Istio's routes: ServiceEntries, DestinationRules, Secrets and findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from lbctl.ir.proxies import KubernetesObjects, Proxy
from lbctl.ir.routes import Forward
from lbctl.ir.snapshot import Snapshot, View, view
from lbctl.targets.istio.destination_rule import traffic_policy
from lbctl.targets.istio.destinations import Destinations
from lbctl.targets.istio.failover import failover
from lbctl.targets.manifests.objects import Objects
from tests.support.fleet import compiled

Tree = dict[str, Any]
HOSTS = """replicas:
      - {name: h100-0, address: "10.0.0.1:8000", weight: 5}
      - {name: a100-0, address: "10.0.0.2:8000", weight: 2}
      - {name: l4-0, address: "10.0.0.3:8001", weight: 1, drain: true}
      - {name: l4-1, address: "10.0.0.4:8000", weight: 1}"""
ONE = 'replicas: [{address: "10.0.0.1:80"}]'
NAMED = 'replicas: [{address: "a.example.com:443"}]'
SERVICE = "discovery: {kubernetes: {namespace: ml, service: llama, port: http, service_port: 8000}}"
CERTIFICATE = "certificate: c.pem, key: k.pem"


def view_of(*pools: str, routes: str = "r: {pool: p0}", proxy: str = "edge", **kubernetes: Any) -> View:
    """Return the view of an entry for a fleet with the pools `p0`, `p1`, …, which have these bodies."""
    bodies = "\n".join(f"  p{index}:\n    {body}" for index, body in enumerate(pools))
    listeners = 'listeners: {web: {bind: "0.0.0.0:80"}}'
    topology = compiled(f"version: 1\n{listeners}\nroutes:\n  {routes}\npools:\n{bodies}\n").topology
    objects = KubernetesObjects("ml", **kubernetes)
    return view(Snapshot(topology), Proxy(proxy, "istio", (1, 27, 0), kubernetes=objects))


def destinations(seen: View) -> Destinations:
    assert seen.proxy.kubernetes is not None
    return Destinations(seen, seen.proxy.kubernetes)


def objects_of(seen: View) -> dict[tuple[str, str], Tree]:
    """Map (kind, name) to each object."""
    objects = Objects(seen.proxy.name, "ml")
    destinations(seen).add(objects)
    return {(str(tree["kind"]), name): tree for (_, _, name), tree in zip(objects.names(), objects.trees, strict=True)}


def entry_of(body: str) -> Tree:
    spec: Tree = objects_of(view_of(body))["ServiceEntry", "edge-p0"]["spec"]
    return spec


def policy_of(body: str, **arguments: Any) -> Tree:
    policy: Tree = objects_of(view_of(body, **arguments))["DestinationRule", "edge-p0"]["spec"]["trafficPolicy"]
    return policy


def weights(body: str) -> list[int]:
    return [endpoint["weight"] for endpoint in entry_of(body)["endpoints"]]


# ── ServiceEntries ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_static_replicas_are_a_service_entry() -> None:
    spec = entry_of(HOSTS)
    assert spec["hosts"] == ["edge-p0.ml.lbctl.internal"]
    assert (spec["resolution"], spec["location"]) == ("STATIC", "MESH_EXTERNAL")
    assert spec["ports"] == [{"name": "http", "number": 80, "protocol": "HTTP"}]
    assert spec["endpoints"][1] == {
        "address": "10.0.0.1",
        "ports": {"http": 8000},
        "weight": 100,
        "labels": {"app.kubernetes.io/name": "h100-0"},
    }


def test_drained_replica_is_left_out() -> None:
    assert [item["address"] for item in entry_of(HOSTS)["endpoints"]] == ["10.0.0.2", "10.0.0.1", "10.0.0.4"]


def test_weights_suit_the_algorithm() -> None:
    """Envoy's least request divides weights by the requests in flight, so the weights are squares."""
    assert weights(HOSTS) == [16, 100, 4]
    assert weights(f"balance: {{algorithm: round_robin}}\n    {HOSTS}") == [40, 100, 20]
    assert weights(f"affinity: {{cookie: sid}}\n    {HOSTS}") == [40, 100, 20]


def test_host_names_are_resolved_by_dns() -> None:
    spec = entry_of(NAMED)
    assert (spec["resolution"], spec["endpoints"][0]["address"]) == ("DNS", "a.example.com")


def test_discovered_name_is_one_endpoint_without_weight() -> None:
    spec = entry_of("discovery: {dns: {name: llama.example.com, port: 8000}}")
    assert spec["resolution"] == "DNS"
    assert spec["endpoints"] == [{"address": "llama.example.com", "ports": {"http": 8000}}]


def test_pool_without_ready_replicas_resolves_no_name() -> None:
    """Istio would resolve the host of a DNS entry without endpoints, which no name server knows."""
    spec = entry_of('replicas: [{address: "a.example.com:80", drain: true}]')
    assert spec["resolution"] == "STATIC"
    assert "endpoints" not in spec


def test_protocol_of_grpc_pool() -> None:
    assert entry_of(f"protocol: grpc\n    {ONE}")["ports"][0]["protocol"] == "GRPC"
    assert policy_of(f"protocol: grpc\n    {ONE}")["connectionPool"]["http"]["h2UpgradePolicy"] == "UPGRADE"
    assert policy_of(ONE)["connectionPool"]["http"]["h2UpgradePolicy"] == "DO_NOT_UPGRADE"


def test_regions_have_an_entry_without_the_replicas_elsewhere() -> None:
    body = 'replicas: [{address: "10.0.0.1:80", region: eu}, {address: "10.0.0.2:80", region: us}]'
    seen = view_of(body, routes="r: {pool: p0}\n  s: {match: {path_prefix: /eu}, pool: p0, regions: [eu]}")
    objects = objects_of(seen)
    found = destinations(seen).of(seen.routes["s"], {"p0": 1})
    assert found == [{"destination": {"host": "edge-p0-eu.ml.lbctl.internal", "port": {"number": 80}}}]
    assert [item["address"] for item in objects["ServiceEntry", "edge-p0-eu"]["spec"]["endpoints"]] == ["10.0.0.1"]
    assert len(objects["ServiceEntry", "edge-p0"]["spec"]["endpoints"]) == 2
    assert objects["DestinationRule", "edge-p0-eu"]["spec"]["host"] == "edge-p0-eu.ml.lbctl.internal"


def test_hosts_of_similar_names_differ() -> None:
    seen = view_of(ONE, proxy="edge.eu")
    other = view_of(ONE, proxy="edge-eu")
    hosts = [destinations(item).of(item.routes["r"], {"p0": 1})[0]["destination"] for item in (seen, other)]
    assert hosts[0] != hosts[1]
    assert objects_of(seen)  # the dot of the name is not a dot of the host
    assert str(hosts[0]).count(".") == str(hosts[1]).count(".")


# ── Failover ─────────────────────────────────────────────────────────────────────────────────────────────────────────

REGION, ZONE = "topology.kubernetes.io/region", "topology.kubernetes.io/zone"


def ranks(body: str, pod: Mapping[str, str]) -> dict[str, int]:
    """Map each address to its rank, as Istio computes it for a gateway's pod with these labels (`loadbalancer.go`)."""
    locality = policy_of(body)["loadBalancer"]["localityLbSetting"]
    listed = locality.get("failoverPriority", []) if locality["enabled"] else []
    found = {}
    for endpoint in entry_of(body)["endpoints"]:
        labels, rank = endpoint.get("labels", {}), 0
        for index, text in enumerate(listed):
            key, _, value = text.partition("=")
            if (value or pod.get(key, "")) != labels.get(key, ""):
                rank = len(listed) - index
                break
        found[endpoint["address"]] = rank
    order = sorted(set(found.values()))
    return {address: order.index(rank) for address, rank in found.items()}


def test_priorities_are_used_in_order() -> None:
    listed = ", ".join(f'{{address: "10.0.0.{index}:80", priority: {index // 2}}}' for index in range(2, 8))
    assert list(ranks(f"replicas: [{listed}]", {}).values()) == [0, 0, 1, 1, 2, 2]


PLACES = """replicas:
      - {address: "10.0.0.1:80", region: eu, zone: a}
      - {address: "10.0.0.2:80", region: eu, zone: b}
      - {address: "10.0.0.3:80", region: us, zone: a}"""


@pytest.mark.parametrize(
    ("locality", "expected"),
    [
        ("locality: {prefer: zone}", [0, 1, 2]),
        ("locality: {prefer: region}", [0, 0, 1]),
        ("model: {name: x}", [0, 0, 0]),
    ],
)
def test_near_replicas_precede(locality: str, expected: list[int]) -> None:
    assert list(ranks(f"{locality}\n    {PLACES}", {REGION: "eu", ZONE: "a"}).values()) == expected


def test_zone_alone_is_compared_without_regions() -> None:
    body = (
        'locality: {prefer: zone}\n    replicas: [{address: "10.0.0.1:80", zone: b}, {address: "10.0.0.2:80", zone: a}]'
    )
    assert list(ranks(body, {REGION: "eu", ZONE: "a"}).values()) == [1, 0]


def test_pods_of_a_service_have_places_by_their_nodes() -> None:
    body = f"locality: {{prefer: zone}}\n    {SERVICE}"
    assert policy_of(body)["loadBalancer"]["localityLbSetting"] == {"enabled": True, "failoverPriority": [REGION, ZONE]}


# ── DestinationRules ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_default_policy_is_written_in_full() -> None:
    assert policy_of(SERVICE) == {
        "loadBalancer": {
            "simple": "LEAST_REQUEST",
            "localityLbSetting": {"enabled": False},
            "warmup": {"duration": "60s", "minimumPercent": 10},
        },
        "connectionPool": {
            "tcp": {"connectTimeout": "2s", "maxConnections": 524288},
            "http": {
                "h2UpgradePolicy": "DO_NOT_UPGRADE",
                "http1MaxPendingRequests": 524288,
                "http2MaxRequests": 524288,
                "maxRetries": 524288,
                "idleTimeout": "4s",
            },
        },
        "outlierDetection": {
            "splitExternalLocalOriginErrors": True,
            "consecutive5xxErrors": 5,
            "consecutiveGatewayErrors": 0,
            "consecutiveLocalOriginFailures": 3,
            "interval": "10s",
            "baseEjectionTime": "30s",
            "maxEjectionPercent": 50,
            "minHealthPercent": 0,
        },
    }


def test_limits_of_the_pool_are_written() -> None:
    limits = "max_connections: 10, max_pending_requests: 20, max_requests: 30, max_retries: 4"
    body = f"circuit_breaker: {{{limits}}}\n    connections: {{idle: unlimited, max_requests: 7}}\n    {ONE}"
    policy = policy_of(f"timeouts: {{connect: 1500ms}}\n    {body}")["connectionPool"]
    assert policy["tcp"] == {"connectTimeout": "1500ms", "maxConnections": 10}
    assert policy["http"] == {
        "h2UpgradePolicy": "DO_NOT_UPGRADE",
        "http1MaxPendingRequests": 20,
        "http2MaxRequests": 30,
        "maxRetries": 4,
        "idleTimeout": "8760h",
        "maxRequestsPerConnection": 7,
    }


def test_pool_without_passive_checks_ejects_nothing() -> None:
    pool = replace(view_of(ONE).pools["p0"], passive=None)
    policy = traffic_policy(pool, "p0", failover(pool, pool.replicas), None, None)["outlierDetection"]
    assert policy == {"consecutive5xxErrors": 0, "consecutiveGatewayErrors": 0, "minHealthPercent": 0}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("balance: {algorithm: round_robin}", {"simple": "ROUND_ROBIN"}),
        ("balance: {algorithm: random}", {"simple": "RANDOM"}),
        ("balance: {algorithm: least_time}", {"simple": "LEAST_REQUEST"}),
        ("balance: {algorithm: hash, hash: {key: {header: x-user}}}", {"httpHeaderName": "x-user"}),
        ("balance: {algorithm: hash, hash: {key: {cookie: sid}}}", {"httpCookie": {"name": "sid"}}),
        ("balance: {algorithm: hash, hash: {key: {query: user}}}", {"httpQueryParameterName": "user"}),
        ("balance: {algorithm: hash, hash: {key: {source_ip: {}}}}", {"useSourceIp": True}),
        ("balance: {algorithm: hash, hash: {key: {json_body: $.user}}}", {"simple": "LEAST_REQUEST"}),
        ("affinity: {cookie: sid, ttl: 10m}", {"httpCookie": {"name": "sid", "path": "/", "ttl": "600s"}}),
    ],
)
def test_algorithms(body: str, expected: Tree) -> None:
    found = policy_of(f"{body}\n    {ONE}")["loadBalancer"]
    if "simple" in expected:
        assert found["simple"] == expected["simple"]
    else:
        assert found["consistentHash"] == {**expected, "maglev": {"tableSize": 65537}}
        assert "warmup" not in found


def test_random_with_weights_becomes_round_robin() -> None:
    assert policy_of(f"balance: {{algorithm: random}}\n    {HOSTS}")["loadBalancer"]["simple"] == "ROUND_ROBIN"


@pytest.mark.parametrize(("aggression", "expected"), [("0.5", None), ("1", None), ("2.5", 2.5)])
def test_aggression_of_slow_start(aggression: str, expected: float | None) -> None:
    body = f"slow_start: {{window: 30s, min_weight: 5%, aggression: {aggression}}}\n    {ONE}"
    found = policy_of(body)["loadBalancer"]["warmup"]
    assert (found["duration"], found["minimumPercent"], found.get("aggression")) == ("30s", 5, expected)


def test_smallest_retry_budget_of_a_pool_applies() -> None:
    routes = "r: {pool: p0, retry: {budget: 30%}}\n  s: {match: {path_prefix: /s}, pool: p0, retry: {budget: 12.5%}}"
    assert policy_of(ONE, routes=routes)["retryBudget"] == {"percent": 12.5, "minRetryConcurrency": 3}


def test_no_replica_is_ejected_with_a_maximum_of_zero() -> None:
    found = policy_of(f"health: {{passive: {{max_ejection: 0%}}}}\n    {ONE}")["outlierDetection"]
    assert found == {"consecutive5xxErrors": 0, "consecutiveGatewayErrors": 0, "minHealthPercent": 0}


# ── TLS ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f"tls: {{}}\n    {ONE}", {"mode": "SIMPLE", "insecureSkipVerify": True}),
        (f"tls: {{ca: ca.pem}}\n    {ONE}", {"mode": "SIMPLE", "credentialName": "ml-edge-p0-ca"}),
        (f"tls: {{ca: system}}\n    {NAMED}", {"mode": "SIMPLE", "subjectAltNames": ["a.example.com"]}),
        (
            f"tls: {{ca: ca.pem, server_name: b.example.com}}\n    {ONE}",
            {"mode": "SIMPLE", "credentialName": "ml-edge-p0-ca", "subjectAltNames": ["b.example.com"]},
        ),
        (
            f"tls: {{{CERTIFICATE}}}\n    {ONE}",
            {"mode": "MUTUAL", "credentialName": "ml-edge-p0-client", "insecureSkipVerify": True},
        ),
        (
            f"tls: {{ca: ca.pem, {CERTIFICATE}}}\n    {ONE}",
            {"mode": "MUTUAL", "credentialName": "ml-edge-p0-client"},
        ),
    ],
)
def test_tls_to_replicas(body: str, expected: Tree) -> None:
    """The name for SNI is always set. Without it, Istio compares certificates with the client's Host header."""
    found = policy_of(body)["tls"]
    name = expected.get("subjectAltNames", ["edge-p0.ml.lbctl.internal"])[0]
    assert found == {**expected, "sni": name}


@pytest.mark.parametrize(
    ("tls", "expected"),
    [
        ("{}", []),
        ("{ca: system}", []),
        ("{ca: ca.pem}", ["generic ml-edge-p0-ca --from-file=ca.crt=ca.pem"]),
        (f"{{{CERTIFICATE}}}", ["tls ml-edge-p0-client --cert=c.pem --key=k.pem"]),
        (
            f"{{ca: ca.pem, {CERTIFICATE}}}",
            ["generic ml-edge-p0-client --from-file=tls.crt=c.pem --from-file=tls.key=k.pem --from-file=ca.crt=ca.pem"],
        ),
    ],
)
def test_secrets_are_commands(tls: str, expected: list[str]) -> None:
    found = destinations(view_of(f"tls: {tls}\n    {ONE}", pods_namespace="gateways"))
    commands = [item.command(lambda path: path) for item in found.prerequisites()]
    assert commands == [f"kubectl -n gateways create secret {words}" for words in expected]
    assert [f"{kind} {namespace}" for kind, namespace, _ in found.needed()] == ["Secret gateways"] * len(expected)


def test_named_secret_is_not_created() -> None:
    seen = view_of(f"tls: {{ca: ca.pem, {CERTIFICATE}}}\n    {ONE}", secrets=(("c.pem", "mine"),))
    assert objects_of(seen)["DestinationRule", "edge-p0"]["spec"]["trafficPolicy"]["tls"]["credentialName"] == "mine"
    assert not list(destinations(seen).prerequisites())
    assert not list(destinations(seen).needed())


# ── Routes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_split_has_the_shares_as_weights() -> None:
    seen = view_of(SERVICE, ONE, routes="r: {split: {p0: 90, p1: 10}}")
    assert destinations(seen).of(seen.routes["r"], {"p0": 90, "p1": 10}) == [
        {"destination": {"host": "llama.ml.svc.cluster.local", "port": {"number": 8000}}, "weight": 90},
        {"destination": {"host": "edge-p1.ml.lbctl.internal", "port": {"number": 80}}, "weight": 10},
    ]


def test_mirror_is_a_destination() -> None:
    seen = view_of(ONE, SERVICE, routes="r: {pool: p0, mirror: {pool: p1}}")
    route = seen.routes["r"]
    assert isinstance(route.action, Forward)
    assert destinations(seen).mirror(route, "p1") == {"host": "llama.ml.svc.cluster.local", "port": {"number": 8000}}
    assert ("DestinationRule", "edge-p1") in objects_of(seen)


def test_hosted_api_gets_its_host_and_no_credentials() -> None:
    hosted = f'upstream: {{host: a.example.com, headers: {{x-org: "50%"}}}}\n    {NAMED}'
    seen = view_of(hosted, ONE, routes="r: {split: {p0: 1, p1: 1}, rewrite: {host: b.example.com}}")
    first, second = destinations(seen).of(seen.routes["r"], {"p0": 1, "p1": 1})
    change = first["headers"]["request"]  # type: ignore[index]
    assert change["set"] == {":authority": "a.example.com", "x-org": "50%%"}
    assert {"authorization", "cookie", "x-forwarded-for"} <= set(change["remove"])
    assert second["headers"] == {"request": {"set": {":authority": "b.example.com"}}}


def test_route_that_rewrites_the_host_needs_no_headers() -> None:
    seen = view_of(ONE, routes="r: {pool: p0, rewrite: {host: b.example.com}}")
    assert "headers" not in destinations(seen).of(seen.routes["r"], {"p0": 1})[0]


def test_rule_of_a_foreign_service_is_in_its_namespace() -> None:
    """Istio looks up the rules of a Service in the namespace of the client and of the Service."""
    objects = objects_of(view_of(SERVICE.replace("namespace: ml", "namespace: code")))
    assert objects["DestinationRule", "ml-edge-p0"]["metadata"]["namespace"] == "code"
    assert objects["DestinationRule", "ml-edge-p0"]["spec"]["host"] == "llama.code.svc.cluster.local"


def test_service_of_two_pools_has_one_rule() -> None:
    objects = objects_of(view_of(SERVICE, SERVICE, routes="r: {split: {p0: 1, p1: 1}}"))
    assert list(objects) == [("DestinationRule", "edge-p0")]


# ── Findings ─────────────────────────────────────────────────────────────────────────────────────────────────────────

UNEVEN = 'replicas: [{address: "10.0.0.1:80", weight: 1}, {address: "10.0.0.2:80", weight: 2}]'
RANKED = 'replicas: [{address: "10.0.0.1:80", zone: a}, {address: "10.0.0.2:80", priority: 1}]'
BUSY = "r: {pool: p0, retry: {when: [replica_busy]}}"
HASH = "balance: {algorithm: hash, hash: {key: {header: %s}}}"


@pytest.mark.parametrize(
    ("finding", "body"),
    [
        ("error LB171 pools.p0.replicas.127.0.0.1-80", ONE.replace("10.0.0.1", "127.0.0.1")),
        ("error LB171 pools.p0.replicas.x.sock", 'replicas: [{name: x.sock, address: "unix:/run/x.sock"}]'),
        ("error LB171 pools.p0.discovery.kubernetes.port", SERVICE.replace(", service_port: 8000", "")),
        ("warning LB447 pools.p0.discovery.kubernetes.port", SERVICE.replace("http, service_port: ", "")),
        (
            "warning LB174 pools.p0.discovery.kubernetes.namespace",
            SERVICE.replace("namespace: ml", "namespace: code"),
        ),
        ("warning LB458 pools.p0.balance", f"balance: {{algorithm: random}}\n    {UNEVEN}"),
        ("warning LB474 pools.p0.slow_start.aggression", f"slow_start: {{aggression: 0.5}}\n    {ONE}"),
        (
            "warning LB487 pools.p0.discovery.dns.resolvers",
            'discovery: {dns: {name: a.example.com, port: 80, resolvers: ["10.0.0.53:53"]}}',
        ),
        (
            "warning LB467 pools.p0.locality",
            "locality: {prefer: zone}\n    discovery: {dns: {name: a.example.com, port: 80}}",
        ),
        ("warning LB467 pools.p0.locality", f"locality: {{prefer: zone}}\n    {RANKED}"),
        ("warning LB467 pools.p0.locality.spill_below", f"locality: {{spill_below: 50%}}\n    {PLACES}"),
        ("", f"locality: {{prefer: zone}}\n    {PLACES}"),
        ("", HOSTS),
    ],
)
def test_findings_about_a_pool(finding: str, body: str) -> None:
    found = destinations(view_of(body)).diagnostics()
    texts = [f"{item.severity} {item.code} {'.'.join(map(str, item.path))}" for item in found]
    assert texts == ([finding] if finding else [])


def test_busy_statuses_count_as_faults() -> None:
    found = list(destinations(view_of(ONE, routes=BUSY)).diagnostics())
    assert [item.code for item in found] == ["LB479"]
    assert "503" in found[0].message
    assert not list(destinations(view_of(f"protocol: grpc\n    {ONE}", routes=BUSY)).diagnostics())


def test_split_with_different_hash_keys() -> None:
    bodies = [f"{HASH % key}\n    {ONE}" for key in ("x-user", "x-user", "x-team")]
    same = view_of(*bodies[:2], routes="r: {split: {p0: 1, p1: 1}}")
    different = view_of(*bodies[1:], routes="r: {split: {p0: 1, p1: 1}}")
    assert not list(destinations(same).diagnostics())
    assert [item.code for item in destinations(different).diagnostics()] == ["LB459"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("model: {name: m}", "both pools have the same replicas and policies"),
        ("slow_start: {window: 5s}", "pool p0 determines load balancing"),
        (
            "timeouts: {connect: 9s}\n    health: {passive: {consecutive_5xx: 9}}",
            "pool p0 determines connections, passive checks",
        ),
    ],
)
def test_service_of_two_pools_is_a_finding(settings: str, expected: str) -> None:
    seen = view_of(SERVICE, f"{settings}\n    {SERVICE}", routes="r: {split: {p0: 1, p1: 1}}")
    (found,) = destinations(seen).diagnostics()
    assert (found.severity, found.path) == ("warning", ("pools", "p1", "discovery", "kubernetes", "service"))
    assert found.message.endswith(expected)


def test_smallest_retry_budget_of_a_service_applies() -> None:
    routes = "r: {pool: p0, retry: {budget: 20%}}\n  s: {match: {path: /}, pool: p1, retry: {budget: 5%}}"
    rule = objects_of(view_of(SERVICE, SERVICE, routes=routes))["DestinationRule", "edge-p0"]
    assert rule["spec"]["trafficPolicy"]["retryBudget"]["percent"] == 5
