"""The main file that includes a fragment: the host's, or a minimal one for a check. Each kind has a module."""

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
    """Path of a copy → the path of what it is a copy of."""

    def readable(self, output: str) -> str:
        """Return the checker's output with the paths of the originals."""
        for copy in sorted(self.originals, key=len, reverse=True):
            output = output.replace(copy, self.originals[copy])
        return output


class Host(Protocol):
    """The module of a kind."""

    def main_of(self, proxy: Proxy) -> tuple[str, ...]:
        """Return what the proxy that reads the fragment is started with; empty if this machine does not show it."""

    def checkable(self, binary: str, directory: Path, fragment: Path, proxy: Proxy, main: Sequence[str]) -> Checkable:
        """Return how to check `fragment` in the place of `config`, within `main` or a smallest main file.

        `directory` is private to the check. Raises HostError and OSError.
        """


def host(kind: str) -> Host:
    """Return the module of a kind that has fragments. It is in the kind's package, next to this module."""
    return cast("Host", import_module(f"lbctl.apply.{kind}.host"))
