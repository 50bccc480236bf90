"""Runs lint on one fleet: all rules, and a check for features that its proxies do not support.

Comments in the fleet can silence findings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position
from lbctl.compile.sources import SourceMap
from lbctl.lint.collapse import collapse
from lbctl.lint.fleet_view import FleetView, StatedLoad
from lbctl.lint.ignores import FILES, Ignore, comments, findings_of_invalid, split, unused, unused_diagnostics
from lbctl.lint.proxies import merge_kinds, one_per_code, summary, unsupported_findings
from lbctl.lint.rule import Edit, LintRule, RuleFinding
from lbctl.lint.rules import rules
from lbctl.model.fleet import parse
from lbctl.model.load import SourceText
from lbctl.model.node import descend
from lbctl.targets.load import complete


@dataclass(frozen=True, slots=True)
class Fix:
    """A safe fix for a finding."""

    edit: Edit
    """The edit to make, with the path in the YAML."""
    at: Position
    """Position of the value, or of its nearest ancestor if the YAML does not contain the value."""
    written: bool


@dataclass(frozen=True, slots=True)
class LintResult:
    """Result of one run."""

    findings: tuple[Diagnostic, ...]
    """All findings, at most one per code and position."""
    lines: tuple[Diagnostic, ...]
    """Findings for display, in which each unsupported feature appears only once."""
    valid: bool
    """Whether the fleet itself is free of errors, so that the rules were run."""
    summary: tuple[str, ...] = ()
    """One line for each kind of proxy, with the number of features that it does not support."""
    fixes: tuple[Fix, ...] = ()
    """Safe fixes for the findings."""
    unused: tuple[Ignore, ...] = ()
    """Comments without effect."""


@dataclass(frozen=True, slots=True)
class CodeFilter:
    """Selects codes that start with a prefix in `select` but not with a prefix in `ignore`.

    An empty `select` selects all codes.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def __call__(self, code: str) -> bool:
        """Return whether the code is selected."""
        return (not self.select or code.startswith(self.select)) and not (self.ignore and code.startswith(self.ignore))


@dataclass(slots=True)
class _RuleResults:
    """The rules' findings, ordered by code, at most one per code and position."""

    findings: dict[tuple[str, Position], Diagnostic] = field(default_factory=dict)
    fixes: dict[Diagnostic, Fix] = field(default_factory=dict)


def lint(
    texts: Sequence[SourceText], diagnostics: Diagnostics, chosen: Callable[[str], bool], load: StatedLoad | None
) -> LintResult:
    """Lint a fleet.

    `texts` are its files as read, and `diagnostics` are the problems found while reading them. `chosen` selects codes,
    and `load` is the load specified on the command line.
    """
    source = parse(texts, diagnostics)
    loaded = complete(source, diagnostics, require_own_lines=False) if source else None
    ignore_comments = comments(texts, chosen)
    if loaded is None:
        invalid = _in_order([*findings_of_invalid(diagnostics, ignore_comments), *ignore_comments.faults])
        return LintResult(invalid, invalid, valid=False)
    own = [diagnostic for diagnostic in diagnostics if chosen(diagnostic.code)]
    active = [rule for rule in rules().values() if chosen(rule.code) and (load is not None or not rule.needs_load)]
    results = _run_rules(FleetView(loaded, load), active, loaded.compiled.sources)
    unsupported = [(kind, finding) for kind, finding in unsupported_findings(loaded) if chosen(finding.code)]
    remaining, idle = split(
        [*own, *results.findings.values(), *(finding for _, finding in unsupported)], ignore_comments.usable
    )
    kept = set(remaining)
    idle = unused(idle, loaded, chosen, load is not None)
    merged = merge_kinds((kind, finding) for kind, finding in unsupported if finding in kept)
    rest = [finding for finding in own if finding in kept and finding.code not in FILES]
    rest += [
        *collapse(finding for finding in results.findings.values() if finding in kept),
        *ignore_comments.faults,
        *unused_diagnostics(idle),
    ]
    return LintResult(
        _in_order([*rest, *(entry.finding for entry in merged)]),
        _in_order([*rest, *one_per_code(merged)]),
        valid=True,
        summary=tuple(summary(merged)),
        fixes=tuple(fix for finding, fix in results.fixes.items() if finding in kept),
        unused=(*idle, *ignore_comments.cannot_silence),
    )


def _in_order(findings: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    ordered = Diagnostics()
    ordered.extend(findings)
    return tuple(ordered)


def _run_rules(subject: FleetView, active: Sequence[LintRule], sources: SourceMap) -> _RuleResults:
    results = _RuleResults()
    for rule in active:
        for finding in rule.check(subject):
            position = position_of_finding(sources, finding)
            diagnostic = Diagnostic(
                rule.code, finding.message, position, sources.written(finding.path), finding.hint, rule.severity
            )
            results.findings.setdefault((rule.code, position), diagnostic)
            if finding.fix is not None:
                path = sources.written(finding.fix.path)
                written = descend(sources.root, path) is not None
                results.fixes.setdefault(diagnostic, Fix(replace(finding.fix, path=path), position, written))
    return results


def position_of_finding(sources: SourceMap, finding: RuleFinding) -> Position:
    """Return the position of the value if it is in the YAML, or else the position of its nearest ancestor's key."""
    written = sources.written(finding.path)
    node = descend(sources.root, written)
    if node is not None:
        return node.key_position if isinstance(node.value, dict | list) and node.key_line else node.position
    return sources.position(finding.path, key=True)
