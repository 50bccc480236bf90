"""Converts the API's documents to JSON and back, with msgspec.

The server uses `encode` and `parse`, and the commands use `decode` and `decode_json`. Decoding ignores fields and
accepts enum values added by a newer server. It rejects a document if a field is missing or a value has the wrong type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar, cast, get_type_hints

import msgspec

from lbctl.api.fields import choices
from lbctl.base.diagnostics import show

T = TypeVar("T")
_SURROGATES = re.compile("[\ud800-\udfff]")
_ENCODER = msgspec.json.Encoder()
_MISSING = re.compile(r"Object missing required field `(.+)`")
_EXPECTED = re.compile(r"Expected `(.+)`, got `.+`")
_PLACE = re.compile(r"(.+?)(?: - at `\$\.?(.*)`)?", re.DOTALL)
_NAMES = {
    "str": "a string", "bool": "true or false", "int": "a whole number", "float": "a number", "array": "a list",
    "object": "an object",
}  # fmt: skip


class SchemaError(ValueError):
    """A JSON value does not have the expected type. The message contains its path."""


def encode(value: object, indent: int = 0) -> str:
    """Encode a document, or lists and mappings of documents, as JSON, on one line unless `indent` is set.

    A lone surrogate, which UTF-8 cannot encode, becomes U+FFFD, so that one such string does not break the whole
    document.
    """
    try:
        text = _ENCODER.encode(value)
    except UnicodeEncodeError:
        return json_text(value, indent or None)
    return msgspec.json.format(text, indent=indent).decode()


def json_text(value: object, indent: int | None = None) -> str:
    """Return the same JSON as `encode`, but with numbers formatted as in Python's `json`.

    It takes ten times as long.
    """
    return _SURROGATES.sub("\ufffd", json.dumps(plain(value), indent=indent, ensure_ascii=False))


def plain(value: object) -> Any:
    """Convert the value to plain JSON types."""
    return msgspec.to_builtins(value)


def is_unicode(value: object) -> bool:
    """Return whether every string in a document, or in a value of plain JSON types, can be encoded as UTF-8."""
    try:
        _ENCODER.encode(value)
    except UnicodeEncodeError:
        return False
    return True


def decode(kind: type[T], value: object) -> T:
    """Convert a value of plain JSON types to a document of this type. Raises SchemaError."""
    try:
        return msgspec.convert(value, kind, dec_hook=_any_of)
    except msgspec.ValidationError as error:
        raise SchemaError(_message(error)) from None


def decode_json(kind: type[T], text: bytes) -> T:
    """Parse JSON text as a document of this type. Raises SchemaError, including for text that is not JSON."""
    try:
        return cast(T, _decoder(cast(Any, kind)).decode(text))
    except msgspec.ValidationError as error:
        raise SchemaError(_message(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise SchemaError("the response is not JSON") from None


def parse(kind: type[T], value: Mapping[str, Any]) -> T:
    """Convert a JSON object from a client to a document of this type. Unknown fields and enum values are rejected.

    Raises SchemaError.
    """
    known, hints = {json_name(item): item for item in fields(kind)}, type_hints(kind)
    for name in sorted(value.keys() - known):
        raise SchemaError(f"unknown field {show(name)}; the valid fields are {', '.join(sorted(known))}")
    for name, item in known.items():
        if (listed := choices(hints[item.name])) and value.get(name, item.default) not in listed:
            raise SchemaError(f"{name} must be one of {', '.join(listed)}")
    return decode(kind, value)


def fields(kind: type) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return the fields of a document."""
    return msgspec.structs.fields(cast(type[msgspec.Struct], kind))


def json_name(item: msgspec.structs.FieldInfo) -> str:
    """Return the name of a field in JSON."""
    return item.encode_name


def type_hints(kind: type) -> dict[str, Any]:
    """Map each field to its type, including annotations."""
    return get_type_hints(kind, include_extras=True)


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, dec_hook=_any_of)


def _any_of(union: Any, value: object) -> Any:
    """Decode a value as the first member of an `AnyOf` that accepts it.

    If no member accepts the value, raise the last member's error.
    """
    *others, last = union.members
    for member in others:
        with suppress(msgspec.ValidationError):
            return msgspec.convert(value, member, dec_hook=_any_of)
    return msgspec.convert(value, last, dec_hook=_any_of)


def _message(error: msgspec.ValidationError) -> str:
    """Return the error message in the API's own terms, with the path of the value."""
    match = _PLACE.fullmatch(str(error))
    problem, path = (match[1], match[2] or "") if match else (str(error), "")
    if missing := _MISSING.fullmatch(problem):
        return f"{path}.{missing[1]}".lstrip(".") + " is missing"
    if expected := _EXPECTED.fullmatch(problem):
        kinds = [kind for kind in expected[1].split(" | ") if kind != "null"]
        return f"{path or 'the response'} is not {_NAMES.get(kinds[-1], kinds[-1]) if kinds else 'null'}"
    return f"{path}: {problem}"
