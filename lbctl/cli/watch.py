"""Prints text repeatedly, in place on a terminal or as consecutive blocks in a pipe."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import NoReturn

import click

from lbctl.api.client import UnavailableError

INTERVAL = 2.0
"""Seconds between updates."""
_HOME, _TO_END_OF_LINE, _TO_END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


def watch(text: Callable[[], str]) -> NoReturn:
    """Print the result of `text` every two seconds until Ctrl-C, which ends the command with exit code 130.

    If the server does not respond, lbctl reports this and repeats the request.
    """
    on_terminal = sys.stdout.isatty()
    if on_terminal:
        click.clear()
    while True:
        try:
            block = text()
        except UnavailableError as error:
            block = f"lbctl: {error}"
        if on_terminal:
            sys.stdout.write(_frame(block))
            sys.stdout.flush()
        else:
            click.echo(f"{block}\n")
        time.sleep(INTERVAL)


def _frame(block: str) -> str:
    """Return the block as a screen update that replaces the previous block and shows as many lines as fit."""
    height = shutil.get_terminal_size().lines - 1
    lines = block.splitlines()
    if len(lines) > height:
        lines = [*lines[: height - 1], f"… {len(lines) - height + 1} more lines"]
    return _HOME + "".join(f"{line}{_TO_END_OF_LINE}\n" for line in lines) + _TO_END_OF_SCREEN
