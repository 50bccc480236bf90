"""Lint rules: functions from a fleet to findings, registered with code, severity and page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lbctl.base.diagnostics import Path, Severity
from lbctl.lint.fleet_view import FleetView
from lbctl.lint.page import CodePage

Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Edit:
    """A certain fix: the value at `path` becomes `value`."""

    path: Path
    value: Value | None
    """None removes the key."""


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """A finding of a rule."""

    path: Path
    """The path of the value, written or not; replicas by name."""
    message: str
    """What is unwise."""
    hint: str = ""
    """What would be better; empty where the message says it."""
    fix: Edit | None = None
    """The change that `--fix` makes; None: there is none."""


Check = Callable[[FleetView], Iterator[RuleFinding]]


@dataclass(frozen=True, slots=True)
class LintRule:
    """A registered rule."""

    page: CodePage
    """The explanation of its code."""
    check: Check
    """The function that looks for findings."""
    needs_load: bool = False
    """Whether it only checks the load that the command line states."""

    @property
    def code(self) -> str:
        """The rule's code."""
        return self.page.code

    @property
    def severity(self) -> Severity:
        """The severity of its findings."""
        return self.page.severity


REGISTRY: dict[str, LintRule] = {}
"""Filled by `@rule` when the modules of rules are imported by `lbctl.lint.rules.rules`."""


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
    needs_load: bool = False,
) -> Callable[[Check], Check]:
    """Register a check under its code. Raises ValueError if the code is already registered."""

    def register(check: Check) -> Check:
        if code in REGISTRY:
            raise ValueError(f"{code} is taken by {REGISTRY[code].page.title!r}")
        page = CodePage(code, title, what, why, before, after, ignore, severity=severity)
        REGISTRY[code] = LintRule(page, check, needs_load)
        return check

    return register
