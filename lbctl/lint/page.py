"""The page of a code, which `lbctl rule CODE` prints and from which docs/reference/codes.md is generated.

A page is a file `codes/CODE.md`: front matter, then paragraphs and sections. Its paragraphs may be wrapped anywhere.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from lbctl.base.diagnostics import Severity

FOLDER = Path(__file__).with_name("codes")
_SECTIONS = {
    "Why": "why",
    "What to do": "advice",
    "Before": "before",
    "After": "after",
    "When to ignore it": "ignore",
}
_HEADING = re.compile(r"^## (.+)\n", re.MULTILINE)
_WIDTH = 100


@dataclass(frozen=True, slots=True)
class CodePage:
    """The explanation of a code."""

    code: str
    """The code, as `LB203`."""
    title: str
    """The finding in a few words."""
    severity: Severity
    """The usual severity. All findings of a lint rule have it."""
    what: str
    """What is found."""
    why: str = ""
    """Why it hurts inference."""
    advice: str = ""
    """What to do, for codes without example fleets."""
    before: str = ""
    """A whole fleet with the finding."""
    after: str = ""
    """The fleet without it."""
    ignore: str = ""
    """When to ignore it."""


@cache
def read_page(code: str) -> CodePage:
    """Read the page of a code from its file.

    Raises FileNotFoundError if there is none, and KeyError, TypeError or ValueError if it is not written as a page.
    """
    _, front_matter, body = (FOLDER / f"{code}.md").read_text(encoding="utf-8").split("---\n", 2)
    what, *sections = _HEADING.split(body)
    fields: dict[str, Any] = yaml.load(front_matter, yaml.CSafeLoader)
    for title, text in zip(sections[::2], sections[1::2], strict=True):
        fields[_SECTIONS[title]] = _content(text)
    return CodePage(what=_content(what), **fields)


def _content(section: str) -> str:
    """Return the fleet in a fenced block, or the paragraphs, each on one line."""
    text = section.strip()
    if text.startswith("```"):
        return text.removeprefix("```yaml\n").removesuffix("```")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def terminal_text(page: CodePage) -> str:
    """Format the page for a terminal."""
    blocks = [f"{page.code} ({page.severity}): {page.title}", *map(_wrapped, _prose(page))]
    for title, fleet in _fleets(page):
        blocks.append(f"{title}:\n\n{textwrap.indent(fleet.rstrip(), '    ')}")
    if page.ignore:
        blocks.append(_wrapped(f"When to ignore it: {page.ignore}"))
    return "\n\n".join(blocks) + "\n"


def markdown(page: CodePage) -> str:
    """Format the page as a section of docs/reference/codes.md."""
    blocks = [f"### {page.code}: {page.title}", f"*{page.severity}*", *_prose(page)]
    blocks += (f"{title}:\n\n```yaml\n{fleet}```" for title, fleet in _fleets(page))
    if page.ignore:
        blocks.append(f"When to ignore it: {page.ignore}")
    return "\n\n".join(blocks) + "\n"


def _prose(page: CodePage) -> Iterator[str]:
    yield page.what
    if page.why:
        yield f"Why: {page.why}"
    if page.advice:
        yield f"What to do: {page.advice}"


def _fleets(page: CodePage) -> Iterator[tuple[str, str]]:
    if page.before:
        yield "Before", page.before
    if page.after:
        yield "After", page.after


def _wrapped(prose: str) -> str:
    paragraphs = prose.split("\n\n")
    return "\n\n".join(
        textwrap.fill(paragraph, _WIDTH, break_on_hyphens=False, break_long_words=False) for paragraph in paragraphs
    )
