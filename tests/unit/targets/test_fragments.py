"""A fragment has names of its own and nothing that the host's other sites would see."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.ir.snapshot import Snapshot
from lbctl.targets import target
from lbctl.targets.load import load
from lbctl.targets.prepare import prepare
from lbctl.targets.target import Bundle

_FLEET = """\
version: 1
listeners: {{public: {{bind: "127.0.0.1:8080", max_connections: 100}}}}
routes:
  lb_chat:
    match: {{path_prefix: /v1/, headers: {{x-a: "$lb_path${{lb_path"}}}}
    pool: lb_pool
    auth: {{api_keys: {{file: keys}}}}
    rate_limit: [{{by: tenant, rate: 10/s}}]
    headers: {{response: {{set: {{x-b: "$lb_host"}}}}}}
  more: {more}
pools: {{lb_pool: {{replicas: [{{name: a, address: "127.0.0.1:9001", weight: 1}}]{pool}}}}}
proxies: {{site: {{kind: {kind}, form: {form}, config: /etc/site/lbctl.conf, runtime_api: /run/site.sock}}}}
"""
_MORE = "{match: {path: /none}, respond: {status: 204}}"
_INHERITED = re.compile(r"^    (?!#|map |geo |split_clients |log_format |upstream |server |limit_\w+_zone |\s|\})\S+")
_NAMES = re.compile(r"^ *(?:map \S.* (\$\S+) \{|geo (\S+) \{|upstream (\S+) \{|log_format (\S+)|.* zone=(\w+):)")


def _bundle(kind: str, directory: Path, form: str = "fragment") -> Bundle:
    loaded = _loaded(kind, directory, form=form)[0]
    assert loaded is not None
    proxy, implementation = loaded.compiled.topology.proxies[0], target(kind)
    snapshot = Snapshot(loaded.compiled.topology, secrets=loaded.secrets)
    return implementation.render(prepare(implementation, loaded.compiled, proxy, snapshot).view)


def _loaded(kind: str, directory: Path, *, form: str = "fragment", more: str = _MORE, pool: str = "") -> tuple:  # type: ignore[type-arg]
    file, diagnostics = directory / "fleet.yaml", Diagnostics()
    (directory / "keys").write_text("sk-of-acme-0123456789: acme\n")
    file.write_text(_FLEET.format(kind=kind, form=form, more=more, pool=pool))
    return load([str(file)], diagnostics), list(diagnostics)


def test_an_nginx_fragment_sets_nothing_that_other_servers_inherit(tmp_path: Path) -> None:
    text = _bundle("nginx", tmp_path).main.text
    assert [line for line in text.splitlines() if _INHERITED.match(line)] == []
    assert "default_server" not in text
    assert "include /etc/site/nginx-api-keys-lb_chat.map;" in text
    for setting in ("server_tokens off", "types { }", "underscores_in_headers off", "proxy_intercept_errors off"):
        assert text.count(f" {setting};" if not setting.endswith("}") else setting) == text.count("\n    server {")


def test_every_name_of_an_nginx_fragment_is_its_own(tmp_path: Path) -> None:
    matches = (_NAMES.match(line) for line in _bundle("nginx", tmp_path).main.text.splitlines())
    names = [name for match in matches if match for name in match.groups() if name]
    assert len(names) > 20
    assert [name for name in names if not name.lstrip("$").startswith("lbctl_")] == []


def test_what_a_user_writes_is_no_name_of_lbctls(tmp_path: Path) -> None:
    whole, fragment = (_bundle("nginx", tmp_path, form).main.text for form in ("whole", "fragment"))
    for own in (r"\\$lb_path\\$\\{lb_path", "lb_host", '"lb_chat:lb_pool"'):
        assert whole.count(own) >= 1
        assert own in fragment
    assert "\x01" not in whole + fragment
    assert "$lb_" not in fragment.replace(r"\\$lb_path", "")


def test_a_haproxy_fragment_has_no_global_and_only_sections_of_its_own(tmp_path: Path) -> None:
    bundle = _bundle("haproxy", tmp_path)
    sections = [line for line in bundle.main.text.splitlines() if re.match(r"[a-z]", line)]
    assert sections == [
        "defaults lbctl",
        "frontend lbctl_listener_public from lbctl",
        "backend lbctl_limit0_lb_chat from lbctl",
        "backend lbctl_pool_lb_pool from lbctl",
        "backend lbctl_config from lbctl",
    ]
    assert "proc." not in bundle.main.text
    assert "/etc/site/haproxy-api-keys-lb_chat.map" in bundle.main.text


@pytest.mark.parametrize(
    ("more", "pool", "needs"),
    [
        ("{match: {path: /m, model: [llama]}, pool: lb_pool}", "", "tune.bufsize"),
        (_MORE, ", balance: {algorithm: hash, hash: {key: {json_body: $.user}}}", "tune.bufsize"),
        (_MORE, ", balance: {algorithm: pick}", "lua-load"),
        (_MORE, ", tls: {ca: ca.crt, certificate: c.crt, key: c.key}", "ssl-load-extra-del-ext"),
    ],
)
def test_a_haproxy_fragment_is_refused_where_it_relies_on_the_process(
    more: str, pool: str, needs: str, tmp_path: Path
) -> None:
    loaded, diagnostics = _loaded("haproxy", tmp_path, more=more, pool=pool)
    errors: list[Diagnostic] = [item for item in diagnostics if item.severity == "error"]
    assert loaded is None
    assert {item.code for item in errors} == {"LB135"}
    assert any(needs in item.message for item in errors)
    assert _loaded("haproxy", tmp_path, form="whole", more=more, pool=pool)[0] is not None
