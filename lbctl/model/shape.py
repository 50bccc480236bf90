"""The shape of the sections: which keys a map may hold, and what lies below each. Read from the models themselves."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args, get_origin

from lbctl.base.diagnostics import Path
from lbctl.model.section import Section


@cache
def section_below(section: type[Section], key: str) -> type[Section] | None:
    """The section that lies at `key`, itself or as the values of a map or the items of a list; else None."""
    field = section.model_fields.get(key)
    return _section(field.annotation) if field else None


@cache
def is_named_map(section: type[Section], key: str) -> bool:
    """Whether `key` holds a map of the user's names, whose values are sections or scalars."""
    field = section.model_fields.get(key)
    return field is not None and _holds_map(field.annotation)


def section_at(root: type[Section], path: Path) -> type[Section] | None:
    """The section whose keys stand at `path`; None where there is none (a scalar, a map of scalars, an unknown key)."""
    here: type[Section] | None = root
    names_next = False
    for step in path:
        if here is None:
            return None
        if names_next or isinstance(step, int):
            names_next = False
            continue
        names_next = is_named_map(here, step)
        here = section_below(here, step)
    return None if names_next else here


def _section(annotation: Any) -> type[Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next(filter(None, map(_section, get_args(annotation))), None)


def _holds_map(annotation: Any) -> bool:
    return get_origin(annotation) is dict or any(get_origin(part) is dict for part in get_args(annotation))
