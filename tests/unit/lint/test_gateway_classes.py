"""LB251: known Gateway classes that lack a feature of the fleet."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.lint import findings

_CLUSTER = "kubernetes: {namespace: ml, service: %s, port: 8000, selector: {app: %s}}"
_FLEET = f"""\
version: 1
# tls/clients.crt holds a CA
# tls/ca.crt holds a CA
listeners:
  plain: {{bind: "0.0.0.0:80"}}
  public:
    bind: "0.0.0.0:443"
    tls:
      certificates: [{{certificate: tls/a.crt, key: tls/a.key}}]
      client_ca: tls/clients.crt
      client_certificate: required
routes:
  secure: {{listeners: [plain], match: {{path_prefix: /}}, respond: {{redirect: https}}}}
  chat:
    listeners: [public]
    match: {{path_prefix: /v1/chat, methods: [POST]}}
    pool: llama
    rewrite: {{path_prefix: /chat}}
    mirror: {{pool: shadow, percent: 5%}}
  rank: {{listeners: [public], match: {{path_prefix: /v1/rank}}, pool: rank}}
pools:
  llama: {{discovery: {{{_CLUSTER % ("llama", "llama")}}}, balance: {{algorithm: pick}}}}
  shadow: {{discovery: {{{_CLUSTER % ("shadow", "shadow")}}}, protocol: grpc}}
  rank:
    discovery: {{{_CLUSTER % ("rank", "rank")}}}
    tls: {{ca: tls/ca.crt, server_name: rank.ml, certificate: tls/gateway.crt, key: tls/gateway.key}}
proxies:
  edge: {{kind: gateway-api, version: "1.5", kubernetes: {{namespace: ml, gateway_class: CLASS}}}}
"""


def lacking(root: Path, gateway_class: str, version: str = "1.5", text: str = _FLEET) -> dict[str, str]:
    """Return path of a setting → what the class lacks for it."""
    text = text.replace("CLASS", gateway_class).replace('version: "1.5"', f'version: "{version}"')
    found = findings(text, None, root)
    assert [item for item in found if item.severity == "error"] == []
    return {
        ".".join(map(str, item.path)): re.sub(r".*does not support ([^;]*).*", r"\1", item.message)
        for item in found
        if item.code == "LB251"
    }


def test_each_class_lacks_the_features_of_its_report(tmp_path: Path) -> None:
    timeouts = dict.fromkeys(("routes.chat.timeouts.request", "routes.rank.timeouts.request"), "total timeouts")
    for gateway_class in ("eg", "kgateway"):
        assert lacking(tmp_path, gateway_class) == {"pools.llama.balance.algorithm": "InferencePools"}
    assert lacking(tmp_path, "istio") == {
        "listeners.public.tls.client_ca": "client certificates on a Gateway's listeners",
        "pools.rank.tls.certificate": "a client certificate of the Gateway",
    }
    assert lacking(tmp_path, "nginx") == timeouts
    assert lacking(tmp_path, "gke-l7-rilb") == timeouts | {
        "pools.shadow.protocol": "HTTP/2 without TLS to replicas",
        "routes.chat.match.methods": "matching by method",
        "routes.chat.rewrite.path_prefix": "path rewriting",
        "routes.secure.respond.redirect": "redirects with the status 308",
    }


@pytest.mark.parametrize("gateway_class", ["agentgateway", "internal"])
def test_other_classes_have_no_finding(gateway_class: str, tmp_path: Path) -> None:
    assert lacking(tmp_path, gateway_class) == {}


def test_class_lacks_existing_inference_pools(tmp_path: Path) -> None:
    text = _FLEET.replace(_CLUSTER % ("llama", "llama"), "kubernetes: {namespace: ml, inference_pool: llama}")
    path = "pools.llama.discovery.kubernetes.inference_pool"
    for gateway_class in ("eg", "kgateway"):
        assert lacking(tmp_path, gateway_class, text=text) == {path: "InferencePools"}
    assert path not in lacking(tmp_path, "istio", text=text)


def test_existing_gateways_have_no_finding(tmp_path: Path) -> None:
    assert lacking(tmp_path, "", text=_FLEET.replace("gateway_class: CLASS", "gateway: shared")) == {}


def test_features_of_later_versions_are_not_rendered(tmp_path: Path) -> None:
    assert "routes.secure.respond.redirect" not in lacking(tmp_path, "gke-l7-rilb", "1.4")
    assert lacking(tmp_path, "istio", "1.4") == {}


def test_routes_that_return_503_only_need_their_match(tmp_path: Path) -> None:
    closed = _FLEET.replace("    rewrite:", "    rate_limit: [{by: all, rate: 5/s}]\n    rewrite:")
    assert set(lacking(tmp_path, "gke-l7-rilb", text=closed)) == {
        "routes.chat.match.methods", "routes.rank.timeouts.request", "routes.secure.respond.redirect",
    }  # fmt: skip


def test_envoy_gateway_rewrites_other_prefixes_than_the_root(tmp_path: Path) -> None:
    """The redirect of the listener `plain` matches the root too, but has no rewrite."""
    root = _FLEET.replace("path_prefix: /v1/chat", "path_prefix: /")
    assert "routes.chat.rewrite.path_prefix" in lacking(tmp_path, "eg", text=root)
    assert "routes.chat.rewrite.path_prefix" not in lacking(tmp_path, "eg")
