"""Exceptions as text for people."""

from __future__ import annotations

import os

_MAX_CHARACTERS = 200
"""The longest text in characters."""
_ASYNCIO = ("Connect call failed", "error while attempting to bind on address")
"""The beginnings of the texts that asyncio puts in the place of the system's reason; they repeat the address."""


def reason_of(error: BaseException, silent: str = "") -> str:
    """Return the system's reason, else the exception's text, else `silent`, else its type: one line, never empty.

    The text of an OSError repeats its number and file, and `strerror` of one that was raised with a text alone is None.
    """
    text = getattr(error, "strerror", None) or str(error)
    if isinstance(error, OSError) and error.errno and str(text).startswith(_ASYNCIO):
        text = os.strerror(error.errno)
    return " ".join(str(text).split())[:_MAX_CHARACTERS] or silent or type(error).__name__
