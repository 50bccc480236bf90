"""docs/how-to/migration-examples.md: its fleets are the examples, and lbctl renders the lines that it quotes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from lbctl.cli import run
from tests.support.paths import ROOT
from tests.support.processes.binaries import Kind, require

PAGE = (ROOT / "docs" / "how-to" / "migration-examples.md").read_text(encoding="utf-8")
EXAMPLES: dict[str, Kind] = {"a-nginx-predict": "nginx", "b-envoy-grpc-canary": "envoy", "c-nginx-keepalive": "nginx"}
"""In the order of the page, with the proxy that each comes from."""


@dataclass(frozen=True)
class Case:
    """The three blocks of a section, and its table."""

    start: str
    fleet: str
    rendered: list[str]
    table: str


def case(name: str) -> Case:
    section = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1 + list(EXAMPLES).index(name)]
    start, fleet, rendered = re.findall(r"^```\w+\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    table = "\n".join(line for line in section.splitlines() if line.startswith("|"))
    return Case(start, fleet, [line.strip() for line in rendered.splitlines()], table)


def test_every_example_has_a_section() -> None:
    files = sorted((ROOT / "examples" / "migrating").iterdir())
    assert [path.name for path in files] == [f"{name}.yaml" for name in EXAMPLES]
    assert len(re.findall("^## ", PAGE, re.MULTILINE)) == len(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_fleet_of_the_page_equals_the_example(name: str) -> None:
    modeline, _, fleet = (ROOT / "examples" / "migrating" / f"{name}.yaml").read_text(encoding="utf-8").partition("\n")
    assert modeline.startswith("# yaml-language-server: ")
    assert case(name).fleet == fleet


@pytest.mark.e2e
@pytest.mark.parametrize(("name", "kind"), EXAMPLES.items())
def test_quoted_lines_are_rendered_and_accepted(
    name: str, kind: Kind, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require(kind)
    code = run(["render", "-t", kind, "--check", "-d", str(tmp_path), str(ROOT / f"examples/migrating/{name}.yaml")])
    assert code == 0, capsys.readouterr().err
    (main,) = tmp_path.iterdir()
    rendered_lines = iter([line.strip() for line in main.read_text().splitlines()])
    assert [line for line in case(name).rendered if line not in rendered_lines] == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_explained_setting_is_quoted(name: str) -> None:
    section = case(name)
    rows = [row.split(" | ")[0] for row in section.table.splitlines()[2:]]
    words = [word for row in rows for word in re.findall(r"`([^`]+)`", row)]
    assert len(words) >= len(rows) - 1
    quoted = "\n".join(section.rendered).lower()
    assert [word for word in words if word.lower() not in quoted and word != "outlier_detection"] == []
