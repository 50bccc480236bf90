"""The commands `lbctl lint` and `lbctl rule`: findings, exit codes, options, and the pages of codes."""

from __future__ import annotations

import io
import json
import re
import sys
from functools import cache
from pathlib import Path

import pytest

from lbctl.base.diagnostics import Diagnostics
from lbctl.cli import run
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot
from lbctl.lint.pages import document, pages
from lbctl.lint.rules import rules
from lbctl.targets import KINDS, TARGETS, target
from lbctl.targets.features import FEATURES
from lbctl.targets.load import Loaded, load
from lbctl.targets.prepare import prepare
from tests.support.lint import POOR, codes, sample
from tests.support.paths import ROOT

EXAMPLES = sorted(
    {path for folder in ("examples", "examples/migrating") for path in (ROOT / folder).glob("*.yaml")}
    - {ROOT / "examples" / "fleet.yaml"}
)
"""Without `fleet.yaml`, which contains every key, including those that some proxies do not support."""


@pytest.fixture
def fleet_file(tmp_path: Path) -> str:
    file = tmp_path / "fleet.yaml"
    file.write_text(POOR)
    return str(file)


def result_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str]]:
    """Run the command. Return its exit code and the codes of its findings."""
    code = run(list(arguments))
    return code, re.findall(r"(?:error|warning|note) (LB[0-9]{3})", capsys.readouterr().out)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_have_no_findings(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ignored = "LB443" if path.name == "tenants.yaml" else ""  # its keys are for HAProxy, and it names no proxies
    assert result_of(capsys, "lint", "--fail-on", "warning", "--ignore", ignored, str(path)) == (0, [])


def test_exit_code_depends_on_the_worst_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "fleet.yaml"
    for text, by_error, by_warning in (
        (POOR, 1, 1),
        (sample("balance: {algorithm: random}\n"), 0, 1),
        (sample(), 0, 0),
    ):
        file.write_text(text)
        assert run(["lint", str(file)]) == by_error
        assert run(["lint", "--fail-on", "warning", str(file)]) == by_warning
    file.write_text(rules()["LB217"].page.before)
    assert result_of(capsys, "lint", "--fail-on", "warning", str(file))[0] == 0


def test_codes_are_selected_whole_or_by_prefix(fleet_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, all_codes = result_of(capsys, "lint", fleet_file)
    assert {"LB210", "LB217", "LB312", "LB520", "LB523", "LB534"} == set(all_codes)
    assert result_of(capsys, "lint", "--select", "LB2,LB312", fleet_file)[1] == [
        code for code in all_codes if code[:3] == "LB2" or code == "LB312"
    ]
    assert result_of(capsys, "lint", "--ignore", "lb5", "--ignore", "LB210", fleet_file) == (
        0, [code for code in all_codes if code[:3] != "LB5" and code != "LB210"],
    )  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [("--select", "LB29"), ("--ignore", "XY1"), ("--rate", "5/s"), ("--mean-service", "5s"),
     ("--rate", "x", "--mean-service", "5s"), ("--rate", "0.0/s", "--mean-service", "5s"),
     ("--rate", "1.5/y", "--mean-service", "5s"), ("-o", "xml"), ("--fail-on", "note")],
)  # fmt: skip
def test_invalid_options_are_a_usage_error(arguments: tuple[str, ...], fleet_file: str) -> None:
    assert run(["lint", *arguments, fleet_file]) == 64


def test_given_load_is_compared_with_the_capacity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(sample())
    assert result_of(capsys, "lint", "--rate", "50/m", "--mean-service", "2s", str(file)) == (0, ["LB221"])
    assert result_of(capsys, "lint", "--rate", "2", "--mean-service", "1s", str(file)) == (1, ["LB222"])
    assert result_of(capsys, "lint", "--rate", "0.85/s", "--mean-service", "2s", str(file)) == (
        0,
        ["LB221"],
    )
    assert result_of(capsys, "lint", "--rate", "1/s", "--mean-service", "1s", str(file)) == (0, [])


def test_errors_of_the_fleet_are_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(sample().replace("pool: llama", "pool: lama"))
    assert result_of(capsys, "lint", "--select", "LB5", str(file)) == (1, ["LB101"])
    assert result_of(capsys, "lint", str(tmp_path / "none.yaml")) == (1, ["LB001"])


@pytest.mark.slow
def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(sample("balance: {algorithm: random}\n").encode())))
    assert result_of(capsys, "lint", "-") == (0, ["LB210"])


# ── What the proxies of the fleet do not support ──────────────────────────────────────────────────────────────────────

SHEDS = "health: {load_shedding: {min_healthy: 50%}}\n"
SPARE = 'spare: {replicas: [{name: c, address: "10.0.0.3:80"}, {name: d, address: "10.0.0.4:80"}]}\n'
FALLBACK = "chat: {match: {path_prefix: /v1/chat}, pool: llama, fallback: spare}\n"


@pytest.mark.parametrize(
    ("pool", "routes", "pools", "expected"),
    [
        (SHEDS, FALLBACK, SPARE, {"LB484"}),
        (f"{SHEDS}locality: {{prefer: zone}}\n", "", "", {"LB484"}),
        ("balance: {algorithm: hash, hash: {key: {header: x-s}, bounded_load: 1.25}}\nslow_start: {window: 60s}\n",
         "", "", {"LB303"}),
        ("timeouts: {queue: 10s}\n", "", "", {"LB471"}),
    ],
)  # fmt: skip
def test_unsupported_combinations_for_envoy_are_findings(
    pool: str, routes: str, pools: str, expected: set[str]
) -> None:
    route_section = {"routes": routes} if routes else {}
    assert (
        set(codes(sample(pool, pools=pools, more="proxies: {edge: {kind: envoy, zone: a}}\n", **route_section)))
        == expected
    )


def test_repeated_unsupported_setting_is_one_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    routes = "".join(
        f"r{i}: {{match: {{path_prefix: /v1/chat/{i}}}, pool: llama, retry: {{budget: 20%}}}}\n" for i in range(9)
    )
    file = tmp_path / "fleet.yaml"
    file.write_text(sample(routes=routes, more="proxies: {a: {kind: nginx}, b: {kind: nginx, zone: z}}\n"))
    assert run(["lint", str(file)]) == 0
    output = capsys.readouterr()
    (line,) = output.out.splitlines()
    assert line.startswith(f"{file}:5:")
    assert "nginx does not support this: nginx does not count retries across requests (and in 8 more places)" in line
    assert "lbctl: nginx does not support 1 setting of this fleet, in 9 places\n" in output.err
    run(["lint", "-o", "json", str(file)])
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [(item["code"], item["line"]) for item in findings] == [("LB439", line) for line in range(5, 14)]


def test_finding_names_every_proxy_without_support(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kinds = "".join(f"  {kind}: {{kind: {kind}}}\n" for kind in KINDS)
    routes = "chat: {match: {path_prefix: /v1/chat}, pool: llama, retry: {budget: 20%}}\n"
    file = tmp_path / "fleet.yaml"
    file.write_text(sample(routes=routes, more=f"proxies:\n{kinds}"))
    assert run(["lint", str(file)]) == 0
    output = capsys.readouterr()
    (line,) = output.out.splitlines()
    assert "nginx: does not count retries across requests; haproxy: counts retries only per request" in line
    assert "instead: nginx: limits the attempts of each request" in line
    assert re.findall(r"lbctl: (\w+) does not support 1 setting of this fleet, in 1 place\n", output.err) == [
        "nginx",
        "haproxy",
    ]


def test_settings_of_the_control_plane_are_not_findings() -> None:
    pool = 'telemetry: {sources: [{kind: dcgm, url: "http://{host}:9400/metrics"}]}\ndrain_deadline: 60s\n'
    assert codes(sample(pool, more="proxies: {edge: {kind: envoy}}\n")) == []


@cache
def loaded_fleet(path: Path) -> Loaded:
    diagnostics = Diagnostics()
    loaded = load([str(path)], diagnostics)
    assert loaded is not None, list(diagnostics)
    return loaded


ONLY_IN_FILES = "LB308"
"""The warning that an Envoy has no certificate for the picker. It applies to rendered files, not to an Envoy of xDS."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_lint_reports_the_same_diagnostics_as_render(kind: str) -> None:
    count = 0
    for path in [*EXAMPLES, ROOT / "examples" / "fleet.yaml", *(ROOT / "tests" / "golden").glob("[!i]*/in.yaml")]:
        loaded = loaded_fleet(path)
        snapshot = Snapshot(loaded.compiled.topology, secrets=loaded.secrets)
        names = tuple(item.name for item in snapshot.topology.listeners)
        proxy = Proxy("edge", kind, target(kind).versions[0], listeners=names)
        prepared = prepare(target(kind), loaded.compiled, proxy, snapshot)
        rendered = target(kind).render(prepared.view).diagnostics
        assert target(kind).diagnostics(prepared.view) == tuple(item for item in rendered if item.code != ONLY_IN_FILES)
        needs_certificate = kind == "envoy" and prepared.view.picker is not None and prepared.view.picker_tls
        assert any(item.code == ONLY_IN_FILES for item in rendered) == needs_certificate
        count += len(target(kind).diagnostics(prepared.view))
    assert count


def test_envoy_of_files_without_certificate_is_reported() -> None:
    text = (ROOT / "tests" / "golden" / "picker-beyond-loopback" / "in.yaml").read_text()
    for config, expected in (("", False), (", config: /etc/envoy/envoy.yaml", True)):
        assert (ONLY_IN_FILES in codes(f"{text}proxies: {{edge: {{kind: envoy{config}}}}}\n")) == expected


# ── Pages ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def emitted_codes() -> set[str]:
    """Return every code in the source and in the table of features."""
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "lbctl").rglob("*.py"))
    return set(re.findall(r"""["'](LB[0-9]{3})["']""", source)) | {feature.code for feature in FEATURES}


def test_every_code_has_one_page() -> None:
    assert emitted_codes() - pages().keys() == set()
    assert [code for code, page in pages().items() if code != page.code or not page.title or not page.what] == []


def test_every_page_has_advice_or_a_reason() -> None:
    assert [page.code for page in pages().values() if not (page.advice or (page.why and page.ignore))] == []


def test_pages_of_unsupported_settings_advise_for_each_kind() -> None:
    for feature in FEATURES:
        if feature.code.startswith("LB4"):
            items = re.findall(r"^- ([a-z, -]+): ", pages()[feature.code].advice, re.MULTILINE)
            assert sorted(", ".join(items).split(", ")) == sorted(TARGETS)


@pytest.mark.parametrize("code", ["LB001", "LB210", "LB457", "lb921", "LB499"])
def test_page_is_shown_offline(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rule", code]) == 0
    out = capsys.readouterr().out
    assert out.startswith(code.upper())
    assert max(map(len, out.splitlines())) <= 110


def test_page_of_a_rule_has_a_fleet_before_and_after(capsys: pytest.CaptureFixture[str]) -> None:
    run(["rule", "LB210"])
    out = capsys.readouterr().out
    for word in ("Why: ", "Before:\n\n    version: 1\n", "After:\n\n    version: 1\n", "When to ignore it: "):
        assert word in out


def test_rule_without_a_code_lists_all_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rule"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == sorted(pages())


def test_unknown_code_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rule", "LB21"]) == 64
    assert "LB210" in capsys.readouterr().err


def test_document_has_a_section_for_each_code() -> None:
    assert re.findall(r"^### (LB[0-9]{3}):", document(), re.MULTILINE) == sorted(pages())
