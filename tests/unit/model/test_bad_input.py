"""Bad input: exit code 1, a position and a code, no traceback, and the previous output stays."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from lbctl.base.diagnostics import Diagnostics
from lbctl.cli import run
from lbctl.model.fleet import read
from tests.support.fleet import marked

FLEET = """\
version: 1
listeners: {l: {bind: "127.0.0.1:8080"}}
routes: {r: {pool: p}}
pools: {p: {replicas: [{address: "127.0.0.1:9001"}]}}
"""
KEY = "-----BEGIN RSA " + "PRIVATE KEY-----\\nMIIsecretsecret\\n-----END RSA " + "PRIVATE KEY-----"
BOMB = "version: 1\na: &a {k: v}\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} {{<<: [{', '.join(['*' + chr(97 + i)] * 9)}]}}\n" for i in range(9)
)
SPLIT = FLEET.replace("pool: p", "split: {p: 1, q: 1}").replace(
    '9001"}]}', '9001"}]}, q: {replicas: [{address: "127.0.0.1:9002"}]}'
)
BOUNDED = FLEET.replace('9001"}]', '9001"}], balance: {algorithm: hash, hash: {key: {header: x}, bounded_load: AT}}')
PICK = FLEET.replace('9001"}]', '9001"}], balance: {algorithm: pick, pick: {session: [AT]}}')
SOURCE = FLEET.replace('9001"}]', '9001"}], telemetry: {sources: [▶{url: "http://x/", KEYS}]}')
KUBERNETES = FLEET.replace('9001"}]}}', '9001"}]}, k: {discovery: {kubernetes: {namespace: ml, service: vllm, KEYS}}}}')
INFERENCE_POOL = KUBERNETES.replace("service", "inference_pool")
STORE = FLEET + 'control: {store: {url: ▶"URL"}}\n'
POOL = "version: 1\npools:\n  p:\n    replicas:\n"

TEXTS: Mapping[str, tuple[str | bytes, str]] = {
    "empty": ("▶", "LB004"),
    "binary": (b"\x7fELF\x02\x01\x01\0\0\0", "LB003"),
    "zeros": (bytes(1000), "LB003"),
    "tab": ("version: 1\n▶\tpools: {}\n", "LB004"),
    "broken UTF-8": (b"version: 1\npools: {\xff: 1}\n", "LB003"),
    "merge bomb": (BOMB.replace("&a", "▶&a", 1), "LB006"),
    "deep nesting": ("version: 1\na: " + "[" * 200_000, "LB005"),
    "deep closed nesting": ("version: 1\na: " + "[" * 200_000 + "]" * 200_000, "LB005"),
    "duplicate key": ("version: 1\npools: {}\n▶pools: {}\n", "LB008"),
    "unknown key": (FLEET + "▶pool: {}\n", "LB011"),
    "unknown key below": (POOL + '      - {▶adress: "a:1"}\n', "LB011"),
    "wrong unit": (FLEET.replace("pool: p", "pool: p, timeouts: {idle: ▶5 minutes}"), "LB013"),
    "no unit": (FLEET.replace("pool: p", "pool: p, timeouts: {idle: ▶5}"), "LB013"),
    "negative weight": (POOL + '      - {address: "a:1", weight: ▶-1}\n', "LB201"),
    "zero weight": (POOL + '      - {address: "a:1", weight: ▶0}\n', "LB202"),
    "unknown pool": (FLEET.replace("pool: p", "pool: ▶q"), "LB101"),
    "route without pool": (FLEET.replace("r: {pool: p", "▶r: {websocket: true"), "LB014"),
    "split of nothing": (FLEET.replace("pool: p", "▶split: {p: 0}"), "LB207"),
    "path that climbs out": (
        FLEET.replace('"}}', '", tls: {certificates: [{certificate: ▶../a.crt, key: a.key}]}}}'), "LB502",
    ),
    "a port that is no name": (KUBERNETES.replace("KEYS", "port: ▶HTTP_"), "LB013"),
    "a zone from nowhere": (KUBERNETES.replace("KEYS", "zone_from: ▶endpoints"), "LB013"),
    "a label of two things": (
        KUBERNETES.replace("KEYS", "▶gpu_from: {node_label: a, pod_label: b}"), "LB015",
    ),
    "a label in capitals": (KUBERNETES.replace("KEYS", "zone_from: {node_label: ▶a b}"), "LB013"),
    "a namespace that is none": (
        KUBERNETES.replace("KEYS", "port: a").replace("namespace: ml", "namespace: ▶ml/x"), "LB013",
    ),
    "a service and an InferencePool": (
        KUBERNETES.replace("kubernetes: {", "▶kubernetes: {").replace("KEYS", "inference_pool: p"), "LB015",
    ),
    "a port of an InferencePool": (
        INFERENCE_POOL.replace("kubernetes: {", "▶kubernetes: {").replace("KEYS", "port: 8000"), "LB015",
    ),
    "the zone of an endpoint that is a pod": (INFERENCE_POOL.replace("KEYS", "▶zone_from: endpoint"), "LB015"),
    "a context without kubeconfig": (KUBERNETES.replace("KEYS", "context: ▶prod"), "LB123"),
    "pasted private key": (FLEET + f'defaults: {{pool: {{tls: {{key: "▶{KEY}"}}}}}}\n', "LB501"),
    "address without port": (POOL + "      - {address: ▶10.0.0.1}\n", "LB013"),
    "one gpu beside none": (POOL + '      - {address: "a:1", gpu: L4}\n      - ▶{address: "b:1"}\n', "LB203"),
    "one weight beside none": (POOL + '      - {address: "a:1", weight: 2}\n      - ▶{address: "b:1"}\n', "LB203"),
    "key without value": (FLEET.replace("pool: p", "pool: p, ▶auth: "), "LB014"),
    "version": (FLEET.replace("version: 1", "version: ▶2"), "LB010"),
    "several documents": (FLEET + "▶---\n" + FLEET, "LB004"),
    "limit by tenant on an open route": (
        FLEET.replace("pool: p", "pool: p, ▶rate_limit: [{by: tenant, rate: 5/s}]"), "LB506",
    ),
    "limit of nothing": (FLEET.replace("pool: p", "pool: p, rate_limit: [{by: all, rate: ▶0/s}]"), "LB013"),
    "limit by nobody": (FLEET.replace("pool: p", "pool: p, rate_limit: [{by: ▶nobody, rate: 5/s}]"), "LB013"),
    "fallback to the route's own pool": (FLEET.replace("pool: p", "pool: p, fallback: ▶p"), "LB108"),
    "fallback to a pool of the split": (SPLIT.replace("1}", "1}, fallback: ▶q", 1), "LB108"),
    "fallback to a pool of a pin": (
        SPLIT.replace("split: {p: 1, q: 1}", "pool: p, fallback: ▶q, pin: [{header: x, equals: y, pool: q}]"), "LB108",
    ),
    "sticky split with one pool": (FLEET.replace("pool: p", "pool: p, ▶sticky_split: {cookie: c}"), "LB107"),
    "sticky split of one pool": (SPLIT.replace(", q: 1}", "}, ▶sticky_split: {header: x}", 1), "LB107"),
    "bounded load of one": (BOUNDED.replace("AT", "▶1"), "LB302"),
    "session key of the wrong form": (PICK.replace("AT", "▶$.user"), "LB013"),
    "session key of the body without its path": (PICK.replace("AT", "{body: ▶user}"), "LB013"),
    "session key of neither kind": (PICK.replace("AT", "▶{cookie: c}"), "LB013"),
    "prefix of a word": (PICK.replace("[AT]", "[x], prefix: ▶on"), "LB013"),
    "prefix without room": (PICK.replace("[AT]", "[x], prefix: {block: ▶8}"), "LB016"),
    "bounded load below one": (BOUNDED.replace("AT", "▶0.5"), "LB302"),
    "residency that excludes every replica": (
        FLEET.replace("pool: p", "pool: p, regions: ▶[west]").replace('9001"', '9001", region: east'), "LB115",
    ),
    "residency of replicas without a region": (FLEET.replace("pool: p", "pool: p, regions: ▶[west]"), "LB115"),
    "custom source without a metric": (
        SOURCE.replace("KEYS", "kind: custom, signal: queue"), "LB601",
    ),
    "custom source without a signal": (
        SOURCE.replace("KEYS", "kind: custom, metric: my_queue"), "LB601",
    ),
    "PromQL without a query": (SOURCE.replace("KEYS", "kind: prometheus, signal: queue"), "LB601"),
    "PromQL without a signal": (SOURCE.replace("KEYS", "kind: prometheus, query: up"), "LB601"),
    "unknown unit": (
        SOURCE.replace("▶", "").replace("KEYS", "kind: custom, metric: m, signal: queue, unit: ▶furlongs"), "LB602",
    ),
    "unit of something else": (
        SOURCE.replace("▶", "").replace("KEYS", "kind: custom, metric: m, signal: temperature, unit: ▶GiB"), "LB602",
    ),
    "source of a replica": (
        POOL + '      - {address: "a:1", telemetry: {sources: [▶{kind: custom, url: "http://x/", metric: m}]}}\n',
        "LB601",
    ),
    "hosts without Sentinel": (STORE.replace("URL", "redis://a,b:6379"), "LB013"),
    "Sentinel without a name": (STORE.replace("URL", "redis+sentinel://a,b"), "LB013"),
    "host without a name in a list": (STORE.replace("URL", "etcd://a,,b"), "LB013"),
    "port of a store that is none": (STORE.replace("URL", "etcd://a:2379,b:99999"), "LB013"),
    "user in the URL of a store": (STORE.replace("URL", "redis://me@a"), "LB504"),
    "password with a slash in the URL of a store": (STORE.replace("URL", "redis://:pa/ss@a"), "LB504"),
    "user of a store with a space": (STORE.replace("▶", "").replace("URL", "redis://a\", user: ▶\"a b"), "LB013"),
    "tag": (FLEET + "control: ▶!!python/object:os.system {}\n", "LB007"),
    "alias": (FLEET + "control: ▶*x\n", "LB006"),
}  # fmt: skip
"""Name → a file with a mark at the error, if it has one position, and the code."""


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """An output directory with a configuration of an earlier `lbctl render`."""
    directory = tmp_path / "out"
    directory.mkdir()
    (directory / "nginx.conf").write_text("what runs now\n")
    os.utime(directory / "nginx.conf", (1, 1))
    return directory


def rejection(capfd: pytest.CaptureFixture[str], output: Path, *paths: str) -> str:
    """Return the messages of `validate` and `render`, and check that both fail and leave the output unchanged."""
    messages = []
    for command in (["validate"], ["render", "-t", "nginx", "-d", str(output)]):
        assert run([*command, *paths]) == 1
        printed = capfd.readouterr()
        assert printed.out == ""
        assert "Traceback" not in printed.err
        messages.append(printed.err)
    assert messages[0] == messages[1]
    assert [item.name for item in output.iterdir()] == ["nginx.conf"]
    assert (output / "nginx.conf").read_text() == "what runs now\n"
    assert (output / "nginx.conf").stat().st_mtime == 1
    return messages[0]


@pytest.mark.parametrize("name", TEXTS)
def test_a_bad_file_is_an_error_at_its_position(
    name: str, tmp_path: Path, output: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text, code = TEXTS[name]
    place = r"\d+:\d+"
    if isinstance(text, str):
        text, place = marked(text) if "▶" in text else (text, place)
    file = tmp_path / "fleet.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    message = rejection(capfd, output, str(file))
    assert re.search(rf"^{re.escape(str(file))}:{place}: error {code}\b", message, re.MULTILINE), message
    assert "secretsecret" not in message
    assert len(message) < 30_000


@pytest.mark.parametrize(
    ("create", "code"),
    [
        (lambda path: None, "LB001"),
        (lambda path: path.mkdir(), "LB001"),
        (lambda path: (path.mkdir(), (path / "fleet.json").write_text(FLEET)), "LB001"),
        (lambda path: (path.mkdir(), (path / ".hidden.yaml").write_text(FLEET)), "LB001"),
        (lambda path: os.mkfifo(path), "LB002"),
        (lambda path: path.symlink_to(path), "LB002"),
        (lambda path: path.symlink_to("/dev/zero"), "LB002"),
        (lambda path: path.symlink_to("/proc/self/mem"), "LB002"),
    ],
    ids=[
        "missing",
        "empty directory",
        "directory without YAML",
        "dot-file",
        "pipe",
        "link to itself",
        "device",
        "unreadable",
    ],
)
def test_a_path_that_is_not_a_fleet_is_an_error(
    create: object, code: str, tmp_path: Path, output: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fleet"
    create(path)  # type: ignore[operator]
    assert rejection(capfd, output, str(path)).startswith(f"{path}:1:1: error {code}")


def test_a_name_in_two_files_is_reported_with_both_positions(
    tmp_path: Path, output: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fleet = tmp_path / "fleet"
    fleet.mkdir()
    (fleet / "a.yaml").write_text(FLEET)
    (fleet / "b.yml").write_text('version: 1\npools: {p: {replicas: [{address: "a:1"}]}}\n')
    message = rejection(capfd, output, str(fleet))
    assert message.startswith(f"{fleet}/b.yml:2:9: error LB009")
    assert f"{fleet}/a.yaml:4:9" in message


def test_a_symlink_out_of_the_fleet_directory_is_an_error(
    tmp_path: Path, output: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fleet = tmp_path / "fleet"
    fleet.mkdir()
    (tmp_path / "outside.crt").write_text("x")
    (fleet / "a.crt").symlink_to(tmp_path / "outside.crt")
    (fleet / "a.key").write_text("x")
    tls = '"127.0.0.1:8080", tls: {certificates: [{certificate: a.crt, key: a.key}]}'
    (fleet / "f.yaml").write_text(FLEET.replace('"127.0.0.1:8080"', tls))
    assert run(["render", "-t", "nginx", "-d", str(output), str(fleet)]) == 1
    assert f"{fleet}/f.yaml:2:76: error LB502" in capfd.readouterr().err
    assert (output / "nginx.conf").read_text() == "what runs now\n"


@pytest.mark.parametrize(("flags", "code"), [([], 0), (["--require-files"], 1)])
def test_a_missing_file_is_a_warning_unless_files_are_required(
    flags: list[str], code: int, tmp_path: Path, output: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tls = '"127.0.0.1:8080", tls: {certificates: [{certificate: a.crt, key: a.key}]}'
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET.replace('"127.0.0.1:8080"', tls))
    assert run(["render", "-t", "nginx", "-d", str(output), *flags, str(file)]) == code
    message = capfd.readouterr().err
    severity = "error" if code else "warning"
    assert f"{file}:2:76: {severity} LB110" in message
    assert f"{file}:2:88: {severity} LB110" in message
    assert ((output / "nginx.conf").read_text() == "what runs now\n") == bool(code)


KEYS = "ok-secretsecret: acme\n"
PROTECTED = FLEET.replace("pool: p", "pool: p, auth: {api_keys: {file: keys}}")
BY_TOKEN = FLEET.replace("pool: p", "pool: p, auth: {jwt: {issuer: i, jwks_file: ▶jwks.json}}")


@pytest.mark.parametrize(
    "line",
    [
        "secretsecret",
        "secretsecret:acme",
        "secretsecret: Acme Inc",
        "secret secretsecret: acme",
        "sha256:secretsecret: acme",
        "ok-secretsecret: other",
        "secretsecret: ",
    ],
)
def test_a_bad_key_line_is_an_error_without_the_key(
    line: str, tmp_path: Path, output: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fleet.yaml").write_text(PROTECTED)
    (tmp_path / "keys").write_text(f"{KEYS}\n# a remark\n{line}\nanother: acme\n")
    message = rejection(capfd, output, str(tmp_path / "fleet.yaml"))
    assert re.match(rf"{re.escape(str(tmp_path))}/keys:4:\d+: error LB507\b", message), message
    assert message.count("error") == 1
    assert "secretsecret" not in message


@pytest.mark.parametrize(
    "content",
    [
        "",
        "secretsecret",
        "[]",
        "{}",
        '{"keys": {}}',
        '{"keys": [1]}',
        '{"keys": [{"kty": 1}]}',
        '{"keys": [{"kty": "oct", "k": "secretsecret"}]}',
        '{"keys": [{"kty": "RSA", "n": "x", "e": "AQAB", "d": "secretsecret"}]}',
        "[" * 9999,
    ],
)
def test_a_bad_key_set_is_an_error_where_it_is_named(
    content: str, tmp_path: Path, output: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text, place = marked(BY_TOKEN)
    (tmp_path / "fleet.yaml").write_text(text)
    (tmp_path / "jwks.json").write_text(content)
    message = rejection(capfd, output, str(tmp_path / "fleet.yaml"))
    assert message.startswith(f"{tmp_path}/fleet.yaml:{place}: error LB508 routes.r.auth.jwt.jwks_file:"), message
    assert "secretsecret" not in message


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("▶", "LB114"),
        ("▶{}", "LB114"),
        ("\n [▶1]", "LB114"),
        ('[{"targets": ["a:1"]},\n  ▶{"targets": "a:1"}]', "LB114"),
        ('[{"targets": ["a:1",\n ▶"a\\u001b[2J"]}]', "LB114"),
        ('[{"targets": ["b:1", "a:1"]}, {"targets": [▶"a"]}]', "LB114"),
        ("▶" + "[" * 9999, "LB114"),
        ("▶[{" + '"targets": [' + "1" * 5000 + "]}]", "LB114"),
        ('[{"targets": ["a:1"]},\n ▶]', "LB114"),
        ('[{"targets": [▶"169.254.169.254:80"]}]', "LB122"),
        ('[{"targets": [▶"[64:ff9b::a9fe:a9fe]:80"]}]', "LB122"),
        ('[{"targets": [▶"127.0.0.1:18000"]}]', "LB122"),
        ('[{"targets": [▶"localhost:18080"]}]', "LB122"),
        ('[{"targets": [▶"unix:/run/docker.sock"]}]', "LB122"),
        ('[{"targets": [▶"a:1"], "labels": {"gpu": "Z9"}}]', "LB204"),
        ('[{"targets": ["b:1"], "labels": {"gpu": "L4"}}, {"targets": [▶"a:1"]}]', "LB203"),
        ('[{"targets": ["a:1", "b:1"]}, {"targets": [▶"a:1"], "labels": {"name": "x"}}]', "LB105"),
    ],
)
def test_bad_discovered_targets_are_an_error_at_their_position(
    content: str, code: str, tmp_path: Path, output: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fleet.yaml").write_text(
        FLEET.replace('replicas: [{address: "127.0.0.1:9001"}]', "discovery: {file: {path: t.json}}")
    )
    content, place = marked(content)
    (tmp_path / "t.json").write_text(content)
    message = rejection(capfd, output, str(tmp_path / "fleet.yaml"))
    assert f"{tmp_path}/t.json:{place}: error {code}" in message
    assert code == "LB114" or re.search(rf"error {code} pools\.p\.discovery\.file[^:]*: target '", message)
    assert message.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (" " * ((4 << 20) + 1), "this file cannot be read: larger than 4 MiB"),
        ("[" * 100_000, "this file is JSON nested more than 64 levels deep"),
        ("[" + "1," * 400_000 + "1]", "this file is JSON with more than 400,000 values"),
        ("{}", "this file is JSON that is not a list"),
    ],
)
def test_file_of_targets_beyond_a_bound_names_the_bound(
    content: str, reason: str, tmp_path: Path, output: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fleet.yaml").write_text(
        FLEET.replace('replicas: [{address: "127.0.0.1:9001"}]', "discovery: {file: {path: t.json}}")
    )
    (tmp_path / "t.json").write_text(content)
    assert f"{tmp_path}/t.json:1:1: error LB114: {reason}" in rejection(capfd, output, str(tmp_path / "fleet.yaml"))


def test_a_file_without_targets_is_a_warning(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fleet.yaml").write_text(
        FLEET.replace('replicas: [{address: "127.0.0.1:9001"}]', "discovery: {file: {path: t.json}}")
    )
    (tmp_path / "t.json").write_text("[]\n")
    assert run(["validate", str(tmp_path / "fleet.yaml")]) == 0
    assert f"{tmp_path}/t.json:1:1: warning LB114" in capfd.readouterr().err


def test_all_errors_of_all_files_are_reported_in_one_run(
    tmp_path: Path, output: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fleet = tmp_path / "fleet"
    fleet.mkdir()
    (fleet / "a.yaml").write_text(FLEET.replace("pool: p", "pool: p, bogus: 1, timeouts: {idle: 5}"))
    (fleet / "b.yaml").write_text("version: 1\n\tx: 1\n")
    message = rejection(capfd, output, str(fleet))
    assert re.findall(r"(\w)\.yaml:(\d+:\d+): error (LB\d+)", message) == [
        ("a", "3:23", "LB011"), ("a", "3:50", "LB013"), ("b", "2:1", "LB004"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("port", "hint"),
    [("HTTP_", "use the port's name"), ("a--b", "use the port's name"), ("'80'", "without quotes")],
)
def test_hint_for_a_port_suggests_a_valid_value(port: str, hint: str, tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(KUBERNETES.replace("KEYS", f"port: {port}"))
    diagnostics = Diagnostics()
    read([str(file)], diagnostics)
    (error,) = diagnostics
    assert (hint in error.hint, "quote it" in error.hint) == (True, False)


@pytest.mark.timeout(60)
def test_a_yaml_bomb_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "bomb.yaml"
    file.write_text(BOMB)
    diagnostics = Diagnostics()
    assert read([str(file)], diagnostics) is None
    assert {item.code for item in diagnostics} <= {"LB005", "LB006"}


def test_a_fleet_on_standard_input_is_named_dash(
    output: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "input"
    file.write_text(FLEET + "bogus: 1\n")
    with file.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert run(["validate", "-"]) == 1
    assert capfd.readouterr().err.startswith("-:5:1: error LB011")


def test_an_unwritable_output_is_reported_without_a_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    (tmp_path / "out" / "nginx.conf").mkdir(parents=True)
    assert run(["render", "-t", "nginx", "-d", str(tmp_path / "out"), str(file)]) == 1
    message = capfd.readouterr().err
    assert "nginx.conf" in message
    assert "Traceback" not in message
    shutil.rmtree(tmp_path / "out")
