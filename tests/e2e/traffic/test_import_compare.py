"""`lbctl import --compare`: the real proxy runs the configuration and its fleet, and both handle requests alike."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from lbctl.cli import run as command
from lbctl.importer.compare import run
from lbctl.importer.compare.processes import running
from lbctl.importer.compare.sandbox.confined import Sandbox
from lbctl.importer.run import KINDS
from tests.benchmarks.imports import rows
from tests.support.importer import SAMPLES, envoy_text
from tests.support.paths import ROOT
from tests.support.processes.binaries import Kind, require

pytestmark = [pytest.mark.e2e]


_SAMPLES = {
    "nginx": ("session-hash.conf", "ollama-key.conf", "provider-fallback.conf"),
    "haproxy": ("canary-headers-hosts.cfg", "tls-redirect-sticky.cfg", "litellm-userlist-tcp.cfg"),
    "envoy": ("basic-and-headers.yaml", "limits-and-auth.yaml"),
}
"""Some samples of each kind, with and without differences. Each starts two proxies."""


@pytest.mark.parametrize("kind", KINDS)
def test_samples_compare_as_documented(kind: str) -> None:
    require(kind)  # type: ignore[arg-type]
    assert len(documented := list(rows(kind, _SAMPLES[kind]))) == len(_SAMPLES[kind])
    assert [row for row in documented if row not in _documentation()] == []


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_all_samples_compare_as_documented(kind: str) -> None:
    require(kind)  # type: ignore[arg-type]
    assert [row for row in rows(kind) if row not in _documentation()] == []


def _documentation() -> str:
    return (ROOT / "docs" / "develop" / "import-samples.md").read_text(encoding="utf-8")


def test_compare_shows_the_route_of_each_request(capsys: pytest.CaptureFixture[str]) -> None:
    require("nginx")
    assert command(["import", "nginx", str(SAMPLES / "nginx" / "session-hash.conf"), "--compare"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert (
        next(line for line in lines if line.startswith("POST tgi.example.com/generate/")).split()[2] == "tgi-generate"
    )
    assert "8 of 8 compared requests agree, 0 were not compared" in lines


def test_lost_header_is_a_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require("nginx")
    file = tmp_path / "nginx.conf"
    file.write_text(
        "server { listen 80; location / { proxy_pass http://10.0.0.1:80; proxy_set_header X-A $connection; } }"
    )
    assert command(["import", "nginx", str(file), "--compare"]) == 1
    errors = capsys.readouterr().err
    assert "LB986" in errors
    assert "headers lost: x-a" in errors


CLOSED = {
    "nginx": (
        "server { listen 80; proxy_set_header Host $host; access_log /x; location /a { proxy_pass http://10.0.0.1; }\n"
        "location /b { proxy_pass http://10.0.0.1; post_action /c; } }"
    ),
    "haproxy": (
        "defaults\n mode http\n log global\nfrontend f\n bind :80\n use_backend a if { path_beg /a }\n"
        " default_backend b\n"
        "backend a\n server s 10.0.0.1:80\nbackend b\n server s 10.0.0.1:80\n filter spoe engine e config c\n"
    ),
}


@pytest.mark.parametrize(("kind", "closed"), [("nginx", "2 post_action"), ("haproxy", "12 filter")])
def test_row_reports_that_the_comparison_closed_the_route(
    kind: Kind, closed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require(kind)
    file = tmp_path / "source"
    file.write_text(CLOSED[kind])
    assert command(["import", kind, str(file), "--compare"]) == 0
    reason = f"source:{closed}, not a directive supported by the comparison"
    errors = capsys.readouterr().err
    assert f"the comparison closed the route: {reason}" in errors
    assert f"closed in the comparison: {reason}" in errors
    assert "not included in the comparison: logs (" in errors
    assert "agrees" in errors


def test_nothing_compared_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require("nginx")
    file = tmp_path / "nginx.conf"
    file.write_text("server { listen 80; location / { proxy_pass http://10.0.0.1; post_action /c; } }")
    assert command(["import", "nginx", str(file), "--compare"]) == 1
    errors = capsys.readouterr().err
    assert "0 of 0 compared requests agree" in errors
    assert "no request was compared" in errors


def test_haproxy_of_a_wheel_is_compared(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its libraries are next to it, and glibc loads another one when its first thread ends."""
    monkeypatch.setenv("LBCTL_HAPROXY", str(require("haproxy-2.8")))
    assert command(["import", "haproxy", str(SAMPLES / "haproxy" / "busy-queue.cfg"), "--compare"]) == 0
    assert "2 of 2 compared requests agree" in capsys.readouterr().err


def test_default_host_of_nginx_is_the_address_of_the_replica(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require("nginx")
    file = tmp_path / "nginx.conf"
    a, b = "location /a/ { proxy_pass http://10.0.0.1; }", "location / { proxy_pass http://b.example:81; }"
    file.write_text(f"server {{ listen 80; {a} {b} }}")
    assert command(["import", "nginx", str(file), "--compare"]) == 0, capsys.readouterr().err


ANSWERS = {
    "nginx": (
        "server { listen 80; proxy_set_header Host $host; location = /a { return 301 /a/; add_header X-A b; }\n"
        "location / { proxy_pass http://10.0.0.1; } }"
    ),
    "haproxy": (
        "defaults\n mode http\nfrontend f\n bind :80\n http-request redirect location /a/ code 301 if { path /a }\n"
        " http-request deny unless { path_beg /v1 } or { path_beg /w }\n default_backend b\n"
        "backend b\n server s 10.0.0.1:80\n"
    ),
    "envoy": envoy_text()
    .replace("route: {cluster: c}", "redirect: {path_redirect: /a/}", 1)
    .replace("stat_prefix: x", "stat_prefix: &c c")
    .replace("cluster: c}", "cluster: *c }"),
}
"""The proxy's own responses, conditions with exceptions, and an alias of YAML."""


@pytest.mark.parametrize("kind", KINDS)
def test_imported_answers_agree(kind: Kind, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require(kind)
    file = tmp_path / "source"
    file.write_text(ANSWERS[kind])
    assert command(["import", kind, str(file), "--compare"]) == 0, capsys.readouterr().err


def test_lost_sessions_are_a_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require("haproxy")
    file = tmp_path / "haproxy.cfg"
    file.write_text(
        "defaults\n mode http\nfrontend f\n bind :80\n default_backend b\nbackend b\n"
        " stick-table type string len 64 size 1k\n stick on req.hdr(x-a) if { path_beg /v1 }\n server s 10.0.0.1:80\n"
    )
    assert command(["import", "haproxy", str(file), "--compare"]) == 1
    assert "sessions do not stay on one replica in pool b (haproxy.cfg:8)" in capsys.readouterr().err


def test_external_auth_service_has_a_substitute(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require("nginx")
    file = tmp_path / "nginx.conf"
    file.write_text(
        "server { listen 80; location /a { auth_request /check; auth_request_set $t $upstream_http_x_tenant; "
        "proxy_set_header X-Tenant $t; proxy_set_header X-A $connection; proxy_set_header Host $host; "
        "proxy_pass http://10.0.0.1:80; } "
        "location = /check { internal; proxy_pass http://10.9.9.9:9191/verify; proxy_read_timeout 20ms; "
        'proxy_pass_request_body off; proxy_set_header Content-Length ""; } '
        'location /b { auth_basic "b"; auth_basic_user_file /etc/htpasswd; proxy_pass http://10.0.0.1:80; } }'
    )
    assert command(["import", "nginx", str(file), "--compare"]) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("POST")]
    assert [" ".join(line.split()[2:]) for line in lines] == [
        "a 200 10.0.0.1:80 200 10.0.0.1:80 headers lost: x-a",
        "b 401 401 both refuse a request without a key; nothing else was compared",
    ]


@pytest.mark.parametrize(("kind", "sample"), [("nginx", "session-hash.conf"), ("haproxy", "ray-template.cfg")])
def test_ports_of_the_comparison_are_reserved(
    kind: str, sample: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    require(kind)  # type: ignore[arg-type]
    started: list[int] = []

    def start(
        kind: str, binary: str, directory: Path, config: str, ports: Iterable[int], sandbox: Sandbox
    ) -> AbstractContextManager[None]:
        for port in ports:
            started.append(port)
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", port))
        return running(kind, binary, directory, config, ports, sandbox)

    def confined(work: Callable[[Sandbox], Any], base: Path, **_: Any) -> Any:
        return work(Sandbox("landlock", base))

    monkeypatch.setattr(run, "running", start)
    monkeypatch.setattr(run, "confined", confined)
    assert command(["import", kind, str(SAMPLES / kind / sample), "--compare"]) == 0
    assert len(started) == len(set(started)) == 2
    assert "0 were not compared" in capsys.readouterr().err


def test_longer_path_of_a_prefix_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require("nginx")
    file = tmp_path / "nginx.conf"
    own, rest = "location /v1/emb { proxy_pass http://10.0.0.1; }", "location / { proxy_pass http://10.0.0.2; }"
    file.write_text(f"server {{ listen 80; {own} {rest} }}")
    assert command(["import", "nginx", str(file), "--compare"]) == 1
    assert "POST sample.example/v1/embx: replica 10.0.0.1:80 → 10.0.0.2:80" in capsys.readouterr().err
