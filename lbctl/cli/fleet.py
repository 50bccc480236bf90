"""The PATH argument for commands that read a fleet, and functions that load the fleet and print its findings."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import click

from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.cli.options import completions
from lbctl.lint.ignores import silenced_by_comments
from lbctl.model.fleet import parse
from lbctl.model.load import texts
from lbctl.targets.load import Loaded, complete

paths_argument = click.argument("paths", metavar="PATH…", nargs=-1, required=True, shell_complete=completions)


def load(
    paths: tuple[str, ...], diagnostics: Diagnostics, require_files: bool = False, require_own_lines: bool = True
) -> Loaded | None:
    """Load the fleet in `paths` (`-` is standard input), or return None if it has errors.

    Findings that a comment in the fleet silences are never added to `diagnostics`, even by later steps.
    """
    sources = texts(paths, diagnostics, sys.stdin.buffer if "-" in paths else None)
    diagnostics.silence(silenced_by_comments(sources))
    fleet = parse(sources, diagnostics)
    return complete(fleet, diagnostics, require_files, require_own_lines=require_own_lines) if fleet else None


def show(diagnostics: Iterable[Diagnostic]) -> None:
    """Print the findings to standard error, one per line."""
    for diagnostic in diagnostics:
        click.echo(str(diagnostic), err=True)
