"""`lbctl import`, which converts an nginx, HAProxy or Envoy configuration to a fleet file."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position
from lbctl.base.errors import reason_of
from lbctl.cli.command import Command
from lbctl.cli.fleet import show
from lbctl.cli.options import completions, options_of
from lbctl.importer.run import KINDS

if TYPE_CHECKING:
    from lbctl.importer.run import Imported

option = options_of("import")


@click.command(
    "import",
    cls=Command,
    examples="""
    lbctl import nginx /etc/nginx/nginx.conf -f fleet.yaml
    # Compare how nginx handles requests with both configurations:
    lbctl import nginx /etc/nginx/nginx.conf --compare
    """,
)
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("files", metavar="FILE…", nargs=-1, required=True, shell_complete=completions)
@option(
    "-f",
    "--file",
    "out",
    metavar="OUT",
    help="Write the fleet to OUT, which must not exist (default: standard output).",
)
@option(
    "--compare", is_flag=True, help="Run both configurations on loopback and compare how they handle sample requests."
)
@option("--allow-unsandboxed", is_flag=True, help="Compare even if this system cannot sandbox the proxies.")
def command(kind: str, files: tuple[str, ...], out: str | None, compare: bool, allow_unsandboxed: bool) -> int:
    """Convert an nginx, HAProxy or Envoy configuration to a fleet file.

    Each directive becomes a key with the same meaning, or a comment with the file, the line and the reason. On standard
    error, lbctl reports the counts, secrets that were not copied, and settings that harm inference. It never changes
    existing files.

    If lbctl cannot convert a route's protection or destination, the route rejects requests with status 501,
    and a comment states what is missing. With -f, lines without a matching key go to files in own/ next to OUT, if
    `include` supports them. The exit code is 1 if no route serves requests, or if requests would go to a different
    pool.

    With --compare, lbctl runs both configurations with the proxy installed on this machine. Test servers report
    the requests that reach them. The proxies are sandboxed: they cannot access files or addresses in the configuration.
    The exit code is 1 if a request is handled differently, and 4 if the proxy's binary is missing or this system cannot
    sandbox it.
    """
    from lbctl.importer.run import run

    diagnostics = Diagnostics()
    _check_absent(out, diagnostics)
    imported = None if diagnostics.failed else run(kind, files, diagnostics, own=out is not None)
    if imported is not None and out is None:
        click.echo(imported.text, nl=False)
    elif imported is not None and out is not None:
        _write_all(imported, out, diagnostics)
    code = 0
    if imported is not None and compare:
        from lbctl.cli.import_compare import report

        code = report(kind, files, imported, diagnostics, allow_unsandboxed=allow_unsandboxed)
    show(diagnostics)
    if imported is not None:
        carried, implied, noted = imported.draft.ledger.counts()
        total = carried + implied + noted
        summary = f"{carried} converted, {implied} implied, {noted} kept as comments"
        click.echo(f"lbctl: {total} directives: {summary}", err=True)
    return code or (1 if diagnostics.failed else 0)


def _check_absent(file: str | None, diagnostics: Diagnostics) -> None:
    if file is not None and os.path.lexists(file):
        message, hint = "the file exists, and import does not overwrite files", "choose another name, or omit -f"
        diagnostics.add(Diagnostic("LB961", message, Position(file), hint=hint))


def _write_all(imported: Imported, out: str, diagnostics: Diagnostics) -> None:
    """Write the files that contain the unconverted lines next to the fleet, then the fleet that includes them."""
    place = Path(out).parent
    present = Diagnostics()
    for name in imported.own:
        _check_absent(str(place / name), present)
    diagnostics.extend(present)
    if present.failed:
        return
    for name, text in imported.own.items():
        if not _write(text, str(place / name), diagnostics):
            return
        number = len(text.splitlines())
        click.echo(f"lbctl: {place / name} has {number} own line{'' if number == 1 else 's'}", err=True)
    _write(imported.text, out, diagnostics)


def _write(text: str, file: str, diagnostics: Diagnostics) -> bool:
    """Write the file atomically. An existing file is never overwritten, because creating the final link would fail."""
    place = Path(file)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("wb", prefix=".lbctl-import.", dir=place.parent) as temporary:
            temporary.write(text.encode())
            temporary.flush()
            os.fchmod(temporary.fileno(), 0o644)
            place.hardlink_to(temporary.name)
        return True
    except OSError as error:
        diagnostics.add(Diagnostic("LB961", f"cannot be written: {reason_of(error)}", Position(file)))
        return False
