"""The structure of the sections, derived from the models: a map's keys, and the section below each key."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args, get_origin

from lbctl.base.diagnostics import Path
from lbctl.model.section import Section


@cache
def section_below(section: type[Section], key: str) -> type[Section] | None:
    """Return the section at `key`, or the section in its map's values or its list's items; otherwise None."""
    field = section.model_fields.get(key)
    return _section(field.annotation) if field else None


@cache
def is_named_map(section: type[Section], key: str) -> bool:
    """Return whether `key` contains a map with user-defined names."""
    field = section.model_fields.get(key)
    return field is not None and _holds_map(field.annotation)


def section_at(root: type[Section], path: Path) -> type[Section] | None:
    """Return the section whose keys are at `path`; None for a scalar, a map of scalars or an unknown key."""
    section: type[Section] | None = root
    expects_name = False
    for step in path:
        if section is None:
            return None
        if expects_name or isinstance(step, int):
            expects_name = False
            continue
        expects_name = is_named_map(section, step)
        section = section_below(section, step)
    return None if expects_name else section


def _section(annotation: Any) -> type[Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next(filter(None, map(_section, get_args(annotation))), None)


def _holds_map(annotation: Any) -> bool:
    return get_origin(annotation) is dict or any(get_origin(part) is dict for part in get_args(annotation))
