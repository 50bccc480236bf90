"""The additions of `up` to a fleet: its proxy's entry, and an API key and a key check if the fleet has no `auth`.

The user's files are not modified. `lbctl serve` reads them together with the file written by `up` as one fleet. If no
route of the fleet has `auth`, that file sets `defaults.route.auth`, so that no request is served without a key. The
file contains no secrets. A key is created for each missing key file, and printed once. HAProxy compares hashes, so its
file contains a hash; nginx and Envoy compare keys in plain text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lbctl.apply.api_keys import append_line, key_line, new_key
from lbctl.base.diagnostics import Diagnostic
from lbctl.compile.files import file_of
from lbctl.compile.proxies import version_text
from lbctl.compile.secrets import key_files
from lbctl.ir.routes import Forward
from lbctl.ir.topology import Topology
from lbctl.model.node import descend
from lbctl.serve.drivers.eligibility import driven
from lbctl.targets.load import Loaded
from lbctl.up.launchers import LAUNCHERS, NAME

NOT_RUNNABLE = "LB970"
_NO_AUTH_ON_RESPONSES = "   # lbctl: ignore LB106 (this applies only to routes to pools)"
TENANT = "local"
"""Tenant of a key created by `up`."""


def needs_guard(loaded: Loaded) -> bool:
    """Return whether `up` adds the key check: no route in the fleet has `auth`, and at least one leads to a pool."""
    routes = loaded.compiled.topology.routes
    return not any(route.auth for route in routes) and any(isinstance(route.action, Forward) for route in routes)


def guard_message(topology: Topology) -> str:
    """Return the sentence about the key check added by `up`, naming the routes that it does not cover."""
    sentence = "no route in this fleet requires an API key, so `up` adds this requirement to all routes"
    own = sorted(route.name for route in topology.routes if not route.needs_credentials)
    return f"{sentence}, except routes that the proxy answers itself: {', '.join(own)}" if own else sentence


def conflicts(loaded: Loaded) -> Iterator[Diagnostic]:
    """Yield the reasons why `up` cannot run this fleet."""
    sources = loaded.compiled.sources
    if not loaded.compiled.topology.listeners:
        message = "the fleet has no listeners, so clients cannot connect"
        yield Diagnostic(NOT_RUNNABLE, message, sources.position(()), hint="listeners: {NAME: {bind: …}}")
    for proxy in driven(loaded.compiled.topology):
        message = f"`up` runs its own proxy, but `serve` would also manage this {proxy.kind} on the machine"
        hint = "use `lbctl serve`; `up` supports only fleets whose proxies are all Envoys that connect over xDS"
        yield sources.with_position(Diagnostic(NOT_RUNNABLE, message, path=("proxies", proxy.name), hint=hint))
    if any(proxy.name == NAME for proxy in loaded.compiled.topology.proxies):
        message = "the proxy that `up` adds to the fleet uses the same name"
        yield sources.with_position(Diagnostic(NOT_RUNNABLE, message, path=("proxies", NAME), hint="rename this entry"))
    if needs_guard(loaded) and descend(loaded.source.root, ("defaults",)) is not None:
        message = "no route requires an API key, and `up` cannot add its own check if this section exists"
        hint = "add route: {auth: {api_keys: {file: keys}}} to it; `up` creates the file"
        yield sources.with_position(Diagnostic(NOT_RUNNABLE, message, path=("defaults",), hint=hint))


def added_file(kind: str, binary: str, version: tuple[int, ...], place: Path, key_file: Path | None) -> str:
    """Return the text of the additional file. With `key_file`, every route requires a key from that file."""
    entry = {"kind": kind, **LAUNCHERS.get(kind).entry(binary, place)}
    if version:
        entry["version"] = version_text(version)
    lines = ["# Written by `lbctl up`; it is deleted when `up` ends.", "version: 1"]
    if key_file is not None:
        auth = {"route": {"auth": {"api_keys": {"file": str(key_file)}}}}
        lines.append(f"defaults: {json.dumps(auth)}{_NO_AUTH_ON_RESPONSES}")
    lines.append(f"proxies: {json.dumps({NAME: entry})}")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class KeyFiles:
    """The fleet's API key files."""

    new: Mapping[Path, str]
    """Maps each file that was missing to its new key."""
    by_route: Mapping[str, Path]
    """The key file of each route that requires API keys."""


def key_files_by_route(loaded: Loaded, own: Path | None) -> dict[str, Path]:
    """Return each route's key file; `own` is the file for all routes of a fleet without `auth`."""
    if own is not None:
        return {route.name: own for route in loaded.compiled.topology.routes}
    named = (item for item in key_files(loaded.source) if not item.is_jwks and not item.is_sent)
    return {str(item.path[1]): file_of(loaded.source, item.node) for item in named}


def make_missing(by_route: Mapping[str, Path], *, plain: bool) -> KeyFiles:
    """Create a key for each file that does not exist. Raises OSError."""
    new: dict[Path, str] = {}
    for file in dict.fromkeys(by_route.values()):
        if not file.exists():
            new[file] = new_key()
            append_line(str(file), key_line(new[file], TENANT, plain=plain))
    return KeyFiles(new, by_route)
