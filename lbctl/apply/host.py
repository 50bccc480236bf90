"""The main file that includes a fragment: the host's main file, or a minimal file for a check.

Each kind of proxy has a module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from lbctl.ir.proxies import Proxy


class HostError(Exception):
    """The main file does not read the fragment."""


@dataclass(frozen=True, slots=True)
class Checkable:
    """A configuration that the proxy's checker can read."""

    command: tuple[str, ...]
    originals: Mapping[str, str]
    """Path of a copy → path of the original."""

    def readable(self, output: str) -> str:
        """Return the checker's output with the paths of the originals."""
        for copy in sorted(self.originals, key=len, reverse=True):
            output = output.replace(copy, self.originals[copy])
        return output


class Host(Protocol):
    """The interface of the module of a kind of proxy."""

    def main_of(self, proxy: Proxy) -> tuple[str, ...]:
        """Return the arguments of the running proxy that reads the fragment; empty if they are not visible here."""

    def checkable(self, binary: str, directory: Path, fragment: Path, proxy: Proxy, main: Sequence[str]) -> Checkable:
        """Return the configuration that checks `fragment` in place of `config`, within `main` or a minimal main file.

        `directory` is private to the check. Raises HostError and OSError.
        """


def host(kind: str) -> Host:
    """Return the module of a kind of proxy that supports fragments.

    The module is in the kind's package, next to this module.
    """
    return cast("Host", import_module(f"lbctl.apply.{kind}.host"))
