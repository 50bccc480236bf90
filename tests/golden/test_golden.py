"""What each fleet below this folder renders to, and what is said about it; and that the real proxies accept it.

A case is a folder with `in.yaml`, and with the own lines that it names. Beside it stand the files of every target,
`KIND.diagnostics.txt` where lbctl has something to say for that kind, or `diagnostics.txt` alone for a fleet that is
refused. `--update-golden` writes them anew; read the diff.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.cli import run
from lbctl.targets import KINDS
from tests.support.processes.binaries import Kind, require

HERE = Path(__file__).parent
CASES = sorted(path.parent.name for path in HERE.glob("*/in.yaml"))
INPUTS = {"in.yaml", "targets.json", "own"} | {
    f"own-{name}" for name in ("http.conf", "chat.conf", "frontend.cfg", "filter.yaml")
}
REFUSED = "diagnostics.txt"


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> _Call:
    return _Call(capsys)


class _Call:
    """`lbctl` in this process: its exit code and what it wrote to standard error."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str | Path) -> tuple[int, str]:
        self._capsys.readouterr()
        code = run(list(map(str, arguments)))
        return code, self._capsys.readouterr().err


@pytest.mark.parametrize("name", CASES)
def test_a_fleet_renders_to_what_stands_beside_it(
    name: str, call: _Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(HERE / name)
    made = outputs(call, tmp_path)
    if request.config.getoption("--update-golden"):
        update(HERE / name, made)
    expected = {path.name: path.read_text() for path in (HERE / name).iterdir() if path.name not in INPUTS}
    assert sorted(made) == sorted(expected)
    for file, text in made.items():
        assert text == expected[file], f"{name}/{file} is not what lbctl makes; if it should be: --update-golden"


@pytest.mark.e2e
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith(("invalid-", "newer-"))])
def test_the_proxy_accepts_what_stands_there(
    name: str, kind: Kind, call: _Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(kind)
    monkeypatch.chdir(HERE / name)
    code, said = call("render", "-t", kind, "--check", "-d", tmp_path, "in.yaml")
    assert code == 0, said
    assert [path.name for path in tmp_path.iterdir() if path.read_text() != (HERE / name / path.name).read_text()] == []


def test_a_case_is_refused_exactly_when_its_name_says_so() -> None:
    refused = {name for name in CASES if (HERE / name / REFUSED).exists()}
    assert refused == {name for name in CASES if name.startswith("invalid-")}


def outputs(call: _Call, directory: Path) -> dict[str, str]:
    """File name → text, of everything that lbctl makes of `in.yaml` in the current directory."""
    code, said = call("validate", "in.yaml")
    if code:
        return {REFUSED: said}
    made: dict[str, str] = {}
    for kind in KINDS:
        code, said = call("render", "-t", kind, "-d", directory / kind, "in.yaml")
        assert code == 0, said
        made |= {path.name: path.read_text() for path in (directory / kind).iterdir()}
        if said:
            made[f"{kind}.diagnostics.txt"] = said
    return made


def update(case: Path, made: dict[str, str]) -> None:
    """`made` and nothing else beside the inputs."""
    for path in case.iterdir():
        if path.name not in INPUTS | made.keys():
            path.unlink()
    for name, text in made.items():
        (case / name).write_text(text)
