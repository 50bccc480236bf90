"""BackendTrafficPolicies: settings of pools, retries and limits, and the findings about those that do not apply."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.targets.envoy_gateway.rendering import LISTENERS, PROXIES, ROUTES, fleet, named, rendering

REPLICA = 'replicas: [{address: "10.0.0.1:80"}]'
LIMITED = 'listeners: {web: {bind: "0.0.0.0:80", max_body: 4MiB}}'
ROUTE = "routes: {r: {match: {path_prefix: /v1}, pool: p%s}}"
OLD = PROXIES.replace("1.9", "1.7")


def policy(
    pool: str = "", route: str = "", *, listeners: str = LISTENERS, proxies: str = PROXIES
) -> tuple[dict[str, Any], list[str]]:
    """Return the only policy of a route to one pool, and the codes of the warnings."""
    pools = f"pools: {{p: {{{REPLICA}{pool}}}}}"
    objects, codes = rendering(fleet(listeners, ROUTE % route, pools, proxies))
    (found,) = named(objects, "BackendTrafficPolicy").values()
    return found["spec"], codes


def test_policy_is_attached_to_each_rule_of_the_route() -> None:
    routes = "routes: {r: {match: {path_prefix: /v1, hosts: [a.example, b.example]}, pool: p}}"
    objects, _ = rendering(fleet(routes=routes))
    (found,) = named(objects, "BackendTrafficPolicy").values()
    targets = [(item["name"], item["sectionName"]) for item in found["spec"]["targetRefs"]]
    assert targets == [("edge-web-a.example", "r"), ("edge-web-b.example", "r")]


def test_pin_has_a_policy_for_its_pool() -> None:
    routes = "routes: {r: {pool: p, pin: [{header: x-v, equals: '2', pool: q}]}}"
    pools = f"pools: {{p: {{{REPLICA}}}, q: {{{REPLICA}, timeouts: {{connect: 9s}}}}}}"
    objects, codes = rendering(fleet(routes=routes, pools=pools))
    specs = {name: item["spec"] for name, item in named(objects, "BackendTrafficPolicy").items()}
    connect = {name: spec["timeout"]["tcp"]["connectTimeout"] for name, spec in specs.items()}
    assert connect == {"edge-web-r": "2s", "edge-web-r-pin-1": "9s"}
    assert codes == []


@pytest.mark.parametrize(
    ("balance", "expected"),
    [
        ("{algorithm: round_robin}", {"type": "RoundRobin"}),
        ("{algorithm: random}", {"type": "Random"}),
        ("{algorithm: least_time}", {"type": "LeastRequest"}),
        (
            "{algorithm: hash, hash: {key: {header: x-user}}}",
            {
                "type": "ConsistentHash",
                "consistentHash": {"type": "Headers", "headers": [{"name": "x-user"}], "tableSize": 65537},
            },
        ),
        ("{algorithm: hash, hash: {key: {json_body: $.user}}}", {"type": "LeastRequest"}),
    ],
)
def test_algorithm(balance: str, expected: dict[str, Any]) -> None:
    spec, _ = policy(f", balance: {balance}")
    balancer = {key: value for key, value in spec["loadBalancer"].items() if key != "slowStart"}
    assert balancer == expected


def test_affinity_hashes_a_cookie_with_a_lifetime() -> None:
    spec, _ = policy(", affinity: {cookie: lb, ttl: 1h}")
    hashed = spec["loadBalancer"]["consistentHash"]
    assert hashed == {"type": "Cookie", "cookie": {"name": "lb", "ttl": "3600s"}, "tableSize": 65537}


def test_picked_pool_reads_the_destination_header() -> None:
    spec, _ = policy(", balance: {algorithm: pick, pick: {otherwise: round_robin}}")
    balancer = spec["loadBalancer"]
    assert balancer["endpointOverride"] == {"extractFrom": [{"header": "x-gateway-destination-endpoint"}]}
    assert balancer["type"] == "RoundRobin"


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [("least_request", {"window": "30s"}), ("random", None), ("hash, hash: {key: {source_ip: {}}}", None)],
)
def test_slow_start_only_where_the_api_allows_it(algorithm: str, expected: object) -> None:
    spec, _ = policy(f", balance: {{algorithm: {algorithm}}}, slow_start: {{window: 30s}}")
    assert spec["loadBalancer"].get("slowStart") == expected


def test_timeouts() -> None:
    route = ", timeouts: {request: 120s, idle: 10m}"
    spec, _ = policy(", timeouts: {connect: 1s}", route)
    http = {"requestTimeout": "120s", "streamIdleTimeout": "600s", "connectionIdleTimeout": "4s"}
    assert spec["timeout"] == {"tcp": {"connectTimeout": "1s"}, "http": http}


def test_oldest_version_has_no_idle_timeout_and_budget() -> None:
    spec, _ = policy(route=", retry: {budget: 20%}", proxies=OLD)
    assert "streamIdleTimeout" not in spec["timeout"]["http"]
    assert "retryBudget" not in spec["circuitBreaker"]
    spec, _ = policy(route=", retry: {budget: 20%}")
    budget = {"percent": {"numerator": 1, "denominator": 5}, "minRetryConcurrency": 3}
    assert spec["circuitBreaker"]["retryBudget"] == budget


def test_limits_are_divided_among_instances() -> None:
    proxies = PROXIES.replace("kubernetes:", "instances: 4, kubernetes:")
    limits = ", circuit_breaker: {max_connections: 100, max_requests: 50, max_pending_requests: 9, max_retries: 4}"
    spec, _ = policy(limits, proxies=proxies)
    assert spec["circuitBreaker"] == {
        "maxConnections": 25,
        "maxPendingRequests": 3,
        "maxParallelRequests": 13,
        "maxParallelRetries": 1,
    }


def test_retries_name_every_condition() -> None:
    route = (
        ", retry: {attempts: 3, when: [connect_failure, replica_busy], idempotent: true}, "
        "timeouts: {request: 60s, attempt: 20s}"
    )
    spec, _ = policy(route=route)
    retry = spec["retry"]
    assert retry["numRetries"] == 3
    assert retry["retryOn"]["triggers"] == ["connect-failure", "retriable-status-codes", "reset"]
    assert 503 in retry["retryOn"]["httpStatusCodes"]
    assert retry["perRetry"]["timeout"] == "20s"


def test_grpc_replica_declines_by_its_own_status() -> None:
    spec, _ = policy(", protocol: grpc", ", retry: {when: [connect_failure, replica_busy]}")
    assert spec["retry"]["retryOn"] == {"triggers": ["connect-failure", "unavailable"], "httpStatusCodes": []}


def test_no_retries_without_attempts() -> None:
    spec, _ = policy(route=", retry: {attempts: 0}")
    assert "retry" not in spec


def test_unhealthy_replicas_get_no_requests_in_panic() -> None:
    spec, _ = policy()
    health = spec["healthCheck"]
    assert health["panicThreshold"] == 0
    assert health["passive"]["maxEjectionPercent"] == 50
    assert health["passive"]["splitExternalLocalOriginErrors"] is True


def test_active_check() -> None:
    health = ", health: {active: {http: {path: /ready, body_contains: ok}, interval: 5s, port: 9000}}"
    spec, codes = policy(health)
    active = spec["healthCheck"]["active"]
    assert (active["type"], active["interval"], active["overrides"]) == ("HTTP", "5s", {"port": 9000})
    assert active["http"]["path"] == "/ready"
    assert active["http"]["expectedResponse"] == {"type": "Text", "text": "ok"}
    assert codes == []


def test_check_on_another_port_needs_1_8() -> None:
    health = ", health: {active: {http: {path: /ready}, port: 9000}}"
    spec, codes = policy(health, proxies=OLD)
    assert "active" not in spec["healthCheck"]
    assert codes == ["LB475"]


@pytest.mark.parametrize(
    ("pool", "limit"),
    [("", 8), (", tls: {}", 8), (", protocol: http2", None), (", protocol: http2, tls: {}", None)],
)
def test_limit_of_a_replica_needs_http1(pool: str, limit: int | None) -> None:
    spec, codes = policy(f", circuit_breaker: {{per_replica: {{max_requests: 8}}}}{pool}")
    assert spec["circuitBreaker"].get("perEndpoint") == ({"maxConnections": limit} if limit else None)
    assert codes == ([] if limit else ["LB473"])


def test_body_limit_exempts_streams() -> None:
    assert policy(listeners=LIMITED)[0]["requestBuffer"] == {"limit": "4Mi"}
    assert "requestBuffer" not in policy(route=", websocket: true", listeners=LIMITED)[0]
    assert "requestBuffer" not in policy(", protocol: grpc", listeners=LIMITED)[0]


def test_rate_of_all_requests() -> None:
    spec, codes = policy(route=", rate_limit: [{by: all, rate: 600/m}]")
    limit = {"requests": 600, "unit": "Minute"}
    assert spec["rateLimit"] == {"type": "Local", "local": {"rules": [{"limit": limit}]}}
    assert codes == []


def test_rate_is_divided_among_the_matches_of_a_route() -> None:
    routes = (
        "routes: {r: {match: {path_prefix: /v1, hosts: [a.example, b.example], methods: [GET, POST]}, pool: p, "
        "rate_limit: [{by: all, rate: 600/m}]}}"
    )
    objects, codes = rendering(fleet(routes=routes))
    (found,) = named(objects, "BackendTrafficPolicy").values()
    assert found["spec"]["rateLimit"]["local"]["rules"] == [{"limit": {"requests": 150, "unit": "Minute"}}]
    assert codes == ["LB441"]


def test_rate_is_divided_among_the_listeners_of_a_gateway() -> None:
    certificates = "[{certificate: a.crt, key: a.key}, {certificate: b.crt, key: b.key, hosts: [b.example, c.example]}]"
    listeners = f'listeners: {{web: {{bind: "0.0.0.0:443", tls: {{certificates: {certificates}}}}}}}'
    spec, codes = policy(route=", rate_limit: [{by: all, rate: 600/m}]", listeners=listeners)
    assert spec["rateLimit"]["local"]["rules"] == [{"limit": {"requests": 200, "unit": "Minute"}}]
    assert codes == ["LB441"]


@pytest.mark.parametrize("limits", ["[{by: client_ip, rate: 10/s}]", "[{by: all, rate: 10/s}, {by: all, rate: 100/m}]"])
def test_other_rates_close_the_route(limits: str) -> None:
    objects, codes = rendering(fleet(routes=ROUTE % f", rate_limit: {limits}"))
    assert codes == ["LB441"]
    assert named(objects, "BackendTrafficPolicy") == {}


def test_split_reports_settings_that_do_not_apply() -> None:
    pools = (
        f"pools: {{p: {{{REPLICA}, circuit_breaker: {{max_requests: 10}}}}, "
        f"q: {{{REPLICA}, balance: {{algorithm: random}}, circuit_breaker: {{max_requests: 9}}}}}}"
    )
    objects, codes = rendering(fleet(routes="routes: {r: {split: {p: 90, q: 10}}}", pools=pools))
    (found,) = named(objects, "BackendTrafficPolicy").values()
    assert found["spec"]["loadBalancer"]["type"] == "LeastRequest"
    assert found["spec"]["circuitBreaker"]["maxParallelRequests"] == 9
    assert codes == ["LB423"]


def test_nothing_bypasses_the_policies() -> None:
    objects, _ = rendering(fleet(routes=ROUTES))
    assert not {"EnvoyFilter", "EnvoyPatchPolicy"} & {item["kind"] for item in objects}
