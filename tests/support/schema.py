"""Every key and value of a fleet file, derived from the models, so that tests notice new fields."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from lbctl.model.fleet import Fleet
from lbctl.model.section import Section

NAME = "<name>"
"""Last step of a path to the names of a map."""


def leaves(section: type[Section] = Fleet, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every scalar of the schema, and of the names of each map. Names are `*`, list items have no
    index."""
    for key, field in section.model_fields.items():
        if path != ("defaults",):
            yield from _below(field.annotation, (*path, field.alias or key))


def keys() -> set[str]:
    """Return every key of the schema, for example `routes.*.pin.header`."""
    paths = {path[:length] for path in leaves() if path[-1] != NAME for length in range(1, len(path) + 1)}
    return {".".join(path) for path in paths}


def choices(pattern: str) -> set[str]:
    """Return the allowed words of a key, or of the items of its list; empty if it is not a choice."""
    here: Any = Fleet
    for step in pattern.split("."):
        if step != "*":
            here = _section(here).model_fields[step].annotation
    items = [get_args(part)[0] if get_origin(part) is list else part for part in _parts(here)]
    return {word for part in items if get_origin(part) is Literal for word in get_args(part)}


def places(
    value: object, pattern: tuple[str, ...], path: tuple[str | int, ...] = ()
) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths of scalars (or names) in a plain document that match the path of a leaf."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from places(item, pattern, (*path, index))
    elif not pattern:
        if not isinstance(value, dict) or not value:
            yield path
    elif isinstance(value, dict):
        for key in value if pattern[0] in {"*", NAME} else {pattern[0]} & set(value):
            if pattern[0] == NAME:
                yield (*path, key)
            else:
                yield from places(value[key], pattern[1:], (*path, key))


def _below(annotation: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    leaf = False
    for part in _parts(annotation):
        if isinstance(part, type) and issubclass(part, Section):
            yield from leaves(part, path)
            leaf |= not part.model_fields
        elif get_origin(part) is dict:
            yield (*path, NAME)
            yield from _below(get_args(part)[1], (*path, "*"))
        elif get_origin(part) is list:
            yield from _below(get_args(part)[0], path)
        else:
            leaf = True
    if leaf:
        yield path


def _parts(annotation: Any) -> list[Any]:
    """Return the types of a union, without None and without annotations."""
    if get_origin(annotation) is Annotated:
        return _parts(get_args(annotation)[0])
    if get_origin(annotation) in {Union, types.UnionType}:
        return [part for member in get_args(annotation) if member is not type(None) for part in _parts(member)]
    return [annotation]


def _section(annotation: Any) -> type[Section]:
    for part in _parts(annotation):
        if isinstance(part, type) and issubclass(part, Section):
            return part
        if get_origin(part) in {dict, list}:
            return _section(get_args(part)[-1])
    raise AssertionError(f"no section in {annotation}")
