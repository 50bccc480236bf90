"""Makes the API key with which clients of a fresh fleet are admitted: once, printed once, kept in a key file.

A key is made for each key file that is missing: those that routes name, or the one of `up` itself. HAProxy compares
hashes, so its file holds one; nginx and Envoy compare keys as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lbctl.apply.api_keys import append_line, key_line, new_key
from lbctl.compile.files import file_of
from lbctl.compile.secrets import key_files
from lbctl.targets.load import Loaded

TENANT = "local"
"""The tenant of a key that `up` has made."""


@dataclass(frozen=True, slots=True)
class KeyFiles:
    """The key files of the API keys of a fleet."""

    new: Mapping[Path, str]
    """The key that was made for each file that was missing."""
    by_route: Mapping[str, Path]
    """The key file of each route that asks for API keys."""


def key_files_by_route(loaded: Loaded, own: Path | None) -> dict[str, Path]:
    """Return the key file of each route; `own` is the file for all routes of a fleet without `auth`."""
    if own is not None:
        return {route.name: own for route in loaded.compiled.topology.routes}
    named = (item for item in key_files(loaded.source) if not item.is_jwks and not item.is_sent)
    return {str(item.path[1]): file_of(loaded.source, item.node) for item in named}


def make_missing(by_route: Mapping[str, Path], *, plain: bool) -> KeyFiles:
    """Make a key for each file that does not exist. Raises OSError."""
    new: dict[Path, str] = {}
    for file in dict.fromkeys(by_route.values()):
        if not file.exists():
            new[file] = new_key()
            append_line(str(file), key_line(new[file], TENANT, plain=plain))
    return KeyFiles(new, by_route)
