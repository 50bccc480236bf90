"""Gateways, VirtualServices and policies of Istio, their Secrets, and findings about everything that they lack."""

from __future__ import annotations

from typing import Any

import pytest

from lbctl.targets import target
from lbctl.targets.features import FEATURES
from lbctl.targets.target import Unsupported
from tests.support.fleet import marked
from tests.support.istio_fleet import PROXIES, fleet, loading, rendering

TWO_CERTIFICATES = """listeners:
  web:
    bind: "0.0.0.0:443"
    tls: {certificates: [{certificate: a.crt, key: a.key}, {certificate: b.crt, key: b.key, hosts: [b.example.com]}]}"""
TWO_POOLS = 'pools: {p: {replicas: [{address: "10.0.0.1:80"}]}, q: {replicas: [{address: "10.0.0.2:80"}]}}'


def only_rule(text: str) -> dict[str, Any]:
    (rule,) = rendering(text).rules()
    return rule


def route(body: str) -> str:
    return fleet(routes=f"routes: {{r: {{pool: p, {body}}}}}")


# ── Rules ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_prefix_consists_of_whole_segments() -> None:
    rule = only_rule(fleet())
    assert rule["match"] == [{"port": 80, "uri": {"exact": "/v1"}}, {"port": 80, "uri": {"prefix": "/v1/"}}]


def test_conditions_are_combined() -> None:
    match = "{path_regex: /v1/c.+, methods: [GET, POST], headers: {X-A: b}, model: [llama, qwen*]}"
    rules = rendering(fleet(routes=f"routes: {{r: {{match: {match}, pool: p}}}}")).rules()
    assert [item for rule in rules for item in rule["match"]] == [
        {
            "port": 80,
            "uri": {"regex": "/v1/c.+"},
            "method": {"exact": method},
            "headers": {"x-a": {"exact": "b"}, "x-model": model},
        }
        for method in ("GET", "POST")
        for model in ({"exact": "llama"}, {"prefix": "qwen"})
    ]


def test_rule_repeats_in_the_virtual_service_of_its_hosts() -> None:
    routes = """routes:
  any: {match: {path_prefix: /v1}, pool: p}
  own: {match: {hosts: [a.example.com], path_prefix: /v2}, pool: p}"""
    found = rendering(fleet(routes=routes))
    assert [rule["name"] for rule in found.rules()] == ["any"]
    assert {rule["name"] for rule in found.rules("a.example.com")} == {"own", "any"}


def test_rule_that_an_earlier_one_covers_is_left_out() -> None:
    routes = """routes:
  any: {match: {path_prefix: /v1}, pool: p}
  own: {match: {hosts: [a.example.com]}, pool: p}"""
    assert [rule["name"] for rule in rendering(fleet(routes=routes)).rules("a.example.com")] == ["own"]


def test_rewrite_needs_a_rule_for_the_path_itself() -> None:
    routes = "routes: {r: {match: {path_prefix: /v1}, pool: p, rewrite: {path_prefix: /api, host: in.example.com}}}"
    first, second = rendering(fleet(routes=routes)).rules()
    assert (first["match"][0]["uri"], first["rewrite"]["uri"]) == ({"exact": "/v1"}, "/api")
    assert (second["match"][0]["uri"], second["rewrite"]["uri"]) == ({"prefix": "/v1/"}, "/api/")
    assert first["rewrite"]["authority"] == "in.example.com"


@pytest.mark.parametrize(
    ("prefix", "new", "expected"),
    [("/v1", "/", ["/", "/"]), ("/", "/api", ["/api/"])],
)
def test_rewrite_keeps_one_slash(prefix: str, new: str, expected: list[str]) -> None:
    routes = f"routes: {{r: {{match: {{path_prefix: {prefix}}}, pool: p, rewrite: {{path_prefix: {new}}}}}}}"
    assert [rule["rewrite"]["uri"] for rule in rendering(fleet(routes=routes)).rules()] == expected


def test_redirect_keeps_the_method_of_unsafe_requests() -> None:
    first, second = rendering(fleet(routes="routes: {r: {respond: {redirect: https}}}")).rules()
    assert [item["method"] for item in first["match"]] == [{"exact": "GET"}, {"exact": "HEAD"}]
    assert first["redirect"] == {"scheme": "https", "redirectCode": 301}
    assert second["match"] == [{"port": 80}]
    assert second["redirect"] == {"scheme": "https", "redirectCode": 308}


def test_gateway_answers_itself() -> None:
    rule = only_rule(fleet(routes="routes: {r: {respond: {status: 429, body: 100% busy}}}"))
    assert rule["directResponse"] == {"status": 429, "body": {"string": "100% busy"}}
    assert rule["headers"] == {"response": {"set": {"content-type": "text/plain; charset=utf-8"}}}


def test_mirror_gets_its_share() -> None:
    mirror = "mirror: {pool: q, percent: 12.5%}"
    rule = only_rule(fleet(routes=f"routes: {{r: {{pool: p, {mirror}}}}}", pools=TWO_POOLS))
    (copy,) = rule["mirrors"]
    assert copy["percentage"] == {"value": 12.5}
    assert copy["destination"]["host"].startswith("edge-q.")


def test_route_that_istio_cannot_protect_is_closed() -> None:
    text = route("auth: {api_keys: {file: keys.yaml}}")
    found = rendering(text)
    (rule,) = found.rules()
    assert rule["directResponse"]["status"] == 503
    assert "route" not in rule
    assert [code for code in found.warnings if code.endswith("LB443")]
    assert not found.of("ServiceEntry")


def test_assumed_protection_keeps_the_route_open() -> None:
    text = route("auth: {api_keys: {file: keys.yaml}}")
    assumed = "namespace: ml, assume: [route.auth.api_keys]}"
    assert "route" in only_rule(text.replace("namespace: ml}", assumed))


# ── Headers, timeouts and retries ────────────────────────────────────────────────────────────────────────────────────


def test_header_values_are_in_envoys_format() -> None:
    headers = "headers: {request: {set: {x-a: '100% {client_ip} {route}'}, remove: [x-b]}, response: {set: {x-c: a}}}"
    assert only_rule(route(headers))["headers"] == {
        "request": {"set": {"x-a": "100%% %DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT% r"}, "remove": ["x-b"]},
        "response": {"set": {"x-c": "a"}},
    }


def test_header_with_an_unknown_variable_is_removed() -> None:
    routes = "routes:\n  r: {split: {p: 1, q: 1}, headers: {request: {set: {x-a: ▶'{pool}'}}}}"
    text, position = marked(fleet(routes=routes, pools=TWO_POOLS))
    found = rendering(text)
    assert found.rules()[0]["headers"] == {"request": {"remove": ["x-a"]}}
    assert f"{position} LB445" in found.warnings


def test_host_header_is_a_rewrite() -> None:
    rule = only_rule(route("headers: {request: {set: {host: in.example.com}}}"))
    assert rule["rewrite"] == {"authority": "in.example.com"}
    assert "headers" not in rule


def test_hosted_api_has_the_host_of_its_destination() -> None:
    pools = (
        'pools: {p: {replicas: [{address: "a.example.com:443"}], tls: {ca: system}, upstream: {host: a.example.com}}}'
    )
    rule = only_rule(fleet(routes="routes: {r: {pool: p, rewrite: {host: b.example.com}}}", pools=pools))
    assert "rewrite" not in rule
    assert rule["route"][0]["headers"]["request"]["set"][":authority"] == "a.example.com"


def test_unlimited_request_has_no_timeout() -> None:
    assert "timeout" not in only_rule(route("timeouts: {request: unlimited}"))
    assert only_rule(route("timeouts: {request: 100000s}"))["timeout"] == "27h46m40s"


@pytest.mark.parametrize(
    ("retry", "expected"),
    [
        ("{attempts: 0}", {"attempts": 0}),
        (
            "{attempts: 1, when: [connect_failure], idempotent: true}",
            {"attempts": 1, "retryOn": "connect-failure,reset", "backoff": "25ms"},
        ),
        (
            "{when: [replica_busy], busy_statuses: [429, 503], backoff: {base: 1s, max: 10s}}",
            {"attempts": 2, "retryOn": "retriable-status-codes,429,503", "backoff": "1s"},
        ),
    ],
)
def test_retries_are_always_written(retry: str, expected: dict[str, Any]) -> None:
    assert only_rule(route(f"retry: {retry}"))["retries"] == expected


def test_retry_of_a_hashed_request_leaves_the_replica() -> None:
    pools = 'pools: {p: {affinity: {cookie: c}, replicas: [{address: "10.0.0.1:80"}]}}'
    assert only_rule(fleet(pools=pools))["retries"]["retryIgnorePreviousHosts"] is True


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("LB158", "timeouts: {request: 2m, attempt: ▶1m}, retry: {attempts: 0}"),
        ("LB154", "retry: {when: [connect_failure, replica_busy], busy_statuses: ▶[503, 529]}"),
        ("LB440", "retry: {backoff: {base: 25ms, max: ▶1s}}"),
    ],
)
def test_retry_setting_that_istio_lacks_is_reported(code: str, text: str) -> None:
    text, position = marked(route(text))
    assert f"{position} {code}" in rendering(text).warnings


def test_redirect_on_another_port_is_reported() -> None:
    listeners = 'listeners: {web: {bind: "0.0.0.0:8080"}}'
    text, position = marked(fleet(listeners, "routes: {r: {respond: {redirect: ▶https}}}"))
    assert rendering(text).warnings == [f"{position} LB431"]


# ── Gateways and Secrets ─────────────────────────────────────────────────────────────────────────────────────────────


def test_host_with_its_own_certificate_has_its_own_gateway() -> None:
    routes = "routes: {r: {pool: p}, s: {match: {hosts: [b.example.com]}, pool: p}}"
    found = rendering(fleet(TWO_CERTIFICATES, routes))
    servers = [
        (server["hosts"], server["tls"]["credentialName"]) for item in found.of("Gateway") for server in item["servers"]
    ]
    assert servers == [(["ml/*"], "ml-edge-web-1"), (["ml/b.example.com"], "ml-edge-web-2")]
    bound = {item["hosts"][0]: item["gateways"] for item in found.of("VirtualService")}
    assert bound == {"*": ["edge"], "b.example.com": ["edge", "edge-web-1"]}
    assert found.commands == [
        f"kubectl -n istio-system create secret tls ml-edge-web-{index} --cert={name}.crt --key={name}.key"
        for index, name in enumerate("ab", start=1)
    ]


def test_client_certificates_are_verified_by_the_same_secret() -> None:
    tls = "tls: {certificates: [{certificate: a.crt, key: a.key}], client_ca: ca.crt, client_crl: ca.crl, %s}"
    listeners = f'listeners: {{web: {{bind: "0.0.0.0:443", {tls}}}}}'
    for setting, mode in (("client_certificate: required", "MUTUAL"), ("min_version: '1.3'", "OPTIONAL_MUTUAL")):
        found = rendering(fleet(listeners % setting).replace("ml}", "ml, pods_namespace: ml}"))
        (gateway,) = found.of("Gateway")
        assert gateway["servers"][0]["tls"]["mode"] == mode
        (command,) = found.commands
        files = {"tls.crt": "a.crt", "tls.key": "a.key", "ca.crt": "ca.crt", "ca.crl": "ca.crl"}
        options = " ".join(f"--from-file={entry}={file}" for entry, file in files.items())
        assert command == f"kubectl -n ml create secret generic edge-web {options}"


def test_secret_is_named_for_the_namespace_of_the_fleet() -> None:
    """Fleets of several namespaces may have entries with the same name, and share the pods of a gateway."""
    tls = "tls: {certificates: [{certificate: a.crt, key: a.key}]}"
    text = fleet(f'listeners: {{web: {{bind: "0.0.0.0:443", {tls}}}}}')
    names = {rendering(text.replace("namespace: ml", f"namespace: {name}")).commands[0].split()[6] for name in "ab"}
    assert names == {"a-edge-web", "b-edge-web"}


def test_existing_gateway_is_only_referred_to() -> None:
    found = rendering(fleet(TWO_CERTIFICATES, proxies=PROXIES.replace("ml}", "ml, gateway: infra/shared}")))
    assert not found.of("Gateway")
    assert found.of("VirtualService")[0]["gateways"] == ["infra/shared"]
    assert found.commands == []
    assert [code for code in found.warnings if code.endswith("LB174")]


def test_client_certificates_of_an_existing_gateway_close_routes() -> None:
    tls = "tls: {certificates: [{certificate: a.crt, key: a.key}], client_ca: ▶ca.crt}"
    listeners = f'listeners: {{web: {{bind: "0.0.0.0:443", {tls}}}}}'
    text, position = marked(fleet(listeners, proxies=PROXIES.replace("ml}", "ml, gateway: shared}")))
    found = rendering(text)
    assert found.warnings == [f"{position} LB403"]
    assert found.rules()[0]["directResponse"]["status"] == 503


def test_loopback_listener_is_closed() -> None:
    found = rendering(fleet('listeners: {web: {bind: "127.0.0.1:80"}}'))
    assert found.rules()[0]["directResponse"]["status"] == 503


# ── Access lists ─────────────────────────────────────────────────────────────────────────────────────────────────────


LABELS = PROXIES.replace("ml}", "ml, gateway_labels: {app: models}}")
"""The pods serve only this fleet."""
EXACT = "routes: {r: {match: {hosts: [a.example.com]}, pool: p}}"
LIMITED = 'listeners: {web: {bind: "0.0.0.0:80", deny_from: [10.0.0.0/8]}}'


def test_access_lists_are_a_policy_for_the_pods() -> None:
    listeners = 'listeners: {web: {bind: "0.0.0.0:80", deny_from: [10.1.0.0/16], allow_from: [10.0.0.0/8]}}'
    found = rendering(fleet(listeners, proxies=LABELS))
    (policy,) = [item for item in found.objects if item["kind"] == "AuthorizationPolicy"]
    assert policy["metadata"]["namespace"] == "istio-system"
    assert policy["spec"] == {
        "selector": {"matchLabels": {"app": "models"}},
        "action": "DENY",
        "rules": [
            {
                "from": [
                    {"source": {"remoteIpBlocks": ["10.1.0.0/16"]}},
                    {"source": {"notRemoteIpBlocks": ["10.0.0.0/8"]}},
                ]
            }
        ],
    }
    assert "route" in found.rules()[0]
    assert [code for code in found.warnings if code.endswith("LB174")]


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ("[a.example.com]", [{"operation": {"hosts": ["a.example.com", "a.example.com:*"]}}]),
        ("['*.example.com']", None),
    ],
)
def test_policy_applies_only_to_exact_hosts(hosts: str, expected: object) -> None:
    found = rendering(fleet(LIMITED, f"routes: {{r: {{match: {{hosts: {hosts}}}, pool: p}}}}", proxies=LABELS))
    assert found.of("AuthorizationPolicy")[0]["rules"][0].get("to") == expected


def test_policy_for_the_default_gateway_has_exact_hosts() -> None:
    """Other hosts of the default gateway may belong to other applications."""
    text, position = marked(fleet('listeners: {web: {bind: "0.0.0.0:80", deny_from: ▶[10.0.0.0/8]}}'))
    found = rendering(text)
    assert not found.of("AuthorizationPolicy")
    assert found.rules()[0]["directResponse"]["status"] == 503
    assert found.warnings == [f"{position} LB415"]
    assert rendering(fleet(LIMITED, EXACT)).of("AuthorizationPolicy")


def test_access_lists_with_trusted_load_balancers_are_closed() -> None:
    """Istio trusts a number of load balancers, so a client that bypasses them could send any address."""
    listeners = (
        'listeners: {web: {bind: "0.0.0.0:80", client_address: {trusted: [10.1.0.0/16]}, allow_from: ▶[10.0.0.0/8]}}'
    )
    text, position = marked(fleet(listeners, EXACT))
    found = rendering(text)
    assert not found.of("AuthorizationPolicy")
    assert found.rules("a.example.com")[0]["directResponse"]["status"] == 503
    assert f"{position} LB415" in found.warnings
    found = rendering(text.replace("namespace: ml}", "namespace: ml, assume: [listener.access]}"))
    assert not found.of("AuthorizationPolicy")
    assert "route" in found.rules("a.example.com")[0]


def test_policy_does_not_narrow_the_lists_of_a_route() -> None:
    routes = EXACT.replace("pool: p", "pool: p, allow_from: [0.0.0.0/0]")
    proxies = PROXIES.replace("namespace: ml}", "namespace: ml, assume: [route.access]}")
    found = rendering(fleet(LIMITED, routes, proxies=proxies))
    assert not found.of("AuthorizationPolicy")
    assert found.rules("a.example.com")[0]["directResponse"]["status"] == 503


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ('deny_from: ["2001:db8::/32", 192.0.2.1]', [{"remoteIpBlocks": ["192.0.2.1/32", "2001:db8::/32"]}]),
        ('deny_from: ["::fffe:0:0/95"]', [{"remoteIpBlocks": ["::fffe:0:0/96"]}]),
        ('allow_from: ["::ffff:10.0.0.0/104"]', [{"notRemoteIpBlocks": ["10.0.0.0/8"]}]),
    ],
)
def test_ipv6_networks_do_not_contain_ipv4(lists: str, expected: list[object]) -> None:
    found = rendering(fleet(f'listeners: {{web: {{bind: "0.0.0.0:80", {lists}}}}}', EXACT))
    (policy,) = found.of("AuthorizationPolicy")
    assert [item["source"] for item in policy["rules"][0]["from"]] == expected


def test_different_access_lists_close_their_listeners() -> None:
    listeners = 'listeners:\n  a: {bind: "0.0.0.0:80", deny_from: ▶[10.0.0.0/8]}\n  b: {bind: "0.0.0.0:81"}'
    text, position = marked(fleet(listeners))
    found = rendering(text)
    assert not found.of("AuthorizationPolicy")
    by_port = {rule["match"][0]["port"]: rule for item in found.of("VirtualService") for rule in item["http"]}
    assert by_port[80]["directResponse"]["status"] == 503
    assert "route" in by_port[81]
    assert found.warnings == [f"{position} LB415"]


def test_loopback_listener_needs_no_access_lists() -> None:
    listeners = LIMITED.replace("}}", '}, local: {bind: "127.0.0.1:81"}}')
    found = rendering(fleet(listeners, EXACT))
    assert found.of("AuthorizationPolicy")
    assert not [code for code in found.warnings if code.endswith("LB415")]


def test_redirects_need_no_access_lists() -> None:
    listeners = """listeners:
  a: {bind: "0.0.0.0:80"}
  b: {bind: "0.0.0.0:81", deny_from: [10.0.0.0/8]}"""
    routes = "routes: {r: {listeners: [b], pool: p}, s: {listeners: [a], respond: {redirect: https}}}"
    assert rendering(fleet(listeners, routes, proxies=LABELS)).of("AuthorizationPolicy")


PAIR = "certificate: a.crt, key: a.key"
SHARED_SECRET = fleet(
    f'listeners: {{web: {{bind: "0.0.0.0:443", tls: {{certificates: [{{{PAIR}}}], client_ca: c.crt}}}}}}',
    pools=f'pools: {{p: {{replicas: [{{address: "10.0.0.1:80"}}], tls: {{ca: ca.crt, {PAIR}}}}}}}',
    proxies=PROXIES.replace("ml}", "ml, secrets: {a.crt: ▶mine}}"),
)


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("LB170", fleet(proxies="proxies: {▶edge: {kind: istio}}")),
        ("LB170", fleet(proxies=PROXIES.replace("ml}", "ml, gateway_class: ▶istio}"))),
        ("LB170", fleet(proxies=PROXIES.replace("kubernetes:", "▶config: /etc/x.yaml, kubernetes:"))),
        (
            "LB015",
            fleet(proxies=PROXIES.replace("kubernetes: {", "▶kubernetes: {gateway: a, gateway_labels: {a: b}, ")),
        ),
        ("LB171", fleet(listeners='listeners: {web: {bind: ▶"unix:/run/x.sock"}}')),
        ("LB171", fleet(listeners='listeners: {a: {bind: "0.0.0.0:80"}, b: {bind: ▶"10.0.0.9:80"}}')),
        ("LB171", fleet(routes="routes: {r: {match: {hosts: ▶[a.example.com, 10.0.0.1]}, pool: p}}")),
        ("LB171", SHARED_SECRET),
        ("LB173", fleet(proxies=PROXIES.replace("ml}", "ml, assume: [▶listener.tls]}"))),
        ("LB173", fleet(proxies=PROXIES.replace("ml}", "ml, assume: [▶pool.tls]}"))),
    ],
)
def test_error_is_at_its_position(code: str, text: str) -> None:
    text, position = marked(text)
    assert loading(text) == (None, [f"{position} {code}"])


def test_gateway_of_the_gateway_api_has_no_labels() -> None:
    proxies = (
        "proxies: {edge: {kind: gateway-api, kubernetes: {namespace: ml, gateway_class: eg, gateway_labels: ▶{a: b}}}}"
    )
    text, position = marked(fleet(proxies=proxies))
    assert loading(text) == (None, [f"{position} LB170"])


def test_serve_drives_no_gateway_in_the_tables() -> None:
    supported = target("istio").capabilities
    assert supported.keys() == {feature.id for feature in FEATURES}
    unsupported = [item for item in supported.values() if isinstance(item, Unsupported)]
    assert not [item for item in unsupported if "drives the proxy" in item.instead or "ignores" in item.instead]
