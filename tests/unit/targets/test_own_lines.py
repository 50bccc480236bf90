"""Own lines that would leave their place are errors with their file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.cli import run
from lbctl.ir.snapshot import Snapshot
from lbctl.targets import target
from lbctl.targets.load import Loaded, load
from lbctl.targets.prepare import prepare
from lbctl.targets.target import Bundle

_FLEET = """\
version: 1
listeners: {{public: {{bind: "127.0.0.1:8080"}}}}
routes:
  chat: {{match: {{path_prefix: /v1/}}, pool: stable}}
  none: {{match: {{path: /none}}, respond: {{status: 204}}}}
pools: {{stable: {{replicas: [{{name: a, address: "127.0.0.1:9001", weight: 1}}]}}}}
proxies: {{site: {{kind: {kind}, {keys}}}}}
"""
_ONE_ROUTE = """\
version: 1
listeners: {{public: {{bind: "127.0.0.1:8080", access_log: {{format: none}}}}}}
routes: {{chat: {{match: {{path_prefix: /}}, pool: stable}}}}
pools: {{stable: {{replicas: [{{name: a, address: "127.0.0.1:9001", weight: 1}}]}}}}
proxies: {{site: {{kind: haproxy, {include}}}}}
"""
_FILTER = """\
name: own
typed_config:
  "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
  default_source_code: {inline_string: "function envoy_on_request(h) end"}
"""


def _load(directory: Path, kind: str, keys: str) -> tuple[Loaded | None, list[Diagnostic]]:
    file, diagnostics = directory / "fleet.yaml", Diagnostics()
    file.write_text(_FLEET.format(kind=kind, keys=keys))
    return load([str(file)], diagnostics), [item for item in diagnostics if item.severity == "error"]


def _bundle(loaded: Loaded) -> Bundle:
    proxy = loaded.compiled.topology.proxies[0]
    kind = target(proxy.kind)
    return kind.render(prepare(kind, loaded.compiled, proxy, Snapshot(loaded.compiled.topology)).view)


def _refused(directory: Path, kind: str, include: str, text: str) -> str:
    """Return the only error as `code message`."""
    (directory / "own").write_text(text)
    loaded, errors = _load(directory, kind, f"include: {{{include}}}")
    assert loaded is None
    (error,) = errors
    assert error.position is not None
    assert error.position.line == 7
    return f"{error.code} {error.message}"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a b;\n}\n", 2, "closes a block"),
        ("location / {\n", 2, "without a matching `}`"),
        ("proxy_set_header a\n", 1, "does not end with `;`"),
        ('a "b;\n', 1, "never closed"),
        ("# it's\na 'b\n;\n", 2, "never closed"),
        ("if ($a) {\n;}\n", 2, "no directive"),
        ("access_by_lua_block {\n", 1, "does not read Lua"),
    ],
)
def test_nginx_lines_that_leave_their_place_are_refused(text: str, line: int, message: str, tmp_path: Path) -> None:
    refusal = _refused(tmp_path, "nginx", "location: {chat: [own]}", text)
    assert refusal.startswith(f"LB133 own:{line}: ")
    assert message in refusal


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("\nbackend x\n", 2, "begins a section"),
        ('"backend" x\n', 1, "does not begin with a keyword"),
        ("http-request deny \\\n", 1, "ends with a backslash"),
        ("server b 127.0.0.1:1\n", 1, "come from the fleet"),
        (".if 1\n", 1, "without a matching `.endif`"),
        (".endif\n", 1, "has no matching `.if`"),
    ],
)
def test_haproxy_lines_that_leave_their_section_are_refused(text: str, line: int, message: str, tmp_path: Path) -> None:
    refusal = _refused(tmp_path, "haproxy", "backend: {stable: [own]}", text)
    assert refusal.startswith(f"LB133 own:{line}: ")
    assert message in refusal


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n", "not a typed HTTP filter"),
        ("name: own\n", "not a typed HTTP filter"),
        ("name: [\n", "invalid YAML"),
        (f"{_FILTER}more: 1\n", "cannot have the key more"),
        (_FILTER.replace("lua.v3.Lua", "nothing.v3.None"), "message descriptor"),
        (_FILTER.replace("default_source_code", "default_sauce"), "default_sauce"),
        (_FILTER.replace("lua.v3.Lua", "router.v3.Router"), "the last filter"),
    ],
)
def test_invalid_envoy_filter_is_refused(text: str, message: str, tmp_path: Path) -> None:
    refusal = _refused(tmp_path, "envoy", "http_filters: [own]", text)
    assert refusal.startswith("LB133 own:")
    assert message in refusal


@pytest.mark.parametrize(
    ("command", "code", "severity"), [("validate", 0, "warning"), ("lint", 0, "warning"), ("render", 1, "error")]
)
def test_missing_file_is_an_error_only_for_render(
    command: str, code: int, severity: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(_FLEET.format(kind="nginx", keys="include: {http: [none]}"))
    options = ["-t", "nginx", "-d", str(tmp_path / "out")] if command == "render" else []
    assert run([command, *options, str(fleet)]) == code
    out, err = capsys.readouterr()
    assert f"{severity} LB130 proxies.site.include.http[0]: the file 'none' with own lines does not exist" in out + err
    assert (tmp_path / "out").exists() is False


@pytest.mark.parametrize(
    ("kind", "keys", "code"),
    [
        ("nginx", "include: {http: [none]}", "LB130"),
        ("nginx", "include: {http: [../own]}", "LB502"),
        ("nginx", "include: {http: [out]}", "LB502"),
        ("nginx", "include: {http: [binary]}", "LB130"),
        ("nginx", "include: {global: [own]}", "LB131"),
        ("envoy", "include: {backend: {stable: [own]}}", "LB131"),
        ("nginx", "include: {location: {none: [own]}}", "LB131"),
        ("nginx", "include: {location: {caht: [own]}}", "LB132"),
        ("nginx", "include: {server: {publik: [own]}}", "LB102"),
        ("haproxy", "include: {backend: {stabel: [own]}}", "LB101"),
        ("haproxy", "form: fragment, config: /etc/haproxy/lbctl.cfg, include: {global: [own]}", "LB131"),
        ("envoy", "form: fragment, config: /etc/envoy/lbctl.yaml", "LB134"),
        ("nginx", "form: fragment", "LB134"),
        ("nginx", "form: fragment, config: conf.d/lbctl.conf", "LB134"),
        ("haproxy", "form: fragment, config: /etc/haproxy/lbctl.cfg, user: haproxy", "LB134"),
    ],
)
def test_wrong_place_or_file_is_an_error_in_the_yaml(kind: str, keys: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "own").write_text("# Nothing.\n")
    (tmp_path / "binary").write_bytes(b"\xff\x00")
    (tmp_path / "out").symlink_to("/etc/hostname")
    loaded, errors = _load(tmp_path, kind, keys)
    assert loaded is None
    assert [(item.code, item.position.line if item.position else 0) for item in errors] == [(code, 7)]


def test_each_own_line_has_its_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("a b;\nc d;\n")
    loaded, _ = _load(tmp_path, "nginx", "include: {http: [own]}")
    assert loaded is not None
    main = _bundle(loaded).main
    number = main.text.split("\n").index("c d;") + 1
    assert main.sources[number] == ("proxies", "site", "include", "http", 0, 2)


@pytest.mark.parametrize(
    ("own", "definition"),
    [
        ("http-request deny if { var(txn.host) a.example }", "set-var(txn.host)"),
        ("http-request deny if 'routed'", "acl routed "),
        ("http-request deny if !route_chat", "acl route_chat "),
        ("http-request set-header x %[var(txn.pool)]", "set-var(txn.pool)"),
    ],
)
def test_haproxy_defines_what_own_lines_read(own: str, definition: str, tmp_path: Path) -> None:
    texts = []
    for include in ("", "include: {frontend: {public: [own]}}"):
        (tmp_path / "own").write_text(f"{own}\n")
        (tmp_path / "fleet.yaml").write_text(_ONE_ROUTE.format(include=include))
        loaded = load([str(tmp_path / "fleet.yaml")], Diagnostics())
        assert loaded is not None
        texts.append(_bundle(loaded).main.text)
    assert [definition in text for text in texts] == [False, True]
