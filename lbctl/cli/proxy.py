"""Selects the fleet's proxy for a command."""

from __future__ import annotations

from dataclasses import replace

import click

from lbctl.base.quantities import QuantityError, parse_version
from lbctl.ir import proxies
from lbctl.ir.proxies import Proxy
from lbctl.ir.topology import Topology
from lbctl.targets import target


def chosen(topology: Topology, kind: str, name: str | None, version: str | None = None) -> Proxy:
    """Return the named proxy, the only proxy of this kind, or a default proxy if the fleet has none of this kind.

    `version` overrides the version in the fleet. Raises UsageError if no proxy matches, or if more than one does.
    """
    of_kind = [item for item in topology.proxies if item.kind == kind]
    if name is not None:
        of_kind = [item for item in of_kind if item.name == name]
        if not of_kind:
            available = ", ".join(f"{item.name} ({item.kind})" for item in topology.proxies) or "none"
            raise click.UsageError(f"the fleet has no {kind} named {name!r}; its proxies: {available}")
    if len(of_kind) > 1:
        names = ", ".join(item.name for item in of_kind)
        raise click.UsageError(f"the fleet has several {kind} proxies ({names}): choose one with --proxy")
    proxy = of_kind[0] if of_kind else unnamed(topology, kind)
    return replace(proxy, version=_version(version, target(kind).versions[0])) if version is not None else proxy


def unnamed(topology: Topology, kind: str) -> Proxy:
    """Return a default proxy with the oldest supported version."""
    return proxies.unnamed(topology, kind, target(kind).versions[0])


def _version(written: str, oldest: tuple[int, ...]) -> tuple[int, ...]:
    try:
        version = parse_version(written)
    except QuantityError as error:
        raise click.UsageError(f"--proxy-version: {error} ({error.hint})") from None
    if version < oldest:
        raise click.UsageError(f"--proxy-version: the oldest supported version is {'.'.join(map(str, oldest))}")
    return version
