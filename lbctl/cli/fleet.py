"""What the commands that read a fleet share: the argument, and how findings are shown."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import click

from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.cli.options import completions
from lbctl.lint.ignores import silenced
from lbctl.model.fleet import understand
from lbctl.model.load import texts
from lbctl.targets.load import Loaded, complete

paths_argument = click.argument("paths", metavar="PATH…", nargs=-1, required=True, shell_complete=completions)


def load(paths: tuple[str, ...], diagnostics: Diagnostics, require_files: bool = False) -> Loaded | None:
    """The fleet in `paths`, of which `-` is standard input, or None where it has errors.

    What a comment in it silences never comes into `diagnostics`, also of what is found later.
    """
    found = texts(paths, diagnostics, sys.stdin.buffer if "-" in paths else None)
    diagnostics.silence(silenced(found))
    source = understand(found, diagnostics)
    return complete(source, diagnostics, require_files) if source else None


def show(diagnostics: Iterable[Diagnostic]) -> None:
    """To standard error, one a line."""
    for diagnostic in diagnostics:
        click.echo(str(diagnostic), err=True)
