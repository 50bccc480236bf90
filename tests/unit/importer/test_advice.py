"""Imports report settings that harm inference (LB985) at their line, for all three kinds of proxy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.importer import envoy_text, fleet_from_text, imported_text

NGINX = (
    "upstream up {{\n zone up 64k; server 10.0.0.1:80; {0} }}\nserver {{\n listen 80; client_max_body_size 0;\n"
    "location / {{\nproxy_pass http://up; proxy_http_version 1.1; proxy_buffering off; "
    "proxy_read_timeout 1h;\n{1}\n}} }}"
)
HAPROXY = (
    "defaults\n mode http\n option http-no-delay\n timeout server 10m\nfrontend f\n bind :80\n default_backend b\n"
    "backend b\n {0}\n server s 10.0.0.1:80 check {1}\n"
)


def envoy(action: str = "", cluster: str = "connect_timeout: 2s") -> str:
    text = envoy_text().replace("route: {cluster: c}", "route: {cluster: c, timeout: 0s}")
    text = text.replace(
        "- match: {prefix: /}\n                route: {cluster: c, timeout: 0s}",
        f"- match: {{prefix: /}}\n                route: {{cluster: c, timeout: 0s, {action}}}",
    )
    return text.replace("  - name: c\n", f"  - name: c\n    {cluster}\n").replace(
        "  - name: auth\n", "  - name: auth\n    connect_timeout: 2s\n")  # fmt: skip


REPEATED = "repeats generations that have already started"


@pytest.mark.parametrize(
    ("kind", "text", "line", "message"),
    [
        ("nginx", NGINX.format("", "proxy_next_upstream error http_503 non_idempotent;"), 7, REPEATED),
        ("nginx", NGINX.format("", "proxy_read_timeout 30s;"), 7, "cuts off a model"),
        ("nginx", NGINX.format("ip_hash;", ""), 2, "behind one address to one replica"),
        ("haproxy", HAPROXY.format("retry-on all-retryable-errors", ""), 9, f"{REPEATED}, even for POST requests"),
        ("haproxy", HAPROXY.format("retry-on 500 503", ""), 9, REPEATED),
        ("haproxy", HAPROXY.format("timeout server 30s", ""), 9, "cuts off a model"),
        ("haproxy", HAPROXY.format("balance source", ""), 9, "behind one address to one server"),
        ("haproxy", HAPROXY.format("option httpclose", ""), None, ""),
        ("haproxy", HAPROXY.format("", "ssl verify none"), 10, "not verified"),
        ("haproxy", HAPROXY.replace("check", "").format("", ""), 10, "without `check`"),
        ("haproxy", HAPROXY.replace(" option http-no-delay\n", "").format("", ""), 4, "delay the first token"),
        ("envoy", envoy('retry_policy: {retry_on: "5xx,reset"}'), 21, REPEATED),
        ("envoy", envoy("timeout: 30s").replace("timeout: 0s, timeout", "timeout"), 21, "cuts off a response"),
        ("envoy", envoy(cluster="lb_policy: ROUND_ROBIN"), None, "Envoy's default connect timeout of 5s"),
    ],
)
def test_harmful_setting_is_reported_at_its_line(
    kind: str, text: str, line: int | None, message: str, tmp_path: Path
) -> None:
    _, diagnostics = imported_text(kind, text, tmp_path)
    findings = [(item.position.line, item.message) for item in diagnostics if item.code == "LB985" and item.position]
    if message:
        assert [text for at, text in findings if message in text and line in {None, at}], findings
    else:
        assert findings == []


@pytest.mark.parametrize(
    ("kind", "text"), [("nginx", NGINX.format("", "")), ("haproxy", HAPROXY.format("", "")), ("envoy", envoy())]
)
def test_harmless_configuration_has_no_findings(kind: str, text: str, tmp_path: Path) -> None:
    assert [str(item) for item in imported_text(kind, text, tmp_path)[1]] == []


@pytest.mark.parametrize(
    ("kind", "text", "statuses"),
    [
        ("nginx", NGINX.format("", "proxy_next_upstream error http_503 http_429 non_idempotent;"), [429, 503]),
        ("haproxy", HAPROXY.format("retry-on conn-failure 503", ""), None),
        ("envoy", envoy('retry_policy: {retry_on: "connect-failure,retriable-status-codes", '
                        "retriable_status_codes: [503, 429]}"), [429, 503]),
    ],
)  # fmt: skip
def test_busy_replica_is_retried_elsewhere(kind: str, text: str, statuses: list[int] | None, tmp_path: Path) -> None:
    *_, route = fleet_from_text(kind, text, tmp_path)["routes"].values()
    assert route["retry"]["when"] == ["connect_failure", "refused_stream", "reset_before_request", "replica_busy"]
    assert route["retry"].get("busy_statuses") == statuses


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("nginx", NGINX.format("", "proxy_next_upstream error http_503;")),
        ("haproxy", HAPROXY.format("retry-on 503\n http-request disable-l7-retry if METH_POST", "")),
        ("envoy", envoy('retry_policy: {retry_on: "5xx"}')),
    ],
)
def test_other_retries_do_not_depend_on_busy_replicas(kind: str, text: str, tmp_path: Path) -> None:
    *_, route = fleet_from_text(kind, text, tmp_path)["routes"].values()
    assert "when" not in route.get("retry", {})
