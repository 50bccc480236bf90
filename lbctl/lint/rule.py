"""Lint rules: functions from a fleet to findings, registered by code. The page of the code contains their severity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lbctl.base.diagnostics import Path, Severity
from lbctl.lint.fleet_view import FleetView
from lbctl.lint.pages import CodePage, read_page

Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Edit:
    """A safe fix: the value at `path` becomes `value`."""

    path: Path
    value: Value | None
    """None to remove the key."""


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """A finding of a rule."""

    path: Path
    """Path of the value, written or not; replicas are identified by name."""
    message: str
    """The problem."""
    hint: str = ""
    """How to fix the problem; may be empty."""
    fix: Edit | None = None
    """Change that `--fix` makes; None: no change."""


Check = Callable[[FleetView], Iterator[RuleFinding]]


@dataclass(frozen=True, slots=True)
class LintRule:
    """A registered rule."""

    code: str
    check: Check
    needs_load: bool = False
    """Whether it checks only the load given on the command line."""

    @property
    def page(self) -> CodePage:
        """Page of its code, read at first use."""
        return read_page(self.code)

    @property
    def severity(self) -> Severity:
        """Severity of its findings."""
        return self.page.severity


REGISTRY: dict[str, LintRule] = {}
"""Filled by `@rule` when the modules of rules are imported by `lbctl.lint.rules.rules`."""


def rule(code: str, *, needs_load: bool = False) -> Callable[[Check], Check]:
    """Register a check under its code, which has a page in `codes`. Raises ValueError if the code is taken."""

    def register(check: Check) -> Check:
        if code in REGISTRY:
            raise ValueError(f"{code} is taken by {REGISTRY[code].check.__name__}")
        REGISTRY[code] = LintRule(code, check, needs_load)
        return check

    return register
