"""The operator's own lines, written in a proxy's own syntax. No other value in the model contains such text."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from lbctl.base.diagnostics import Path

_DIGEST = 12


@dataclass(frozen=True, slots=True)
class OwnLinesPlace:
    """A place in a proxy kind's configuration where own lines can be inserted."""

    section: str = ""
    """Section of the fleet whose object names are the keys, for example `routes`, or an empty string if it has no
    keys."""
    in_fragments: bool = True


@dataclass(frozen=True, slots=True)
class OwnLines:
    """A file of own lines, and the place where they are inserted."""

    place: str
    """The `include` key, for example `location`."""
    owner: str
    """Listener, route or pool whose configuration contains the lines. Empty if the place belongs to none of these."""
    index: int
    """Position in the fleet's list."""
    file: str
    """Path as written in the fleet."""
    text: str

    @property
    def lines(self) -> list[str]:
        """Return the lines in the text, without line feeds."""
        return self.text.removesuffix("\n").split("\n") if self.text else []

    @property
    def digest(self) -> str:
        """Return the beginning of the text's SHA-256 hash."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:_DIGEST]

    def path(self, proxy: str) -> Path:
        """Return the YAML path of the value that names the file, for the proxy with this name."""
        owner = (self.owner,) if self.owner else ()
        return ("proxies", proxy, "include", self.place, *owner, self.index)
