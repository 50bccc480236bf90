"""Dataclasses of the API's schema to JSON and back, by the standard library alone.

`encode` and `parse` are for the server, `decode` for the commands. Decoding takes what a newer server may add — fields
and enum values that are not known here — and refuses what lacks a field or has another type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from lbctl.base.diagnostics import show

T = TypeVar("T")
_Reader = Callable[[Any, str], Any]
"""Takes a JSON value and its path."""
_SURROGATES = re.compile("[\ud800-\udfff]")


class SchemaError(ValueError):
    """A JSON value is not of the type that is expected; the message has its path."""


def encode(value: object, indent: int | None = None) -> str:
    """The JSON text of a dataclass of the schema, or of lists and mappings of them.

    A lone surrogate, which UTF-8 cannot encode, becomes U+FFFD, so that one such text breaks no whole document.
    """
    text = _dumps(value, indent)
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def plain(value: object) -> Any:
    """The same value of JSON's own types."""
    return json.loads(_dumps(value))


def is_unicode(value: object) -> bool:
    """Return whether UTF-8 can encode every text in a value of the schema or of JSON's own types."""
    return _SURROGATES.search(_dumps(value)) is None


def decode(kind: type[T], value: object) -> T:
    """The JSON value as this dataclass. Raises SchemaError."""
    hint: Any = kind
    result: T = _reader(hint)(value, "")
    return result


def parse(kind: type[T], value: Mapping[str, Any]) -> T:
    """The JSON object that a client has sent as this dataclass, with its fields and enum values alone.

    Raises SchemaError.
    """
    hints = {json_name(item): type_hints(kind)[item.name] for item in fields(cast(Any, kind))}
    for name in sorted(value.keys() - hints):
        raise SchemaError(f"there is no field {show(name)}; there are {', '.join(sorted(hints))}")
    for name, hint in hints.items():
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        if choices and value.get(name) not in choices:
            raise SchemaError(f"{name} is one of {', '.join(choices)}")
    return decode(kind, value)


def _dumps(value: object, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False, default=_object)


def json_name(item: Field[Any]) -> str:
    """The name of a dataclass's field in JSON."""
    return str(item.metadata.get("json", item.name))


def type_hints(kind: type) -> dict[str, Any]:
    """Field → its type, with annotations such as `date-time`."""
    return get_type_hints(kind, include_extras=True)


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The members of a union; the type itself where it is none."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


@cache
def _names(kind: type) -> tuple[tuple[str, str], ...]:
    return tuple((json_name(item), item.name) for item in fields(kind))


def _object(value: object) -> dict[str, Any]:
    if not is_dataclass(value) or isinstance(value, type):
        raise TypeError(f"{type(value).__name__} is no type of the schema")
    return {name: getattr(value, attribute) for name, attribute in _names(type(value))}


@cache
def _reader(hint: Any) -> _Reader:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _reader(arguments[0])
    if origin is Literal:
        return _scalar((str,), "a string")
    if origin in (Union, UnionType):
        return _union(arguments)
    if origin is tuple:
        return _array(_reader(arguments[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(_reader(arguments[1]))
    if is_dataclass(hint) and isinstance(hint, type):
        return _dataclass(hint)
    return _SCALARS[hint]


def _scalar(kinds: tuple[type, ...], name: str) -> _Reader:
    def read(value: Any, path: str) -> Any:
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise SchemaError(f"{path.lstrip('.')} is not {name}")
        return value

    return read


_SCALARS: dict[Any, _Reader] = {
    str: _scalar((str,), "a string"),
    bool: _scalar((bool,), "true or false"),
    int: _scalar((int,), "a whole number"),
    float: _scalar((int, float), "a number"),
    NoneType: _scalar((NoneType,), "null"),
}


def _array(item: _Reader) -> _Reader:
    def read(value: Any, path: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise SchemaError(f"{path.lstrip('.')} is not a list")
        return tuple(item(each, f"{path}[{index}]") for index, each in enumerate(value))

    return read


def _mapping(item: _Reader) -> _Reader:
    def read(value: Any, path: str) -> dict[str, Any]:
        return {name: item(each, f"{path}.{name}") for name, each in _is_object(value, path).items()}

    return read


def _dataclass(kind: type) -> _Reader:
    hints = type_hints(kind)
    attributes = [(item.name, json_name(item), hints[item.name], item.default) for item in fields(kind)]

    def read(value: Any, path: str) -> Any:
        given, arguments = _is_object(value, path), {}
        for attribute, name, hint, default in attributes:
            if name in given:
                arguments[attribute] = _reader(hint)(given[name], f"{path}.{name}")
            elif default is MISSING:
                raise SchemaError(f"{f'{path}.{name}'.lstrip('.')} is missing")
        return kind(**arguments)

    return read


def _union(members: tuple[Any, ...]) -> _Reader:
    """Return the reader of the first member that takes the value; the error is that of the last one."""
    optional, others = NoneType in members, [item for item in members if item is not NoneType]

    def read(value: Any, path: str) -> Any:
        if optional and value is None:
            return None
        for member in others[:-1]:
            with suppress(SchemaError):
                return _reader(member)(value, path)
        return _reader(others[-1])(value, path)

    return read


def _is_object(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SchemaError(f"{path.lstrip('.') or 'the answer'} is not an object")
    return value
