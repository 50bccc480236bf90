"""Lint rules, grouped by subject. To add a rule, write a function with `@rule` in one of these modules."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module

from lbctl.lint.rule import REGISTRY, LintRule

_MODULES = (
    "balance",
    "capacity",
    "places",
    "times",
    "retries",
    "health",
    "security",
    "telemetry",
    "rollouts",
    "routes",
    "pick",
    "hosted",
    "own_lines",
    "gateways",
)


@cache
def rules() -> Mapping[str, LintRule]:
    """Map each code to its rule, in code order."""
    for name in _MODULES:
        import_module(f"lbctl.lint.rules.{name}")
    return {code: REGISTRY[code] for code in sorted(REGISTRY)}
