"""`# lbctl: ignore LB210 (reason)`: silences that code on its line, for every command that reads the fleet.

Warnings and notes are silenced, and what rules of lint find; what keeps a fleet from being rendered never is. A comment
that silences nothing is a finding of lint itself, so that none outlives what it was for; so is one that cannot be read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from lbctl.base.diagnostics import Diagnostic, Position, show
from lbctl.model.load import Text

UNUSED, MALFORMED = "LB017", "LB018"
_COMMENT = re.compile(r"(?:^|(?<=\s))#\s*lbctl:\s*ignore\b([^\n]*)")
_CODE = re.compile(r"LB[0-9]{3}", re.IGNORECASE)
_HINT = "# lbctl: ignore LB210 (why it is right here)"


@dataclass(frozen=True, slots=True)
class Ignore:
    """One code of one comment."""

    position: Position
    code: str


def ignores(texts: Iterable[Text]) -> tuple[list[Ignore], list[Diagnostic]]:
    """Those that stand in the files, and what is wrong with others."""
    found, wrong = [], []
    for position, rest in _comments(texts):
        codes, problem = _read(rest)
        found += [Ignore(position, code) for code in codes]
        if problem:
            message = f"this comment silences nothing: {problem}"
            wrong.append(Diagnostic(MALFORMED, message, position, (), _HINT, "warning"))
    return found, wrong


def silenced(texts: Iterable[Text]) -> Callable[[Diagnostic], bool]:
    """Whether a comment is about a finding."""
    places = {_place(item) for item in ignores(texts)[0]}
    return lambda item: _place(item) in places


def split(findings: Iterable[Diagnostic], ignored: Iterable[Ignore]) -> tuple[list[Diagnostic], list[Ignore]]:
    """What is left of the findings, and the comments whose code is not found on their line."""
    comments = list(ignored)
    places = {_place(item) for item in comments}
    left, used = [], set()
    for item in findings:
        place = _place(item)
        if place in places:
            used.add(place)
        else:
            left.append(item)
    return left, [item for item in comments if _place(item) not in used]


def useless(item: Ignore, is_error: bool) -> Diagnostic:
    """`is_error`: the code is that of an error of the fleet."""
    why = "errors cannot be ignored" if is_error else f"{item.code} is not found on this line"
    message = f"{item.code}: {why}" if is_error else why
    return Diagnostic(UNUSED, f"{message}: the comment silences nothing", item.position, (), "remove it", "warning")


def unknown(item: Ignore, hint: str) -> Diagnostic:
    """`hint`: what may have been meant."""
    message = f"this comment silences nothing: there is no code {item.code}"
    return Diagnostic(MALFORMED, message, item.position, (), hint or "`lbctl rule` lists the codes", "warning")


def _place(item: Ignore | Diagnostic) -> tuple[str, int, str] | None:
    return (item.position.file, item.position.line, item.code) if item.position else None


def _comments(texts: Iterable[Text]) -> Iterator[tuple[Position, str]]:
    """Where each stands, and what comes after `ignore`."""
    for text in texts:
        if b"lbctl:" not in text.data:
            continue
        for number, line in enumerate(text.data.decode("utf-8", "replace").splitlines(), 1):
            comment = _COMMENT.search(line) if "lbctl:" in line else None
            if comment and not _quoted(line[: comment.start()]):
                yield Position(text.name, number, comment.start() + 1), comment[1].strip()


def _read(rest: str) -> tuple[list[str], str]:
    """The codes of `LB210, LB310 (reason)`, or what is wrong with it."""
    before, bracket, reason = rest.partition("(")
    words = [word.strip() for word in before.split(",")]
    bad = next((word for word in words if not _CODE.fullmatch(word)), None)
    if not before.strip():
        return [], "no code stands after `ignore`"
    if bad is not None:
        several = len(_CODE.findall(bad)) > 1
        return [], "codes are parted by commas" if several else f"{show(bad)} is no code"
    problem = _reason(bracket, reason)
    return ([], problem) if problem else ([word.upper() for word in words], "")


def _reason(bracket: str, reason: str) -> str:
    """What is wrong with a reason, from behind its opening parenthesis on."""
    if not bracket:
        return "it needs a reason in parentheses"
    inner, closing, after = reason.rpartition(")")
    if not closing:
        return "the parenthesis of its reason is not closed"
    if after.strip():
        return f"{show(after.strip())} stands after its reason, which ends the comment"
    return "" if inner.strip() else "its reason is empty"


def _quoted(before: str) -> bool:
    """Whether what follows stands in a quoted scalar that began on this line."""
    quote = ""
    for character in before:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
    return bool(quote)
