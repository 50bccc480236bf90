"""The pages for all lbctl codes, used by `lbctl rule`, docs/reference/codes.md and SARIF.

A page is a file `codes/CODE.md` with front matter, followed by paragraphs and sections. Paragraphs may be wrapped
anywhere. Pages about unsupported features are generated from the targets' capability tables. The meaning of a code
never changes. When lbctl stops reporting a code, its page is kept.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from lbctl.base.diagnostics import Severity
from lbctl.targets import TARGETS, target
from lbctl.targets.features import FEATURES, Feature
from lbctl.targets.target import Capability, NotYet, Rendered, Since, Unsupported

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
_FAMILIES = {
    "LB0": "Reading",
    "LB1": "References",
    "LB2": "Weights and capacity",
    "LB3": "Timeouts, retries, health",
    "LB4": "Settings that a proxy does not support",
    "LB5": "Security",
    "LB6": "Signals",
    "LB7": "Rollouts",
    "LB9": "Run time",
}
_INTRODUCTION = """\
<!-- Generated from lbctl/lint by `python -m tests.docs.regenerate`; edit the pages in lbctl/lint/codes. -->

# Codes

This page lists all codes that lbctl reports. `lbctl rule CODE` prints the same text offline. Codes with two YAML
examples are rules of `lbctl lint`: the fleet is valid, but risky for inference. Both examples are complete fleets. The
first example has exactly this finding, and the second example has no findings.

To silence a code on one line, add a comment such as `# lbctl: ignore LB210 (why it is right here)` to the end of the
line. `lint`, `validate` and `render` then ignore this code on that line. You can silence warnings, notes and findings
of `lint` rules. You cannot silence errors that prevent rendering.

If such a comment has no effect, `lint` reports it (LB017), unless the code was not checked in this run. For example, a
check may need a load that is not set, a file on another machine, or the proxy's own checker. For this check, the code
of an unsupported setting counts as found if any kind of proxy does not support the setting, even a kind that the fleet
does not use. `lbctl lint --fix` applies safe fixes and keeps comments.

Some features need a control plane with every kind of proxy: telemetry, live weights and deep health. `render` reports
these features, but `lint` does not.
"""


@dataclass(frozen=True, slots=True)
class CodePage:
    """The explanation of a code."""

    code: str
    """Code, for example `LB203`."""
    title: str
    """Short title for the finding."""
    severity: Severity
    """Usual severity. All findings from a lint rule have this severity."""
    what: str
    """Description of the finding."""
    why: str = ""
    """Effect on inference."""
    advice: str = ""
    """Recommended action, for codes that have no example fleets."""
    before: str = ""
    """Complete fleet that triggers the finding."""
    after: str = ""
    """Complete fleet that does not trigger the finding."""
    ignore: str = ""
    """When it is safe to ignore the finding."""


@cache
def read_page(code: str) -> CodePage:
    """Read a code's page from its file.

    Raises FileNotFoundError if the page does not exist, and KeyError, TypeError or ValueError if its format is invalid.
    """
    _, front_matter, body = (FOLDER / f"{code}.md").read_text(encoding="utf-8").split("---\n", 2)
    what, *sections = _HEADING.split(body)
    fields: dict[str, Any] = yaml.load(front_matter, yaml.CSafeLoader)
    for title, text in zip(sections[::2], sections[1::2], strict=True):
        fields[_SECTIONS[title]] = _content(text)
    return CodePage(what=_content(what), **fields)


def _content(section: str) -> str:
    """Return the fleet from a fenced block, or else the paragraphs, each joined into one line."""
    text = section.strip()
    if text.startswith("```"):
        return text.removeprefix("```yaml\n").removesuffix("```")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


@cache
def pages() -> Mapping[str, CodePage]:
    """Map each code to its page, in code order."""
    return {page.code: page for page in sorted(all_pages(), key=lambda page: page.code)}


def all_pages() -> Iterator[CodePage]:
    """Yield each code's page, in any order."""
    yield from (read_page(file.stem) for file in FOLDER.glob("*.md"))
    yield from map(_feature, FEATURES)


def document() -> str:
    """Return the text of docs/reference/codes.md."""
    blocks = [_INTRODUCTION]
    for prefix, title in _FAMILIES.items():
        family = [page for page in pages().values() if page.code.startswith(prefix)]
        blocks += [f"## {title}\n", *map(markdown, family)]
    return "\n".join(blocks)


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
    return "\n".join(map(_filled, prose.split("\n")))


def _filled(line: str) -> str:
    indent = "  " if line.startswith("- ") else ""
    return textwrap.fill(line, _WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def _feature(feature: Feature) -> CodePage:
    keys = ", ".join(f"`{key.replace('@cleartext', '').replace('=', ': ')}`" for key in feature.keys)
    protects = (
        " This setting protects routes. A proxy that does not support the setting returns 503 on these routes and "
        "does not forward requests."
    )
    unsupported = f"{keys}: a proxy in the fleet does not support this setting, or supports only part of it."
    advice = "Use a proxy that supports the setting, or accept the behaviour described below."
    return CodePage(
        feature.code,
        f"{feature.title}: not supported by the proxy",
        "warning",
        unsupported + (protects if feature.protects else ""),
        advice="\n".join((f"{advice}\n", *_answers(feature))),
    )


def _answers(feature: Feature) -> Iterator[str]:
    """Yield one list item per level of support, with the kinds of proxies that provide it."""
    kinds: dict[str, list[str]] = {}
    for kind in TARGETS:
        kinds.setdefault(_answer(target(kind).capabilities[feature.id]), []).append(kind)
    yield from (f"- {', '.join(same)}: {answer}." for answer, same in kinds.items())


def _answer(support: Capability) -> str:
    match support:
        case Unsupported():
            return f"not supported ({support.reason}). Instead, {support.instead}"
        case Since():
            version, below = ".".join(map(str, support.version)), support.below
            return f"supported as of version {version} ({below.reason}). In earlier versions, {below.instead}"
        case NotYet():
            return "not rendered yet"
        case Rendered(in_part=True):
            return f"partially supported. {support.note}"
        case Rendered():
            return f"supported{'. ' + support.note if support.note else ''}"
