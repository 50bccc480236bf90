"""`lbctl version`."""

from __future__ import annotations

import click

from lbctl import __version__


@click.command("version")
def command() -> None:
    """Print the version of lbctl."""
    click.echo(f"lbctl {__version__}")
