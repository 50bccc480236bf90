"""Findings for machines: JSON, GitHub's annotations, SARIF, GitLab's report, and nothing else on standard output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from lbctl.base.diagnostics import Diagnostic, Position
from lbctl.cli import run
from lbctl.cli.findings import written
from lbctl.lint.sample import sample
from tests.support.lint import POOR
from tests.support.paths import FIXTURES

SCHEMA = json.loads((FIXTURES / "sarif-2.1.0-part.json").read_text())
NASTY = Diagnostic(
    "LB101", "50% of\r\nit: a, b ::error::", Position("a:b,c/ü %.yaml", 3, 7), ("routes", "a"), "x", "warning"
)


@pytest.fixture
def fleet(tmp_path: Path) -> str:
    """A file with several findings of each severity."""
    file = tmp_path / "fleet.yaml"
    file.write_text(POOR)
    return str(file)


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(list(arguments))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_json_says_all_that_the_text_says(fleet: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = output(capsys, "lint", "-o", "json", fleet)
    _, text, _ = output(capsys, "lint", fleet)
    told = json.loads(out)
    assert (code, err) == (1, "")
    lines = [
        f"{item['file']}:{item['line']}:{item['column']}: {item['severity']} {item['code']}"
        for item in told["findings"]
    ]
    assert [line.partition(f" {line.split()[2]}")[0] + f" {line.split()[2]}" for line in text.splitlines()] == lines
    assert sum(told["counts"].values()) == len(lines) > 3


def test_github_shows_the_worst_ten_first_and_then_a_count(capsys: pytest.CaptureFixture[str]) -> None:
    found = [Diagnostic("LB210", f"w{i}", Position("f.yaml", i, 1), severity="warning") for i in range(1, 12)]
    found += [Diagnostic("LB217", "n", Position("f.yaml", 1, 1), severity="note"), Diagnostic("LB101", "e")]
    *lines, last = written(found, "github").splitlines()
    assert lines[0] == "::error title=LB101::e"
    assert lines[1:] == [f"::warning file=f.yaml,line={i},col=1,title=LB210::w{i}" for i in range(1, 10)]
    assert last == "lbctl: 13 findings: 1 error, 11 warnings, 1 note, 10 of them annotated"
    assert written([], "github") == "lbctl: no findings\n"


def test_github_can_be_told_nothing_by_a_message() -> None:
    line, _ = written([NASTY], "github").splitlines()
    assert line == (
        "::warning file=a%3Ab%2Cc/ü %25.yaml,line=3,col=7,title=LB101::routes.a: 50%25 of%0D%0Ait: a, b ::error:: (x)"
    )


@pytest.mark.parametrize("command", ["lint", "validate"])
@pytest.mark.parametrize("text", [POOR, sample(), "version: 2\nx: [\n", ""])
def test_sarif_is_that_of_the_schema(
    command: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fleet.yaml").write_text(text)
    _, out, err = output(capsys, command, "-o", "sarif", str(tmp_path / "fleet.yaml"))
    assert err == ""
    jsonschema.Draft7Validator(SCHEMA).validate(json.loads(out))


def test_sarif_says_where_and_what_and_explains_its_rules(fleet: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = output(capsys, "lint", "-o", "sarif", fleet)
    (told,) = json.loads(out)["runs"]
    rules = told["tool"]["driver"]["rules"]
    results = told["results"]
    assert {rules[item["ruleIndex"]]["id"] for item in results} == {item["ruleId"] for item in results}
    assert [item["id"] for item in rules if "When to ignore it" not in item["help"]["markdown"]] == []
    region = next(item["locations"] for item in results if item["ruleId"] == "LB520")[0]["physicalLocation"]
    line = POOR.splitlines()[region["region"]["startLine"] - 1]
    assert line[region["region"]["startColumn"] - 1 :].startswith('"0.0.0.0')
    assert region["artifactLocation"]["uri"] == f"file://{fleet}"


def test_sarif_takes_any_file_name_and_a_finding_without_a_place() -> None:
    told: dict[str, Any] = json.loads(written([NASTY, Diagnostic("LB001", "gone", Position("nowhere"))], "sarif"))
    jsonschema.Draft7Validator(SCHEMA).validate(told)
    first, second = told["runs"][0]["results"]
    assert first["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "a%3Ab%2Cc/%C3%BC%20%25.yaml"
    assert "region" not in second["locations"][0]["physicalLocation"]


def test_the_fixture_refuses_what_sarif_does(fleet: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = output(capsys, "lint", "-o", "sarif", fleet)
    good = json.loads(out)
    result = good["runs"][0]["results"][0]
    for key, value in (("level", "fatal"), ("message", "text"), ("ruleIndex", "0"), ("severity", "error")):
        bad = json.loads(out)
        bad["runs"][0]["results"][0] = {**result, key: value}
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft7Validator(SCHEMA).validate(bad)


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
"""The fields of https://docs.gitlab.com/ci/testing/code_quality/#code-quality-report-format, no more."""


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    """A Code Quality report, which has GitLab's fields and a fingerprint for each finding."""
    _, out, err = output(capsys, *arguments, "-o", "codequality")
    assert err == ""
    issues: list[dict[str, Any]] = json.loads(out)
    jsonschema.Draft7Validator(CODE_QUALITY).validate(issues)
    assert len({item["fingerprint"] for item in issues}) == len(issues)
    return issues


@pytest.mark.parametrize("command", ["lint", "validate"])
@pytest.mark.parametrize("text", [POOR, sample(), "version: 2\nx: [\n", ""])
def test_a_code_quality_report_has_the_fields_that_gitlab_documents(
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


def test_a_finding_that_only_moves_keeps_its_fingerprint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one whose message names another line; a finding that is new has a fingerprint of its own."""
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
    more = fingerprints(twice.replace("gpu: B200", "gpu: B200, weigth: 1"))
    assert more.keys() - before.keys()


def test_a_code_quality_report_takes_a_finding_without_a_place_and_equal_ones() -> None:
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
def test_validate_has_the_same_exit_codes_in_every_form(
    form: str, fleet: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("version: 1\npols: {}\n")
    for path, expected in ((fleet, 0), (str(bad), 1), (str(tmp_path / "none"), 1)):
        code, out, err = output(capsys, "validate", "-o", form, path)
        assert (code, "LB0" in out + err) == (expected, expected == 1)
        assert (out if form == "text" else err) == ""
