"""Reads key presses on a terminal, one at a time and without Enter."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SEQUENCES = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left", "\x1b[5~": "page up", "\x1b[6~": "page down",
    "\x1bOA": "up", "\x1bOB": "down", "\x1bOC": "right", "\x1bOD": "left", "\x1b[H": "home", "\x1b[F": "end",
}  # fmt: skip
_MAX_READ_BYTES = 64
"""Maximum number of bytes per read. A key press is only a few bytes long."""


@contextmanager
def pressed() -> Iterator[Callable[[float], list[str]]]:
    """Yield a function that waits for a key for up to the given number of seconds, and returns the pressed keys.

    Letters are returned unchanged, while arrow keys and page keys are returned by name. Ctrl-C still interrupts the
    process.
    """
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def read(seconds: float) -> list[str]:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        return keys_of(os.read(descriptor, _MAX_READ_BYTES).decode(errors="replace")) if ready else []

    try:
        tty.setcbreak(descriptor)
        yield read
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def keys_of(text: str) -> list[str]:
    """Parse the key presses in a terminal's input, ignoring unknown sequences."""
    keys: list[str] = []
    while text:
        sequence = next((item for item in _SEQUENCES if text.startswith(item)), None)
        if sequence is not None:
            keys.append(_SEQUENCES[sequence])
        elif text[0] != "\x1b":
            keys.append(text[0])
        text = text[len(sequence or text[0]) :]
    return keys
