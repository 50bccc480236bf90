"""`lbctl lint`, which reports configuration that is valid but risky for inference."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from lbctl.base.diagnostics import Diagnostics, did_you_mean
from lbctl.base.errors import reason_of
from lbctl.base.quantities import QuantityError, parse_duration, parse_per_second
from lbctl.cli.command import Command
from lbctl.cli.findings import FORMS, counted, written
from lbctl.cli.fleet import paths_argument
from lbctl.cli.options import options_of, output_option
from lbctl.lint.fleet_view import StatedLoad
from lbctl.lint.run import CodeFilter, LintResult, lint
from lbctl.model.load import SourceText, texts

option = options_of("lint")


@dataclass(frozen=True, slots=True)
class _Options:
    """The parsed options."""

    chosen: Callable[[str], bool]
    fail_on: str
    fix: bool
    load: StatedLoad | None
    form: str


@click.command(
    "lint",
    cls=Command,
    examples="""
    lbctl lint fleet/
    lbctl lint fleet/ --fail-on warning -o sarif
    lbctl lint fleet/ --rate 23.7/s --mean-service 800ms
    """,
)
@paths_argument
@option(
    "--select",
    multiple=True,
    metavar="CODES",
    help="Report only these codes, separated by commas. A prefix such as LB3 is enough.",
)
@option("--ignore", multiple=True, metavar="CODES", help="Do not report these codes.")
@option(
    "--fail-on",
    type=click.Choice(["error", "warning"]),
    default="error",
    show_default=True,
    help="Lowest severity that causes exit code 1.",
)
@option("--fix", is_flag=True, help="Apply safe fixes to the files, preserving comments.")
@option("--rate", metavar="RATE", help="Expected load, for example 23.7/s or 90/m. Requires --mean-service.")
@option(
    "--mean-service",
    metavar="D",
    help="Mean time for which a request occupies a replica, for example 800ms. Requires --rate.",
)
@output_option("lint", FORMS)
def command(
    paths: tuple[str, ...],
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    fail_on: str,
    fix: bool,
    rate: str | None,
    mean_service: str | None,
    form: str,
) -> int:
    """Report configuration that is valid but risky for inference.

    lbctl prints the findings to standard output. The findings include errors in the fleet and settings that its proxies
    do not support. The comment `# lbctl: ignore CODE (reason)` silences a finding on its line. `lbctl rule CODE`
    explains a code.
    """
    if fix and "-" in paths:
        raise click.UsageError("--fix cannot change standard input (-)")
    options = _Options(CodeFilter(_codes(select), _codes(ignore)), fail_on, fix, _load(rate, mean_service), form)
    diagnostics = Diagnostics()
    sources = texts(paths, diagnostics, sys.stdin.buffer if "-" in paths else None)
    linted = lint(sources, diagnostics, options.chosen, options.load)
    if fix and linted.valid:
        fixed, linted = _fixed(sources, linted, options)
        if not _saved(sources, fixed):
            return 1
    click.echo(written(linted.lines if form == "text" else linted.findings, form), nl=False)
    if form == "text":
        for line in (*linted.summary, counted(linted.lines)):
            click.echo(f"lbctl: {line}", err=True)
    return 1 if _fails(linted, fail_on) else 0


def _fails(linted: LintResult, fail_on: str) -> bool:
    failing = {"error"} if fail_on == "error" else {"error", "warning"}
    return any(item.severity in failing for item in linted.findings)


def _fixed(sources: Sequence[SourceText], linted: LintResult, options: _Options) -> tuple[list[SourceText], LintResult]:
    """Apply the fixes, then remove comments that no longer silence anything.

    Return the new texts and the remaining findings.
    """
    from lbctl.lint.fix import apply_fixes, remove_comments

    with_fixes = apply_fixes(sources, linted.fixes)
    if with_fixes != list(sources):
        linted = _again(with_fixes, options)
    without_comments = remove_comments(with_fixes, linted.unused)
    return without_comments, linted if without_comments == with_fixes else _again(without_comments, options)


def _again(sources: Sequence[SourceText], options: _Options) -> LintResult:
    return lint(sources, Diagnostics(), options.chosen, options.load)


def _saved(before: Sequence[SourceText], after: Sequence[SourceText]) -> bool:
    """Write the changed files, and return whether all of them could be written."""
    from lbctl.lint.fix import replace_file

    changed = [new for old, new in zip(before, after, strict=True) if new.data != old.data]
    try:
        for item in changed:
            replace_file(Path(item.name), item.data)
            click.echo(f"lbctl: fixed {item.name}", err=True)
    except OSError as error:
        click.echo(f"lbctl: cannot write {error.filename}: {reason_of(error)}", err=True)
        return False
    return True


def _codes(values: Sequence[str]) -> tuple[str, ...]:
    """Parse comma-separated codes and code prefixes. Raises UsageError for a prefix that matches no code."""
    codes = tuple(code.strip().upper() for item in values for code in item.split(",") if code.strip())
    if codes:
        _check(codes)
    return codes


def _check(codes: Sequence[str]) -> None:
    from lbctl.lint.pages import pages

    for code in codes:
        if not any(page_code.startswith(code) for page_code in pages()):
            hint = did_you_mean(code, pages())
            raise click.UsageError(f"no code begins with {code!r}{f' ({hint})' if hint else ''}")


def _load(rate: str | None, mean_service: str | None) -> StatedLoad | None:
    if (rate is None) != (mean_service is None):
        raise click.UsageError("set both --rate and --mean-service")
    if rate is None:
        return None
    try:
        return StatedLoad(parse_per_second(rate), parse_duration(mean_service) / 1000)
    except QuantityError as error:
        raise click.UsageError(f"{error}{f' ({error.hint})' if error.hint else ''}") from None
