"""The operator's own lines: text in a proxy's own grammar, which no value of the model ever is."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from lbctl.base.diagnostics import Path

_DIGEST = 12


@dataclass(frozen=True, slots=True)
class OwnLinesPlace:
    """A place of a kind of proxy's configuration that own lines can go to."""

    section: str = ""
    """The section of the fleet whose names are its keys, as `routes`; empty where it has no keys."""
    in_fragments: bool = True


@dataclass(frozen=True, slots=True)
class OwnLines:
    """One file of own lines, and the place of the configuration that they go to."""

    place: str
    """The key of `include`, as `location`."""
    owner: str
    """The listener, route or pool whose part of the configuration it is; empty where the place has none."""
    index: int
    """Its position in the list of the fleet."""
    file: str
    """The path as the fleet writes it."""
    text: str
    """The content."""

    @property
    def lines(self) -> list[str]:
        """The lines of the text, without their line feeds."""
        return self.text.removesuffix("\n").split("\n") if self.text else []

    @property
    def digest(self) -> str:
        """The beginning of the SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:_DIGEST]

    def path(self, proxy: str) -> Path:
        """Return the path of the value in the YAML that names the file, for the proxy of this name."""
        owner = (self.owner,) if self.owner else ()
        return ("proxies", proxy, "include", self.place, *owner, self.index)
