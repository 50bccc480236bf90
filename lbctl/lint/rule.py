"""Lint rules: functions that yield the findings for a fleet, registered by code.

Each code's page specifies its severity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lbctl.base.diagnostics import Path, Severity
from lbctl.lint.fleet_view import FleetView
from lbctl.lint.pages import CodePage, read_page

Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Edit:
    """A safe fix that sets the value at `path` to `value`."""

    path: Path
    value: Value | None
    """New value; None removes the key."""


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """A finding of a rule."""

    path: Path
    """Path of the value, even if it is not in the YAML; replicas are identified by name."""
    message: str
    """The problem."""
    hint: str = ""
    """How to fix the problem; may be empty."""
    fix: Edit | None = None
    """Change made by `--fix`; None if there is none."""


Check = Callable[[FleetView], Iterator[RuleFinding]]


@dataclass(frozen=True, slots=True)
class LintRule:
    """A registered rule."""

    code: str
    check: Check
    needs_load: bool = False
    """Whether the rule needs the load specified on the command line."""

    @property
    def page(self) -> CodePage:
        """The page of the rule's code, read on first use."""
        return read_page(self.code)

    @property
    def severity(self) -> Severity:
        """Severity of the rule's findings."""
        return self.page.severity


REGISTRY: dict[str, LintRule] = {}
"""Maps codes to rules. `@rule` fills it when `lbctl.lint.rules.rules` imports the rule modules."""


def rule(code: str, *, needs_load: bool = False) -> Callable[[Check], Check]:
    """Register a check under its code, which has a page in `codes`.

    Raises ValueError if the code is already registered.
    """

    def register(check: Check) -> Check:
        if code in REGISTRY:
            raise ValueError(f"{code} is already used by {REGISTRY[code].check.__name__}")
        REGISTRY[code] = LintRule(code, check, needs_load)
        return check

    return register
