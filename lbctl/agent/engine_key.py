"""Reads the key that the engine requires. The file is read on each use, because keys are rotated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from lbctl.agent.settings import AgentSettings
from lbctl.base.errors import reason_of
from lbctl.base.paths import is_file

MAX_BYTES = 4096
_KEY = re.compile(r"[!-~]([ -~]{0,2046}[!-~])?", re.ASCII)


def key_header(settings: AgentSettings) -> tuple[Mapping[str, str], str]:
    """Return the header that contains the key, and the reason if the key is missing.

    Without a usable key file, the header is empty. The reason never contains the content of the file.
    """
    if not settings.key_file:
        return {}, ""
    try:
        key = _read(Path(settings.key_file)).decode("utf-8-sig").strip()
    except OSError as error:
        return {}, f"the key file cannot be read ({reason_of(error).lower()})"
    except UnicodeDecodeError:
        return {}, "the key file is not UTF-8"
    if not _KEY.fullmatch(key):
        return {}, "the key file is not a single line of at most 2048 printable ASCII characters"
    return {settings.key_header: settings.key_prefix + key}, ""


def _read(file: Path) -> bytes:
    if file.exists() and not is_file(file):
        raise OSError("not a regular file")
    with file.open("rb") as opened:
        return opened.read(MAX_BYTES)
