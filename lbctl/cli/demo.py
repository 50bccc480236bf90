"""`lbctl demo`, which compares lbctl with static weights and round robin under faults, on a laptop without a GPU."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from lbctl.base.errors import reason_of
from lbctl.base.quantities import QuantityError, parse_duration
from lbctl.cli.command import Command
from lbctl.cli.options import options_of, output_option
from lbctl.cli.output import as_text as encoded
from lbctl.up.launchers import LAUNCHERS

if TYPE_CHECKING:
    from lbctl.up.prepare import Program

option = options_of("demo")
_HEADLESS_SECONDS = 60.0
_MIN_DURATION = 5.0


@click.command(
    "demo",
    cls=Command,
    examples="""
    lbctl demo
    lbctl demo --headless --duration 30s -o json
    """,
)
@option(
    "--headless",
    is_flag=True,
    help="Run scripted faults and print the results, without a live view (the default if no terminal is connected).",
)
@option(
    "--duration",
    metavar="DURATION",
    help="Duration, for example 30s or 2m (default: 60s with --headless, otherwise until you press q).",
)
@option(
    "--proxy",
    "kind",
    type=click.Choice(LAUNCHERS.names),
    help="Kind of proxy (default: the first installed kind).",
)
@output_option("demo")
def command(headless: bool, duration: str | None, kind: str | None, form: str) -> int:
    """Run a demo on this machine, without a GPU.

    The demo starts serve and a real proxy in front of simulated replicas with different GPUs, and makes replicas fail.
    The same requests go to three equal groups of replicas: the first has weights from lbctl serve, the second has
    static weights, and the third uses round robin. In addition, lbctl serve promotes a good canary and rolls back a bad
    one.

    Press keys to start faults and canaries, or run a script with --headless. The exit code is 1 if a process exits, and
    4 if no proxy is installed.
    """
    from lbctl.up.proxy_choice import installed, missing_proxy

    live = not headless and sys.stdin.isatty() and sys.stdout.isatty()
    seconds = _seconds(duration) if duration else None if live else _HEADLESS_SECONDS
    kinds = (kind,) if kind else LAUNCHERS.names
    program = next(installed(kinds), None)
    if program is None:
        click.echo(f"lbctl: {missing_proxy(kinds)}", err=True)
        return 4
    return _run(program, seconds, live=live, form=form)


def _seconds(text: str) -> float:
    try:
        seconds = parse_duration(text) / 1000
    except QuantityError as error:
        raise click.UsageError(f"--duration: {error} ({error.hint})") from None
    if seconds < _MIN_DURATION:
        raise click.UsageError(f"--duration must be at least {_MIN_DURATION:g}s, so that the faults have an effect")
    return seconds


def _run(program: Program, seconds: float | None, *, live: bool, form: str) -> int:
    from lbctl.apply.check import MissingBinaryError
    from lbctl.demo.report import as_json, as_text
    from lbctl.demo.session import DemoError, demo
    from lbctl.demo.view import headless, watch
    from lbctl.up.places import private_directory
    from lbctl.up.run import UpError

    try:
        with private_directory() as place:
            result = asyncio.run(demo(program, place, seconds, watch if live else headless))
    except (DemoError, UpError, MissingBinaryError) as error:
        click.echo(f"lbctl: {error}", err=True)
        return 1
    except OSError as error:
        click.echo(f"lbctl: {error.filename or 'the demo'}: {reason_of(error)}", err=True)
        return 1
    if result is None:
        return 130
    click.echo(as_text(result) if form == "table" else encoded(as_json(result), form))
    return 0
