"""Attributes whose name and type do not say what they hold are documented: a float needs its unit."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.support.paths import ROOT


@pytest.mark.slow
def test_frozen_dataclasses_document_their_floats() -> None:
    """An attribute docstring does it, or the name in backticks in the docstring of the class."""
    undocumented = [
        f"{path.relative_to(ROOT)}: {place}"
        for path in sorted((ROOT / "lbctl").rglob("*.py"))
        if "frozen=True" in (text := path.read_text(encoding="utf-8")) or "NamedTuple" in text
        for place in _undocumented(ast.parse(text))
    ]
    assert undocumented == []


def _undocumented(module: ast.Module) -> Iterator[str]:
    for item in module.body:
        if isinstance(item, ast.ClassDef) and not item.name.startswith("_") and _is_frozen(item):
            summary = ast.get_docstring(item) or ""
            for statement, following in pairwise([*item.body, ast.Pass()]):
                name = _attribute(statement)
                if name and f"`{name}`" not in summary and not _is_text(following):
                    yield f"{item.name}.{name}"


def _is_frozen(item: ast.ClassDef) -> bool:
    return any("frozen=True" in ast.unparse(each) for each in item.decorator_list) or any(
        ast.unparse(each) == "NamedTuple" for each in item.bases
    )


def _attribute(statement: ast.stmt) -> str:
    """Return the name of a public attribute of type float; an empty string for any other statement."""
    if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
        return ""
    is_float = any(isinstance(node, ast.Name) and node.id == "float" for node in ast.walk(statement.annotation))
    name = statement.target.id
    return name if is_float and not name.startswith("_") else ""


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
