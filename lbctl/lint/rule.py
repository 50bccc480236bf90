"""Lint rules: functions from a fleet to findings, registered by code. The page of the code has their severity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lbctl.base.diagnostics import Path, Severity
from lbctl.lint.fleet_view import FleetView
from lbctl.lint.pages import CodePage, read_page

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

    code: str
    check: Check
    """The function that looks for findings."""
    needs_load: bool = False
    """Whether it only checks the load that the command line states."""

    @property
    def page(self) -> CodePage:
        """The explanation of its code, read when it is first needed."""
        return read_page(self.code)

    @property
    def severity(self) -> Severity:
        """The severity of its findings."""
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
