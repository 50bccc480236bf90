"""`lbctl validate`, which checks a fleet and reports every error in a single run."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.cli.command import Command
from lbctl.cli.findings import FORMS, written
from lbctl.cli.fleet import load, paths_argument, show
from lbctl.cli.options import output_option
from lbctl.ir.snapshot import Snapshot
from lbctl.ir.topology import Topology
from lbctl.lint.proxies import merge_kinds, refused_key_findings
from lbctl.targets import target
from lbctl.targets.load import Loaded
from lbctl.targets.picker import exposed_by_files
from lbctl.targets.prepare import prepare


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
    """Check a fleet and report all errors in one run.

    PATH is a YAML file, a directory of YAML files, or - for standard input. Each error has a file, line and column.
    Text goes to standard error; other formats go to standard output. The exit code is 1 if there is an error. On a
    terminal, lbctl confirms that the fleet is valid.
    """
    diagnostics = Diagnostics()
    loaded = load(paths, diagnostics, require_own_lines=False)
    if loaded is not None:
        diagnostics.extend(item.finding for item in merge_kinds(refused_key_findings(loaded)))
        diagnostics.extend(map(loaded.compiled.sources.with_position, exposed_by_files(loaded.compiled.topology)))
        diagnostics.extend(_object_findings(loaded))
    if form == "text":
        show(diagnostics)
        if loaded is not None and sys.stderr.isatty():
            click.echo(f"lbctl: valid: {_size(loaded.compiled.topology)}", err=True)
    else:
        click.echo(written(diagnostics, form), nl=False)
    return 0 if loaded else 1


def _object_findings(loaded: Loaded) -> Iterator[Diagnostic]:
    """Yield warnings about the Kubernetes objects for the fleet's gateways."""
    compiled = loaded.compiled
    snapshot = Snapshot(compiled.topology, secrets=loaded.secrets)
    for proxy in compiled.topology.proxies:
        if proxy.kubernetes is not None:
            prepared = prepare(target(proxy.kind), compiled, proxy, snapshot)
            yield from map(compiled.sources.with_position, prepared.target.diagnostics(prepared.view))


def _size(topology: Topology) -> str:
    counts = {
        "listener": len(topology.listeners),
        "route": len(topology.routes),
        "pool": len(topology.pools),
        "replica": sum(len(pool.replicas) for pool in topology.pools),
    }
    return ", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items())
