"""The ignore comments of one run: which of them can silence a finding, and which do not.

A comment is compared only with what was checked: codes that a run does not check (a load that is not stated, a proxy's
own checker, a file that exists on another machine) say nothing about it, and findings about kinds of proxies that the
fleet does not name count as found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from lbctl.base.diagnostics import Diagnostic, did_you_mean
from lbctl.compile.files import named_files
from lbctl.lint.ignores import UNUSED, Ignore, ignores, unknown_code, unused_comment
from lbctl.lint.ignores import split as split_by
from lbctl.lint.proxies import findings_of_all_kinds
from lbctl.lint.rules import rules
from lbctl.model.load import SourceText
from lbctl.targets.features import FEATURES
from lbctl.targets.load import Loaded

FILES = frozenset({"LB110", "LB503"})
"""Missing files are reported by `validate`: where a pipeline lints there are neither certificates nor keys."""
_CODES_OF_PROXIES = frozenset({feature.code for feature in FEATURES} | {"LB206", "LB499"})
_RUN_TIME_CODES = "LB9"


@dataclass(frozen=True, slots=True)
class Comments:
    """The ignore comments of a fleet."""

    usable: tuple[Ignore, ...]
    """Those with codes that a comment can silence."""
    cannot_silence: tuple[Ignore, ...]
    """Those with codes of errors and unknown codes."""
    faults: tuple[Diagnostic, ...]
    """The diagnostics about `cannot_silence`, and about comments that cannot be parsed."""


def comments(texts: Sequence[SourceText], chosen: Callable[[str], bool]) -> Comments:
    """Collect the comments; `chosen` says which codes are enabled."""
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
    """The findings about a fleet with errors: the errors, and the other findings that are not silenced."""
    all_findings = list(findings)
    errors = [finding for finding in all_findings if finding.severity == "error"]
    return (
        errors
        + split_by([finding for finding in all_findings if finding.severity != "error"], ignore_comments.usable)[0]
    )


def unused(idle: Sequence[Ignore], loaded: Loaded, chosen: Callable[[str], bool], with_load: bool) -> list[Ignore]:
    """The comments that silence nothing in any run.

    `idle` are those whose code was not found on their line in this run.
    """
    if not chosen(UNUSED):
        return []
    remaining = [comment for comment in idle if chosen(comment.code) and _judged(comment.code, with_load)]
    if any(comment.code in _CODES_OF_PROXIES for comment in remaining):
        remaining = split_by(findings_of_all_kinds(loaded), remaining)[1]
    if any(comment.code in FILES for comment in remaining):
        named = {(node.file, node.line) for _, node in named_files(loaded.source.root)}
        remaining = [comment for comment in remaining if comment.code not in FILES or _line(comment) not in named]
    return remaining


def unused_diagnostics(idle: Iterable[Ignore]) -> list[Diagnostic]:
    """The findings about unused comments."""
    return [unused_comment(comment, is_error=False) for comment in idle]


def _problem(ignore: Ignore) -> Diagnostic | None:
    """Why the comment can never silence a finding, or None."""
    if ignore.code in rules():
        return None
    from lbctl.lint.pages import pages  # few fleets need it

    page = pages().get(ignore.code)
    if page is None:
        return unknown_code(ignore, did_you_mean(ignore.code, pages()))
    return unused_comment(ignore, is_error=True) if page.severity == "error" else None


def _judged(code: str, with_load: bool) -> bool:
    rule = rules().get(code)
    return not code.startswith(_RUN_TIME_CODES) and (rule is None or with_load or not rule.needs_load)


def _line(ignore: Ignore) -> tuple[str, int]:
    return ignore.position.file, ignore.position.line
