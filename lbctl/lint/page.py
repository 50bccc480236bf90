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
    return "\n".join([f"{page.code} ({page.severity}): {page.title}", *_blocks(page, "{}", _plain)])


def markdown(page: Page) -> str:
    """A section of docs/rules.md."""
    return "\n".join([f"## {page.code}: {page.title}", "", f"*{page.severity}*", *_blocks(page, "**{}**", _fenced)])


def _blocks(page: Page, heading: str, yaml: type[_Yaml]) -> Iterator[str]:
    for title, prose in (("", page.what), ("Why", page.why), ("What to do", page.advice)):
        if prose:
            yield f"\n{yaml.wrapped(f'{heading.format(title)}: {prose}' if title else prose)}"
    for title, fleet in (("Before", page.before), ("After", page.after)):
        if fleet:
            yield f"\n{heading.format(title)}\n\n{yaml.block(fleet)}"
    if page.ignore:
        yield f"\n{yaml.wrapped(f'{heading.format('When to ignore it')}: {page.ignore}')}"
    yield ""


class _Yaml:
    """How a form shows prose and fleets."""

    @staticmethod
    def wrapped(prose: str) -> str:
        return prose

    @staticmethod
    def block(fleet: str) -> str:
        return f"```yaml\n{fleet}```"


_fenced = _Yaml


class _plain(_Yaml):
    @staticmethod
    def wrapped(prose: str) -> str:
        return textwrap.fill(prose, _WIDTH, break_on_hyphens=False, break_long_words=False)

    @staticmethod
    def block(fleet: str) -> str:
        return textwrap.indent(fleet.rstrip("\n"), "    ")
