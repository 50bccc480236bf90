"""`lbctl validate`: is this a fleet? Every error in one run."""

from __future__ import annotations

import sys

import click

from lbctl.base.diagnostics import Diagnostics
from lbctl.cli.command import Command
from lbctl.cli.findings import FORMS, written
from lbctl.cli.fleet import load, paths_argument, show
from lbctl.cli.options import output_option
from lbctl.ir.topology import Topology
from lbctl.lint.proxies import merge_kinds, refused_key_findings


@click.command(
    "validate",
    cls=Command,
    examples="""
    lbctl validate fleet/
    # Annotate a pull request on GitHub:
    lbctl validate fleet/ -o github
    """,
)
@paths_argument
@output_option("validate", FORMS)
def command(paths: tuple[str, ...], form: str) -> int:
    """Check the fleet in PATH… (files, directories, or - for standard input).

    Shows every error with file, line and column: as text on standard error, in another form on standard output. Exit
    code 1 if there is one. On a terminal, a valid fleet is one line.
    """
    diagnostics = Diagnostics()
    loaded = load(paths, diagnostics, require_own_lines=False)
    if loaded is not None:
        diagnostics.extend(item.finding for item in merge_kinds(refused_key_findings(loaded)))
    if form == "text":
        show(diagnostics)
        if loaded is not None and sys.stderr.isatty():
            click.echo(f"lbctl: valid: {_size(loaded.compiled.topology)}", err=True)
    else:
        click.echo(written(diagnostics, form), nl=False)
    return 0 if loaded else 1


def _size(topology: Topology) -> str:
    counts = {
        "listener": len(topology.listeners),
        "route": len(topology.routes),
        "pool": len(topology.pools),
        "replica": sum(len(pool.replicas) for pool in topology.pools),
    }
    return ", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items())
