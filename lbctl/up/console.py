"""What `up` prints: the lines of its programs on standard error, in colour on a terminal and plain elsewhere.

Where nobody reads standard error any more, nothing is printed: the programs run on, and are ended in order.
"""

from __future__ import annotations

import os
import re
import sys

import click

_COLOURS = {"serve": "cyan"}
_PROXY_COLOUR = "magenta"
_ERROR = re.compile(r"^\S+ error |\[(?:error|critical|crit|alert|emerg)\]|\[ALERT\]")
_WARNING = re.compile(r"^\S+ warn |\[warn(?:ing)?\]|\[WARNING\]")
_WIDTH = 7


class Console:
    """Prints the lines of programs, each with the name of its program."""

    def __init__(self) -> None:
        self._colours = sys.stderr.isatty() and not os.environ.get("NO_COLOR")

    def line(self, name: str, line: str) -> None:
        """Print one line of the program `name`."""
        text = line if line.isprintable() else "".join(char if char.isprintable() else "·" for char in line)
        if not self._colours:
            _echo(f"{name:<{_WIDTH}} | {text}")
            return
        prefix = click.style(f"{name:<{_WIDTH}} |", fg=_COLOURS.get(name, _PROXY_COLOUR))
        colour = "red" if _ERROR.search(line) else "yellow" if _WARNING.search(line) else None
        _echo(f"{prefix} {click.style(text, fg=colour) if colour else text}", colours=True)

    def message(self, text: str) -> None:
        """Print a message of `up` itself."""
        _echo(f"lbctl: {text}")


def _echo(text: str, *, colours: bool = False) -> None:
    try:
        click.echo(text, err=True, color=colours or None)
    except OSError:
        _discard_standard_error()


def _discard_standard_error() -> None:
    """Let what is printed from now on, and what is still buffered, go nowhere: at its end Python flushes the buffer."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stderr.fileno())
    os.close(nowhere)
