"""Handles the main file that includes a fragment, which is the host's main file or a minimal file for a check.

Each kind of proxy that supports fragments has its own module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from lbctl.ir.proxies import Proxy


class HostError(Exception):
    """The main file does not include the fragment."""


@dataclass(frozen=True, slots=True)
class Checkable:
    """A configuration check that is ready to run."""

    command: tuple[str, ...]
    originals: Mapping[str, str]
    """Maps the path of each copy to the path of its original."""

    def readable(self, output: str) -> str:
        """Return the checker's output with the copies' paths replaced by the originals' paths."""
        for copy in sorted(self.originals, key=len, reverse=True):
            output = output.replace(copy, self.originals[copy])
        return output


class Host(Protocol):
    """Interface of each proxy kind's `host` module."""

    def main_of(self, proxy: Proxy) -> tuple[str, ...]:
        """Return the main files that include the fragment. The result is empty if none is found."""

    def checkable(self, binary: str, directory: Path, fragment: Path, proxy: Proxy, main: Sequence[str]) -> Checkable:
        """Prepare a check in which `fragment` replaces `config`, within `main` or a minimal main file.

        `directory` is private to the check. Raises HostError and OSError.
        """


def host(kind: str) -> Host:
    """Return the `host` module for a kind of proxy that supports fragments.

    The module is in the kind's package, next to this module.
    """
    return cast("Host", import_module(f"lbctl.apply.{kind}.host"))
