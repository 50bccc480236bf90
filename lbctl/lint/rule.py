"""What a rule is: a function from a fleet to what it found, registered with its code, its severity and its page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lbctl.base.diagnostics import Path, Severity
from lbctl.lint.page import Page
from lbctl.lint.subject import Subject

Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Edit:
    """A mend that is certain: the value at `path` becomes `value`, or goes away with its key (None)."""

    path: Path
    value: Value | None


@dataclass(frozen=True, slots=True)
class Found:
    """`path`: of the value that is meant, written or not; replicas by name."""

    path: Path
    message: str
    hint: str = ""
    mend: Edit | None = None


Check = Callable[[Subject], Iterator[Found]]


@dataclass(frozen=True, slots=True)
class Rule:
    """`asked`: it judges only what the command line states (a load)."""

    page: Page
    check: Check
    asked: bool = False

    @property
    def code(self) -> str:
        return self.page.code

    @property
    def severity(self) -> Severity:
        return self.page.severity


REGISTRY: dict[str, Rule] = {}
"""Filled by `@rule` when the modules of rules are imported; `lbctl.lint.rules.rules` does that."""


def rule(
    code: str,
    severity: Severity,
    title: str,
    *,
    what: str,
    why: str,
    before: str,
    after: str,
    ignore: str,
    asked: bool = False,
) -> Callable[[Check], Check]:
    """Registers a check under its code, which no other may have."""

    def register(check: Check) -> Check:
        if code in REGISTRY:
            raise ValueError(f"{code} is taken by {REGISTRY[code].page.title!r}")
        page = Page(code, title, what, why, before, after, ignore, severity=severity)
        REGISTRY[code] = Rule(page, check, asked)
        return check

    return register
