"""HAProxy fragments that need settings of the process are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.targets.load import load

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


def _loaded(kind: str, directory: Path, *, form: str = "fragment", more: str = _MORE, pool: str = "") -> tuple:  # type: ignore[type-arg]
    file, diagnostics = directory / "fleet.yaml", Diagnostics()
    (directory / "keys").write_text("sk-of-acme-0123456789: acme\n")
    file.write_text(_FLEET.format(kind=kind, form=form, more=more, pool=pool))
    return load([str(file)], diagnostics), list(diagnostics)


@pytest.mark.parametrize(
    ("more", "pool", "needs"),
    [
        ("{match: {path: /m, model: [llama]}, pool: lb_pool}", "", "tune.bufsize"),
        (_MORE, ", balance: {algorithm: hash, hash: {key: {json_body: $.user}}}", "tune.bufsize"),
        (_MORE, ", balance: {algorithm: pick}", "lua-load"),
        (_MORE, ", tls: {ca: ca.crt, certificate: c.crt, key: c.key}", "ssl-load-extra-del-ext"),
    ],
)
def test_haproxy_fragment_that_needs_the_process_is_refused(more: str, pool: str, needs: str, tmp_path: Path) -> None:
    loaded, diagnostics = _loaded("haproxy", tmp_path, more=more, pool=pool)
    errors: list[Diagnostic] = [item for item in diagnostics if item.severity == "error"]
    assert loaded is None
    assert {item.code for item in errors} == {"LB135"}
    assert any(needs in item.message for item in errors)
    assert _loaded("haproxy", tmp_path, form="whole", more=more, pool=pool)[0] is not None
