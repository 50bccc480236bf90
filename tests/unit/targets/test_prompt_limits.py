"""Limits on prompt tokens in the proxies' configurations: the data for the picker, and the response of 429."""

from __future__ import annotations

import pytest

from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot, view
from lbctl.targets import target
from lbctl.targets.target import Bundle
from tests.support.fleet import compiled

LIMITS = "rate_limit: [{by: client_ip, prompt_tokens: 200k/m}, {by: {header: x-team}, prompt_tokens: 5M/h}]"
FLEET = """\
version: 1
listeners: {front: {bind: "127.0.0.1:80"}}
routes:
  limited: {match: {path: /limited}, pool: llama, LIMITS}
  open: {match: {path: /open}, pool: llama}
pools:
  llama:
    balance: {algorithm: pick, pick: {session: [x-chat], prefix: "off"}}
    replicas: [{address: "10.0.0.1:80"}, {address: "10.0.0.2:80"}]
"""
SENT_ONCE = {
    "nginx": ("/pick/llama?route=limited", "proxy_set_header x-lbctl-client $remote_addr;"),
    "haproxy": ("/pick/llama?route=limited", "client=src"),
    "envoy": ("x-lbctl-route", "x-lbctl-client"),
}
"""The parts of a configuration that only queries for the limited route have."""
REJECTION = {
    "nginx": ("error_page 403 = @lb_refused;", "add_header Retry-After $lb_retry_after always;"),
    "haproxy": ("http-request return status 429", "txn.picker.refused"),
    "envoy": ("exact: retry-after", "x-lbctl-refused"),
}
"""The parts that send the client a response of 429."""


def rendered(kind: str, text: str) -> Bundle:
    chosen = target(kind)
    return chosen.render(view(Snapshot(compiled(text).topology), Proxy("edge", kind, chosen.versions[0])))


def written(kind: str, text: str) -> str:
    """Return the text of all files of this kind of proxy."""
    return "\n".join(file.text for file in rendered(kind, text).files)


@pytest.mark.parametrize("kind", SENT_ONCE)
def test_picker_receives_what_a_limit_needs(kind: str) -> None:
    text = written(kind, FLEET.replace("LIMITS", LIMITS))
    assert {part: text.count(part) for part in SENT_ONCE[kind]} == dict.fromkeys(SENT_ONCE[kind], 1)
    assert "x-team" in text


@pytest.mark.parametrize("kind", REJECTION)
def test_rejection_by_the_picker_is_a_429_without_a_queue(kind: str) -> None:
    text = written(kind, FLEET.replace("LIMITS", LIMITS))
    assert [part for part in REJECTION[kind] if part not in text] == []


@pytest.mark.parametrize("kind", SENT_ONCE)
def test_fleet_without_prompt_limits_has_none_of_these_parts(kind: str) -> None:
    text = written(kind, FLEET.replace(", LIMITS", ""))
    assert [part for part in (*SENT_ONCE[kind], *REJECTION[kind], "x-team") if part in text] == []


def test_nginx_warns_about_a_header_that_it_drops() -> None:
    found = rendered("nginx", FLEET.replace("LIMITS", LIMITS.replace("x-team", "x_team"))).diagnostics
    assert [(item.code, item.path, item.message) for item in found if item.code == "LB167"] == [
        (
            "LB167",
            ("routes", "limited", "rate_limit"),
            "nginx drops headers named x_team: they do not distinguish requests",
        )
    ]


def test_limit_by_tenant_rejects_tokens_without_a_tenant() -> None:
    auth = "auth: {jwt: {issuer: i, jwks_file: f, tenant_claim: org}}"
    limited = f"{auth}, rate_limit: [{{by: tenant, prompt_tokens: 5k/m}}]"
    without, with_limit = (written("haproxy", FLEET.replace("LIMITS", route)) for route in (auth, limited))
    message = "the credentials do not identify a tenant"
    assert with_limit.count(message) == without.count(message) + 1
