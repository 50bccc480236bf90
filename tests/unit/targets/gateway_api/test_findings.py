"""Errors and warnings about settings that the Gateway API cannot express, with their positions."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
import yaml

from lbctl.base.diagnostics import Diagnostics
from lbctl.cli.proxy import chosen
from lbctl.ir.snapshot import Snapshot
from lbctl.lint.pages import pages
from lbctl.targets import target
from lbctl.targets.load import Loaded, load
from lbctl.targets.prepare import placed, prepare
from lbctl.targets.target import Unsupported
from tests.support.fleet import marked
from tests.support.kubernetes_objects import problems
from tests.support.paths import FIXTURES

LISTENERS = 'listeners: {web: {bind: "0.0.0.0:80"}}'
SECURE = """listeners:
  web:
    bind: "0.0.0.0:443"
    tls: {certificates: [{certificate: a.crt, key: a.key}, {certificate: b.crt, key: b.key, hosts: [b.example.com]}]}"""
ROUTES = "routes: {r: {match: {path_prefix: /v1}, pool: p}}"
POOLS = 'pools: {p: {replicas: [{address: "10.0.0.1:80"}]}}'
PICK, SERVICE = "balance: {algorithm: pick}", "namespace: ml, service: s"
PODS = f"{SERVICE}, selector: {{app: s}}"
PROXIES = "proxies: {edge: {kind: gateway-api, kubernetes: {namespace: ml, gateway_class: eg}}}"


def fleet(listeners: str = LISTENERS, routes: str = ROUTES, pools: str = POOLS, proxies: str = PROXIES) -> str:
    return "\n".join(("version: 1", listeners, routes, pools, proxies, ""))


def loading(text: str) -> tuple[Loaded | None, list[str]]:
    """Return the loaded fleet, and `line:column code` of its errors."""
    diagnostics = Diagnostics()
    loaded = load(["-"], diagnostics, stdin=io.BytesIO(text.encode()))
    errors = [item for item in diagnostics if item.severity == "error"]
    assert all(item.hint for item in errors if item.code != "LB170"), errors
    return loaded, [f"{item.position.line}:{item.position.column} {item.code}" for item in errors if item.position]


def rendering(text: str, entry: str | None = None) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the objects of an entry, by default the fleet's only one, and `code` of each warning."""
    loaded, errors = loading(text)
    assert loaded is not None, errors
    topology = loaded.compiled.topology
    snapshot = Snapshot(topology, secrets=loaded.secrets)
    prepared = prepare(target("gateway-api"), loaded.compiled, chosen(topology, "gateway-api", entry), snapshot)
    bundle = prepared.target.render(prepared.view)
    codes = [item.code for item in (*prepared.losses, *placed(bundle, loaded.compiled))]
    return list(yaml.safe_load_all(bundle.main.text)), codes


def backends(objects: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Map the name of each rule to the names of its backends."""
    return {
        rule["name"]: [backend["name"] for backend in rule.get("backendRefs", ())]
        for item in objects
        if item["kind"] == "HTTPRoute"
        for rule in item["spec"]["rules"]
    }


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("LB170", fleet(proxies="proxies: {▶edge: {kind: gateway-api}}")),
        ("LB170", fleet(proxies="proxies: {edge: {kind: nginx, ▶kubernetes: {namespace: ml}}}")),
        ("LB170", fleet(proxies="proxies: {edge: {kind: gateway-api, kubernetes: ▶{namespace: ml}}}")),
        ("LB170", fleet(proxies=PROXIES.replace("kubernetes:", "▶config: /etc/x.yaml, kubernetes:"))),
        ("LB170", fleet(proxies=PROXIES.replace("kubernetes:", "▶form: fragment, kubernetes:"))),
        ("LB171", fleet(pools='pools: {p: {replicas: [▶{address: "127.0.0.1:80"}]}}')),
        ("LB171", fleet(pools='pools: {p: {replicas: [▶{address: "unix:/run/x.sock"}]}}')),
        ("LB171", fleet(listeners='listeners: {web: {bind: ▶"unix:/run/x.sock"}}')),
        ("LB171", fleet(listeners='listeners: {a: {bind: "0.0.0.0:80"}, b: {bind: ▶"10.0.0.9:80"}}')),
        ("LB171", fleet(routes="routes: {r: {match: {methods: ▶[PROPFIND]}, pool: p}}")),
        ("LB171", fleet(routes="routes: {r: {match: {hosts: ▶[a.example.com, 10.0.0.1]}, pool: p}}")),
        ("LB171", fleet(listeners=SECURE.replace("[b", "▶[10.0.0.1, b"))),
        ("LB171", fleet(pools="pools: {p: {discovery: {kubernetes: {namespace: ml, service: s, port: ▶http}}}}")),
        ("LB171", fleet(pools="pools: {p: {discovery: {kubernetes: ▶{namespace: ml, service: s}}}}")),
        (
            "LB171",
            fleet(
                pools="pools: {p: {tls: {ca: ca.pem, server_name: a.example.com}, "
                "discovery: {kubernetes: {namespace: ▶other, service: s, port: 80}}}}"
            ),
        ),
        ("LB171", fleet(pools=f"pools: {{p: {{{PICK}, discovery: {{kubernetes: ▶{{{SERVICE}, port: 80}}}}}}}}")),
        ("LB171", fleet(pools=f"pools: {{p: {{{PICK}, discovery: {{kubernetes: {{{PODS}, port: ▶http}}}}}}}}")),
        (
            "LB171",
            fleet(
                pools=f"pools: {{p: {{{PICK}, discovery: {{kubernetes: {{{PODS}, port: 80}}}}}}}}".replace(
                    "namespace: ml", "namespace: ▶other"
                )
            ),
        ),
        (
            "LB171",
            fleet(
                pools="pools: {p: {tls: {ca: ca.pem, server_name: a.example.com}, "
                "discovery: {kubernetes: {namespace: ▶other, inference_pool: llama}}}}"
            ),
        ),
        (
            "LB172",
            fleet(
                routes="routes: {r: {split: ▶{p: 1, q: 1}}}",
                pools="pools: {p: {discovery: {kubernetes: {namespace: ml, inference_pool: llama}}}, "
                'q: {replicas: [{address: "10.0.0.1:80"}]}}',
            ),
        ),
        (
            "LB172",
            fleet(
                routes="routes: {r: {split: ▶{p: 1, q: 1}}}",
                pools=f"pools: {{p: {{{PICK}, discovery: {{kubernetes: {{{PODS}, port: 80}}}}}}, "
                'q: {replicas: [{address: "10.0.0.1:80"}]}}',
            ),
        ),
        (
            "LB172",
            fleet(
                routes="routes:\n  a: {match: ▶{hosts: [a.example.com], path_regex: /a.}, pool: p}\n"
                "  b: {match: {path_regex: /.b, methods: [GET]}, pool: p}"
            ),
        ),
        (
            "LB172",
            fleet(
                routes="routes: {r: {match: ▶{headers: {" + ", ".join(f"h{n}: x" for n in range(17)) + "}}, pool: p}}"
            ),
        ),
        ("LB173", fleet(proxies=PROXIES.replace("eg}", "eg, assume: [▶route.auth.api_kyes]}"))),
        ("LB173", fleet(proxies=PROXIES.replace("eg}", "eg, assume: [▶route.split]}"))),
        ("LB173", fleet(proxies=PROXIES.replace("eg}", "eg, assume: [▶route.regions]}"))),
    ],
)
def test_error_is_at_its_position(code: str, text: str) -> None:
    text, position = marked(text)
    assert loading(text) == (None, [f"{position} {code}"])


def test_hint_names_only_features_that_can_be_assumed() -> None:
    diagnostics = Diagnostics()
    load(
        ["-"],
        diagnostics,
        stdin=io.BytesIO(fleet(proxies=PROXIES.replace("eg}", "eg, assume: [route.retry]}")).encode()),
    )
    (error,) = [item for item in diagnostics if item.severity == "error"]
    assert error.hint.startswith("one of listener.client_certificate, listener.max_connections")
    assert "route.regions" not in error.hint


def test_serve_drives_no_gateway_in_the_tables() -> None:
    supported = target("gateway-api").capabilities.values()
    unsupported = [item for item in supported if isinstance(item, Unsupported)]
    assert not [item for item in unsupported if "drives the proxy" in item.instead or "ignores" in item.instead]


def test_page_of_a_code_covers_the_gateway() -> None:
    for code in ("LB401", "LB450", "LB492"):
        assert re.search(r"^- (.*, )?gateway-api(, .*)?: partially supported\.", pages()[code].advice, re.MULTILINE)


def test_numeric_port_of_a_service_is_used() -> None:
    objects, codes = rendering(
        fleet(pools="pools: {p: {discovery: {kubernetes: {namespace: ml, service: s, port: 80}}}}")
    )
    assert codes == ["LB447"]
    assert [item["kind"] for item in objects] == ["Gateway", "HTTPRoute"]
    assert objects[-1]["spec"]["rules"][0]["backendRefs"] == [{"name": "s", "port": 80}]


def test_set_port_of_a_service_needs_no_warning() -> None:
    pools = "pools: {p: {discovery: {kubernetes: {namespace: ml, service: s, port: 8080, service_port: 80}}}}"
    objects, codes = rendering(fleet(pools=pools))
    assert (objects[1]["spec"]["rules"][0]["backendRefs"], codes) == ([{"name": "s", "port": 80}], [])


def test_split_of_picked_pools_has_weights() -> None:
    pools = "pools: {" + ", ".join(
        f"{name}: {{{PICK}, discovery: {{kubernetes: {{{PODS}, port: 80}}}}}}" for name in ("p", "q")
    )
    objects, codes = rendering(fleet(routes="routes: {r: {split: {p: 9, q: 1}}}", pools=f"{pools}}}"))
    (route,) = [item for item in objects if item["kind"] == "HTTPRoute"]
    references = [(item["kind"], item["weight"]) for item in route["spec"]["rules"][0]["backendRefs"]]
    assert (references, codes) == ([("InferencePool", 9), ("InferencePool", 1)], ["LB492"])
    assert not problems(route, "1.4.1")


def test_picked_pools_of_two_namespaces_need_two_listeners() -> None:
    pools = "pools: {" + ", ".join(
        f"{name}: {{{PICK}, discovery: {{kubernetes: {{{PODS.replace('ml', name)}, port: 80}}}}}}"
        for name in ("a", "b")
    )
    entry = "kind: gateway-api, kubernetes: {gateway_class: eg, namespace:"
    entries = f"proxies: {{x: {{{entry} a}}}}, y: {{{entry} b}}}}}}"
    routes = "routes: {r: {match: {path: /r}, pool: a}, s: {match: {path: /s}, pool: b}}"
    diagnostics = Diagnostics()
    text = fleet(routes=routes, pools=f"{pools}}}", proxies=entries)
    assert load(["-"], diagnostics, stdin=io.BytesIO(text.encode())) is None
    assert [(item.code, "set `listeners`" in item.hint) for item in diagnostics] == [("LB171", True)] * 2
    followed = fleet(
        'listeners: {one: {bind: "0.0.0.0:80"}, two: {bind: "0.0.0.0:81"}}',
        routes.replace("{match: {path: /r}", "{listeners: [one]").replace("{match: {path: /s}", "{listeners: [two]"),
        f"{pools}}}",
        entries.replace("x: {", "x: {listeners: [one], ").replace("y: {", "y: {listeners: [two], "),
    )
    assert loading(followed)[1] == []


@pytest.mark.parametrize(
    ("keys", "codes"), [("", []), (f"{PICK}, ", ["LB492"]), ("locality: {prefer: zone}, ", ["LB467"])]
)
def test_existing_inference_pool_is_a_backend(keys: str, codes: list[str]) -> None:
    pools = f"pools: {{p: {{{keys}discovery: {{kubernetes: {{namespace: ml, inference_pool: llama}}}}}}}}"
    objects, found = rendering(fleet(pools=pools))
    reference = {"name": "llama", "group": "inference.networking.k8s.io", "kind": "InferencePool"}
    assert [item["kind"] for item in objects] == ["Gateway", "HTTPRoute"]
    assert (objects[-1]["spec"]["rules"][0]["backendRefs"], found) == ([reference], codes)


def test_inference_pools_get_no_copies() -> None:
    routes = "routes: {r: {pool: q, mirror: {pool: p}}}"
    pools = "pools: {p: {discovery: {kubernetes: {namespace: ml, inference_pool: llama}}}, "
    objects, codes = rendering(fleet(routes=routes, pools=pools + 'q: {replicas: [{address: "10.0.0.1:80"}]}}'))
    assert codes == ["LB428"]
    assert "filters" not in objects[-1]["spec"]["rules"][0]


def test_only_equal_inference_pools_are_reported() -> None:
    for name, codes in (("a", ["LB447", "LB492"]), ("b", ["LB492"])):
        pools = "pools: {p: {discovery: {kubernetes: {namespace: ml, inference_pool: a}}}, "
        pools += f"q: {{discovery: {{kubernetes: {{namespace: ml, inference_pool: {name}}}}}}}}}"
        assert sorted(rendering(fleet(routes="routes: {r: {split: {p: 1, q: 1}}}", pools=pools))[1]) == codes


@pytest.mark.parametrize("kind", ["istio", "envoy-gateway"])
def test_kinds_without_inference_pools_reject_the_fleet(kind: str) -> None:
    entry = f"{{kind: {kind}, kubernetes: {{namespace: ml}}}}"
    pools = "pools: {p: {discovery: {kubernetes: {namespace: ml, inference_pool: ▶llama}}}}"
    text, position = marked(fleet(pools=pools, proxies=f"proxies: {{edge: {entry}, other: {entry}}}"))
    assert loading(text) == (None, [f"{position} LB171"])


def test_model_without_a_component_is_reported() -> None:
    routes = "routes: {r: {match: {model: [m]}, pool: p}}"
    assert rendering(fleet(routes=routes))[1] == ["LB421"]
    proxies = PROXIES.replace("eg}", "eg, assume: [route.match.model]}")
    assert rendering(fleet(routes=routes, proxies=proxies))[1] == ["LB421"]
    assert rendering(fleet(proxies=proxies))[1] == []


def test_gateway_in_another_namespace_is_reported() -> None:
    for gateway, codes in (("gateways/shared", ["LB174"]), ("ml/shared", []), ("shared", [])):
        assert rendering(fleet(proxies=PROXIES.replace("gateway_class: eg", f"gateway: {gateway}")))[1] == codes


def test_two_pools_with_one_service_are_reported() -> None:
    pool = "{discovery: {kubernetes: {namespace: ml, service: s, port: http, service_port: 80}}}"
    pools = f"pools: {{p: {pool}, q: {pool}}}"
    assert rendering(fleet(routes="routes: {r: {split: {p: 1, q: 1}}}", pools=pools))[1] == ["LB447"]
    assert rendering(fleet(pools=pools))[1] == []


def test_secret_of_an_unknown_file_is_reported() -> None:
    listeners = 'listeners: {web: {bind: "0.0.0.0:443", tls: {certificates: [{certificate: a.crt, key: a.key}]}}}'
    for file, codes in (("a.crt", []), ("b.crt", ["LB402"])):
        proxies = PROXIES.replace("eg}", f"eg, secrets: {{{file}: mine}}}}")
        assert rendering(fleet(listeners=listeners, proxies=proxies))[1] == codes


def test_protected_route_is_closed() -> None:
    objects, codes = rendering(fleet(routes="routes: {r: {pool: p, rate_limit: [{by: all, rate: 9/s}]}}"))
    assert backends(objects) == {"r": ["edge-closed"]}
    assert codes == ["LB441"]
    assert [item["metadata"]["name"] for item in objects if item["kind"] == "Service"] == ["edge-closed"]
    assert not any(item["kind"] == "EndpointSlice" for item in objects)


def test_assumed_feature_leaves_the_route_open() -> None:
    proxies = PROXIES.replace("eg}", "eg, assume: [route.rate_limit]}")
    objects, codes = rendering(
        fleet(routes="routes: {r: {pool: p, rate_limit: [{by: all, rate: 9/s}]}}", proxies=proxies)
    )
    assert backends(objects) == {"r": ["edge-p-1"]}
    assert codes == ["LB441"]


def test_assumed_model_leaves_ways_around_open() -> None:
    routes = "routes: {a: {match: {model: [m]}, pool: p, regions: [us]}, b: {pool: p}}"
    pools = 'pools: {p: {replicas: [{address: "10.0.0.1:80", region: us}]}}'
    objects, codes = rendering(fleet(routes=routes, pools=pools))
    assert (backends(objects)["b"], codes) == (["edge-closed"], ["LB421", "LB421"])
    proxies = PROXIES.replace("eg}", "eg, assume: [route.match.model]}")
    objects, codes = rendering(fleet(routes=routes, pools=pools, proxies=proxies))
    assert (backends(objects)["b"], codes) == (["edge-p-1"], ["LB421"])


def test_assumed_tls_needs_no_policy() -> None:
    pools = 'pools: {p: {replicas: [{address: "10.0.0.1:80"}], tls: {}}}'
    objects, codes = rendering(fleet(pools=pools))
    assert (backends(objects), codes) == ({"r": ["edge-closed"]}, ["LB489"])
    objects, codes = rendering(fleet(pools=pools, proxies=PROXIES.replace("eg}", "eg, assume: [pool.tls]}")))
    assert (backends(objects), codes) == ({"r": ["edge-p-1"]}, ["LB489"])
    assert not any(item["kind"] == "BackendTLSPolicy" for item in objects)


def test_assumed_client_certificates_are_not_rendered() -> None:
    tls = "tls: {ca: ca.pem, server_name: a.example.com, certificate: %s.crt, key: %s.key}"
    pools = "pools:\n" + "".join(
        f'  {name}: {{replicas: [{{address: "10.0.0.{index}:80"}}], {tls % (name, name)}}}\n'
        for index, name in enumerate("pq", start=1)
    )
    routes = "routes: {r: {pool: p}, s: {match: {path_prefix: /s}, pool: q}}"
    proxies = PROXIES.replace("kind:", 'version: "1.5", kind:')
    objects, _ = rendering(fleet(routes=routes, pools=pools, proxies=proxies))
    assert set(map(tuple, backends(objects).values())) == {("edge-closed",)}
    proxies = proxies.replace("eg}", "eg, assume: [pool.tls.client_certificate]}")
    objects, codes = rendering(fleet(routes=routes, pools=pools, proxies=proxies))
    assert backends(objects) == {"r": ["edge-p-1"], "s": ["edge-q-1"]}
    assert "LB490" in codes
    assert "tls" not in objects[0]["spec"]


def test_entries_have_distinct_labels() -> None:
    labels = set()
    for name in ("edge", "edge-", "edge."):
        objects, _ = rendering(fleet(proxies=PROXIES.replace("edge:", f"{name}:")))
        labels |= {item["metadata"]["labels"]["app.kubernetes.io/instance"] for item in objects}
        assert not any(problems(item, "1.4.1") for item in objects)
    assert len(labels) == 3


def test_clients_cannot_send_the_header_of_the_tenant() -> None:
    routes = """routes:
  open: {match: {path_prefix: /open}, pool: p}
  keys: {match: {path_prefix: /keys}, pool: p, auth: {api_keys: {file: keys}, forward_tenant: x-tenant}}"""
    objects, _ = rendering(fleet(routes=routes))
    rules = {rule["name"]: rule for rule in objects[-1]["spec"]["rules"]}
    change = {"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["x-tenant"]}}
    assert rules["open"]["filters"] == [change]
    assert backends(objects)["keys"] == ["edge-closed"]
    proxies = PROXIES.replace("eg}", "eg, assume: [route.auth.api_keys]}")
    objects, _ = rendering(fleet(routes=routes, proxies=proxies))
    rules = {rule["name"]: rule for rule in objects[-1]["spec"]["rules"]}
    assert rules["open"]["filters"] == [change]
    assert "filters" not in rules["keys"]


def test_redirect_before_version_1_5_is_always_301() -> None:
    routes = "routes: {r: {respond: {redirect: https}}}"
    objects, codes = rendering(fleet(routes=routes))
    assert ([rule["filters"] for rule in objects[-1]["spec"]["rules"]], codes) == (
        [[{"type": "RequestRedirect", "requestRedirect": {"scheme": "https", "statusCode": 301}}]],
        ["LB431"],
    )
    objects, codes = rendering(fleet(routes=routes, proxies=PROXIES.replace("kind:", 'version: "1.5", kind:')))
    statuses = [rule["filters"][0]["requestRedirect"]["statusCode"] for rule in objects[-1]["spec"]["rules"]]
    assert (statuses, codes) == ([301, 308], [])


def test_numbered_listener_does_not_take_the_name_of_another() -> None:
    other = '  web.1: {bind: "0.0.0.0:80"}'
    objects, _ = rendering(fleet(listeners=f"{SECURE}\n{other}"))
    (gateway,) = (item for item in objects if item["kind"] == "Gateway")
    listed = {item["name"]: item["port"] for item in gateway["spec"]["listeners"]}
    assert sorted(listed.values()) == [80, 443, 443]
    routes = [item["spec"] for item in objects if item["kind"] == "HTTPRoute"]
    assert {parent["sectionName"] for spec in routes for parent in spec["parentRefs"]} == set(listed)


@pytest.mark.parametrize("address", ["127.0.0.1:81", "[::1]:81"])
@pytest.mark.parametrize("proxies", [PROXIES, PROXIES.replace("gateway_class: eg", "gateway: shared")])
def test_routes_of_a_loopback_listener_are_closed(address: str, proxies: str) -> None:
    listeners = f'listeners: {{web: {{bind: "0.0.0.0:80"}}, internal: {{bind: "{address}"}}}}'
    routes = "routes: {r: {pool: p, listeners: [web]}, s: {pool: p, listeners: [internal]}}"
    objects, codes = rendering(fleet(listeners=listeners, routes=routes, proxies=proxies))
    assert codes == ["LB401"]
    found = {item["metadata"]["name"]: item["spec"] for item in objects if item["kind"] == "HTTPRoute"}
    names = {name: [ref["name"] for ref in spec["rules"][0]["backendRefs"]] for name, spec in found.items()}
    assert names == {"edge-web": ["edge-p-1"], "edge-internal": ["edge-closed"]}


def test_many_weights_are_joined_to_16_backends() -> None:
    replicas = ", ".join(f'{{address: "10.0.0.{index}:80", weight: {index * index}}}' for index in range(1, 19))
    objects, codes = rendering(fleet(pools=f"pools: {{p: {{replicas: [{replicas}]}}}}"))
    assert len(backends(objects)["r"]) == 16
    assert codes == ["LB206"]
    endpoints = [endpoint for item in objects if item["kind"] == "EndpointSlice" for endpoint in item["endpoints"]]
    assert len(endpoints) == 18


def test_pool_that_is_only_a_fallback_is_left_out() -> None:
    pools = """pools:
  p: {replicas: [{address: "10.0.0.1:80"}]}
  q: {replicas: [{address: "127.0.0.1:80"}], tls: {}}"""
    objects, codes = rendering(fleet(routes="routes: {r: {pool: p, fallback: q}}", pools=pools))
    assert (backends(objects), codes) == ({"r": ["edge-p-1"]}, ["LB429"])


def test_fallback_to_a_hosted_api_does_not_close_the_route() -> None:
    pools = """pools:
  p: {replicas: [{address: "10.0.0.1:80"}]}
  q: {upstream: {host: a.example.com}, tls: {ca: system}, replicas: [{address: "a.example.com:443"}]}"""
    objects, codes = rendering(fleet(routes="routes: {r: {pool: p, fallback: q}}", pools=pools))
    assert (backends(objects), codes) == ({"r": ["edge-p-1"]}, ["LB429"])


def test_split_of_weighted_pools_keeps_the_shares() -> None:
    pools = """pools:
  p: {replicas: [{address: "10.0.0.1:80", weight: 3}, {address: "10.0.0.2:80", weight: 1}]}
  q: {replicas: [{address: "10.0.0.3:80"}]}"""
    objects, _ = rendering(fleet(routes="routes: {r: {split: {p: 90, q: 10}}}", pools=pools))
    weights = [backend["weight"] for backend in objects[-1]["spec"]["rules"][0]["backendRefs"]]
    assert [weight / sum(weights) for weight in weights] == pytest.approx([0.675, 0.225, 0.1])


def test_replica_with_a_host_name_leaves_its_share_to_others() -> None:
    pools = """pools:
  p:
    replicas:
      - {address: "a.example.com:80", weight: 5}
      - {address: "b.example.com:80", weight: 2}
      - {address: "10.0.0.1:80", weight: 2}
      - {address: "10.0.0.2:80", weight: 1}"""
    objects, codes = rendering(fleet(pools=pools))
    weights = [backend["weight"] for backend in objects[-1]["spec"]["rules"][0]["backendRefs"]]
    assert weights[0] == 2 * weights[1]
    assert len(weights) == 2
    assert codes == ["LB450", "LB450"]


def test_mapped_address_is_in_the_slice_for_ipv4() -> None:
    pools = 'pools: {p: {replicas: [{address: "[::ffff:10.0.0.1]:80"}, {address: "[2001:db8::1]:80"}]}}'
    slices = [item for item in rendering(fleet(pools=pools))[0] if item["kind"] == "EndpointSlice"]
    assert {item["addressType"]: item["endpoints"][0]["addresses"] for item in slices} == {
        "IPv4": ["10.0.0.1"],
        "IPv6": ["2001:db8::1"],
    }


def test_numbered_routes_do_not_have_the_name_of_others() -> None:
    listeners = 'listeners: {web: {bind: "0.0.0.0:80"}, web-02: {bind: "0.0.0.0:81"}}'
    many = "".join(
        f"  r{index}: {{match: {{path_prefix: /{index}}}, pool: p, listeners: [web]}}\n" for index in range(200)
    )
    objects, _ = rendering(
        fleet(listeners=listeners, routes=f"routes:\n{many}  other: {{pool: p, listeners: [web-02]}}")
    )
    names = [item["metadata"]["name"] for item in objects if item["kind"] == "HTTPRoute"]
    assert len(names) == 14
    assert len(set(names)) == 14


def test_grants_of_two_namespaces_have_distinct_names() -> None:
    place = "discovery: {kubernetes: {namespace: models, service: s, port: 80}}"
    proxies = """proxies:
  edge: {kind: gateway-api, kubernetes: {namespace: ml, gateway_class: eg}}
  edge-a: {kind: gateway-api, kubernetes: {namespace: web, gateway_class: eg}}"""
    routes = "routes: {one: {pool: b}, two: {match: {path_prefix: /2}, pool: a-b}}"
    text = fleet(routes=routes, pools=f"pools: {{b: {{{place}}}, a-b: {{{place}}}}}", proxies=proxies)
    objects = [item for entry in ("edge", "edge-a") for item in rendering(text, entry)[0]]
    names = [item["metadata"]["name"] for item in objects if item["kind"] == "ReferenceGrant"]
    assert len(names) == 4
    assert len(set(names)) == 4


def test_ca_bundle_is_rendered_without_private_keys(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    key = "-----BEGIN " + "PRIVATE KEY-----\nBBBB\n-----END " + "PRIVATE KEY-----\n"
    (tmp_path / "ca.pem").write_text(f"# a comment\n{certificate}{key}{certificate}")
    monkeypatch.chdir(tmp_path)
    pools = 'pools: {p: {replicas: [{address: "10.0.0.1:80"}], tls: {ca: ca.pem, server_name: a.example.com}}}'
    objects, _ = rendering(fleet(pools=pools))
    data = [item["data"] for item in objects if item["kind"] == "ConfigMap"]
    assert data == [{"ca.crt": certificate + certificate}]


def test_listener_sections_get_the_most_specific_routes() -> None:
    listeners = """listeners:
  web:
    bind: "0.0.0.0:443"
    tls:
      certificates:
        - {certificate: a.crt, key: a.key, hosts: [a.example.com]}
        - {certificate: b.crt, key: b.key, hosts: ["*.example.com"]}"""
    routes = """routes:
  any: {match: {path_prefix: /}, pool: p}
  wild: {match: {hosts: ["*.example.com"], path_prefix: /w}, pool: p}
  exact: {match: {hosts: [x.example.com], path_prefix: /x}, pool: p}"""
    objects, _ = rendering(fleet(listeners=listeners, routes=routes))
    attached = {
        (item["spec"].get("hostnames") or ["any"])[0]: [parent["sectionName"] for parent in item["spec"]["parentRefs"]]
        for item in objects
        if item["kind"] == "HTTPRoute"
    }
    assert attached == {
        "any": ["web"],
        "*.example.com": ["web", "web.1", "web.2"],
        "x.example.com": ["web", "web.2"],
    }


def test_rules_of_one_host_have_distinct_names() -> None:
    routes = """routes:
  a: {match: {path_prefix: /a, methods: [GET, POST]}, pool: p, rewrite: {path_prefix: /x}}
  a.2: {match: {path_prefix: /b}, pool: p}"""
    objects, _ = rendering(fleet(routes=routes))
    names = [rule["name"] for rule in objects[-1]["spec"]["rules"]]
    assert len(set(names)) == len(names) == 3
    assert names[0] == "a"
    assert all(name.startswith("a.2-") for name in names[1:])


def test_rewritten_path_follows_a_narrower_match() -> None:
    routes = """routes:
  host: {match: {hosts: [a.example.com], path_prefix: /v1, headers: {x-a: b}}, pool: p, rewrite: {path_prefix: /api/}}
  deep: {match: {path_prefix: /v1/chat}, pool: p}
  exact: {match: {path: /v1/models}, pool: p}"""
    objects, _ = rendering(fleet(routes=routes))
    (host,) = (item for item in objects if item["metadata"]["name"] == "edge-web-a.example.com")
    changes = {
        rule["matches"][0]["path"]["value"]: rule["filters"][0]["urlRewrite"]["path"]
        for rule in host["spec"]["rules"]
        if rule["name"].startswith("host")
    }
    assert changes == {
        "/v1": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/api"},
        "/v1/chat": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/api/chat"},
        "/v1/models": {"type": "ReplaceFullPath", "replaceFullPath": "/api/models"},
    }


def test_overlapping_expressions_are_reported() -> None:
    routes = """routes:
  a: {match: {path_regex: "/v1/[a-z]+"}, pool: p}
  b: {match: {path_regex: "/v1/[a-m]+/?"}, pool: p}
  c: {match: {path_regex: "/v2/(x|y)"}, pool: p}
  d: {match: {path_regex: "/v2/(x|y)", headers: {x-a: b}}, pool: p}"""
    assert rendering(fleet(routes=routes))[1] == ["LB420"]


@pytest.mark.parametrize(
    ("pool", "codes"),
    [
        (f"protocol: grpc, discovery: {{kubernetes: {{{SERVICE}, service_port: 80}}}}", ["LB454"]),
        (f"protocol: http2, discovery: {{kubernetes: {{{PODS}, port: 80}}}}, {PICK}", ["LB453"]),
        (f"discovery: {{kubernetes: {{{SERVICE}, service_port: 80}}}}", ["LB434"]),
        ('protocol: grpc, replicas: [{address: "10.0.0.1:80"}]', []),
        ('replicas: [{address: "10.0.0.1:80"}]', []),
    ],
)
def test_protocols_of_other_owners_services_are_reported(pool: str, codes: list[str]) -> None:
    routes = "routes: {r: {pool: p, websocket: true}}"
    assert rendering(fleet(routes=routes, pools=f"pools: {{p: {{{pool}}}}}"))[1] == codes


def test_preflights_of_an_open_route_are_reported() -> None:
    routes = """routes:
  r:
    pool: p
    auth: {api_keys: {file: keys}}
    headers: {response: {set: {access-control-allow-origin: "https://a.example.com"}}}"""
    assert rendering(fleet(routes=routes))[1] == ["LB443"]
    proxies = PROXIES.replace("eg}", "eg, assume: [route.auth.api_keys]}")
    objects, codes = rendering(fleet(routes=routes, proxies=proxies))
    assert codes == ["LB443", "LB430"]
    assert backends(objects) == {"r.options": ["edge-closed"], "r": ["edge-p-1"]}


def test_full_fleet_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FIXTURES)
    diagnostics = Diagnostics()
    loaded = load(["full.yaml"], diagnostics)
    assert loaded is not None, list(diagnostics)
    topology = loaded.compiled.topology
    snapshot = Snapshot(topology, secrets=loaded.secrets)
    proxy = next(item for item in topology.proxies if item.name == "gateway")
    prepared = prepare(target("gateway-api"), loaded.compiled, proxy, snapshot)
    bundle = prepared.target.render(prepared.view)
    findings = [*prepared.losses, *placed(bundle, loaded.compiled)]
    assert [item for item in findings if item.position is None or item.severity != "warning"] == []
    places = [(item.code, item.path) for item in findings]
    assert len(set(places)) == len(places)
    objects = list(yaml.safe_load_all(bundle.main.text))
    assert [fault for item in objects for fault in problems(item, "1.4.1")] == []
    closed = {rule for rule, services in backends(objects).items() if services == ["gateway-closed"]}
    assert closed == {"exact", "users", "checked", "answer", "tokens", "models"}
