from __future__ import annotations

import json
import subprocess
import sys

import pytest
import yaml

from lbctl.targets.envoy import TARGET
from lbctl.targets.features import FEATURES
from tests.support.envoy import envoy_bundle, envoy_view

pytestmark = pytest.mark.no_cover  # many similar cases, which tracing would slow down


def test_yaml_and_json_have_the_same_content() -> None:
    assert yaml.load(envoy_bundle().main.text, yaml.CSafeLoader) == json.loads(envoy_bundle(form="json").main.text)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow
def test_independent_parser_reads_the_same_values() -> None:
    from envoy_data_plane.envoy.config.bootstrap.v3 import Bootstrap

    from lbctl.targets.envoy.static import static

    message = static(envoy_view(), "listeners.yaml", "clusters.yaml", "yaml").bootstrap
    read = Bootstrap().parse(message.SerializeToString(deterministic=True))
    clusters = {item.name: item for item in read.static_resources.clusters}
    endpoints = [e for group in clusters["v1"].load_assignment.endpoints for e in group.lb_endpoints]
    assert [item.endpoint.hostname for item in endpoints] == ["big", "old", "small"]
    assert type(message).FromString(bytes(read)) == message


def test_lines_have_the_path_of_their_object() -> None:
    main = envoy_bundle().main
    lines = main.text.splitlines()
    owner = {lines[number - 1].strip(): path for number, path in main.sources.items()}
    big = next(path for line, path in owner.items() if "hostname: big" in line)
    assert big == ("pools", "v1", "replicas", "big")
    assert owner["- name: gone"] == ("routes", "gone")
    assert owner["- name: shadow"] == ("pools", "shadow")


def test_each_feature_has_a_capability() -> None:
    assert set(TARGET.capabilities) == {feature.id for feature in FEATURES}


def test_importing_the_target_imports_no_protobuf() -> None:
    code = "import sys, lbctl.targets.envoy; print(sorted(m for m in sys.modules if m.startswith('google')))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "[]\n"
