"""The values that a template may write: a `Token`, quoted by its target's own rules, or an int.

Templates only define the layout, and Python makes all decisions. `finalize` rejects every other value, so a forgotten
quote is an error at the first render, not a vulnerability. A Token may carry the YAML path of the value that it comes
from; the rendered text then has, for each line, its origin in the YAML. It also knows which variables of the proxy it
reads and sets, so that a renderer leaves out unused definitions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from lbctl.base import resources
from lbctl.base.diagnostics import Path

if TYPE_CHECKING:
    from jinja2 import Environment

_MARK = re.compile("\x00([^\x00]*)\x00")
_PLAIN_IN_LUA = re.compile("[A-Za-z0-9 ./:?=&%,_-]")


@dataclass(frozen=True, slots=True)
class Token:
    """Text in the grammar of one proxy, already quoted."""

    text: str
    source: Path = ()
    """YAML path of the value that the text comes from, with replicas by name."""
    reads: frozenset[str] = frozenset()
    """Variables and named conditions that the text evaluates."""
    sets: str = ""
    """Variable or named condition that the text defines; empty: none."""


def read_by(tokens: Iterable[Token]) -> frozenset[str]:
    """Return the variables and named conditions that any of the tokens evaluates."""
    return frozenset().union(*(token.reads for token in tokens))


class UnquotedError(TypeError):
    """A template wrote a value that no target has quoted: an error in lbctl, never in the user's file."""


def finalize(value: object) -> str:
    """Return the text for `value` in a template, with a mark for the value's source.

    Raises UnquotedError for anything except a Token of one line or an int.
    """
    if type(value) is Token:
        if "\x00" in value.text or "\n" in value.text:
            raise UnquotedError(f"a token must be one line of text: {value.text!r}")
        return f"{value.text}\x00{_encoded_path(value.source)}\x00" if value.source else value.text
    if type(value) is int:
        return str(value)
    raise UnquotedError(f"a template may write a Token or an int, not {value!r}")


@cache
def environment(folder: str) -> Environment:
    """Return the Jinja environment for the templates of one proxy, which ship with lbctl."""
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
    """Render a template.

    Return the text and, for each line (from 1) that comes from the YAML, the path of the first value on it.
    """
    marked = environment(folder).get_template(template).render(values)
    sources: dict[int, Path] = {}
    lines = marked.split("\n")
    for number, line in enumerate(lines, 1):
        mark = _MARK.search(line)
        if mark:
            sources[number] = _decoded_path(mark.group(1))
            lines[number - 1] = _MARK.sub("", line)
    return "\n".join(lines), sources


def _encoded_path(path: Path) -> str:
    """Return the path as one string. A prefix character marks a list position, so that it differs from a name."""
    return "\x1f".join(f"\x1e{step}" if isinstance(step, int) else step for step in path)


def _decoded_path(text: str) -> Path:
    return tuple(int(step[1:]) if step.startswith("\x1e") else step for step in text.split("\x1f"))


def lua_string(value: str) -> str:
    """Return a Lua string literal for exactly `value`. Special characters are written as numbers."""
    written = (chr(byte) if _PLAIN_IN_LUA.fullmatch(chr(byte)) else f"\\{byte:03}" for byte in value.encode())
    return f'"{"".join(written)}"'
