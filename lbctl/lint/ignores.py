"""`# lbctl: ignore LB210 (reason)`: silences a code on its line, for every command that reads the fleet.

Warnings, notes and the findings of lint rules can be silenced; errors that prevent rendering cannot. A comment that has
no effect or cannot be parsed is itself a lint finding, so that comments do not outlive their purpose.

A comment is compared only with checks that were run. Some checks are not part of every run, because they need a load, a
proxy's own checker, or a file on another machine. A comment with such a check's code is not reported as unused. A
finding for a kind of proxy that is not in the fleet is considered found.

Commands other than lint also import this module. Functions used only by lint therefore import the rules when they are
called.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lbctl.base.diagnostics import Diagnostic, Position, did_you_mean, show
from lbctl.compile.files import named_files
from lbctl.model.load import SourceText
from lbctl.targets.features import FEATURES

if TYPE_CHECKING:
    from lbctl.targets.load import Loaded

UNUSED, MALFORMED = "LB017", "LB018"
FILES = frozenset({"LB110", "LB503"})
"""Codes of missing files. `validate` reports missing files, but lint does not, because a CI pipeline does not have
certificates or keys."""
_CODES_OF_PROXIES = frozenset({feature.code for feature in FEATURES} | {"LB206", "LB499"})
_RUN_TIME_CODES = "LB9"
_COMMENT = re.compile(r"(?:^|(?<=\s))#\s*lbctl:\s*ignore\b([^\n]*)")
_CODE = re.compile(r"LB[0-9]{3}", re.IGNORECASE)
_HINT = "# lbctl: ignore LB210 (why it is right here)"


@dataclass(frozen=True, slots=True)
class Ignore:
    """One code in an ignore comment."""

    position: Position
    """Position of the comment."""
    code: str


@dataclass(frozen=True, slots=True)
class Comments:
    """The ignore comments in a fleet's files."""

    usable: tuple[Ignore, ...]
    """Comments with codes that can be silenced."""
    cannot_silence: tuple[Ignore, ...]
    """Comments that contain error codes or unknown codes."""
    faults: tuple[Diagnostic, ...]
    """Diagnostics about `cannot_silence`, and about comments that cannot be parsed."""


def ignores(texts: Iterable[SourceText]) -> tuple[list[Ignore], list[Diagnostic]]:
    """Parse the comments in the files. The second list contains diagnostics about malformed comments."""
    parsed, faults = [], []
    for position, arguments in _comments(texts):
        codes, problem = _read(arguments)
        parsed += [Ignore(position, code) for code in codes]
        if problem:
            message = f"this comment has no effect: {problem}"
            faults.append(Diagnostic(MALFORMED, message, position, (), _HINT, "warning"))
    return parsed, faults


def silenced_by_comments(texts: Iterable[SourceText]) -> Callable[[Diagnostic], bool]:
    """Return a predicate that tests whether a comment silences a diagnostic."""
    keys = {_key(ignore) for ignore in ignores(texts)[0]}
    return lambda diagnostic: _key(diagnostic) in keys


def split(findings: Iterable[Diagnostic], ignored: Iterable[Ignore]) -> tuple[list[Diagnostic], list[Ignore]]:
    """Return the findings that are not silenced, and the comments that do not silence any of the findings."""
    comments = list(ignored)
    keys = {_key(comment) for comment in comments}
    remaining, used = [], set()
    for finding in findings:
        key = _key(finding)
        if key in keys:
            used.add(key)
        else:
            remaining.append(finding)
    return remaining, [comment for comment in comments if _key(comment) not in used]


def comments(texts: Sequence[SourceText], chosen: Callable[[str], bool]) -> Comments:
    """Collect the comments; `chosen` tests whether a code is enabled."""
    parsed, malformed = ignores(texts)
    usable, cannot_silence, faults = [], [], list(malformed)
    for comment in parsed:
        problem = _problem(comment)
        if problem is None:
            usable.append(comment)
        elif chosen(problem.code):
            cannot_silence.append(comment)
            faults.append(problem)
    return Comments(tuple(usable), tuple(cannot_silence), tuple(fault for fault in faults if chosen(fault.code)))


def findings_of_invalid(findings: Iterable[Diagnostic], ignore_comments: Comments) -> list[Diagnostic]:
    """Return an invalid fleet's errors, and its other findings that are not silenced."""
    all_findings = list(findings)
    errors = [finding for finding in all_findings if finding.severity == "error"]
    return (
        errors + split([finding for finding in all_findings if finding.severity != "error"], ignore_comments.usable)[0]
    )


def unused(idle: Sequence[Ignore], loaded: Loaded, chosen: Callable[[str], bool], with_load: bool) -> list[Ignore]:
    """Return the comments that could not silence anything in any run.

    `idle`: comments whose codes were not found on their lines in this run.
    """
    if not chosen(UNUSED):
        return []
    remaining = [comment for comment in idle if chosen(comment.code) and _judged(comment.code, with_load)]
    if any(comment.code in _CODES_OF_PROXIES for comment in remaining):
        from lbctl.lint.proxies import findings_of_all_kinds

        remaining = split(findings_of_all_kinds(loaded), remaining)[1]
    if any(comment.code in FILES for comment in remaining):
        named = {(node.file, node.line) for _, node in named_files(loaded.source.root)}
        remaining = [comment for comment in remaining if comment.code not in FILES or _line(comment) not in named]
    return remaining


def unused_diagnostics(idle: Iterable[Ignore]) -> list[Diagnostic]:
    """Return the findings about unused comments."""
    return [_unused_comment(comment, is_error=False) for comment in idle]


def _unused_comment(ignore: Ignore, is_error: bool) -> Diagnostic:
    """Return the finding about a comment that has no effect; `is_error` indicates whether its code denotes an error."""
    reason = "errors cannot be ignored" if is_error else f"{ignore.code} is not found on this line"
    message = f"{ignore.code}: {reason}" if is_error else reason
    return Diagnostic(UNUSED, f"{message}, so this comment has no effect", ignore.position, (), "remove it", "warning")


def _unknown_code(ignore: Ignore, hint: str) -> Diagnostic:
    """Return the finding about a comment with an unknown code; `hint` suggests another code."""
    message = f"this comment has no effect: code {ignore.code} does not exist"
    return Diagnostic(MALFORMED, message, ignore.position, (), hint or "list the codes with `lbctl rule`", "warning")


def _problem(ignore: Ignore) -> Diagnostic | None:
    """Return the reason why the comment can never silence a finding, or None."""
    from lbctl.lint.pages import pages
    from lbctl.lint.rules import rules

    if ignore.code in rules():
        return None
    page = pages().get(ignore.code)
    if page is None:
        return _unknown_code(ignore, did_you_mean(ignore.code, pages()))
    return _unused_comment(ignore, is_error=True) if page.severity == "error" else None


def _judged(code: str, with_load: bool) -> bool:
    from lbctl.lint.rules import rules

    rule = rules().get(code)
    return not code.startswith(_RUN_TIME_CODES) and (rule is None or with_load or not rule.needs_load)


def _line(ignore: Ignore) -> tuple[str, int]:
    return ignore.position.file, ignore.position.line


def _key(item: Ignore | Diagnostic) -> tuple[str, int, str] | None:
    return (item.position.file, item.position.line, item.code) if item.position else None


def _comments(texts: Iterable[SourceText]) -> Iterator[tuple[Position, str]]:
    """Yield the position of each comment, and the text after `ignore`."""
    for text in texts:
        if b"lbctl:" not in text.data:
            continue
        for number, line in enumerate(text.data.decode("utf-8", "replace").splitlines(), 1):
            comment = _COMMENT.search(line) if "lbctl:" in line else None
            if comment and not _quoted(line[: comment.start()]):
                yield Position(text.name, number, comment.start() + 1), comment[1].strip()


def _read(rest: str) -> tuple[list[str], str]:
    """Parse the codes in `LB210, LB310 (reason)`. The second value is the problem, or an empty string."""
    code_list, bracket, reason = rest.partition("(")
    codes = [code.strip() for code in code_list.split(",")]
    invalid = next((code for code in codes if not _CODE.fullmatch(code)), None)
    if not code_list.strip():
        return [], "no code follows `ignore`"
    if invalid is not None:
        several = len(_CODE.findall(invalid)) > 1
        return [], "codes must be separated by commas" if several else f"{show(invalid)} is not a code"
    problem = _reason(bracket, reason)
    return ([], problem) if problem else ([code.upper() for code in codes], "")


def _reason(bracket: str, reason: str) -> str:
    """Return the problem with the reason, or an empty string; `reason` begins after the opening parenthesis."""
    if not bracket:
        return "it needs a reason in parentheses after the code"
    inner, closing, after = reason.rpartition(")")
    if not closing:
        return "its reason has no closing parenthesis"
    if after.strip():
        return f"it must end after the reason, but {show(after.strip())} follows"
    return "" if inner.strip() else "its reason is empty"


def _quoted(before: str) -> bool:
    """Return whether a quoted scalar is still open at the end of `before`."""
    quote = ""
    for character in before:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
    return bool(quote)
