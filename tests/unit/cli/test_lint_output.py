"""Output formats of findings: JSON, GitHub annotations, SARIF, and GitLab's code quality report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from lbctl.base.diagnostics import Diagnostic, Position
from lbctl.cli import run
from lbctl.cli.findings import written
from tests.support.lint import POOR, sample
from tests.support.paths import FIXTURES

SCHEMA = json.loads((FIXTURES / "sarif-2.1.0-part.json").read_text())
NASTY = Diagnostic(
    "LB101", "50% of\r\nit: a, b ::error::", Position("a:b,c/ü %.yaml", 3, 7), ("routes", "a"), "x", "warning"
)


@pytest.fixture
def fleet_file(tmp_path: Path) -> str:
    """A file with several findings of each severity."""
    file = tmp_path / "fleet.yaml"
    file.write_text(POOR)
    return str(file)


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_json_has_all_findings_of_the_text(fleet_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = output(capsys, "lint", "-o", "json", fleet_file)
    _, text, _ = output(capsys, "lint", fleet_file)
    document = json.loads(out)
    assert (code, err) == (1, "")
    lines = [
        f"{item['file']}:{item['line']}:{item['column']}: {item['severity']} {item['code']}"
        for item in document["findings"]
    ]
    assert [line.partition(f" {line.split()[2]}")[0] + f" {line.split()[2]}" for line in text.splitlines()] == lines
    assert sum(document["counts"].values()) == len(lines) > 3


def test_github_shows_the_worst_ten_findings_and_a_count(capsys: pytest.CaptureFixture[str]) -> None:
    findings = [Diagnostic("LB210", f"w{i}", Position("f.yaml", i, 1), severity="warning") for i in range(1, 12)]
    findings += [Diagnostic("LB217", "n", Position("f.yaml", 1, 1), severity="note"), Diagnostic("LB101", "e")]
    *lines, last = written(findings, "github").splitlines()
    assert lines[0] == "::error title=LB101::e"
    assert lines[1:] == [f"::warning file=f.yaml,line={i},col=1,title=LB210::w{i}" for i in range(1, 10)]
    assert last == "lbctl: 13 findings: 1 error, 11 warnings, 1 note, 10 of them annotated"
    assert written([], "github") == "lbctl: no findings\n"


def test_message_cannot_inject_a_github_command() -> None:
    line, _ = written([NASTY], "github").splitlines()
    assert line == (
        "::warning file=a%3Ab%2Cc/ü %25.yaml,line=3,col=7,title=LB101::routes.a: 50%25 of%0D%0Ait: a, b ::error:: (x)"
    )


@pytest.mark.parametrize("command", ["lint", "validate"])
@pytest.mark.parametrize("text", [POOR, sample(), "version: 2\nx: [\n", ""])
def test_sarif_is_valid_by_its_schema(
    command: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fleet.yaml").write_text(text)
    _, out, err = output(capsys, command, "-o", "sarif", str(tmp_path / "fleet.yaml"))
    assert err == ""
    jsonschema.Draft7Validator(SCHEMA).validate(json.loads(out))


def test_sarif_has_locations_and_rule_descriptions(fleet_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = output(capsys, "lint", "-o", "sarif", fleet_file)
    (sarif_run,) = json.loads(out)["runs"]
    rules = sarif_run["tool"]["driver"]["rules"]
    results = sarif_run["results"]
    assert {rules[item["ruleIndex"]]["id"] for item in results} == {item["ruleId"] for item in results}
    assert [item["id"] for item in rules if "When to ignore it" not in item["help"]["markdown"]] == []
    region = next(item["locations"] for item in results if item["ruleId"] == "LB520")[0]["physicalLocation"]
    line = POOR.splitlines()[region["region"]["startLine"] - 1]
    assert line[region["region"]["startColumn"] - 1 :].startswith('"0.0.0.0')
    assert region["artifactLocation"]["uri"] == f"file://{fleet_file}"


def test_sarif_accepts_odd_file_names_and_no_location() -> None:
    document: dict[str, Any] = json.loads(written([NASTY, Diagnostic("LB001", "gone", Position("nowhere"))], "sarif"))
    jsonschema.Draft7Validator(SCHEMA).validate(document)
    first, second = document["runs"][0]["results"]
    assert first["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "a%3Ab%2Cc/%C3%BC%20%25.yaml"
    assert "region" not in second["locations"][0]["physicalLocation"]


def test_schema_of_the_fixture_rejects_invalid_sarif(fleet_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = output(capsys, "lint", "-o", "sarif", fleet_file)
    valid = json.loads(out)
    result = valid["runs"][0]["results"][0]
    for key, value in (("level", "fatal"), ("message", "text"), ("ruleIndex", "0"), ("severity", "error")):
        invalid = json.loads(out)
        invalid["runs"][0]["results"][0] = {**result, key: value}
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft7Validator(SCHEMA).validate(invalid)


CODE_QUALITY = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["description", "check_name", "fingerprint", "severity", "location"],
        "additionalProperties": False,
        "properties": {
            "description": {"type": "string", "minLength": 1},
            "check_name": {"type": "string", "pattern": "^LB[0-9]{3}$"},
            "fingerprint": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
            "severity": {"enum": ["info", "minor", "major", "critical", "blocker"]},
            "location": {
                "type": "object",
                "required": ["path", "lines"],
                "additionalProperties": False,
                "properties": {
                    "path": {"type": "string", "pattern": "^[^/]"},
                    "lines": {
                        "type": "object",
                        "required": ["begin"],
                        "additionalProperties": False,
                        "properties": {"begin": {"type": "integer", "minimum": 1}},
                    },
                },
            },
        },
    },
}
"""Only the fields of https://docs.gitlab.com/ci/testing/code_quality/#code-quality-report-format."""


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    """Return a Code Quality report, which must have GitLab's fields and unique fingerprints."""
    _, out, err = output(capsys, *arguments, "-o", "codequality")
    assert err == ""
    issues: list[dict[str, Any]] = json.loads(out)
    jsonschema.Draft7Validator(CODE_QUALITY).validate(issues)
    assert len({item["fingerprint"] for item in issues}) == len(issues)
    return issues


@pytest.mark.parametrize("command", ["lint", "validate"])
@pytest.mark.parametrize("text", [POOR, sample(), "version: 2\nx: [\n", ""])
def test_code_quality_report_has_the_documented_fields(
    command: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fleet.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    for path in ("fleet.yaml", "./fleet.yaml", str(tmp_path / "fleet.yaml")):
        issues = report(capsys, command, path)
        assert {item["location"]["path"] for item in issues} <= {"fleet.yaml"}
    _, out, _ = output(capsys, command, "-o", "json", "fleet.yaml")
    severities = {"error": "critical", "warning": "major", "note": "info"}
    assert [(item["check_name"], item["severity"], item["location"]["lines"]["begin"]) for item in issues] == [
        (item["code"], severities[item["severity"]], item["line"]) for item in json.loads(out)["findings"]
    ]


def test_moved_finding_keeps_its_fingerprint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes a finding whose message names another line. A new finding has a new fingerprint."""
    twice = POOR.replace("10.0.0.2:8000", "10.0.0.1:8000")
    monkeypatch.chdir(tmp_path)

    def fingerprints(text: str) -> dict[str, tuple[str, int]]:
        (tmp_path / "fleet.yaml").write_text(text)
        issues = [*report(capsys, "validate", "fleet.yaml"), *report(capsys, "lint", "fleet.yaml")]
        return {item["fingerprint"]: (item["description"], item["location"]["lines"]["begin"]) for item in issues}

    before, after = fingerprints(twice), fingerprints(f"# one\n# two\n{twice}")
    assert before.keys() == after.keys()
    assert any("first at fleet.yaml:" in description for description, _ in before.values())
    assert all(after[key][1] == line + 2 for key, (_, line) in before.items())
    changed = fingerprints(twice.replace("gpu: B200", "gpu: B200, weigth: 1"))
    assert changed.keys() - before.keys()


def test_code_quality_accepts_equal_findings_and_no_location() -> None:
    findings = [
        Diagnostic("LB999", "a"),
        Diagnostic("LB999", "a"),
        Diagnostic("LB010", "b", Position("-", 4, 1)),
        NASTY,
    ]
    issues = json.loads(written(findings, "codequality"))
    jsonschema.Draft7Validator(CODE_QUALITY).validate(issues)
    assert [item["location"]["path"] for item in issues] == [".", ".", ".", "a:b,c/ü %.yaml"]
    assert issues[0]["fingerprint"] != issues[1]["fingerprint"]


@pytest.mark.parametrize("form", ["text", "json", "github", "sarif", "codequality"])
def test_validate_has_the_same_exit_code_in_every_form(
    form: str, fleet_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("version: 1\npols: {}\n")
    for path, expected in ((fleet_file, 0), (str(bad), 1), (str(tmp_path / "none"), 1)):
        code, out, err = output(capsys, "validate", "-o", form, path)
        assert (code, "LB0" in out + err) == (expected, expected == 1)
        assert (out if form == "text" else err) == ""
