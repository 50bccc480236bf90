"""Formats exceptions for people."""

from __future__ import annotations

import os

_MAX_CHARACTERS = 200
"""Maximum length of the text, in characters."""
_ASYNCIO = ("Connect call failed", "error while attempting to bind on address")
"""Prefixes of messages that asyncio uses in place of the system's reason. Messages with these prefixes repeat the
address."""


def reason_of(error: BaseException, silent: str = "") -> str:
    """Return a human-readable reason for an error: one line, never empty.

    The reason is the system's reason if available, else the exception's text, else `silent`, else the exception's type.
    An OSError's text would repeat its number and file. `strerror` is None if the error was raised with only a text.
    """
    text = getattr(error, "strerror", None) or str(error)
    if isinstance(error, OSError) and error.errno and str(text).startswith(_ASYNCIO):
        text = os.strerror(error.errno)
    return " ".join(str(text).split())[:_MAX_CHARACTERS] or silent or type(error).__name__
