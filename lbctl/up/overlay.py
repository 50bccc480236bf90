"""The second file of the fleet that `up` runs: the entry of its proxy, and the key check of a fleet that has none.

The user's files stay as they are; `lbctl serve` reads both as one fleet. A fleet in which no route has `auth` gets
`defaults.route.auth` here, so that nothing is served without a key. Nothing secret is in this file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from lbctl.base.diagnostics import Diagnostic
from lbctl.compile.proxies import version_text
from lbctl.ir.routes import Forward
from lbctl.ir.topology import Topology
from lbctl.model.node import descend
from lbctl.serve.drivers.eligibility import driven
from lbctl.targets.load import Loaded
from lbctl.up.launchers import LAUNCHERS, NAME

NOT_RUNNABLE = "LB970"
_NO_AUTH_ON_RESPONSES = "   # lbctl: ignore LB106 (it is for the routes to pools)"


def needs_guard(loaded: Loaded) -> bool:
    """Return whether `up` adds the key check: no route of the fleet has `auth`, and one leads to a pool."""
    routes = loaded.compiled.topology.routes
    return not any(route.auth for route in routes) and any(isinstance(route.action, Forward) for route in routes)


def guard_message(topology: Topology) -> str:
    """Return the sentence about the key check that `up` adds, with the routes that it does not reach."""
    sentence = "no route of this fleet asks for a key, so `up` checks one on all of them"
    own = sorted(route.name for route in topology.routes if not route.needs_credentials)
    return f"{sentence}, except those that the proxy itself answers: {', '.join(own)}" if own else sentence


def conflicts(loaded: Loaded) -> Iterator[Diagnostic]:
    """Yield why `up` cannot run this fleet."""
    sources = loaded.compiled.sources
    if not loaded.compiled.topology.listeners:
        message = "the fleet has no listeners: no client could connect"
        yield Diagnostic(NOT_RUNNABLE, message, sources.position(()), hint="listeners: {NAME: {bind: …}}")
    for proxy in driven(loaded.compiled.topology):
        message = f"`up` runs its own proxy, and `serve` would drive this {proxy.kind} of the machine beside it"
        hint = "`lbctl serve` is for that; a fleet whose proxies are all Envoys by xDS can be tried with `up`"
        yield sources.with_position(Diagnostic(NOT_RUNNABLE, message, path=("proxies", proxy.name), hint=hint))
    if any(proxy.name == NAME for proxy in loaded.compiled.topology.proxies):
        message = "the proxy that `up` adds to the fleet has this name too"
        yield sources.with_position(Diagnostic(NOT_RUNNABLE, message, path=("proxies", NAME), hint="another name"))
    if needs_guard(loaded) and descend(loaded.source.root, ("defaults",)) is not None:
        message = "no route asks for a key, and `up` cannot add its own check beside this section"
        hint = "route: {auth: {api_keys: {file: keys}}} in it; `up` makes the file"
        yield sources.with_position(Diagnostic(NOT_RUNNABLE, message, path=("defaults",), hint=hint))


def overlay(kind: str, binary: str, version: tuple[int, ...], place: Path, key_file: Path | None) -> str:
    """Return the text of the file. With `key_file`, every route asks for one of its keys."""
    entry = {"kind": kind, **LAUNCHERS.get(kind).entry(binary, place)}
    if version:
        entry["version"] = version_text(version)
    lines = ["# Written by `lbctl up`; it is deleted when `up` ends.", "version: 1"]
    if key_file is not None:
        auth = {"route": {"auth": {"api_keys": {"file": str(key_file)}}}}
        lines.append(f"defaults: {json.dumps(auth)}{_NO_AUTH_ON_RESPONSES}")
    lines.append(f"proxies: {json.dumps({NAME: entry})}")
    return "\n".join(lines) + "\n"
