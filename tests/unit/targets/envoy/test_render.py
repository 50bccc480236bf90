from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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


def _checked(bundle: Bundle, folder: Path) -> tuple[int, str]:
    binary = find_binary(TARGET)
    assert binary is not None
    main = folder / bundle.main.name
    main.write_text(bundle.main.text)
    command = TARGET.check_command(str(binary), str(folder), str(main))
    command[command.index("-l") + 1] = "warning"
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    return process.returncode, process.stdout + process.stderr


@pytest.mark.e2e
@pytest.mark.parametrize("form", ["yaml", "json"])
def test_envoy_accepts_the_configuration_without_warning(form: str, tmp_path: Path) -> None:
    code, output = _checked(_bundle(form=form), tmp_path)
    assert (code, [line for line in output.splitlines() if "[warning]" in line]) == (0, [])


def test_yaml_and_json_have_the_same_content() -> None:
    assert yaml.load(_bundle().main.text, yaml.CSafeLoader) == json.loads(_bundle(form="json").main.text)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_independent_parser_reads_the_same_values() -> None:
    from envoy_data_plane.envoy.config.bootstrap.v3 import Bootstrap

    from lbctl.targets.envoy.static import static

    message = static(_view(), "apart.yaml", "yaml").bootstrap
    read = Bootstrap().parse(message.SerializeToString(deterministic=True))
    clusters = {item.name: item for item in read.static_resources.clusters}
    endpoints = [e for group in clusters["v1"].load_assignment.endpoints for e in group.lb_endpoints]
    assert [item.endpoint.hostname for item in endpoints] == ["big", "old", "small"]
    assert type(message).FromString(bytes(read)) == message


def test_lines_have_the_path_of_their_object() -> None:
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
def test_rejected_value_is_reported_at_its_object(old: str, new: str, path: tuple[str, ...], tmp_path: Path) -> None:
    bundle = _bundle()
    assert old in bundle.main.text
    broken = Bundle((type(bundle.main)(bundle.main.name, bundle.main.text.replace(old, new), bundle.main.sources),))
    code, output = _checked(broken, tmp_path)
    complaints = list(TARGET.complaints(output, broken))
    assert (code, [item.path for item in complaints]) == (1, [path])
    assert len(complaints[0].message) < 400


@pytest.mark.e2e
def test_missing_file_is_reported_at_its_pool(tmp_path: Path) -> None:
    text = _FLEET.replace("  shadow: {replicas", "  shadow: {tls: {ca: /nowhere/ca.crt}, replicas")
    bundle = _bundle(text)
    _, output = _checked(bundle, tmp_path)
    assert [(item.path, item.message) for item in TARGET.complaints(output, bundle)] == [
        (("pools", "shadow"), "Invalid path: /nowhere/ca.crt")
    ]


def test_each_feature_has_a_capability() -> None:
    assert set(TARGET.capabilities) == {feature.id for feature in FEATURES}


def test_importing_the_target_imports_no_protobuf() -> None:
    code = "import sys, lbctl.targets.envoy; print(sorted(m for m in sys.modules if m.startswith('google')))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "[]\n"
