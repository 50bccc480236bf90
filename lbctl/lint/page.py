"""What is known of a code: the page that `lbctl rule CODE` prints, and docs/rules.md is made of."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from lbctl.base.diagnostics import Severity

_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Page:
    """`what` is found, `why` it hurts where GPUs work, whole fleets `before` and `after`, and when to `ignore` it.
    `advice`: what to do, where no fleet shows it. `severity`: what it mostly comes as."""

    code: str
    title: str
    what: str
    why: str = ""
    before: str = ""
    after: str = ""
    ignore: str = ""
    advice: str = ""
    severity: Severity = "error"


def text(page: Page) -> str:
    """For a terminal."""
    blocks = [f"{page.code} ({page.severity}): {page.title}", *map(_wrapped, _prose(page))]
    for title, fleet in _fleets(page):
        blocks.append(f"{title}:\n\n{textwrap.indent(fleet.rstrip(), '    ')}")
    if page.ignore:
        blocks.append(_wrapped(f"When to ignore it: {page.ignore}"))
    return "\n\n".join(blocks) + "\n"


def markdown(page: Page) -> str:
    """A section of docs/rules.md."""
    blocks = [f"### {page.code}: {page.title}", f"*{page.severity}*", *_prose(page)]
    blocks += (f"{title}:\n\n```yaml\n{fleet}```" for title, fleet in _fleets(page))
    if page.ignore:
        blocks.append(f"When to ignore it: {page.ignore}")
    return "\n\n".join(blocks) + "\n"


def _prose(page: Page) -> Iterator[str]:
    yield page.what
    if page.why:
        yield f"Why: {page.why}"
    if page.advice:
        yield f"What to do: {page.advice}"


def _fleets(page: Page) -> Iterator[tuple[str, str]]:
    if page.before:
        yield "Before", page.before
    if page.after:
        yield "After", page.after


def _wrapped(prose: str) -> str:
    return textwrap.fill(prose, _WIDTH, break_on_hyphens=False, break_long_words=False)
