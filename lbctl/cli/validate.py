"""`lbctl validate`: is this a fleet? Every error in one run."""

from __future__ import annotations

import click

from lbctl.base.diagnostics import Diagnostics
from lbctl.cli.fleet import load, paths_argument, show


@click.command("validate")
@paths_argument
def command(paths: tuple[str, ...]) -> int:
    """Check the fleet in PATH… (files, directories, or - for standard input).

    Prints every error with file, line and column to standard error. Exit code 1 if there is one.
    """
    diagnostics = Diagnostics()
    loaded = load(paths, diagnostics)
    show(diagnostics)
    return 0 if loaded else 1
