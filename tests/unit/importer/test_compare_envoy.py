"""The Envoy configuration that a comparison runs: only listed fields; any other field closes the part around it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lbctl.base.diagnostics import Diagnostics
from lbctl.importer.compare.places import StandIns
from lbctl.importer.compare.sources import envoy
from lbctl.importer.compare.sources.removed import CLOSED_HEADER, Rewritten
from lbctl.importer.draft import CLOSED_STATUS
from lbctl.importer.envoy.read import read
from tests.support.importer import envoy_text

_TYPES = "type.googleapis.com/envoy.extensions.filters.http"
_LUA = f'{{"@type": {_TYPES}.lua.v3.Lua}}'
_BUFFER = f'{{"@type": {_TYPES}.buffer.v3.Buffer, max_request_bytes: 1000}}'


def rewritten(text: str, directory: Path) -> Rewritten:
    file = directory / "envoy.yaml"
    file.write_text(text)
    diagnostics = Diagnostics()
    places = StandIns(directory, {"0.0.0.0:80": 20000}, {"10.0.0.1:80": 21000})
    result = envoy.rewrite(read(str(file), diagnostics), places)
    assert not diagnostics.failed, [str(item) for item in diagnostics]
    return result


def manager(result: Rewritten) -> dict[str, Any]:
    (listener,) = json.loads(result.text)["static_resources"]["listeners"]
    config: dict[str, Any] = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return config


def answers(result: Rewritten) -> list[str]:
    """Return the match of each route with its cluster, or the name and line of the field that closed it."""
    return [_answer(result, route) for host in manager(result)["route_config"]["virtual_hosts"]
            for route in host["routes"]]  # fmt: skip


def _answer(result: Rewritten, route: dict[str, Any]) -> str:
    match = route["match"].get("path") or route["match"]["prefix"]
    if "route" in route:
        return f"{match} {route['route']['cluster']}"
    assert route["direct_response"]["status"] == CLOSED_STATUS
    (option,) = route["response_headers_to_add"]
    assert option["header"]["key"] == CLOSED_HEADER
    item = result.removed[int(option["header"]["value"])]
    assert item.closes
    return f"{match} closed by {item.name} in line {item.position.line}"


def test_harmless_configuration_keeps_its_routes(tmp_path: Path) -> None:
    result = rewritten(envoy_text(), tmp_path)
    assert answers(result) == ["/open c", "/ c"]
    assert [item for item in result.removed if item.closes] == []
    assert '"port_value": 21000' in result.text


_FORWARD = "route: {cluster: c}"
_FILE = "direct_response: {status: 200, body: {filename: /etc/passwd}}"
_COMMAND = 'response_headers_to_add: [{header: {key: a, value: "%FILE_CONTENT(/etc/passwd)%"}}]'
_OTHER_COMMAND = 'request_headers_to_add: [{header: {key: a, value: "%REQ(A)%%CEL(a % b)%"}}]'
_RAW = 'request_headers_to_add: [{header: {key: a, raw_value: "YQ=="}}]'


@pytest.mark.parametrize(
    ("fields", "closing"),
    [
        ((_FORWARD, _OTHER_COMMAND), "value"),
        (("route: {cluster: c, early_data_policy: {name: x}}", ""), "early_data_policy"),
        ((_FILE, ""), "filename"),
        ((_FORWARD, _COMMAND), "value"),
        ((_FORWARD, _RAW), "raw_value"),
        ((_FORWARD, f"typed_per_filter_config: {{buffer: {_LUA}}}"), "buffer"),
    ],
)
def test_unlisted_field_of_a_route_closes_it(fields: tuple[str, str], closing: str, tmp_path: Path) -> None:
    action, field = fields
    text = envoy_text(route=field, filters=f"- {{name: buffer, typed_config: {_BUFFER}}}")
    before, _, after = text.rpartition(_FORWARD)
    first, second = answers(rewritten(before + action + after, tmp_path))
    assert first == "/open c"
    assert second.startswith(f"/ closed by {closing} in line ")


def test_escapes_and_commands_for_requests_stay(tmp_path: Path) -> None:
    headers = 'request_headers_to_add: [{header: {key: a, value: "%REQ(X-A?:B):8% %DOWNSTREAM_REMOTE_ADDRESS% 10%"}}]'
    text = envoy_text(route=headers).replace("path: /open", "path: /%E4%BD%A0")
    assert answers(rewritten(text, tmp_path)) == ["/%E4%BD%A0 c", "/ c"]


def test_unknown_match_closes_the_rest_of_its_host(tmp_path: Path) -> None:
    extension = "{path_match_policy: {name: x}}"
    result = rewritten(envoy_text().replace("match: {path: /open}", f"match: {extension}"), tmp_path)
    assert answers(result) == ["/ closed by path_match_policy in line 17"]


def test_unlisted_field_of_a_host_closes_it_alone(tmp_path: Path) -> None:
    other = (
        "- {name: w, domains: [b.example], routes: [{match: {prefix: /}, route: {cluster: c}}]}\n            - name: v"
    )
    text = envoy_text().replace("- name: v", other).replace('domains: ["*"]', 'domains: ["*"]\n              cors: {}')
    result = rewritten(text, tmp_path)
    assert answers(result) == ["/ c", "/ closed by cors in line 17"]
    assert [host["domains"] for host in manager(result)["route_config"]["virtual_hosts"]] == [["b.example"], ["*"]]


_STRUCT = "{'@type': type.googleapis.com/xds.type.v3.TypedStruct, type_url: a, value: {}}"


@pytest.mark.parametrize(
    ("old", "new", "closing"),
    [
        (
            "stat_prefix: x",
            "stat_prefix: x\n          local_reply_config: {body_format: {text_format_source: {filename: a}}}",
            "filename",
        ),
        ("http_filters:", f"http_filters:\n          - {{name: own, typed_config: {_STRUCT}}}", "typed_config"),
        ("- name: l", "- name: l\n    use_original_dst: true", "use_original_dst"),
        ("    - filters:", "    - filter_chain_match: {source_type: EXTERNAL}\n      filters:", "source_type"),
    ],
)
def test_unlisted_field_of_a_listener_closes_it(old: str, new: str, closing: str, tmp_path: Path) -> None:
    result = rewritten(envoy_text().replace(old, new, 1), tmp_path)
    (answer,) = answers(result)
    assert answer.startswith(f"/ closed by {closing} in line ")
    assert [item["name"] for item in manager(result)["http_filters"]] == ["envoy.filters.http.router"]


def test_unlisted_field_of_a_cluster_closes_its_routes(tmp_path: Path) -> None:
    text = envoy_text(route="response_headers_to_remove: [x-a]").replace(
        "  - name: c\n", "  - name: c\n    upstream_config: {name: x}\n"
    )
    result = rewritten(text, tmp_path)
    assert answers(result) == ["/open closed by upstream_config in line 29", "/ closed by upstream_config in line 29"]
    clusters = json.loads(result.text)["static_resources"]["clusters"]
    assert [item["name"] for item in clusters] == ["auth"]


def test_services_without_an_address_close_their_listener(tmp_path: Path) -> None:
    for service in ("", ", http_service: {server_uri: {uri: x}}", ", http_service: {server_uri: {cluster: none}}"):
        filters = f"- {{name: a, typed_config: {{'@type': {_TYPES}.ext_authz.v3.ExtAuthz{service}}}}}"
        (answer,) = answers(rewritten(envoy_text(filters=filters), tmp_path))
        assert answer.startswith("/ closed by ")
        assert answer.endswith(" in line 24")


def test_filters_that_run_code_are_left_out(tmp_path: Path) -> None:
    filters = f"- {{name: own, typed_config: {_LUA}}}\n          - {{name: buffer, typed_config: {_BUFFER}}}"
    result = rewritten(envoy_text(filters=filters, open_=f"own: {_LUA}"), tmp_path)
    assert answers(result) == ["/open c", "/ c"]
    assert [item["name"] for item in manager(result)["http_filters"]] == ["buffer", "router"]
    assert [item.name for item in result.removed] == ["lua", "own"]
    assert "lua" not in result.text


def test_value_of_another_kind_is_refused_not_passed_on(tmp_path: Path) -> None:
    dump = (
        '{"configs": [{"@type": "type.googleapis.com/envoy.admin.v3.RoutesConfigDump", "static_route_configs": []},'
        '{"@type": "type.googleapis.com/envoy.admin.v3.ClustersConfigDump", "static_clusters": [{"cluster": '
        '{"name": "c", "connect_timeout": {"filename": "/etc/passwd"}}}]}]}'
    )
    result = rewritten(dump, tmp_path)
    assert [(item.name, item.reason) for item in result.removed] == [
        ("connect_timeout", "not a supported type of value")
    ]
    assert "passwd" not in result.text


def test_typed_value_without_its_content_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "envoy.yaml"
    value = "{name: x, typed_config: {'@type': type.googleapis.com/google.protobuf.Struct}}"
    file.write_text(f"stats_sinks: [{value}]\n")
    diagnostics = Diagnostics()
    assert read(str(file), diagnostics) is None
    assert [item.message for item in diagnostics] == ["invalid Envoy configuration: 'value' is missing"]
