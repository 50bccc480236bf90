"""Parses JSON from other processes, with limits on nesting depth and the number of values.

The caller limits the size in bytes, but this is not enough to limit memory usage, because three bytes of JSON can
become a 64-byte object, and nine bytes a 232-byte object. Without a depth limit, deeply nested text causes a
RecursionError in the parser or in the code that uses its result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

MAX_DEPTH = 64
"""Maximum nesting depth of lists and objects."""
MAX_VALUES = 400_000
"""Maximum number of values in one JSON text, which need about 50 MB as Python objects."""

_NAMES = {
    dict: "an object",
    list: "a list",
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
}
_T = TypeVar("_T")
_OTHERS = bytes(byte for byte in range(256) if byte not in b"[]{}")


Shape = type | list[Any] | dict[Any, Any]


class InvalidJsonError(ValueError):
    """The text is not valid JSON, or exceeds a limit. The message states the reason without repeating the text."""

    def __init__(self, message: str, line: int = 1, column: int = 1) -> None:
        """Set the message, and the line and column at which the text becomes invalid."""
        super().__init__(message)
        self.line = line
        self.column = column


def parse(text: str | bytes | bytearray, max_values: int = MAX_VALUES) -> Any:
    """Return the parsed value. Raises InvalidJsonError.

    `max_values` is the limit for `count_values`.
    """
    if count_values(text) > max_values:
        raise InvalidJsonError(f"JSON with more than {max_values:,} values")
    try:
        value = json.loads(text)
    except RecursionError:
        raise InvalidJsonError(_too_deep()) from None
    except json.JSONDecodeError as error:
        raise InvalidJsonError("not JSON", error.lineno, error.colno) from None
    except ValueError:  # invalid UTF-8, or a number with too many digits
        raise InvalidJsonError("not JSON") from None
    if not _is_shallow(text):
        _check_depth(value)
    return value


def count_values(text: str | bytes | bytearray) -> int:
    """Return an upper bound on the number of values: the number of commas and opening brackets, even in strings."""
    comma, bracket, brace = (",", "[", "{") if isinstance(text, str) else (b",", b"[", b"{")
    return text.count(comma) + text.count(bracket) + text.count(brace)  # type: ignore[arg-type]


def parse_object(text: str | bytes | bytearray, max_values: int = MAX_VALUES) -> dict[str, Any]:
    """Return the parsed object. Raises InvalidJsonError if the text is invalid or the value is not an object."""
    value = parse(text, max_values)
    if not isinstance(value, dict):
        raise InvalidJsonError("the JSON value is not an object")
    return value


def member(holder: Mapping[str, Any], key: str, kind: type[_T]) -> _T:
    """Return the value of a key, or the empty value of its type if the key is missing or null.

    Raises InvalidJsonError if the value has another type.
    """
    value = holder.get(key)
    if value is None:
        return kind()
    if type(value) is not kind:
        raise InvalidJsonError(f"{key} is not {_NAMES.get(kind, kind.__name__)}")
    return value


def shaped(value: object, shape: Shape, name: str = "it") -> Any:
    """Return the parts of a value that the shape describes, without null values.

    A shape is a type, a list that contains the shape of its items, or a dict that maps keys to shapes, where `...`
    matches any key. Raises InvalidJsonError for other types.
    """
    if isinstance(shape, list):
        if not isinstance(value, list):
            raise InvalidJsonError(f"{name} is not a list")
        return [shaped(item, shape[0], name) for item in value]
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            raise InvalidJsonError(f"{name} is not an object")
        if (each := shape.get(...)) is not None:
            return {key: shaped(item, each, name) for key, item in value.items() if item is not None}
        return {
            key: shaped(item, part, str(key)) for key, part in shape.items() if (item := value.get(key)) is not None
        }
    if shape is float and type(value) is int:
        return float(value)
    if type(value) is not shape:
        raise InvalidJsonError(f"{name} is not {_NAMES.get(shape, shape.__name__)}")
    return value


def records(holder: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the objects in the list at a key, or an empty list if it is missing or null. Raises InvalidJsonError."""
    listed: list[Any] = member(holder, key, list)
    if not all(isinstance(item, dict) for item in listed):
        raise InvalidJsonError(f"{key} is not a list of objects")
    return listed


def _is_shallow(text: str | bytes | bytearray) -> bool:
    """Return whether the brackets alone prove that the text is within the depth limit.

    The result may be False because of brackets in strings. Each round removes the innermost pairs. For several
    megabytes, this takes milliseconds, while a character-by-character scan would take a second.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    brackets = bytes(data.translate(None, _OTHERS))
    for _ in range(MAX_DEPTH):
        if not brackets:
            return True
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    return not brackets


def _check_depth(value: object) -> None:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        if not level:
            return
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
    if level:
        raise InvalidJsonError(_too_deep())


def _too_deep() -> str:
    return f"JSON nested more than {MAX_DEPTH} levels deep"
