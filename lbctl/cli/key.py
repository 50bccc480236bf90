"""`lbctl key new`: an API key that nobody guesses, and its line for the key file."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat

import click

from lbctl.base.errors import reason_of
from lbctl.cli.options import options_of

option = options_of("key_new")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}", re.ASCII)
"""It equals `lbctl.model.values.NAME`, whose import would take longer than the whole command."""
_BYTES = 32
"""Random bytes in a key."""


@click.group("key")
def command() -> None:
    """Make API keys."""


@command.command("new")
@click.argument("tenant")
@option("-f", "file", metavar="FILE", help="Append the line to this key file; a new one is its owner's alone (0600).")
@option("--plain", is_flag=True, help="The line holds the key itself and no hash: for nginx and Envoy.")
def new(tenant: str, file: str | None, plain: bool) -> int:
    """Make an API key for TENANT, and print it once.

    The key goes to standard output, its line for the key file to FILE or to standard error. The line holds a hash,
    which HAProxy compares; nginx and Envoy need --plain.
    """
    if not _NAME.fullmatch(tenant):
        raise click.UsageError("TENANT is a name: lower-case letters, digits and . _ -, at most 63")
    key = f"sk-{secrets.token_urlsafe(_BYTES)}"
    line = f"{key if plain else f'sha256:{hashlib.sha256(key.encode()).hexdigest()}'}: {tenant}\n"
    if file is not None:
        try:
            _append(file, line)
        except OSError as error:
            click.echo(f"lbctl: cannot write {file}: {reason_of(error).lower()}", err=True)
            return 1
    click.echo(key)
    click.echo(
        f"lbctl: appended to {file}" if file is not None else f"lbctl: the line for the key file: {line}", err=True
    )
    return 0


def _append(file: str, line: str) -> None:
    """Append a line by a single write. Raises OSError if that fails."""
    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "r+b", buffering=0) as opened:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is no regular file")
        ended = not status.st_size or os.pread(handle, 1, status.st_size - 1) == b"\n"
        opened.write(("" if ended else "\n").encode() + line.encode())
