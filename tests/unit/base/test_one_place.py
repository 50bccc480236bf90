"""Rules that only one module implements: the text of an exception, a listener's address, the kinds of proxies."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import lbctl

PACKAGE = Path(lbctl.__file__).parent
MODULES = {str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}


def _copies_of_reason_of(tree: ast.AST) -> Iterator[int]:
    """Yield the lines with `str(error) or …`, and the lines that read the `strerror` of an exception."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or) and _is_text_of_an_error(node.values[0]):
            yield node.lineno
        is_of_an_error = isinstance(node, ast.Attribute) and node.attr == "strerror" and ast.unparse(node.value) != "os"
        if is_of_an_error or (isinstance(node, ast.Constant) and node.value == "strerror"):
            yield node.lineno
        if isinstance(node, ast.IfExp) and _is_name_of_a_class(node.orelse) and "error" in ast.unparse(node.body):
            yield node.lineno


def _is_text_of_an_error(node: ast.expr) -> bool:
    """Return whether this is str(error), possibly split or stripped."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    is_text = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("str", "repr")
    return is_text and "error" in ast.unparse(node)


def _is_name_of_a_class(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "__name__" and "error" in ast.unparse(node)


def _copies_of_from_here(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of tables from 0.0.0.0 to 127.0.0.1, or from :: to ::1."""
    pairs = {("0.0.0.0", "127.0.0.1"), ("::", "::1")}
    for node in ast.walk(tree):
        items = zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
        if any((_text(key), _text(value)) in pairs for key, value in items):
            yield node.lineno


def _text(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _trees(*words: str) -> Iterator[tuple[str, ast.AST]]:
    """Return the modules that contain one of these words; parsing all modules takes seconds."""
    return ((name, ast.parse(text)) for name, text in MODULES.items() if any(word in text for word in words))


@pytest.mark.parametrize(
    ("find", "home", "words"),
    [
        (_copies_of_reason_of, "base/errors.py", ("str(", "repr(", "strerror", ".__name__")),
        (_copies_of_from_here, "base/hosts.py", ("0.0.0.0", "::")),
    ],
)
@pytest.mark.slow
def test_no_other_module_copies_the_rule(find: object, home: str, words: tuple[str, ...]) -> None:
    assert callable(find)
    copies = {name: lines for name, tree in _trees(*words) if (lines := [*find(tree)])}
    assert copies.pop(home, None), "the rule is found in its own module"
    assert copies == {}


REGISTRIES = {
    "importer/run.py", "serve/drivers/registry.py", "serve/traffic/interface.py", "simulate/policies.py",
    "targets/__init__.py", "targets/advisories.py", "up/launchers.py",
}  # fmt: skip
OWN_PACKAGES = ("targets/nginx/", "targets/haproxy/", "targets/envoy/", "importer/")
FIELDS = {
    "serve/api/status_rows.py": "the fields of an xDS node", "targets/gateway_api/classes.py": "a Gateway class",
    "xds/protocol/node_status.py": "a key of the API",
}  # fmt: skip
"""Modules in which the word is not a kind of proxy."""


def test_only_registries_and_packages_name_proxy_kinds() -> None:
    named = {
        name
        for name, tree in _trees('"nginx"', '"haproxy"', '"envoy"')
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in ("nginx", "haproxy", "envoy")
    }
    elsewhere = {name for name in named if not name.startswith(OWN_PACKAGES)} - {*FIELDS}
    assert elsewhere - REGISTRIES == set()
