from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from lbctl.apply.binaries import find_binary
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot, View, view
from lbctl.targets.envoy import TARGET
from lbctl.targets.features import FEATURES
from lbctl.targets.target import Bundle
from tests.support.fleet import compiled

pytestmark = pytest.mark.no_cover  # many of one kind, in which a trace would be most of the time

_FLEET = """
version: 1
listeners:
  public: {bind: "127.0.0.1:8080", max_connections: 100, max_body: 2MiB}
  edge:
    bind: "127.0.0.1:8081"
    client_address: {trusted: [10.0.0.0/8]}
    request_id: x-correlation-id
    tracing: {otlp: "127.0.0.1:4317", sample: 10%, service: gateway}
    access_log: {path: /dev/stderr, format: text}
routes:
  chat:
    match:
      hosts: [a.example.com, "*.example.com"]
      path_prefix: /v1/chat/
      methods: [GET, POST]
      headers: {x-tier: a%b}
    rewrite: {path_prefix: /up/, host: models.internal}
    split: {v1: 95, v2: 5}
    pin: [{header: x-v, equals: v2, pool: v2}, {cookie: beta, equals: "1.0", pool: v2}]
    sticky_split: {cookie: variant}
    mirror: {pool: shadow, percent: 1.5%}
    websocket: true
  model: {match: {path_prefix: /v1/, model: [llama, "llama-*"]}, pool: v1}
  limited: {match: {path: /limited}, pool: v1, rate_limit: [{by: {header: x-key}, rate: 5/s}, {by: all, rate: 9/s}]}
  spare: {match: {path_regex: "/r/[0-9]+"}, pool: v1, fallback: v2, regions: [east]}
  rpc: {match: {path_prefix: /x.Y/}, pool: rpc}
  gone: {match: {path: /gone}, respond: {status: 410, body: "50% \\"off\\"\\n"}}
  any: {match: {path_prefix: /}, pool: ranked}
pools:
  v1:
    model: {name: m, version: one}
    replicas:
      - {name: big, address: "127.0.0.1:9001", weight: 3, region: east}
      - {name: small, address: "127.0.0.1:9002", weight: 1, region: west}
      - {name: old, address: "127.0.0.1:9003", weight: 1, region: east, drain: true}
    health: {active: {http: {path: /health, statuses: [200, 201, 204], body_contains: ready}}}
  v2:
    balance: {algorithm: hash, hash: {key: {cookie: sid}, bounded_load: 1.25}}
    replicas: [{name: one, address: "127.0.0.1:9004", region: east}, {name: two, address: "127.0.0.1:9014"}]
    affinity: {cookie: lb}
  shadow: {replicas: [{name: s, address: "shadow.internal:80"}]}
  rpc: {protocol: grpc, replicas: [{name: g, address: "127.0.0.1:9005"}], health: {active: {grpc: {service: x.Y}}}}
  ranked: {replicas: [{name: a, address: "127.0.0.1:9006"}, {name: b, address: "127.0.0.1:9007", priority: 7}]}
"""
_PROXY = Proxy("edge-envoy", "envoy", (1, 40))


def _view(text: str = _FLEET) -> View:
    return view(Snapshot(compiled(text).topology), _PROXY)


def _bundle(text: str = _FLEET, form: str = "yaml") -> Bundle:
    return TARGET.render(_view(text), form)


def _tree(text: str = _FLEET) -> dict[str, Any]:
    tree: dict[str, Any] = yaml.load(_bundle(text).main.text, yaml.CSafeLoader)
    return tree


def _cluster(tree: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(item for item in tree["static_resources"]["clusters"] if item["name"] == name)
    return found


def _manager(tree: dict[str, Any], listener: str) -> dict[str, Any]:
    item = next(item for item in tree["static_resources"]["listeners"] if item["name"] == listener)
    found: dict[str, Any] = item["filter_chains"][0]["filters"][0]["typed_config"]
    return found


def _routes(tree: dict[str, Any], host: str) -> list[str | None]:
    hosts = _manager(tree, "public")["route_config"]["virtual_hosts"]
    found = next(item for item in hosts if item["domains"] == [host])
    return [item.get("name") for item in found["routes"]]


def _checked(bundle: Bundle, folder: Path) -> tuple[int, str]:
    binary = find_binary(TARGET)
    assert binary is not None
    main = folder / bundle.main.name
    main.write_text(bundle.main.text)
    command = TARGET.check_command(str(binary), str(folder), str(main))
    command[command.index("-l") + 1] = "warning"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.e2e
@pytest.mark.parametrize("form", ["yaml", "json"])
def test_envoy_accepts_what_is_rendered_and_warns_of_nothing(form: str, tmp_path: Path) -> None:
    code, output = _checked(_bundle(form=form), tmp_path)
    assert (code, [line for line in output.splitlines() if "[warning]" in line]) == (0, [])


def test_both_forms_say_the_same() -> None:
    assert yaml.load(_bundle().main.text, yaml.CSafeLoader) == json.loads(_bundle(form="json").main.text)


@pytest.mark.slow
def test_the_same_view_gives_the_same_bytes_in_every_process() -> None:
    code = "from tests.unit.targets.envoy.test_render import _bundle; print(hash(_bundle().main.text))"
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "0"}
        )
        for _ in range(3)
    ]
    assert len({done.stdout for done in runs}) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_independent_reader_finds_in_the_bytes_what_was_meant() -> None:
    from envoy_data_plane.envoy.config.bootstrap.v3 import Bootstrap

    from lbctl.targets.envoy.static import static

    message = static(_view(), "apart.yaml", "yaml").bootstrap
    read = Bootstrap().parse(message.SerializeToString(deterministic=True))
    clusters = {item.name: item for item in read.static_resources.clusters}
    endpoints = [e for group in clusters["v1"].load_assignment.endpoints for e in group.lb_endpoints]
    assert [item.endpoint.hostname for item in endpoints] == ["big", "old", "small"]
    assert type(message).FromString(bytes(read)) == message


def test_a_host_has_its_own_rules_and_those_of_the_hosts_that_cover_it_in_their_order() -> None:
    tree = _tree()
    rest = ["gone", "limited", "spare", "rpc", "model", "model", "any", None]
    chat = ["chat"] * 5
    refused = [None] * 3
    assert _routes(tree, "*") == refused + rest
    assert _routes(tree, "*.example.com") == refused + chat + rest
    assert _routes(tree, "a.example.com") == refused + chat + chat + rest


def test_nothing_is_tried_again_after_an_answer_and_no_time_is_set_for_the_whole() -> None:
    for item in _manager(_tree(), "public")["route_config"]["virtual_hosts"][0]["routes"]:
        if "route" in item:
            assert item["route"]["retry_policy"]["retry_on"] == "connect-failure,refused-stream,reset-before-request"
            assert (item["route"]["timeout"], item["route"]["idle_timeout"]) == ("0s", "300s")


def test_weights_are_squares_for_least_request_and_as_they_are_otherwise() -> None:
    balanced = _tree(_FLEET.replace("    model: {name: m, version: one}", "    balance: {algorithm: round_robin}"))
    assert [_weights(_cluster(tree, "v1")) for tree in (_tree(), balanced)] == [
        {"big": 99, "small": 11, "old": 11},
        {"big": 99, "small": 33, "old": 33},
    ]


def _weights(cluster: dict[str, Any]) -> dict[str, int]:
    groups = cluster["load_assignment"]["endpoints"]
    return {e["endpoint"]["hostname"]: e["load_balancing_weight"] for group in groups for e in group["lb_endpoints"]}


def test_a_drained_replica_is_draining_and_priorities_have_no_gap() -> None:
    tree = _tree()
    endpoints = _cluster(tree, "v1")["load_assignment"]["endpoints"][0]["lb_endpoints"]
    assert {e["endpoint"]["hostname"]: e.get("health_status") for e in endpoints} == {
        "big": None,
        "small": None,
        "old": "DRAINING",
    }
    ranked = _cluster(tree, "ranked")["load_assignment"]
    assert [item.get("priority", 0) for item in ranked["endpoints"]] == [0, 1]
    assert ranked["policy"] == {"overprovisioning_factor": 143}


def test_regions_leave_no_replica_of_another_in_the_cluster() -> None:
    tree = _tree()
    assert set(_weights(_cluster(tree, "v1|east"))) == {"big", "old"}
    fallback = next(c["name"] for c in tree["static_resources"]["clusters"] if "|else|" in c["name"])
    assert fallback == "v1|east|else|v2|east"


def test_a_percent_sign_of_the_user_is_no_variable_of_envoys() -> None:
    text = _FLEET.replace(
        "pool: ranked}\npools", 'pool: ranked, headers: {response: {set: {x-a: "%REQ(cookie)%"}}}}\npools'
    )
    routes = _manager(_tree(text), "public")["route_config"]["virtual_hosts"][0]["routes"]
    added = next(item for item in routes if item.get("name") == "any")["response_headers_to_add"]
    assert added[0]["header"] == {"key": "x-a", "value": "%%REQ(cookie)%%"}


def test_without_an_admin_address_there_is_no_admin_port() -> None:
    assert "admin" not in _tree()


def test_lines_lead_back_to_the_replica_the_route_and_the_pool() -> None:
    main = _bundle().main
    lines = main.text.splitlines()
    owner = {lines[number - 1].strip(): path for number, path in main.sources.items()}
    big = next(path for line, path in owner.items() if "hostname: big" in line)
    assert big == ("pools", "v1", "replicas", "big")
    assert owner["- name: gone"] == ("routes", "gone")
    assert owner["- name: shadow"] == ("pools", "shadow")


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("(?:/.*)?", "(?:/.*)?(", ("routes", "rpc")),
        ("port_value: 9007", "port_value: 90070", ("pools", "ranked")),
        ("path: /gone", "path: /gone, no_such_field: 1", ()),
    ],
)
def test_what_envoy_refuses_is_found_again(old: str, new: str, path: tuple[str, ...], tmp_path: Path) -> None:
    bundle = _bundle()
    assert old in bundle.main.text
    broken = Bundle((type(bundle.main)(bundle.main.name, bundle.main.text.replace(old, new), bundle.main.sources),))
    code, output = _checked(broken, tmp_path)
    found = list(TARGET.complaints(output, broken))
    assert (code, [item.path for item in found]) == (1, [path])
    assert len(found[0].message) < 400


@pytest.mark.e2e
def test_a_file_that_is_not_there_leads_to_whoever_names_it(tmp_path: Path) -> None:
    text = _FLEET.replace("  shadow: {replicas", "  shadow: {tls: {ca: /nowhere/ca.crt}, replicas")
    bundle = _bundle(text)
    _, output = _checked(bundle, tmp_path)
    assert [(item.path, item.message) for item in TARGET.complaints(output, bundle)] == [
        (("pools", "shadow"), "Invalid path: /nowhere/ca.crt")
    ]


def test_random_with_unequal_replicas_is_reported_and_keeps_the_shares() -> None:
    text = _FLEET.replace("    model: {name: m, version: one}", "    balance: {algorithm: random}")
    found = {(item.code, item.path) for item in _bundle(text).diagnostics}
    assert ("LB458", ("pools", "v1", "balance")) in found
    assert _cluster(_tree(text), "v1").get("lb_policy", "ROUND_ROBIN") == "ROUND_ROBIN"


def test_every_feature_has_a_capability_and_no_other() -> None:
    assert set(TARGET.capabilities) == {feature.id for feature in FEATURES}


def test_importing_the_target_imports_no_protobuf() -> None:
    code = "import sys, lbctl.targets.envoy; print(sorted(m for m in sys.modules if m.startswith('google')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
