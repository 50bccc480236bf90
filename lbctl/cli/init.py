"""`lbctl init`, which writes an annotated fleet file from a template or from running servers."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import click

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position, show
from lbctl.base.errors import reason_of
from lbctl.cli.command import Command
from lbctl.cli.options import options_of
from lbctl.init import KEY_FILE
from lbctl.targets import KINDS

option = options_of("init")
_EXIT = {"LB960": 4, "LB961": 1, "LB962": 64, "LB963": 1}
"""Maps finding codes to exit codes. All other findings have exit code 1."""
_KEY = re.compile(r"[!-~]{1,4096}")
_MAX_KEY_FILE_BYTES = 8192


@click.command(
    "init",
    cls=Command,
    examples="""
    lbctl init > fleet.yaml
    lbctl init --from http://gpu1:8000 http://gpu2:8000 -f fleet.yaml
    """,
)
@option(
    "--from", "urls", metavar="URL", multiple=True,
    help="URL of a model server or of a host's GPU exporter; more URLs can follow.",
)  # fmt: skip
@option(
    "-f", "--file", metavar="FILE", help="Write the fleet to FILE, which must not exist (default: standard output)."
)
@option(
    "--api-key-file", metavar="FILE",
    help="File with an API key. lbctl sends the key to every queried URL, and the proxies send it to the replicas.",
)  # fmt: skip
@option("--proxy", "kind", type=click.Choice(KINDS), help="Fail if this kind of proxy cannot serve the fleet.")
@click.argument("more", metavar="[URL]…", nargs=-1)
def command(
    urls: tuple[str, ...], file: str | None, api_key_file: str | None, kind: str | None, more: tuple[str, ...]
) -> int:
    """Write an annotated fleet file.

    With --from, lbctl queries each server and identifies it (vLLM, SGLang, TGI, llama.cpp, Triton, Ray Serve,
    TorchServe, KServe, MLServer and others). Servers with the same models become one pool, with suitable health checks
    and telemetry sources. lbctl contacts only these URLs and waits at most five seconds for each of them.

    On standard error, lbctl lists the kinds of proxy that can serve the fleet. The exit code is 4 if lbctl cannot
    identify the server at a URL.
    """
    if more and not urls:
        raise click.UsageError("put --from before the URLs")
    if (api_key_file or kind) and not urls:
        raise click.UsageError("--api-key-file and --proxy require --from")
    diagnostics = Diagnostics()
    if file is not None and os.path.lexists(file):
        diagnostics.add(_existing_file(file))
    key = api_key(api_key_file) if api_key_file else ""
    text = "" if diagnostics.failed else _text((*urls, *more), key, kind, diagnostics)
    if text and file is None:
        click.echo(text, nl=False)
        if key:
            click.echo(
                f"lbctl: the fleet needs the file {KEY_FILE} next to it, with the line `Bearer KEY`",
                err=True,
            )
    elif text and file is not None and _write_all(text, key, file, diagnostics):
        click.echo(f"lbctl: wrote {_name(file)}; `lbctl up {_name(file)}` runs it", err=True)
    return finish(diagnostics)


def finish(diagnostics: Diagnostics) -> int:
    """Show the findings, and return their exit code."""
    for item in diagnostics:
        click.echo(str(item), err=True)
    return max((_EXIT.get(item.code, 1) for item in diagnostics), default=0)


def make_and_write(urls: tuple[str, ...], key: str, file: str) -> int:
    """Write a fleet for these servers, with a free port, to `file`, which must not exist yet.

    Return the exit code, which is 0 if the file was written.
    """
    from lbctl.init.fleet import fleet_from_urls

    diagnostics = Diagnostics()
    if os.path.lexists(file):
        diagnostics.add(_existing_file(file, f"`lbctl up {_name(file)}` runs it"))
        return finish(diagnostics)
    result = fleet_from_urls(urls, diagnostics, api_key=key, free=_free)
    for line in result.summary:
        click.echo(f"lbctl: {line}", err=True)
    if result.text and not diagnostics.failed and _write_all(result.text, key, file, diagnostics):
        click.echo(f"lbctl: wrote {_name(file)}", err=True)
    return finish(diagnostics)


def remove(file: str, key: str) -> None:
    """Remove the fleet that `make_and_write` wrote, and its key file if `key` is set."""
    Path(file).unlink()
    if key:
        Path(file).with_name(KEY_FILE).unlink(missing_ok=True)


def _write_all(text: str, key: str, file: str, diagnostics: Diagnostics) -> bool:
    """Write the replicas' key to a file that only the owner can read, then write the fleet."""
    key_file = str(Path(file).with_name(KEY_FILE))
    if key and not write(f"Bearer {key}\n", key_file, diagnostics, mode=0o600):
        return False
    if write(text, file, diagnostics):
        return True
    if key:
        Path(key_file).unlink()
    return False


def _free(port: int) -> bool:
    """Return whether a listener on this machine could use the port."""
    from lbctl.cli.doctor import ports
    from lbctl.ir.address import Address

    return ports.port(ports.BoundAddress("", Address("127.0.0.1", port), frozenset())).state == "ok"


def _text(urls: tuple[str, ...], key: str, kind: str | None, diagnostics: Diagnostics) -> str:
    from lbctl.init.fleet import fleet_from_urls, template
    from lbctl.init.proxies import advice, obstacles

    if not urls:
        return template()
    result = fleet_from_urls(urls, diagnostics, api_key=key)
    for line in (*result.summary, *advice(result.text)):
        click.echo(f"lbctl: {line}", err=True)
    diagnostics.extend(obstacles(result.text, kind) if kind else ())
    return "" if diagnostics.failed else result.text


def api_key(file: str) -> str:
    """Return the first line of the key file. Raises click.UsageError, with a message that never contains the key."""
    try:
        lines = Path(file).read_bytes()[:_MAX_KEY_FILE_BYTES].decode("ascii", "replace").splitlines()
    except OSError as error:
        raise click.UsageError(f"--api-key-file: {_name(file)} cannot be read: {reason_of(error).lower()}") from None
    key = lines[0].strip() if lines else ""
    if not _KEY.fullmatch(key):
        raise click.UsageError(
            f"--api-key-file: the first line of {_name(file)} must be a key of visible ASCII characters"
        )
    return key


def _existing_file(file: str, hint: str = "choose another name with -f") -> Diagnostic:
    return Diagnostic("LB961", "the file exists, and init does not overwrite files", Position(_name(file)), hint=hint)


def write(text: str, file: str, diagnostics: Diagnostics, *, mode: int = 0o644) -> bool:
    """Write the file atomically. An existing file is never overwritten, because creating the final link would fail."""
    place = Path(file)
    try:
        with tempfile.NamedTemporaryFile("wb", prefix=".lbctl-init.", dir=place.parent) as out:
            out.write(text.encode())
            out.flush()
            os.fchmod(out.fileno(), mode)
            os.fsync(out.fileno())
            place.hardlink_to(out.name)
        return True
    except FileExistsError:
        diagnostics.add(_existing_file(file))
    except OSError as error:
        message = f"cannot be written: {reason_of(error)}"
        diagnostics.add(Diagnostic("LB961", message, Position(_name(file))))
    return False


def _name(file: str) -> str:
    return file if file.isprintable() else show(file)
