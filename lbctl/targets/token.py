"""The values that a template may write: a `Token`, quoted according to its target's own rules, or an int.

Templates only define the layout; Python makes all decisions. `finalize` rejects every other value, so a forgotten quote
is an error on the first render, not a vulnerability. A Token may carry the YAML path of the value that it is derived
from, so that each line of the rendered text has its origin in the YAML. It also records which of the proxy's variables
it reads and sets, so that a renderer can omit unused definitions.
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
    """Text in the configuration syntax of one proxy, already quoted."""

    text: str
    source: Path = ()
    """YAML path of the value that the text is derived from, with replicas by name."""
    reads: frozenset[str] = frozenset()
    """Variables and named conditions that the text evaluates."""
    sets: str = ""
    """Variable or named condition that the text defines; empty: none."""


def read_by(tokens: Iterable[Token]) -> frozenset[str]:
    """Return the variables and named conditions that the tokens evaluate."""
    return frozenset().union(*(token.reads for token in tokens))


class UnquotedError(TypeError):
    """A template wrote a value that no target has quoted: a bug in lbctl, never an error in the user's file."""


def finalize(value: object) -> str:
    """Return the text of `value` in a template, with a mark for its source.

    Raises UnquotedError for anything except a single-line Token or an int.
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
    """Return the Jinja environment for one proxy's templates, which ship with lbctl."""
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

    Return the text and, for each line (starting at 1) that is derived from the YAML, the path of the first value on it.
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
    """Return the path as a single string. A prefix character marks list positions, so that they differ from names."""
    return "\x1f".join(f"\x1e{step}" if isinstance(step, int) else step for step in path)


def _decoded_path(text: str) -> Path:
    return tuple(int(step[1:]) if step.startswith("\x1e") else step for step in text.split("\x1f"))


def lua_string(value: str) -> str:
    """Return a Lua string literal for exactly `value`. Special characters are written as numbers."""
    written = (chr(byte) if _PLAIN_IN_LUA.fullmatch(chr(byte)) else f"\\{byte:03}" for byte in value.encode())
    return f'"{"".join(written)}"'
