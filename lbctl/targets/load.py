"""Loads a fleet for rendering: reads and compiles its files, and opens its key files.

Every command starts here. Loading never prints anything or exits the program. Problems are added to the caller's
`Diagnostics`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import IO

from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.compile.ca_bundles import ca_bundles
from lbctl.compile.context import ProxyKind
from lbctl.compile.files import check_files
from lbctl.compile.fleet import Compiled, compile_fleet
from lbctl.compile.secrets import read_secrets
from lbctl.ir.secrets import Secrets
from lbctl.ir.snapshot import Snapshot, view
from lbctl.model.fleet import FleetSource, read
from lbctl.model.section_cache import SectionCache
from lbctl.targets import TARGETS, is_kubernetes, target


@dataclass(frozen=True, slots=True)
class Loaded:
    """A fleet without errors: its YAML, the compiled fleet, and the content of its key files."""

    source: FleetSource
    compiled: Compiled
    secrets: Secrets
    """Contents of the fleet's key files."""


def proxy_kinds() -> dict[str, ProxyKind]:
    """Map each kind of proxy to the properties that the compiler needs."""
    return {
        item.kind: ProxyKind(
            oldest=item.versions[0],
            own_line_places=item.own_line_places,
            fragment_example=item.fragment_example,
            is_kubernetes=is_kubernetes(item.kind),
            companions=item.companions,
        )
        for item in map(target, TARGETS)
    }


def load(
    paths: Sequence[str], diagnostics: Diagnostics, require_files: bool = False, stdin: IO[bytes] | None = None
) -> Loaded | None:
    """Read and compile the fleet at `paths`; return None if it has errors, which are added to `diagnostics`.

    With `require_files`, a missing file is an error.
    """
    source = read(paths, diagnostics, stdin)
    return complete(source, diagnostics, require_files) if source else None


def complete(
    source: FleetSource,
    diagnostics: Diagnostics,
    require_files: bool = False,
    secrets: Secrets | None = None,
    require_own_lines: bool = True,
    cache: SectionCache | None = None,
) -> Loaded | None:
    """Compile a fleet whose YAML has already been read; return None if it has errors.

    `secrets` is the content of the key files, if the caller has read them. Without `require_own_lines`, a missing file
    of own lines is only a warning, for callers that do not render. `cache` is the cache with which the YAML was read.
    """
    compiled = compile_fleet(source, proxy_kinds(), diagnostics, require_own_lines, cache)
    check_files(source, require_files, diagnostics)
    if secrets is None:
        secrets = read_secrets(source, require_files, diagnostics)
        secrets = replace(secrets, ca_bundles=ca_bundles(source))
    if compiled is not None:
        diagnostics.extend(_refusals(compiled, Snapshot(compiled.topology, secrets=secrets)))
    return None if compiled is None or diagnostics.failed else Loaded(source, compiled, secrets)


def _refusals(compiled: Compiled, snapshot: Snapshot) -> Iterator[Diagnostic]:
    """Yield the targets' errors about proxies with own lines, with a fragment, or with Kubernetes objects."""
    for proxy in compiled.topology.proxies:
        if proxy.include or proxy.is_fragment or proxy.kubernetes:
            yield from map(compiled.sources.with_position, target(proxy.kind).refusals(view(snapshot, proxy)))
    yield from map(compiled.sources.with_position, _shared_objects(compiled, snapshot))


def _shared_objects(compiled: Compiled, snapshot: Snapshot) -> Iterator[Diagnostic]:
    """Yield an error for each proxy that would overwrite a Kubernetes object of an earlier proxy."""
    proxies = [proxy for proxy in compiled.topology.proxies if proxy.kubernetes]
    owners: dict[tuple[str, str, str], str] = {}
    for proxy in proxies if len(proxies) > 1 else ():
        names = target(proxy.kind).object_names(view(snapshot, proxy))
        shared = next((name for name in sorted(names) if name in owners), None)
        if shared is not None:
            kind, namespace, name = shared
            message = f"the {kind} {name} of this entry would also be an object of entry {owners[shared]}"
            hint = f"rename the entry, or use a namespace other than {namespace}"
            yield Diagnostic("LB171", message, path=("proxies", proxy.name), hint=hint)
        owners |= dict.fromkeys(names, proxy.name)
