"""What the commands that read a fleet share: the argument, the way to a Topology, and how findings are shown."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

import click

from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.compile.files import check_files
from lbctl.compile.fleet import Compiled, compile_fleet
from lbctl.compile.secrets import read_secrets
from lbctl.ir.secrets import Secrets
from lbctl.model.fleet import Source, read
from lbctl.targets import oldest_versions

paths_argument = click.argument("paths", metavar="PATH…", nargs=-1, required=True)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A fleet without errors: as written, as meant, and what its key files hold."""

    source: Source
    compiled: Compiled
    secrets: Secrets


def load(paths: tuple[str, ...], diagnostics: Diagnostics, require_files: bool = False) -> Loaded | None:
    """The fleet, or None where it has errors; they are in `diagnostics`. `require_files`: a missing one is an error."""
    stdin = sys.stdin.buffer if "-" in paths else None
    source = read(paths, diagnostics, stdin)
    compiled = compile_fleet(source, oldest_versions(), diagnostics) if source else None
    if source is None:
        return None
    check_files(source, require_files, diagnostics)
    secrets = read_secrets(source, require_files, diagnostics)
    return None if compiled is None or diagnostics.failed else Loaded(source, compiled, secrets)


def show(diagnostics: Iterable[Diagnostic]) -> None:
    """To standard error, one a line."""
    for diagnostic in diagnostics:
        click.echo(str(diagnostic), err=True)
