"""Messages of a comparison name the directives that it does not run, without secrets and without temporary paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.cli.import_compare import removed
from lbctl.importer.compare.places import StandIns
from lbctl.importer.compare.processes import without_places
from lbctl.importer.compare.run import hide_secrets, rewritten
from lbctl.importer.run import KINDS
from tests.support.importer import envoy_text, imported, imported_text

SECRET = "s3cr3tvalue"
WORDS_OF_HAPROXY = {
    "http-request lua.run": "lua.run",
    "http-request deny if { path_beg /a } { path -f /etc/x }": "-f",
    "http-request deny if !{ path,map(/etc/x) -m found }": "path,map(/etc/x)",
    "http-request deny if { path_beg /a } known || unknown": "unknown",
    "http-request deny if { src name.example }": "name.example",
    "http-request set-header x-a %[path,map(/etc/x)]": "%[path,map(/etc/x)]",
    "http-request return status 200 file /etc/x": "file",
    "http-request set-var(txn.a) path,map(/etc/x)": "path,map(/etc/x)",
    "tcp-request content lua.run": "lua.run",
    "redirect elsewhere /a": "elsewhere",
    "use_backend b if { path,map(/etc/x) -m found }": "path,map(/etc/x)",
    "use_backend %[path,map(/etc/x)]": "%[path,map(/etc/x)]",
    "balance hash path,map(/etc/x)": "path,map(/etc/x)",
    "stick-table type ip size 1m files /etc/x": "files",
    "option forwardfor header x-a file /etc/x": "file",
    "http-request deny deny_status many": "many",
    f"http-request set-header x-token {SECRET}%[lua.x]": "(a secret)",
    f"http-request deny if {{ req.hdr(x-token),lua.x {SECRET} }}": "req.hdr(x-token),lua.x",
}
WORDS_OF_NGINX = {
    "proxy_set_header x-a $realpath_root;": "$realpath_root",
    "if ($hostname = a) { return 403; }": "$hostname",
    "client_max_body_size many;": "many",
    f"proxy_set_header x-token {SECRET}$hostname;": "(a secret)",
}


def lines(kind: str, text: str, directory: Path) -> list[str]:
    """Return what a comparison reports of a configuration as not run."""
    file = directory / "source.conf"
    file.write_text(text)
    draft = imported(kind, file)[0].draft
    source = rewritten(kind, [str(file)], StandIns(directory, {"0.0.0.0:80": 20000}, {"10.0.0.1:80": 21000}))
    return removed(hide_secrets(draft, source).removed)


@pytest.mark.parametrize(("line", "word"), WORDS_OF_HAPROXY.items())
def test_word_that_haproxy_must_not_run_is_named(line: str, word: str, tmp_path: Path) -> None:
    text = f"defaults\n mode http\nfrontend f\n bind :80\n acl known path /k\n {line}\n default_backend b\n"
    (shown,) = lines("haproxy", f"{text}backend b\n server s 10.0.0.1:80\n", tmp_path)
    reason = f"`{word}` is not a directive supported by the comparison"
    assert shown == f"closed in the comparison: source.conf:6 {line.split()[0]}, {reason}"


@pytest.mark.parametrize(("line", "word"), WORDS_OF_NGINX.items())
def test_argument_that_nginx_must_not_run_is_named(line: str, word: str, tmp_path: Path) -> None:
    text = f"server {{ listen 80; location / {{ {line} proxy_pass http://10.0.0.1; }} }}"
    (shown,) = lines("nginx", text, tmp_path)
    assert f", `{word}` is not an argument supported by the comparison" in shown
    assert SECRET not in shown


def test_type_and_name_of_envoy_are_shown(tmp_path: Path) -> None:
    kind = "envoy.extensions.filters.http.cache.v3.CacheConfig"
    other = "  - {name: other, address: {pipe: {path: /run/x}}}\n  clusters:"
    text = envoy_text(filters=f'- {{name: cache, typed_config: {{"@type": type.googleapis.com/{kind}}}}}')
    left_out, closed = lines("envoy", text.replace("  clusters:", other, 1), tmp_path)
    assert left_out == "not included in the comparison: listeners that are not in the fleet (other)"
    assert f"`{kind}` is not a filter supported by the comparison" in closed


def test_item_of_a_list_has_no_name(tmp_path: Path) -> None:
    text = envoy_text()
    manager = text[text.index("    - filters:") : text.index("  clusters:")]
    shown = lines("envoy", text.replace("  clusters:", f"{manager}  clusters:", 1), tmp_path)
    assert shown == ["not included in the comparison: additional filter chains"]


PLACES = {
    '2026/11/29 06:21:13 [emerg] 5#5: the "ranges" directive must be the first in {0}/main:13': (
        'the "ranges" directive must be the first'
    ),
    "[ALERT]    (7) : config : parsing [{0}/main:12] : unknown keyword 'x' in 'frontend' section": (
        "unknown keyword 'x' in 'frontend' section"
    ),
    "[ALERT]    (7) : config : Proxy 'fe': unable to find required use_backend: 'b'.": (
        "Proxy 'fe': unable to find required use_backend: 'b'."
    ),
    "[2026-11-29 06:21:13.123][7][critical][main] [source/server/server.cc:123] error initializing "
    "config '{0}/main.json': bad": "error initializing config '': bad",
}


@pytest.mark.parametrize(("written", "expected"), PLACES.items())
def test_message_of_a_proxy_names_no_place(written: str, expected: str, tmp_path: Path) -> None:
    assert without_places(written.format(tmp_path), tmp_path) == expected


def test_replica_that_is_left_out_is_one_finding(tmp_path: Path) -> None:
    pipe = "{endpoint: {address: {pipe: {path: '@x'}}}}"
    text = envoy_text().replace("lb_endpoints: [", f"lb_endpoints: [{pipe}, ", 1)
    result, diagnostics = imported_text("envoy", text, tmp_path)
    assert [item["address"] for item in result.draft.fleet["pools"]["c"]["replicas"]] == ["10.0.0.1:80"]
    assert [item.message.partition(" was")[0] for item in diagnostics if "left out" in item.message] == [
        "pools.c.replicas.0"
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_every_finding_of_a_closed_route_has_a_place(kind: str, tmp_path: Path) -> None:
    other = "location /a { proxy_pass http://10.0.0.1; }"
    files = "direct_response: {status: 200, body: {filename: /x}}"
    texts = {
        "nginx": f"server {{ listen 80; location / {{ try_files /passwd =404; }} {other} }}",
        "haproxy": "defaults\n mode http\nfrontend f\n bind :80\n default_backend b\nbackend b\n server s 10.0.0.1:80",
        "envoy": envoy_text().replace("route: {cluster: c}", files, 1),
    }
    _, diagnostics = imported_text(kind, texts[kind], tmp_path)
    assert [str(item) for item in diagnostics if str(item).startswith(":")] == []


HARMLESS = {
    "try_files /passwd =404;": "nginx",
    "set $memcached_key a;": "nginx",
    "runtime_key: a": "envoy",
}


@pytest.mark.parametrize(("line", "kind"), HARMLESS.items())
def test_names_of_other_things_are_not_secrets(line: str, kind: str, tmp_path: Path) -> None:
    text = f"server {{ listen 80; location / {{ {line} }} location /a {{ proxy_pass http://10.0.0.1; }} }}"
    if kind == "envoy":
        fraction = f"runtime_fraction: {{default_value: {{numerator: 100}}, {line}}}"
        text = envoy_text().replace("match: {path: /open}", f"match: {{path: /open, {fraction}}}")
    _, diagnostics = imported_text(kind, text, tmp_path)
    assert "LB984" not in {item.code for item in diagnostics}
