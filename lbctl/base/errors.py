"""Formats exceptions for people."""

from __future__ import annotations

import os

_MAX_CHARACTERS = 200
"""Maximum length of the text, in characters."""
_ASYNCIO = ("Connect call failed", "error while attempting to bind on address")
"""Prefixes of texts that asyncio puts in place of the system's reason. These texts repeat the address."""


def reason_of(error: BaseException, silent: str = "") -> str:
    """Return the reason of an error for people: one line, never empty.

    The reason is the first that exists of the system's reason, the exception's text, `silent`, and the exception's
    type. The text of an OSError repeats its number and file. The `strerror` of an OSError that was raised with a text
    alone is None.
    """
    text = getattr(error, "strerror", None) or str(error)
    if isinstance(error, OSError) and error.errno and str(text).startswith(_ASYNCIO):
        text = os.strerror(error.errno)
    return " ".join(str(text).split())[:_MAX_CHARACTERS] or silent or type(error).__name__
