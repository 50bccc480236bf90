"""Golden cases: a fleet in; three configurations and the diagnostics out. The real proxies accept each configuration.

A case is a folder. Its inputs are `in.yaml`, `targets.json` and sub-folders; all other files are expected outputs:
the files of each proxy, and `KIND.diagnostics.txt` with the messages of `lbctl render -t KIND`. A fleet that is invalid
for one kind of proxy has only the messages of that kind, and a case `invalid-…` has `diagnostics.txt` alone.
`make golden` writes the outputs; read the diff.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from lbctl.apply import check
from lbctl.cli import run
from lbctl.targets import KINDS
from tests.golden.cases import CASES, DIRECTORY, configurations, expected_outputs, update
from tests.support.processes.binaries import Kind, require

REFUSED = "diagnostics.txt"
CHECKED = [(case, kind) for kind in KINDS for case in configurations(kind) if not case.startswith(f"newer-{kind}-")]
"""Configurations for the versions on this machine; `make test-newer` checks the ones for newer versions."""
VERSION_OF = functools.cache(check.version_of)
"""Returns each proxy's version, queried once: starting an Envoy costs more than checking a small configuration."""


class CommandLine:
    """`lbctl` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def run(self, *arguments: str | Path) -> tuple[int, str]:
        """Return the exit code and the text on standard error."""
        self._capsys.readouterr()
        code = run(list(map(str, arguments)))
        return code, self._capsys.readouterr().err


@pytest.fixture
def lbctl(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


@pytest.mark.parametrize("case", CASES)
def test_fleet_renders_to_the_expected_outputs(
    case: str, lbctl: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(DIRECTORY / case)
    outputs = rendered_outputs(lbctl, tmp_path)
    if request.config.getoption("--update-golden"):
        update(case, outputs)
    expected = expected_outputs(case)
    assert sorted(outputs) == sorted(expected)
    for file, text in outputs.items():
        assert text == expected[file], f"{case}/{file} differs; if the new text is right: make golden"


@pytest.mark.e2e
@pytest.mark.parametrize(("case", "kind"), CHECKED)
def test_proxy_accepts_the_expected_configuration(
    case: str, kind: Kind, lbctl: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(kind)
    monkeypatch.setattr(check, "version_of", VERSION_OF)
    monkeypatch.chdir(DIRECTORY / case)
    code, messages = lbctl.run("render", "-t", kind, "--check", "-d", tmp_path, "in.yaml")
    assert code == 0, messages
    expected = expected_outputs(case)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()}.items() <= expected.items()


def test_only_cases_with_invalid_in_their_name_are_refused() -> None:
    refused = {case for case in CASES if (DIRECTORY / case / REFUSED).exists()}
    assert refused == {case for case in CASES if case.startswith("invalid-")}


def rendered_outputs(lbctl: CommandLine, directory: Path) -> dict[str, str]:
    """Return the text of each output for `in.yaml` in the current directory, by file name."""
    code, messages = lbctl.run("validate", "in.yaml")
    if code:
        return {REFUSED: messages}
    outputs: dict[str, str] = {}
    for kind in KINDS:
        code, messages = lbctl.run("render", "-t", kind, "-d", directory / kind, "in.yaml")
        if messages:
            outputs[f"{kind}.diagnostics.txt"] = messages
        if code == 0:
            outputs |= {path.name: path.read_text() for path in (directory / kind).iterdir()}
        else:
            assert " error " in messages
    return outputs
