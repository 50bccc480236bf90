from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lbctl.targets.yaml_text import Writer

_TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=20) | st.sampled_from(
    [
        "true",
        "No",
        "null",
        "~",
        "1",
        "0x1f",
        "1e3",
        "1.5",
        ".inf",
        "- a",
        "a: b",
        "a #b",
        "{",
        "10.0.0.1",
        "4s",
        "",
        " a",
    ]
)
_LEAVES = _TEXTS | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
_MAPS = st.recursive(
    st.dictionaries(_TEXTS, _LEAVES, max_size=4),
    lambda inner: st.dictionaries(
        _TEXTS, _LEAVES | inner | st.lists(inner, max_size=3) | st.lists(_LEAVES, max_size=3), max_size=4
    ),
    max_leaves=20,
)


def _written(tree: dict[str, object]) -> str:
    return Writer({}).write(tree)[0]


@pytest.mark.slow
@given(st.dictionaries(_TEXTS, _MAPS, min_size=1, max_size=4))
def test_written_text_has_the_same_values(tree: dict[str, object]) -> None:
    assert yaml.safe_load(_written(tree)) == tree


def test_short_values_are_on_one_line_and_names_first() -> None:
    tree = {"routes": [{"match": {"prefix": "/"}, "route": {"cluster": "x" * 150}, "name": "chat"}]}
    assert _written(tree) == ("routes:\n- name: chat\n  match: {prefix: /}\n  route:\n    cluster: " + "x" * 150 + "\n")


def test_each_line_of_an_object_has_its_owner() -> None:
    owned = {"name": "a", "long": {"text": "x" * 150}}
    tree = {"clusters": [owned, {"name": "b"}]}
    text, owners = Writer({id(owned): ("pools", "a")}).write(tree)
    assert text.splitlines()[1:4] == ["- name: a", "  long:", f"    text: {'x' * 150}"]
    assert owners == dict.fromkeys((2, 3, 4), ("pools", "a"))
