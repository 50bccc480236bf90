"""The page of a code, which `lbctl rule CODE` prints and from which docs/reference/codes.md is generated."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from lbctl.base.diagnostics import Severity

_WIDTH = 100


@dataclass(frozen=True, slots=True)
class CodePage:
    """The explanation of a code."""

    code: str
    """The code, as `LB203`."""
    title: str
    """The finding in a few words."""
    what: str
    """What is found."""
    why: str = ""
    """Why it hurts inference."""
    before: str = ""
    """A whole fleet with the finding."""
    after: str = ""
    """The fleet without it."""
    ignore: str = ""
    """When to ignore it."""
    advice: str = ""
    """What to do, for codes without example fleets."""
    severity: Severity = "error"
    """The usual severity."""


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
    return textwrap.fill(prose, _WIDTH, break_on_hyphens=False, break_long_words=False)
