from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbctl.base.foreign_json import MAX_DEPTH, MAX_VALUES, InvalidJsonError, parse, parse_object

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.mark.slow
@given(_VALUES)
def test_json_of_bounded_depth_is_parsed_as_it_is(value: object) -> None:
    text = json.dumps(value)
    assert parse(text) == parse(text.encode()) == value


@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}"), ('["]",', "]")])
def test_depth_is_refused_from_one_level_on(opened: str, closed: str) -> None:
    parse(opened * MAX_DEPTH + "1" + closed * MAX_DEPTH)
    with pytest.raises(InvalidJsonError, match=f"more than {MAX_DEPTH} levels deep"):
        parse(opened * (MAX_DEPTH + 1) + "1" + closed * (MAX_DEPTH + 1))


@pytest.mark.parametrize(
    "text",
    [b"[" * 200_000, b"[" * 500 + b"]" * 500, b'["[",' * 100 + b"1" + b"]" * 100, '{"a":' * 900 + "1" + "}" * 900],
)
def test_deep_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(InvalidJsonError, match="deep"):
        parse(text)


def test_brackets_in_strings_do_not_count_as_depth() -> None:
    text = json.dumps(["[" * 1000, "]{" * 1000])
    assert parse(text) == json.loads(text)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"1" * 5000, b"NaN,", "\ud800"])
def test_invalid_text_is_refused_without_quoting_it(text: str | bytes) -> None:
    with pytest.raises(InvalidJsonError, match=r"^not JSON$"):
        parse(text)


def test_number_of_values_is_bounded() -> None:
    assert len(parse("[" + "1," * (MAX_VALUES - 2) + "1]")) == MAX_VALUES - 1
    with pytest.raises(InvalidJsonError, match="values"):
        parse("[" + "1," * MAX_VALUES + "1]")


@pytest.mark.parametrize("text", ["[]", "1", "null", '"a"'])
def test_object_is_required(text: str) -> None:
    with pytest.raises(InvalidJsonError, match="not an object"):
        parse_object(text)
