"""`# lbctl: ignore LB210 (reason)`: silences that finding on its line.

A comment that silences nothing is a finding itself, so that none outlives what it was for; one without a code and a
reason in parentheses silences nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from lbctl.base.diagnostics import Diagnostic, Position
from lbctl.model.load import Text

UNUSED, MALFORMED = "LB017", "LB018"
_COMMENT = re.compile(r"(?:^|(?<=\s))#\s*lbctl:\s*ignore\b[^\n]*")
_FORM = re.compile(r"#\s*lbctl:\s*ignore\s+(LB[0-9]{3}(?:\s*,\s*LB[0-9]{3})*)\s+\((.*\S.*)\)\s*")
_HINT = "# lbctl: ignore LB210 (why it is right here)"


@dataclass(frozen=True, slots=True)
class Ignore:
    """One code of one comment."""

    position: Position
    code: str


def ignores(texts: Iterable[Text]) -> tuple[list[Ignore], list[Diagnostic]]:
    """Those that stand in the files, and what is wrong with others."""
    found, wrong = [], []
    for text in texts:
        for number, line in enumerate(text.data.decode("utf-8", "replace").splitlines(), 1):
            comment = _COMMENT.search(line) if "lbctl:" in line else None
            if comment is None or _quoted(line[: comment.start()]):
                continue
            position = Position(text.name, number, comment.start() + 1)
            form = _FORM.fullmatch(comment[0])
            if form is None:
                message = "this comment silences nothing: it needs a code, and a reason in parentheses"
                wrong.append(Diagnostic(MALFORMED, message, position, (), _HINT, "warning"))
            else:
                found += [Ignore(position, code.strip()) for code in form[1].split(",")]
    return found, wrong


def split(
    findings: Iterable[Diagnostic], ignored: Collection[Ignore], judged: Collection[str]
) -> tuple[list[Diagnostic], list[Ignore]]:
    """What is left of the findings, and the comments whose code was judged and not found on their line."""
    places = {(item.position.file, item.position.line, item.code) for item in ignored}
    left, used = [], set()
    for item in findings:
        place = (item.position.file, item.position.line, item.code) if item.position else None
        if place in places:
            used.add(place)
        else:
            left.append(item)
    return left, [
        item
        for item in ignored
        if item.code in judged and (item.position.file, item.position.line, item.code) not in used
    ]


def useless(item: Ignore) -> Diagnostic:
    message = f"{item.code} is not found on this line: the comment silences nothing"
    return Diagnostic(UNUSED, message, item.position, (), "remove it", "warning")


def _quoted(before: str) -> bool:
    """Whether what follows stands in a quoted scalar that began on this line."""
    quote = ""
    for character in before:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
    return bool(quote)
