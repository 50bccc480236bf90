"""The key of questions that `serve` makes where the fleet names none: a file of its state directory."""

from __future__ import annotations

from pathlib import Path

from lbctl.base.errors import reason_of
from lbctl.compile.files import read_regular
from lbctl.serve import log
from lbctl.serve.settings import make_token

_FILE = "picker-key"
_MAX_BYTES = 4096


def own_key(state: Path) -> str:
    """Return the key in a state directory, made where there is none; empty, and logged, where that fails."""
    file = state / _FILE
    try:
        if make_token(file):
            log.event("a key for questions to the picker was made", file=file)
        return read_regular(file, _MAX_BYTES).decode("ascii").strip()
    except (OSError, ValueError) as error:
        log.warn("the picker answers every question, since its key cannot be read", file=file, why=reason_of(error))
        return ""
