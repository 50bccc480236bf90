"""What cannot be kept as it was asked for is refused, closed or said; it is never open in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.base.diagnostics import Diagnostics
from lbctl.compile.files import check_files
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot, view
from lbctl.model.fleet import read
from lbctl.targets import KINDS, target
from lbctl.targets.target import Bundle
from tests.support.fleet import compiled, compiling, marked, places

_FLEET = """
version: 1
listeners: {l: {bind: "127.0.0.1:8080", access_log: {format: text}}}
"""


def _rendered(kind: str, text: str, zone: str | None = None) -> Bundle:
    proxy = Proxy("proxy", kind, target(kind).versions[0], zone=zone)
    return target(kind).render(view(Snapshot(compiled(_FLEET + text).topology), proxy))


def _limited(rate: str) -> str:
    route = f"r: {{pool: p, rate_limit: [{{by: all, rate: {rate}}}]}}"
    return f'routes: {{{route}}}\npools: {{p: {{replicas: [{{address: "127.0.0.1:9001"}}]}}}}\n'


def test_nginx_closes_a_route_whose_limit_is_below_what_it_counts_in() -> None:
    slow, slowest = _rendered("nginx", _limited("59/h")), _rendered("nginx", _limited("60/h"))
    assert [item.code for item in slow.diagnostics] == ["LB441"]
    assert "proxy_pass" not in slow.main.text
    assert "return 503" in slow.main.text
    assert "rate=1r/m" in slowest.main.text
    assert "proxy_pass" in slowest.main.text


@pytest.mark.parametrize("key", ["auth: ▶{api_keys: {file: keys}}", "rate_limit: ▶[{by: all, rate: 1/s}]"])
def test_what_does_not_hold_for_the_proxys_own_answer_is_said(key: str) -> None:
    text, place = marked(f"{_FLEET}routes:\n  r: {{respond: {{status: 200}}, {key}}}\n")
    made, found = compiling(text)
    assert made is not None
    assert places(found) == [f"{place} LB106"]


def test_two_directories_cannot_name_different_files_alike(tmp_path: Path) -> None:
    auth = "auth: {api_keys: {file: keys}}"
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "keys").write_text(f"sk-{name}: {name}\n")
        (tmp_path / name / "fleet.yaml").write_text(f"version: 1\nroutes: {{{name}: {{pool: p, {auth}}}}}\n")
    (tmp_path / "p.yaml").write_text('version: 1\npools: {p: {replicas: [{address: "127.0.0.1:1"}]}}\n')
    diagnostics = Diagnostics()
    source = read([str(tmp_path / name) for name in ("a", "b", "p.yaml")], diagnostics)
    assert source is not None
    check_files(source, False, diagnostics)
    assert places(list(diagnostics)) == ["2:47 LB118"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_is_never_to_be_left_early_renders(kind: str) -> None:
    replicas = '[{address: "127.0.0.1:1", zone: a}, {address: "127.0.0.1:2", zone: b}]'
    pool = f"{{locality: {{spill_below: 0%}}, replicas: {replicas}}}"
    assert _rendered(kind, f"routes: {{r: {{pool: p}}}}\npools: {{p: {pool}}}\n", zone="a").main.text


def test_envoy_asks_the_replicas_certificate_for_their_names() -> None:
    replicas = '[{address: "a.internal:1"}, {address: "b.internal:1"}]'
    text = _rendered("envoy", f"routes: {{r: {{pool: p}}}}\npools: {{p: {{tls: {{ca: ca}}, replicas: {replicas}}}}}\n")
    for name in ("a.internal", "b.internal"):
        assert f"{{san_type: DNS, matcher: {{exact: {name}}}}}" in text.main.text


def test_haproxy_counts_by_the_header_of_the_key_before_it_is_taken_off() -> None:
    route = "{pool: p, auth: {api_keys: {file: k, header: x-key}}, rate_limit: [{by: {header: x-key}, rate: 1/s}]}"
    pools = 'pools: {p: {replicas: [{address: "127.0.0.1:9001"}]}}'
    text = _rendered("haproxy", f"routes: {{r: {route}}}\n{pools}\n").main.text
    assert text.index("track-sc0") < text.index("del-header 'x-key'")


def test_the_query_does_not_stand_in_nginx_readable_log() -> None:
    log = next(line for line in _rendered("nginx", _limited("1/s")).main.text.splitlines() if "log_format" in line)
    assert "$lb_log_path" in log
    assert '$request"' not in log
    assert "$request " not in log
