"""What the commands that read a fleet share: the argument, the way to a Topology, and how findings are shown."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import click

from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.compile.fleet import Compiled, compile_fleet
from lbctl.model.fleet import Source, read
from lbctl.targets import oldest_versions

paths_argument = click.argument("paths", metavar="PATH…", nargs=-1, required=True, type=click.Path())


def load(paths: tuple[str, ...], diagnostics: Diagnostics) -> tuple[Source, Compiled] | None:
    """The fleet, or None where it has errors; they are in `diagnostics`."""
    stdin = sys.stdin.buffer if "-" in paths else None
    source = read(paths, diagnostics, stdin)
    compiled = compile_fleet(source, oldest_versions(), diagnostics) if source else None
    return (source, compiled) if source and compiled else None


def show(diagnostics: Iterable[Diagnostic]) -> None:
    """To standard error, one a line."""
    for diagnostic in diagnostics:
        click.echo(str(diagnostic), err=True)
