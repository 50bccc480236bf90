"""Chooses the proxy that `up` runs: of those on this machine, the one that expresses the fleet best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lbctl.apply.binaries import find_binary
from lbctl.apply.check import MissingBinaryError, version_of
from lbctl.base.diagnostics import Diagnostic
from lbctl.compile.proxies import version_text
from lbctl.targets import target
from lbctl.targets.load import Loaded
from lbctl.up.launchers import LAUNCHERS
from lbctl.up.prepare import Program
from lbctl.up.suitability import best, suitability


class NoProxyError(Exception):
    """No proxy that `up` could run is on this machine; the text says how to install one."""


@dataclass(frozen=True, slots=True)
class ProxyChoice:
    """The outcome of the choice."""

    program: Program | None
    """None where `diagnostics` says why no proxy can serve the fleet."""
    diagnostics: tuple[Diagnostic, ...]
    """Errors, or the warnings about what the chosen proxy cannot express."""


def choose(loaded: Loaded, kind: str | None) -> ProxyChoice:
    """Choose a proxy; `kind` leaves only that one. Raises NoProxyError."""
    programs = list(installed((kind,) if kind else LAUNCHERS.names))
    if not programs:
        raise NoProxyError(missing_proxy((kind,) if kind else LAUNCHERS.names))
    assessed = {item.kind: suitability(loaded, item.kind, item.version) for item in programs}
    suited = best(assessed.values())
    if suited is None:
        return ProxyChoice(None, tuple(item for each in assessed.values() for item in each.obstacles))
    program = next(item for item in programs if item.kind == suited.kind)
    return ProxyChoice(program, suited.losses)


def installed(kinds: Sequence[str]) -> Iterator[Program]:
    """Yield the programs of these kinds on this machine, without those that are too old."""
    for kind in kinds:
        binary = find_binary(target(kind))
        if binary is None:
            continue
        try:
            version = version_of(binary)
        except MissingBinaryError:
            continue
        if not version or version[:2] >= target(kind).versions[0][:2]:
            yield Program(kind, binary, version)


def missing_proxy(kinds: Sequence[str]) -> str:
    """Return that none of these kinds is on this machine, and how to install each of them."""
    lines = [f"  {target(kind).title:<8} {target(kind).install_hint}" for kind in kinds]
    oldest = ", ".join(f"{target(kind).title} {version_text(target(kind).versions[0][:2])}" for kind in kinds)
    missing = "proxy" if len(kinds) > 1 else target(kinds[0]).title
    return "\n".join([f"there is no {missing} on this machine ({oldest} or later):", *lines])
