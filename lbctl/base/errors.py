"""Formats exceptions as human-readable text."""

from __future__ import annotations

import os

_MAX_CHARACTERS = 200
"""Maximum length of the text, in characters."""
_ASYNCIO = ("Connect call failed", "error while attempting to bind on address")
"""Prefixes of messages that asyncio uses instead of the system's reason. Messages with these prefixes repeat the
address."""


def reason_of(error: BaseException, silent: str = "") -> str:
    """Return a human-readable reason for an error, which is a single line and never empty.

    The reason is the first of these that is available: the system's reason, the exception's text, `silent`, or the
    exception's type. An OSError's text would repeat its number and file. `strerror` is None if the error was raised
    with only a message.
    """
    text = getattr(error, "strerror", None) or str(error)
    if isinstance(error, OSError) and error.errno and str(text).startswith(_ASYNCIO):
        text = os.strerror(error.errno)
    return " ".join(str(text).split())[:_MAX_CHARACTERS] or silent or type(error).__name__
