"""`lbctl key new`, which creates a random API key and its line for the key file."""

from __future__ import annotations

import re

import click

from lbctl.apply.api_keys import append_line, key_line, new_key
from lbctl.base.errors import reason_of
from lbctl.cli.command import Group
from lbctl.cli.options import options_of

option = options_of("key_new")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}", re.ASCII)
"""Same as `lbctl.model.values.NAME`, but importing that module would take longer than the rest of the command."""


@click.group("key", cls=Group)
def command() -> None:
    """Create API keys."""


@command.command(
    "new",
    examples="""
    lbctl key new team-a -f keys.txt
    # For nginx and Envoy:
    lbctl key new team-a -f keys.txt --plain
    """,
)
@click.argument("tenant")
@option(
    "-f",
    "--file",
    metavar="FILE",
    help="Append the line to this key file. Only the owner can read a new file (mode 0600).",
)
@option("--plain", is_flag=True, help="Write the key itself instead of a hash, for nginx and Envoy.")
def new(tenant: str, file: str | None, plain: bool) -> int:
    """Create an API key for TENANT and print it once.

    lbctl prints the key to standard output. It appends the key's line for the key file to FILE, or prints it to
    standard error. The line contains a hash of the key, which only HAProxy supports; nginx and Envoy need --plain.
    """
    if not _NAME.fullmatch(tenant):
        raise click.UsageError("TENANT: use at most 63 lowercase letters, digits and . _ -")
    key = new_key()
    line = key_line(key, tenant, plain=plain)
    if file is not None:
        try:
            append_line(file, line)
        except OSError as error:
            click.echo(f"lbctl: cannot write {file}: {reason_of(error).lower()}", err=True)
            return 1
    click.echo(key)
    click.echo(f"lbctl: appended to {file}" if file is not None else f"lbctl: line for the key file: {line}", err=True)
    if not plain:
        click.echo(
            "lbctl: the line contains a hash, which only HAProxy supports; nginx and Envoy need --plain", err=True
        )
    return 0
