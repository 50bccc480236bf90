"""LB252: entries that configure the same host of one gateway."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.lint import findings

_FLEET = """\
version: 1
listeners:
  web: {{bind: "0.0.0.0:80"{lists}}}
  other: {{bind: "0.0.0.0:81"}}
routes:
  a: {{match: {{hosts: ["*.example.com"]}}, listeners: [web], pool: p}}
  b: {{match: {{hosts: [{host}]}}, listeners: [other], pool: p}}
pools: {{p: {{discovery: {{kubernetes: {{namespace: ml, service: s, port: 80}}}}}}}}
proxies:
  one: {{kind: {kind}, {keys}, kubernetes: {{namespace: ml, {place}}}}}
  two: {{kind: {kind}, {others}, kubernetes: {{namespace: ml, {place}}}}}
"""
_WEB, _OTHER = "listeners: [web]", "listeners: [other]"
_PODS = "gateway_labels: {app: gateway}"
_LISTS = ', allow_from: ["192.0.2.0/24"]'


def shared(root: Path, **settings: str) -> list[str]:
    """Return the messages of LB252 for a fleet with two entries."""
    defaults = {"lists": "", "host": "a.example.com", "kind": "istio", "keys": _WEB, "others": _WEB, "place": _PODS}
    found = findings(_FLEET.format(**defaults | settings), None, root)
    assert [item for item in found if item.severity == "error"] == []
    return [item.message for item in found if item.code == "LB252"]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"place": "pods_namespace: gateways"},
        {"place": "gateway: shared"},
        {"place": "gateway: shared", "kind": "gateway-api"},
        {"place": "gateway: infra/shared", "kind": "envoy-gateway"},
    ],
)
def test_same_host_and_port_are_reported(settings: dict[str, str], tmp_path: Path) -> None:
    message = "entry one also configures *.example.com on port 80 of the same gateway"
    assert shared(tmp_path, **settings) == [message]


@pytest.mark.parametrize(
    "settings",
    [
        {"others": _OTHER},
        {"others": f"region: us, {_WEB}", "keys": f"region: eu, {_WEB}"},
        {"place": "gateway_class: eg", "kind": "gateway-api"},
        {"others": _OTHER, "lists": _LISTS, "host": "a.example.org"},
        {"others": _OTHER, "lists": _LISTS, "place": "gateway: shared"},
    ],
)
def test_separate_parts_of_a_gateway_are_not_reported(settings: dict[str, str], tmp_path: Path) -> None:
    assert shared(tmp_path, **settings) == []


def test_different_access_lists_of_a_host_are_reported(tmp_path: Path) -> None:
    assert shared(tmp_path, others=_OTHER, lists=_LISTS) == [
        "the access lists in this entry and in entry one apply to all ports of the same gateway"
    ]
