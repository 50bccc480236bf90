"""YAML is read as Envoy 1.40 reads it: aliases, `!ignore`, repeated keys and plain scalars, within limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.base.diagnostics import Diagnostics
from lbctl.importer.envoy.yaml import MAX_DEPTH, MAX_NODES, read
from lbctl.model.node import Node, descend, plain_value
from tests.support.importer import envoy_text, imported_text


def tree(text: str) -> Node:
    diagnostics = Diagnostics()
    root = read(text, "f", diagnostics)
    assert root is not None, [*diagnostics]
    return root


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: &x {b: 1}\nc: *x", {"a": {"b": 1}, "c": {"b": 1}}),
        ("a: &x [1, &y 2]\nc: [*x, *y]", {"a": [1, 2], "c": [[1, 2], 2]}),
        ("a: &x 1\nb: &x 2\nc: *x", {"a": 1, "b": 2, "c": 2}),
        ("a: &x b\n*x : c", {"a": "b", "b": "c"}),
        ("&k a: 1\nb: 2", {"a": 1, "b": 2}),
        ("!ignore a: &x {b: 1}\nc: *x", {"c": {"b": 1}}),
        ("a: !ignore b", {"a": "b"}),
        ("a: &x {b: 1}\nc: {<<: *x}", {"a": {"b": 1}, "c": {"<<": {"b": 1}}}),
        ("a: 1\nb: 3\na: 2", {"a": 2, "b": 3}),
        ("a: 1\n---\nb: [", {"a": 1}),
        ("%YAML 1.1\n---\na: 1\n...\n{", {"a": 1}),
        ("\ufeffa: 1", {"a": 1}),
        ("a: [yes, No, ON, off, y, N, TRUE, false]", {"a": [True, False, True, False, True, False, True, False]}),
        ("a: [yEs, tRUE, 'yes', \"1\", ! 12]", {"a": ["yEs", "tRUE", "yes", "1", "12"]}),
        ("a: [0x1F, 010, 09, -7, +3, 0, 1.5, 1e3, 1_0]", {"a": [31, 8, "09", -7, 3, 0, "1.5", "1e3", "1_0"]}),
        ("a: [null, ~, Null, NULL]\nb:", {"a": [None] * 4, "b": None}),
        ("a: !!str 12", {"a": 12}),
        ("a: '-----BEGIN EC PRIVATE KEY-----'", {"a": "(private key)"}),
    ],
)
def test_yaml_is_read_as_envoy_reads_it(text: str, expected: object) -> None:
    assert plain_value(tree(text)) == expected


def test_value_of_an_alias_has_the_position_of_its_use() -> None:
    root = tree("a: &x\n  b: 1\nc:\n  d: *x\n")
    used, inner = descend(root, ("c", "d")), descend(root, ("c", "d", "b"))
    assert used is not None
    assert inner is not None
    assert (str(used.key_position), str(used.position), str(inner.key_position)) == ("f:4:3", "f:4:6", "f:2:3")


NESTED = "a: " + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)
LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, MAX_DEPTH + 1))


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (LAUGHS, 6, f"more than {MAX_NODES} values, including values from aliases"),
        (NESTED, 1, f"nested more than {MAX_DEPTH} levels deep"),
        (CHAIN, MAX_DEPTH, f"nested more than {MAX_DEPTH} levels deep"),
        ("a: 1\nb: *x", 2, "an alias has no anchor"),
        ("a: &x\n  b: *x", 2, "an alias refers to its own anchor"),
        ("? {a: b}\n: c", 1, "a map or a list cannot be a key"),
        ("a: &x {b: 1}\n*x : 1", 2, "a map or a list cannot be a key"),
        ("a: [", 1, ""),
        ("- a", 1, "the file is not a map of keys and values"),
        ("", 1, "the file is not a map of keys and values"),
        ("a: \x01", 1, ""),
    ],
)
def test_unreadable_yaml_is_an_error_at_its_place(text: str, line: int, message: str) -> None:
    diagnostics = Diagnostics()
    assert read(text, "f", diagnostics) is None
    (error,) = diagnostics
    assert error.position is not None
    assert (error.position.line, message in error.message) == (line, True)


def test_route_of_an_alias_is_imported_at_each_use(tmp_path: Path) -> None:
    text = envoy_text().replace("route: {cluster: c}", "route: &r {cluster: c, timeout: 0s}", 1)
    fleet = imported_text("envoy", text.replace("route: {cluster: c}", "route: *r", 1), tmp_path)[0].draft.fleet
    assert [item["pool"] for item in fleet["routes"].values()] == ["c", "c"]


def test_merge_key_is_an_unknown_field(tmp_path: Path) -> None:
    text = envoy_text().replace("  - name: auth\n", "  - <<: {name: auth}\n")
    with pytest.raises(AssertionError, match=r"invalid Envoy configuration.*<<"):
        imported_text("envoy", text, tmp_path)


@pytest.mark.parametrize(
    ("policy", "algorithm"), [("", "random"), ("hash_policy: [{header: {header_name: x-a}}]", "hash")]
)
def test_ring_hash_without_a_key_is_random(policy: str, algorithm: str, tmp_path: Path) -> None:
    text = envoy_text().replace("route: {cluster: c}", f"route: {{cluster: c, {policy}}}")
    text = text.replace("- name: c\n", "- name: c\n    lb_policy: RING_HASH\n")
    result, diagnostics = imported_text("envoy", text, tmp_path)
    assert result.draft.fleet["pools"]["c"]["balance"]["algorithm"] == algorithm
    assert any("Envoy selects replicas at random" in item.message for item in diagnostics) == (algorithm == "random")
