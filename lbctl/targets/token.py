"""What a template may write: a `Token`, quoted by its target's own rules, or an int. Nothing else gets through.

Templates lay out, Python decides: `finalize` refuses every value that is not one of the two, so a forgotten quote is an
error at the first render, not a hole. A Token may carry the path of the YAML value that it came from; the finished text
then knows, line by line, where in the YAML it was asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from lbctl.base import resources
from lbctl.base.diagnostics import Path

if TYPE_CHECKING:
    from jinja2 import Environment

_MARK = re.compile("\x00([^\x00]*)\x00")


@dataclass(frozen=True, slots=True)
class Token:
    """Text in the grammar of one proxy, already quoted. `source`: path of the YAML value, replicas by name."""

    text: str
    source: Path = ()


class UnquotedError(TypeError):
    """A template wrote a value that no target has quoted: a mistake in lbctl, never in the user's file."""


def finalize(value: object) -> str:
    if type(value) is Token:
        if "\x00" in value.text or "\n" in value.text:
            raise UnquotedError(f"a token must be one line of text: {value.text!r}")
        return f"{value.text}\x00{_written(value.source)}\x00" if value.source else value.text
    if type(value) is int:
        return str(value)
    raise UnquotedError(f"a template may write a Token or an int, not {value!r}")


@cache
def environment(folder: str) -> Environment:
    """The templates of one proxy. Shipped with lbctl, never a user's."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(resources.templates() / folder),
        undefined=StrictUndefined,
        finalize=finalize,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
    )


def write(folder: str, template: str, values: Mapping[str, object]) -> tuple[str, dict[int, Path]]:
    """The text, and for each of its lines (from 1) that came from the YAML the path of the first value on it."""
    marked = environment(folder).get_template(template).render(values)
    sources: dict[int, Path] = {}
    lines = marked.split("\n")
    for number, line in enumerate(lines, 1):
        found = _MARK.search(line)
        if found:
            sources[number] = _read(found.group(1))
            lines[number - 1] = _MARK.sub("", line)
    return "\n".join(lines), sources


def _written(path: Path) -> str:
    """A list position is told from a name of digits by the character before it."""
    return "\x1f".join(f"\x1e{step}" if isinstance(step, int) else step for step in path)


def _read(text: str) -> Path:
    return tuple(int(step[1:]) if step.startswith("\x1e") else step for step in text.split("\x1f"))
