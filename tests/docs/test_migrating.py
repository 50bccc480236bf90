"""The pages of migration examples: their fleets are the examples, and lbctl renders the lines that they quote."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from lbctl.cli import run
from tests.support.paths import ROOT
from tests.support.processes.binaries import Kind, require

HOW_TO = ROOT / "docs" / "how-to"
EXAMPLES: dict[str, Kind] = {"a-nginx-predict": "nginx", "b-envoy-grpc-canary": "envoy", "c-nginx-keepalive": "nginx"}
"""Each example with the proxy that it comes from."""
PAGES = {
    "a-nginx-predict": "example-nginx-weights-and-tls.md",
    "b-envoy-grpc-canary": "example-envoy-grpc-canary.md",
    "c-nginx-keepalive": "example-nginx-keepalive.md",
}


@dataclass(frozen=True)
class Case:
    """The three code blocks of a page, and its table."""

    start: str
    fleet: str
    rendered: list[str]
    table: str


def case(name: str) -> Case:
    page = (HOW_TO / PAGES[name]).read_text(encoding="utf-8")
    start, fleet, rendered = re.findall(r"^```\w[^\n]*\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    table = "\n".join(line for line in page.splitlines() if line.startswith("|"))
    return Case(start, fleet, [line.strip() for line in rendered.splitlines()], table)


def test_every_example_has_a_page() -> None:
    files = sorted((ROOT / "examples" / "migrating").iterdir())
    assert [path.name for path in files] == [f"{name}.yaml" for name in EXAMPLES]
    index = (HOW_TO / "migration-examples.md").read_text(encoding="utf-8")
    assert [page for page in PAGES.values() if f"]({page})" not in index] == []


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
