"""`lbctl init`: an annotated fleet file, from nothing or from what running servers say of themselves."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position, show
from lbctl.base.errors import reason_of
from lbctl.cli.options import options_of

option = options_of("init")
_EXIT = {"LB960": 4, "LB961": 1, "LB962": 64, "LB963": 1}
"""The exit code of each code of a finding."""


@click.command("init")
@option(
    "--from", "urls", metavar="URL", multiple=True,
    help="Ask this server what it is; several may follow. A GPU exporter of its host may be among them.",
)  # fmt: skip
@option("-f", "file", metavar="FILE", help="Write it there, where no file is yet; default: to standard output.")
@click.argument("more", metavar="[URL]…", nargs=-1)
def command(urls: tuple[str, ...], file: str | None, more: tuple[str, ...]) -> int:
    """Write an annotated fleet file.

    With --from each server is asked what it is (vLLM, SGLang, TGI, llama.cpp, Triton, Ray Serve, TorchServe, KServe,
    MLServer and others): the same models make one pool, with the right health checks and sources of telemetry. Nothing
    but these URLs is asked, each within five seconds. Exit code 4 if one of them does not answer as such a server.
    """
    if more and not urls:
        raise click.UsageError("URLs stand after --from")
    diagnostics = Diagnostics()
    if file is not None and os.path.lexists(file):
        diagnostics.add(_existing_file(file))
    text = "" if diagnostics.failed else _text((*urls, *more), diagnostics)
    if text and file is None:
        click.echo(text, nl=False)
    elif text and file is not None:
        _write(text, file, diagnostics)
    for item in diagnostics:
        click.echo(str(item), err=True)
    return max((_EXIT[item.code] for item in diagnostics), default=0)


def _text(urls: tuple[str, ...], diagnostics: Diagnostics) -> str:
    from lbctl.init.fleet import fleet_from_urls, template

    if not urls:
        return template()
    result = fleet_from_urls(urls, diagnostics)
    for line in result.summary:
        click.echo(f"lbctl: {line}", err=True)
    return result.text


def _existing_file(file: str) -> Diagnostic:
    return Diagnostic("LB961", "there is a file already, and init writes over none", Position(_name(file)), hint="-f")


def _write(text: str, file: str, diagnostics: Diagnostics) -> None:
    """Write the file as a whole, and never over an existing one: it is linked into place, which fails then."""
    place = Path(file)
    try:
        with tempfile.NamedTemporaryFile("wb", prefix=".lbctl-init.", dir=place.parent) as out:
            out.write(text.encode())
            out.flush()
            os.fchmod(out.fileno(), 0o644)
            os.fsync(out.fileno())
            place.hardlink_to(out.name)
        click.echo(f"lbctl: wrote {_name(file)}", err=True)
    except FileExistsError:
        diagnostics.add(_existing_file(file))
    except OSError as error:
        message = f"cannot be written: {reason_of(error)}"
        diagnostics.add(Diagnostic("LB961", message, Position(_name(file))))


def _name(file: str) -> str:
    return file if file.isprintable() else show(file)
