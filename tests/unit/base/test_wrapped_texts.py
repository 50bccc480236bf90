"""Texts that continue on the next line: without parentheses, Python drops the second line silently."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.support.paths import ROOT


@pytest.mark.slow
def test_no_text_loses_its_second_line() -> None:
    lost = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / "lbctl").rglob("*.py"))
        for line in _lost_lines(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert lost == []


def _lost_lines(module: ast.Module) -> Iterator[int]:
    """Yield the lines of texts that follow the assignment of a text to a local variable."""
    for function in ast.walk(module):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                for block in ("body", "orelse", "finalbody"):
                    for statement, following in pairwise(_block(node, block)):
                        if _assigns_text(statement) and isinstance(following, ast.Expr) and _is_text(following.value):
                            yield following.lineno


def _block(node: ast.AST, name: str) -> list[ast.stmt]:
    """Return a block of statements. A lambda and a conditional expression have an expression there instead."""
    block = getattr(node, name, [])
    return block if isinstance(block, list) else []


def _assigns_text(statement: ast.stmt) -> bool:
    match statement:
        case ast.Assign(targets=[ast.Name()], value=value) | ast.AugAssign(target=ast.Name(), value=value):
            return _is_text(value)
        case _:
            return False


def _is_text(value: ast.expr) -> bool:
    return isinstance(value, ast.JoinedStr) or (isinstance(value, ast.Constant) and isinstance(value.value, str))
