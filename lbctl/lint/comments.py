"""The ignore comments of one run: which can silence anything at all, and which of those do.

A comment is held against what was judged: codes that a run does not look at (a load that is not stated, a checker that
does not run, a file that another machine has) say nothing of it, and what another kind of proxy would be told counts as
found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from lbctl.base.diagnostics import Diagnostic, did_you_mean
from lbctl.compile.files import named_files
from lbctl.lint.ignores import UNUSED, Ignore, ignores, unknown, useless
from lbctl.lint.ignores import split as split_by
from lbctl.lint.proxies import whatever_the_proxy
from lbctl.lint.rules import rules
from lbctl.model.load import Text
from lbctl.targets.features import FEATURES
from lbctl.targets.load import Loaded

FILES = frozenset({"LB110", "LB503"})
"""A file that is not here: said by `validate`. Where a pipeline lints there are neither certificates nor keys."""
_BY_PROXIES = frozenset({feature.code for feature in FEATURES} | {"LB206", "LB499"})
_AT_RUN_TIME = "LB9"


@dataclass(frozen=True, slots=True)
class Comments:
    """`usable`: of codes that a comment can silence; `hopeless`: of errors and of codes that there are not; `wrong`:
    what is to be said of those, and of comments that cannot be read."""

    usable: tuple[Ignore, ...]
    hopeless: tuple[Ignore, ...]
    wrong: tuple[Diagnostic, ...]


def comments(texts: Sequence[Text], chosen: Callable[[str], bool]) -> Comments:
    found, malformed = ignores(texts)
    usable, hopeless, wrong = [], [], list(malformed)
    for item in found:
        problem = _hopeless(item)
        if problem is None:
            usable.append(item)
        elif chosen(problem.code):
            hopeless.append(item)
            wrong.append(problem)
    return Comments(tuple(usable), tuple(hopeless), tuple(item for item in wrong if chosen(item.code)))


def left_of_broken(findings: Iterable[Diagnostic], given: Comments) -> list[Diagnostic]:
    """Of a fleet with errors: those, and what is not silenced of the rest."""
    found = list(findings)
    errors = [item for item in found if item.severity == "error"]
    return errors + split_by([item for item in found if item.severity != "error"], given.usable)[0]


def unused(idle: Sequence[Ignore], loaded: Loaded, chosen: Callable[[str], bool], with_load: bool) -> list[Ignore]:
    """`idle`: those whose code was not found on their line; what is left of them silences nothing in any run."""
    if not chosen(UNUSED):
        return []
    left = [item for item in idle if chosen(item.code) and _judged(item.code, with_load)]
    if any(item.code in _BY_PROXIES for item in left):
        left = split_by(whatever_the_proxy(loaded), left)[1]
    if any(item.code in FILES for item in left):
        named = {(node.file, node.line) for _, node in named_files(loaded.source.root)}
        left = [item for item in left if item.code not in FILES or _line(item) not in named]
    return left


def said(items: Iterable[Ignore]) -> list[Diagnostic]:
    """The findings of comments that are unused."""
    return [useless(item, is_error=False) for item in items]


def _hopeless(item: Ignore) -> Diagnostic | None:
    """Why no finding can ever be silenced by it."""
    if item.code in rules():
        return None
    from lbctl.lint.pages import pages  # what few fleets need

    page = pages().get(item.code)
    if page is None:
        return unknown(item, did_you_mean(item.code, pages()))
    return useless(item, is_error=True) if page.severity == "error" else None


def _judged(code: str, with_load: bool) -> bool:
    rule = rules().get(code)
    return not code.startswith(_AT_RUN_TIME) and (rule is None or with_load or not rule.asked)


def _line(item: Ignore) -> tuple[str, int]:
    return item.position.file, item.position.line
