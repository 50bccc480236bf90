"""docs/develop/architecture.md and CONTRIBUTING.md name existing packages and files, in the order of imports."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "develop" / "architecture.md").read_text(encoding="utf-8")
_CODE = re.compile(r"`([^`]+)`")


def _first_cells(heading: str) -> list[list[str]]:
    """Return the words in backticks in the first cell of each row of the first table after `heading`."""
    table = re.search(r"^\|---.*\n((?:\|.*\n)+)", PAGE[PAGE.index(heading) :], re.MULTILINE)
    assert table is not None, heading
    return [_CODE.findall(row.split("|")[1]) for row in table.group(1).splitlines()]


def _layers(name: str) -> list[list[str]]:
    """Return the layers of a contract of import-linter from top to bottom. Each is a list of packages."""
    contracts: Sequence[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "importlinter"
    ]["contracts"]
    layers = next(item["layers"] for item in contracts if item["name"] == name)
    return [[package.strip() for package in layer.split("|")] for layer in layers]


def _packages(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir() if path.is_dir() and any(path.glob("*.py"))}


def test_every_package_has_a_row() -> None:
    rows = {name.removeprefix("lbctl/") for cell in _first_cells("| package |") for name in cell}
    assert rows - {"templates/"} == _packages(ROOT / "lbctl")


def test_import_order_matches_the_contract() -> None:
    line = " > ".join(" | ".join(layer) for layer in _layers("Imports point down"))
    assert f"`{line}`" in PAGE


def test_packages_of_serve_have_the_order_of_the_contract() -> None:
    rows = _first_cells("`lbctl/serve` has the following packages")
    assert [sorted(cell) for cell in rows] == [sorted(layer) for layer in _layers("The packages of serve")]


def test_every_folder_of_tests_has_a_row() -> None:
    folders = {f"tests/{path.name}" for path in (ROOT / "tests").iterdir() if _has_files(path)} - {"tests/e2e"}
    folders |= {f"tests/e2e/{path.name}" for path in (ROOT / "tests" / "e2e").iterdir() if _has_files(path)}
    assert {name for cell in _first_cells("## Tests") for name in cell} == folders


def _has_files(path: Path) -> bool:
    return path.is_dir() and any(file.is_file() and "__pycache__" not in file.parts for file in path.rglob("*"))


def test_files_named_by_contributing_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = [word for word in _CODE.findall(text) if re.fullmatch(r"(?:lbctl|tests|docs)/[\w./-]+", word)]
    assert len(paths) > 15
    missing = [path for path in paths if not (ROOT / path).exists() and not (ROOT / f"{path}.py").exists()]
    assert missing == ["lbctl/apply/KIND"]
